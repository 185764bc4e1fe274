//! Reads the chain.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_process::SharedClock;
use muster_process::clock::SystemClock;
use muster_protocol::{BlockNumber, Hotkey, Manifest, Netuid, Timestamp, Uid};
use parking_lot::Mutex as Lock;
use subxt::config::substrate::H256;
use subxt::dynamic::{self, Value};
use subxt::error::{BackendError, RpcError};
use tokio::sync::Mutex;

use crate::answer_decoding::AnswerValue;
use crate::commitment_text;
use crate::endpoint_pool::{ChainHead, ChainTimeouts, Endpoint};
use crate::error::ChainError;
use crate::hyperparameters::Hyperparameters;
use crate::metagraph::Metagraph;
use crate::scale_value::{flag, items, number, option};
use crate::subnet_maps::SubnetMap;

/// How many metagraphs are cached, by the hash of their block.
const CACHED: usize = 4;

/// A client of one chain, over one endpoint or several. It reconnects by itself; while no endpoint answers, reads fail
/// with [`ChainError::Unreachable`].
#[derive(Debug)]
pub struct ChainClient {
    pub(crate) endpoint: Endpoint,
    /// Calls go one at a time: an account's next number is known only once its last call is final.
    pub(crate) submitting: Mutex<()>,
    /// The last metagraphs that were read. A finalised block never changes, so neither does its metagraph.
    metagraphs: Lock<VecDeque<(H256, Netuid, Arc<Metagraph>)>>,
}

impl ChainClient {
    /// Connects to the endpoint at `url`: `wss://…`, or `ws://…` on this machine.
    ///
    /// # Errors
    /// The address may not be used, or no answer came in time.
    pub async fn connect(url: &str) -> Result<Arc<Self>, ChainError> {
        Self::connect_with(url, ChainTimeouts::default()).await
    }

