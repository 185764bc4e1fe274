//! The chain's side of weights, for every method: reading the rules, submitting calls, and reading weights and commits.

use muster_identity::Keypair;
use muster_protocol::{BlockNumber, Hotkey, Netuid, Uid};
use subxt::dynamic::Value;

use crate::call_encoding::{self, Call};
use crate::chain_reader::ChainClient;
use crate::endpoint_pool::ChainHead;
use crate::epoch_schedule::Schedule;
use crate::error::ChainError;
use crate::scale_value::{account, bytes, field, items, number};
use crate::timelock::Beacon;
use crate::weights_commit::{CommitPosition, OnChainWeights, Salt, StoredCommit};
use crate::weights_method::WeightRules;

const SUBTENSOR: &str = "SubtensorModule";

/// A call about weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsCall {
    /// Sets weights at once.
    Set {
        /// The weights by uid.
        weights: Vec<(Uid, u16)>,
        /// The version key of the weights.
        version_key: u64,
    },
    /// Commits to weights by a hash.
    Commit {
        /// The hash from [`crate::weights_commit::commit_hash`].
        hash: [u8; 32],
    },
    /// Reveals committed weights.
    Reveal {
        /// The weights by uid.
        weights: Vec<(Uid, u16)>,
        /// The salt of the commit.
        salt: Salt,
        /// The version key of the weights.
        version_key: u64,
    },
    /// Commits to weights that the chain reveals by itself.
    CommitTimelocked {
        /// The ciphertext from [`crate::timelock::seal`].
        ciphertext: Vec<u8>,
        /// The beacon's round that opens it.
        round: u64,
    },
}

impl WeightsCall {
    fn call(&self, netuid: Netuid) -> Call {
        match self {
            Self::Set { weights, version_key } => call_encoding::set_weights(netuid, weights, *version_key),
            Self::Commit { hash } => call_encoding::commit_weights(netuid, *hash),
            Self::Reveal {
                weights,
                salt,
                version_key,
            } => call_encoding::reveal_weights(netuid, weights, salt, *version_key),
            Self::CommitTimelocked { ciphertext, round } => {
                call_encoding::commit_timelocked(netuid, ciphertext, *round)
            }
        }
    }
}

impl ChainClient {
    /// The chain's rules for weights, its epochs and its beacon, all at one block.
    ///
    /// # Errors
    /// As for [`Self::metagraph`].
    pub async fn weight_rules(&self, netuid: Netuid) -> Result<WeightRules, ChainError> {
        const DOING: &str = "read the rules for weights";
        self.endpoint
            .ask(DOING, |head| async move {
                let hyperparameters = self.hyperparameters_at(&head, netuid).await?;
                let mut rules = WeightRules {
                    hyperparameters,
                    schedule: None,
                    beacon: None,
                    last_round: None,
                    owner: None,
                };
                let keys = vec![Value::u128(netuid.0.into())];
                let owner = self
                    .read_storage_at(&head, DOING, SUBTENSOR, "SubnetOwnerHotkey", keys)
                    .await?;
                let unowned = Hotkey::from_bytes([0; 32]);
                rules.owner = owner.as_ref().and_then(account).filter(|owner| *owner != unowned);
                let period = hyperparameters.reveal_period;
                rules.schedule = self.read_schedule_at(&head, netuid, period).await?;
                // Where weights are set without a commit, the rest is not needed.
                if hyperparameters.commit_reveal {
                    let beacon = self
                        .read_storage_at(&head, DOING, "Drand", "BeaconConfig", vec![])
                        .await?;
                    rules.beacon = beacon.as_ref().and_then(decode_beacon);
                    let round = self
                        .read_storage_at(&head, DOING, "Drand", "LastStoredRound", vec![])
                        .await?;
                    rules.last_round = round.as_ref().and_then(number);
                }
                Ok(rules)
            })
            .await
    }

    /// Submits a call about weights. Returns its block and epoch once it is final. No block after `last` may hold it.
    /// The call is refused unless `last` lies at least 32 blocks, the life of a signature, after the last finalised
    /// block.
    ///
    /// # Errors
    /// [`ChainError::NotRegistered`], a refusal with its name (no permit, too fast, version key, …), the endpoint, or
    /// [`ChainError::Unconfirmed`], after which [`Self::read_onchain_weights`] shows whether it happened.
    pub async fn submit_weights(
        &self,
        key: &Keypair,
        netuid: Netuid,
        call: &WeightsCall,
        last: Option<BlockNumber>,
    ) -> Result<CommitPosition, ChainError> {
        const DOING: &str = "read the epoch of a block";
        self.uid_of(netuid, &key.hotkey()).await?;
        let included = self.submit_by(key, call.call(netuid), last).await?;
        let block = included.block;
        // The epoch of the block that holds it, not of the head, which may be past it.
        let epoch = self
            .endpoint
            .ask(DOING, |head| async move {
                let at = self
                    .endpoint
                    .read(&head, DOING, head.link.api.at_block(block.0))
                    .await?;
                self.read_epoch_at(&ChainHead { at, ..head }, netuid).await
            })
            .await;
        Ok(CommitPosition {
            block: block.0,
            // The call is final in any case: without the epoch, the chain's own window is used.
            epoch: epoch.unwrap_or(None),
        })
    }

