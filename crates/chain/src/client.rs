//! Reading the chain.

use std::sync::Arc;

use muster_protocol::{Hotkey, Manifest};
use subxt::dynamic::{self, Value};
use tokio::sync::Mutex;

use crate::commitment;
use crate::endpoint::{AtBlock, Endpoint, Patience};
use crate::error::ChainError;
use crate::metagraph::Metagraph;
use crate::types::{BlockNumber, Netuid, Uid};
use crate::value::{field, flag, items, number, option};

/// The way to one chain. It reconnects by itself; while it does, reads fail with [`ChainError::Unreachable`].
#[derive(Debug)]
pub struct ChainClient {
    pub(crate) endpoint: Endpoint,
    /// Calls go one at a time: an account's next number is known only once its last call is final.
    pub(crate) submitting: Mutex<()>,
}

/// The rules of a subnet that its members act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hyperparameters {
    /// Blocks between two epochs, less one.
    pub tempo: u16,
    /// Whether weights must be committed before they are revealed.
    pub commit_reveal: bool,
    /// Blocks between two weights of one validator.
    pub weights_rate_limit: u64,
    /// The least version key that weights must carry.
    pub weights_version_key: u64,
    /// How many weights must be set at once.
    pub min_allowed_weights: u16,
}

impl ChainClient {
    /// Connects to the endpoint at `url`: `wss://…`, or `ws://…` on this machine.
    ///
    /// # Errors
    /// An address that may not be used, or no answer in time.
    pub async fn connect(url: &str) -> Result<Arc<Self>, ChainError> {
        Self::connect_with(url, Patience::default()).await
    }