    /// Connects as [`Self::connect`] does, with other time limits.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn connect_with(url: &str, timeouts: ChainTimeouts) -> Result<Arc<Self>, ChainError> {
        Self::connect_any(&[url.to_owned()], timeouts, Arc::new(SystemClock::new())).await
    }

    /// Connects to a chain that several endpoints serve, the preferred one first.
    ///
    /// # Errors
    /// An address may not be used, or no endpoint answers in time.
    pub async fn connect_any(
        urls: &[String],
        timeouts: ChainTimeouts,
        clock: SharedClock,
    ) -> Result<Arc<Self>, ChainError> {
        Ok(Arc::new(Self {
            endpoint: Endpoint::connect(urls, timeouts, clock).await?,
            submitting: Mutex::new(()),
            metagraphs: Lock::default(),
        }))
    }

    /// The hash of the first block in hexadecimal, which identifies the chain.
    pub fn genesis(&self) -> String {
        format!("{:?}", self.endpoint.genesis())
    }

    /// The last finalised block.
    ///
    /// # Errors
    /// No endpoint answers.
    pub async fn head(&self) -> Result<BlockNumber, ChainError> {
        let head = self.endpoint.head("read the last block").await?;
        Ok(BlockNumber(head.at.block_number()))
    }

    /// The last finalised block and its hash.
    ///
    /// # Errors
    /// No endpoint answers.
    pub async fn head_hash(&self) -> Result<(BlockNumber, [u8; 32]), ChainError> {
        let head = self.endpoint.head("read the last block").await?;
        Ok((BlockNumber(head.at.block_number()), head.at.block_hash().0))
    }

    /// The number and the time of the newest block, which may not be final; `None` if the chain states no time for it.
    ///
    /// # Errors
    /// No endpoint answers.
    pub async fn newest_block_time(&self) -> Result<Option<(BlockNumber, Timestamp)>, ChainError> {
        const DOING: &str = "read the time of the newest block";
        self.endpoint
            .ask(DOING, |head| async move {
                let newest = async {
                    let hash = head.link.methods.chain_get_block_hash(None);
                    hash.await
                        .map_err(|error| BackendError::Rpc(RpcError::ClientError(error)))
                };
                let Some(newest) = self.endpoint.read(&head, DOING, newest).await? else {
                    return Ok(None);
                };
                let at = head.link.api.at_block(newest);
                let at = self.endpoint.read(&head, DOING, at).await?;
                let newest = ChainHead { at, ..head };
                let time = self
                    .read_storage_at(&newest, DOING, "Timestamp", "Now", vec![])
                    .await?;
                let time_ms: Option<i64> = time.as_ref().and_then(number);
                let time = time_ms.filter(|time| *time > 0).map(|time| {
                    let block = BlockNumber(newest.at.block_number());
                    (block, Timestamp::from_micros(time.saturating_mul(1_000)))
                });
                Ok(time)
            })
            .await
    }

    /// The hash of a finalised block; `None` if the last finalised block comes before it. Nodes that forget the state
    /// of old blocks know their hashes.
    ///
    /// # Errors
    /// No endpoint answers.
    pub async fn block_hash(&self, block: BlockNumber) -> Result<Option<[u8; 32]>, ChainError> {
        const DOING: &str = "read the hash of a block";
        self.endpoint
            .ask(DOING, |head| async move {
                if head.at.block_number() < block.0 {
                    return Ok(None);
                }
                // Nodes forget the state of old blocks, and keep their hashes.
                let asked = async {
                    let hash = head.link.methods.chain_get_block_hash(Some(block.0.into()));
                    hash.await
                        .map_err(|error| BackendError::Rpc(RpcError::ClientError(error)))
                };
                let hash = self.endpoint.read(&head, DOING, asked).await?;
                Ok(hash.map(|hash| hash.0))
            })
            .await
    }

    /// The subnet and its neurons at the last finalised block, read in one call, or without a call if that block was
    /// read before.
    ///
    /// # Errors
    /// No endpoint answers, an answer is not understood, or the subnet does not exist.
    pub async fn metagraph(&self, netuid: Netuid) -> Result<Metagraph, ChainError> {
        self.metagraph_shared(netuid).await.map(Arc::unwrap_or_clone)
    }

    /// As [`Self::metagraph`], shared instead of copied.
    ///
    /// # Errors
    /// As for [`Self::metagraph`].
    pub async fn metagraph_shared(&self, netuid: Netuid) -> Result<Arc<Metagraph>, ChainError> {
        const DOING: &str = "read the metagraph";
        self.endpoint
            .ask(DOING, |head| self.metagraph_at(head, netuid))
            .await
    }

    pub(crate) async fn metagraph_at(
        &self,
        head: ChainHead,
        netuid: Netuid,
    ) -> Result<Arc<Metagraph>, ChainError> {
        const DOING: &str = "read the metagraph";
        let hash = head.at.block_hash();
        if let Some(known) = self.cached(hash, netuid) {
            return Ok(known);
        }
        let answer = self.subnet_info(&head, DOING, "get_metagraph", netuid).await?;
        let mut graph = Metagraph::from_value(netuid, BlockNumber(head.at.block_number()), &answer)
            .map_err(|what| ChainError::Answer { doing: DOING, what })?;
        graph.certificates = self.certificates_at(&head, netuid).await?;
        let graph = Arc::new(graph);
        let mut metagraphs = self.metagraphs.lock();
        metagraphs.truncate(CACHED - 1);
        metagraphs.push_front((hash, netuid, Arc::clone(&graph)));
        Ok(graph)
    }

    fn cached(&self, hash: H256, netuid: Netuid) -> Option<Arc<Metagraph>> {
        let metagraphs = self.metagraphs.lock();
        let known = metagraphs
            .iter()
            .find(|known| known.0 == hash && known.1 == netuid)?;
        Some(Arc::clone(&known.2))
    }

    /// The subnet's hyperparameters at the last finalised block.
    ///
    /// # Errors
    /// As for [`Self::metagraph`].
    pub async fn hyperparameters(&self, netuid: Netuid) -> Result<Hyperparameters, ChainError> {
        const DOING: &str = "read the hyperparameters";
        self.endpoint
            .ask(DOING, |head| async move {
                self.hyperparameters_at(&head, netuid).await
            })
            .await
    }

    pub(crate) async fn hyperparameters_at(
        &self,
        head: &ChainHead,
        netuid: Netuid,
    ) -> Result<Hyperparameters, ChainError> {
        const DOING: &str = "read the hyperparameters";
        let answer = self
            .subnet_info(head, DOING, "get_subnet_hyperparams", netuid)
            .await?;
        let version = self
            .read_storage_at(
                head,
                DOING,
                "SubtensorModule",
                "CommitRevealWeightsVersion",
                vec![],
            )
            .await?;
        Hyperparameters::from_value(&answer, version.as_ref().and_then(number)).map_err(|name| {
            ChainError::Answer {
                doing: DOING,
                what: format!("{name} is missing"),
            }
        })
    }

    /// The weights that a validator has set; empty if none.
    ///
    /// # Errors
    /// No endpoint answers, or an answer is not understood.
    pub async fn weights_of(&self, netuid: Netuid, uid: Uid) -> Result<Vec<(u16, u16)>, ChainError> {
        self.endpoint
            .ask("read weights", |head| async move {
                self.weights_at(&head, netuid, uid).await
            })
            .await
    }

    pub(crate) async fn weights_at(
        &self,
        head: &ChainHead,
        netuid: Netuid,
        uid: Uid,
    ) -> Result<Vec<(u16, u16)>, ChainError> {
        const DOING: &str = "read weights";
        let keys = vec![Value::u128(netuid.0.into()), Value::u128(uid.0.into())];
        match self
            .read_storage_at(head, DOING, "SubtensorModule", "Weights", keys)
            .await?
        {
            Some(row) => weights_row(&row).ok_or_else(|| ChainError::Answer {
                doing: DOING,
                what: "weights are not pairs of numbers".to_owned(),
            }),
            None => Ok(Vec::new()),
        }
    }

    /// The uid of a hotkey.
    ///
    /// # Errors
    /// [`ChainError::NotRegistered`] if it has none, [`ChainError::NoSubnet`] if the subnet does not exist; otherwise
    /// as for [`Self::weights_of`].
    pub async fn uid_of(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Uid, ChainError> {
        const DOING: &str = "look up a uid";
        let keys = vec![Value::u128(netuid.0.into()), Value::from_bytes(hotkey.as_bytes())];
        let uid = self.read_storage(DOING, "SubtensorModule", "Uids", keys).await?;
        if let Some(uid) = uid.as_ref().and_then(number) {
            return Ok(Uid(uid));
        }
        self.require_subnet(netuid).await?;
        Err(ChainError::NotRegistered {
            hotkey: *hotkey,
            netuid,
        })
    }

    /// Checks that the subnet exists.
    pub(crate) async fn require_subnet(&self, netuid: Netuid) -> Result<(), ChainError> {
        let keys = vec![Value::u128(netuid.0.into())];
        let exists = self
            .read_storage("look up a subnet", "SubtensorModule", "NetworksAdded", keys)
            .await?;
        if exists.as_ref().and_then(flag) == Some(true) {
            Ok(())
        } else {
            Err(ChainError::NoSubnet(netuid))
        }
    }

    /// The manifest that a miner has committed; `None` without one, or if the commitment is something else.
    ///
    /// # Errors
    /// As for [`Self::weights_of`].
    pub async fn manifest_of(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Option<Manifest>, ChainError> {
        let text = self.commitment_of(netuid, hotkey).await?;
        Ok(text.as_deref().and_then(Manifest::from_commitment))
    }

    /// The manifests that the subnet's hotkeys have committed, at the last finalised block. Hotkeys whose commitment is
    /// something else are not in it; a chain without commitments has none.
    ///
    /// # Errors
    /// As for [`Self::weights_of`].
    pub async fn manifests(&self, netuid: Netuid) -> Result<BTreeMap<Hotkey, Manifest>, ChainError> {
        let map = SubnetMap {
            doing: "read the committed manifests",
            pallet: "Commitments",
            entry: "CommitmentOf",
        };
        let decode = |value: &Value| Manifest::from_commitment(&commitment_text::decode(value)?);
        self.endpoint
            .ask(map.doing, |head| async move {
                map.read_at(&self.endpoint, &head, netuid, decode).await
            })
            .await
    }

    /// The text that a hotkey has committed; `None` without one, or if the commitment is no text.
    ///
    /// # Errors
    /// As for [`Self::weights_of`].
    pub async fn commitment_of(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Option<String>, ChainError> {
        const DOING: &str = "read a commitment";
        let keys = vec![Value::u128(netuid.0.into()), Value::from_bytes(hotkey.as_bytes())];
        let registration = self
            .read_storage(DOING, "Commitments", "CommitmentOf", keys)
            .await?;
        Ok(registration.as_ref().and_then(commitment_text::decode))
    }

    /// Calls a runtime method about one subnet whose answer is an optional structure.
    async fn subnet_info(
        &self,
        head: &ChainHead,
        doing: &'static str,
        method: &'static str,
        netuid: Netuid,
    ) -> Result<Value, ChainError> {
        let arguments = vec![Value::u128(netuid.0.into())];
        let call = dynamic::runtime_api_call::<_, AnswerValue>("SubnetInfoRuntimeApi", method, arguments);
        let AnswerValue(answer) = self
            .endpoint
            .read(head, doing, head.at.runtime_apis().call(call))
            .await?;
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
    pub(crate) async fn read_storage(
        &self,
        doing: &'static str,
        pallet: &'static str,
        entry: &'static str,
        keys: Vec<Value>,
    ) -> Result<Option<Value>, ChainError> {
        self.endpoint
            .ask(doing, |head| {
                let keys = keys.clone();
                async move {
                    if head.has_entry(pallet, entry) {
                        return self.read_storage_at(&head, doing, pallet, entry, keys).await;
                    }
                    Err(ChainError::Answer {
                        doing,
                        what: format!("this chain has no {pallet}.{entry}: it is not Bittensor's"),
                    })
                }
            })
            .await
    }

    /// A value in storage at a block; `None` also on a chain that has no such entry.
    pub(crate) async fn read_storage_at(
        &self,
        head: &ChainHead,
        doing: &'static str,
        pallet: &'static str,
        entry: &'static str,
        keys: Vec<Value>,
    ) -> Result<Option<Value>, ChainError> {
        if !head.has_entry(pallet, entry) {
            return Ok(None);
        }
        let address = dynamic::storage::<Vec<Value>, AnswerValue>(pallet, entry);
        let storage = head.at.storage();
        let stored = self
            .endpoint
            .read(head, doing, storage.try_fetch(address, keys))
            .await?;
        stored
            .map(|value| value.decode().map(|AnswerValue(value)| value))
            .transpose()
            .map_err(|error| ChainError::Answer {
                doing,
                what: error.to_string(),
            })
    }
}

/// Pairs of uid and weight.
pub(crate) fn weights_row(row: &Value) -> Option<Vec<(u16, u16)>> {
    let pair = |pair: &Value| match items(pair)? {
        [uid, weight] => Some((number(uid)?, number(weight)?)),
        _ => None,
    };
    items(row)?.iter().map(pair).collect()
}