    /// A validator's weights and commits at the last finalised block.
    ///
    /// # Errors
    /// As for [`Self::uid_of`].
    pub async fn read_onchain_weights(
        &self,
        netuid: Netuid,
        hotkey: &Hotkey,
    ) -> Result<OnChainWeights, ChainError> {
        const DOING: &str = "read a validator's weights and commits";
        let uid = self.uid_of(netuid, hotkey).await?;
        self.endpoint
            .ask(DOING, |head| async move {
                let keys = vec![Value::u128(netuid.0.into()), Value::from_bytes(hotkey.as_bytes())];
                let waiting = self
                    .read_storage_at(&head, DOING, SUBTENSOR, "WeightCommits", keys)
                    .await?;
                let period = self
                    .read_of_subnet(&head, DOING, "RevealPeriodEpochs", netuid)
                    .await?;
                Ok(OnChainWeights {
                    block: head.at.block_number(),
                    epoch: self.read_epoch_at(&head, netuid).await?,
                    reveal_period: period.unwrap_or(1),
                    commits: waiting.as_ref().map(decode_commits).unwrap_or_default(),
                    weights: self.weights_at(&head, netuid, uid).await?,
                })
            })
            .await
    }

    async fn read_epoch_at(&self, head: &ChainHead, netuid: Netuid) -> Result<Option<u64>, ChainError> {
        self.read_of_subnet(head, "read the epoch", "SubnetEpochIndex", netuid)
            .await
    }

    /// The subnet's epochs; `None` on a chain that does not record them.
    async fn read_schedule_at(
        &self,
        head: &ChainHead,
        netuid: Netuid,
        reveal_period: u64,
    ) -> Result<Option<Schedule>, ChainError> {
        const DOING: &str = "read the epochs";
        let (Some(index), Some(last), Some(tempo)) = (
            self.read_epoch_at(head, netuid).await?,
            self.read_of_subnet(head, DOING, "LastEpochBlock", netuid).await?,
            self.read_of_subnet(head, DOING, "Tempo", netuid).await?,
        ) else {
            return Ok(None);
        };
        let pending: Option<u64> = self.read_of_subnet(head, DOING, "PendingEpochAt", netuid).await?;
        let Some(pace) = self.read_pace_at(head).await? else {
            return Ok(None);
        };
        Ok(Some(Schedule {
            block: BlockNumber(head.at.block_number()),
            time_ms: pace.time_ms,
            block_ms: pace.block_ms,
            tempo,
            last: BlockNumber(last),
            pending: pending.filter(|pending| *pending > 0).map(BlockNumber),
            index,
            reveal_period,
        }))
    }

    /// A number that the chain stores for each subnet, with the chain's default; `None` on a chain that does not store
    /// it.
    async fn read_of_subnet<N: TryFrom<u128>>(
        &self,
        head: &ChainHead,
        doing: &'static str,
        entry: &'static str,
        netuid: Netuid,
    ) -> Result<Option<N>, ChainError> {
        let keys = vec![Value::u128(netuid.0.into())];
        let stored = self.read_storage_at(head, doing, SUBTENSOR, entry, keys).await?;
        Ok(stored.as_ref().and_then(number))
    }
}

/// The chain's beacon; `None` if its key is empty.
pub(crate) fn decode_beacon(config: &Value) -> Option<Beacon> {
    let public_key = field(config, "public_key").and_then(bytes)?;
    let beacon = Beacon {
        public_key,
        genesis: field(config, "genesis_time").and_then(number)?,
        period: field(config, "period").and_then(number)?,
    };
    (!beacon.public_key.is_empty() && beacon.period > 0).then_some(beacon)
}

/// Salted commits that wait. A commit that is not understood is left out: it cannot be one of ours.
pub(crate) fn decode_commits(queue: &Value) -> Vec<StoredCommit> {
    let commit = |commit: &Value| match items(commit)? {
        [hash, _, first, last] => Some(StoredCommit {
            hash: bytes(hash)?.try_into().ok()?,
            window: (BlockNumber(number(first)?), BlockNumber(number(last)?)),
        }),
        _ => None,
    };
    items(queue)
        .unwrap_or_default()
        .iter()
        .filter_map(commit)
        .collect()
}