    /// Connects as [`Self::connect`] does, waiting as long as it is told.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn connect_with(url: &str, patience: Patience) -> Result<Arc<Self>, ChainError> {
        Ok(Arc::new(Self {
            endpoint: Endpoint::connect(url, patience).await?,
            submitting: Mutex::new(()),
        }))
    }

    /// The hash of the first block, as hexadecimal text: which chain this is.
    pub fn genesis(&self) -> String {
        format!("{:?}", self.endpoint.api.genesis_hash())
    }

    /// The last finalised block.
    ///
    /// # Errors
    /// The endpoint does not answer.
    pub async fn head(&self) -> Result<BlockNumber, ChainError> {
        let head = self.endpoint.head("read the last block").await?;
        Ok(BlockNumber(head.block_number()))
    }

    /// The subnet and its neurons at the last finalised block, in one call.
    ///
    /// # Errors
    /// The endpoint does not answer, or not as Bittensor's chain does; there is no such subnet.
    pub async fn metagraph(&self, netuid: Netuid) -> Result<Metagraph, ChainError> {
        const DOING: &str = "read the metagraph";
        let head = self.endpoint.head(DOING).await?;
        let answer = self.subnet_info(&head, DOING, "get_metagraph", netuid).await?;
        Metagraph::from_value(netuid, BlockNumber(head.block_number()), &answer)
            .map_err(|what| ChainError::Answer { doing: DOING, what })
    }

    /// The subnet's rules at the last finalised block.
    ///
    /// # Errors
    /// As for [`Self::metagraph`].
    pub async fn hyperparameters(&self, netuid: Netuid) -> Result<Hyperparameters, ChainError> {
        const DOING: &str = "read the hyperparameters";
        let head = self.endpoint.head(DOING).await?;
        let answer = self
            .subnet_info(&head, DOING, "get_subnet_hyperparams", netuid)
            .await?;
        let missing = |name: &str| ChainError::Answer {
            doing: DOING,
            what: format!("{name} is missing"),
        };
        Ok(Hyperparameters {
            tempo: field(&answer, "tempo")
                .and_then(number)
                .ok_or_else(|| missing("tempo"))?,
            commit_reveal: field(&answer, "commit_reveal_weights_enabled")
                .and_then(flag)
                .ok_or_else(|| missing("commit_reveal_weights_enabled"))?,
            weights_rate_limit: field(&answer, "weights_rate_limit")
                .and_then(number)
                .ok_or_else(|| missing("weights_rate_limit"))?,
            weights_version_key: field(&answer, "weights_version")
                .and_then(number)
                .ok_or_else(|| missing("weights_version"))?,
            min_allowed_weights: field(&answer, "min_allowed_weights")
                .and_then(number)
                .ok_or_else(|| missing("min_allowed_weights"))?,
        })
    }

    /// The weights that a validator has set; empty if none.
    ///
    /// # Errors
    /// The endpoint does not answer, or not as Bittensor's chain does.
    pub async fn weights_of(&self, netuid: Netuid, uid: Uid) -> Result<Vec<(u16, u16)>, ChainError> {
        const DOING: &str = "read weights";
        let keys = vec![Value::u128(netuid.0.into()), Value::u128(uid.0.into())];
        let Some(row) = self.storage(DOING, "SubtensorModule", "Weights", keys).await? else {
            return Ok(Vec::new());
        };
        let pair = |pair: &Value| match items(pair)? {
            [uid, weight] => Some((number(uid)?, number(weight)?)),
            _ => None,
        };
        items(&row)
            .and_then(|row| row.iter().map(pair).collect())
            .ok_or_else(|| ChainError::Answer {
                doing: DOING,
                what: "weights are not pairs of numbers".to_owned(),
            })
    }

    /// The uid of a hotkey.
    ///
    /// # Errors
    /// [`ChainError::NotRegistered`] if it has none, [`ChainError::NoSubnet`] where there is nothing to be registered in;
    /// otherwise as for [`Self::weights_of`].
    pub async fn uid_of(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Uid, ChainError> {
        const DOING: &str = "look up a uid";
        let keys = vec![Value::u128(netuid.0.into()), Value::from_bytes(hotkey.as_bytes())];
        let uid = self.storage(DOING, "SubtensorModule", "Uids", keys).await?;
        if let Some(uid) = uid.as_ref().and_then(number) {
            return Ok(Uid(uid));
        }
        let subnet = vec![Value::u128(netuid.0.into())];
        let exists = self
            .storage(DOING, "SubtensorModule", "NetworksAdded", subnet)
            .await?;
        Err(if exists.as_ref().and_then(flag) == Some(true) {
            ChainError::NotRegistered {
                hotkey: *hotkey,
                netuid,
            }
        } else {
            ChainError::NoSubnet(netuid)
        })
    }

    /// What an account can spend, in rao.
    ///
    /// # Errors
    /// As for [`Self::weights_of`].
    pub async fn balance(&self, account: &Hotkey) -> Result<u64, ChainError> {
        const DOING: &str = "read a balance";
        let keys = vec![Value::from_bytes(account.as_bytes())];
        let Some(info) = self.storage(DOING, "System", "Account", keys).await? else {
            return Ok(0);
        };
        field(&info, "data")
            .and_then(|data| field(data, "free"))
            .and_then(number)
            .ok_or_else(|| ChainError::Answer {
                doing: DOING,
                what: "an account has no free balance".to_owned(),
            })
    }

    /// The manifest that a miner has committed; none if it has not, or has committed something else.
    ///
    /// # Errors
    /// As for [`Self::weights_of`].
    pub async fn manifest_of(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Option<Manifest>, ChainError> {
        const DOING: &str = "read a commitment";
        let keys = vec![Value::u128(netuid.0.into()), Value::from_bytes(hotkey.as_bytes())];
        let registration = self.storage(DOING, "Commitments", "CommitmentOf", keys).await?;
        let text = registration.as_ref().and_then(commitment::decode);
        Ok(text.as_deref().and_then(Manifest::from_commitment))
    }

    /// Calls a method about one subnet that answers with an optional structure.
    async fn subnet_info(
        &self,
        head: &AtBlock,
        doing: &'static str,
        method: &'static str,
        netuid: Netuid,
    ) -> Result<Value, ChainError> {
        let arguments = vec![Value::u128(netuid.0.into())];
        let call = dynamic::runtime_api_call::<_, Value>("SubnetInfoRuntimeApi", method, arguments);
        let answer = self.endpoint.read(doing, head.runtime_apis().call(call)).await?;
        match option(&answer) {
            Some(Some(value)) => Ok(value.clone()),
            Some(None) => Err(ChainError::NoSubnet(netuid)),
            None => Err(ChainError::Answer {
                doing,
                what: format!("{method} is not optional"),
            }),
        }
    }

    /// A value in storage at the last finalised block.
    pub(crate) async fn storage(
        &self,
        doing: &'static str,
        pallet: &'static str,
        entry: &'static str,
        keys: Vec<Value>,
    ) -> Result<Option<Value>, ChainError> {
        let head = self.endpoint.head(doing).await?;
        let address = dynamic::storage::<Vec<Value>, Value>(pallet, entry);
        let storage = head.storage();
        let stored = self
            .endpoint
            .read(doing, storage.try_fetch(address, keys))
            .await?;
        stored
            .map(|value| value.decode())
            .transpose()
            .map_err(|error| ChainError::Answer {
                doing,
                what: error.to_string(),
            })
    }
}
