//! The allowlist of validators: those with a permit on the chain, as last read, and those of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_chain::{ChainClient, ChainError, Metagraph, Netuid};
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ValidatorKey;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::background_tasks::spawn_until_stopped;

/// The pause after a failed reading of the metagraph.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The validators that the facilitator serves. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowlist {
    configured: Arc<BTreeSet<ValidatorKey>>,
    /// The permitted validators, each with its stake in rao.
    permitted: Arc<RwLock<BTreeMap<ValidatorKey, u64>>>,
}

/// The chain that permits are read from.
#[derive(Clone, Debug)]
pub(crate) struct PermitSource {
    /// The chain's endpoint.
    pub(crate) url: String,
    pub(crate) netuid: Netuid,
    /// The pause between two readings.
    pub(crate) interval: Duration,
}

// === impl Allowlist ===

impl Allowlist {
    /// A list of the configured validators. Permits are added by [`follow_permits`].
    pub(crate) fn new(configured: impl IntoIterator<Item = ValidatorKey>) -> Self {
        Self {
            configured: Arc::new(configured.into_iter().collect()),
            permitted: Arc::default(),
        }
    }

    /// Whether this validator is served.
    pub(crate) fn admits(&self, validator: ValidatorKey) -> bool {
        self.configured.contains(&validator) || self.permitted.read().contains_key(&validator)
    }

    /// The stake of a permitted validator, in rao; 0 for one without a permit.
    pub(crate) fn stake(&self, validator: ValidatorKey) -> u64 {
        self.permitted.read().get(&validator).copied().unwrap_or(0)
    }

    /// Replaces the permits by those of a newer metagraph.
    fn update(&self, metagraph: &Metagraph) {
        let permitted = permitted_validators(metagraph);
        tracing::debug!(block = %metagraph.block, validators = permitted.len(), "read the validators' permits");
        *self.permitted.write() = permitted;
    }
}

fn permitted_validators(metagraph: &Metagraph) -> BTreeMap<ValidatorKey, u64> {
    let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
    permitted
        .map(|neuron| (ValidatorKey(neuron.hotkey), neuron.stake))
        .collect()
}

/// Reads permits into the list until the process stops. A failed reading leaves the last good permits in force.
///
/// The returned token is cancelled when the first reading has succeeded or failed.
pub(crate) fn follow_permits(
    allowlist: Allowlist,
    source: PermitSource,
    tasks: &Tasks,
    clock: SharedClock,
) -> CancellationToken {
    let first_reading = CancellationToken::new();
    let first_done = first_reading.clone();
    spawn_until_stopped(tasks, "permits", async move {
        let mut client = None;
        loop {
            let pause = match read_metagraph(&mut client, &source).await {
                Ok(metagraph) => {
                    allowlist.update(&metagraph);
                    source.interval
                }
                Err(error) => {
                    tracing::warn!(error = %Causes(&error), "cannot read the validators' permits; keeping the last ones");
                    RETRY_AFTER.min(source.interval)
                }
            };
            first_done.cancel();
            clock.sleep(pause).await;
        }
    });
    first_reading
}

async fn read_metagraph(
    client: &mut Option<Arc<ChainClient>>,
    source: &PermitSource,
) -> Result<Metagraph, ChainError> {
    let client = match client {
        Some(client) => Arc::clone(client),
        None => Arc::clone(client.insert(ChainClient::connect(&source.url).await?)),
    };
    client.metagraph(source.netuid).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_chain::{BlockNumber, Neuron, Uid};
    use muster_protocol::Hotkey;

    fn key(n: u8) -> Hotkey {
        Hotkey::from_bytes([n; 32])
    }

    fn metagraph(permits: &[(u8, bool)]) -> Metagraph {
        let neuron = |&(n, permit): &(u8, bool)| Neuron {
            uid: Uid(n.into()),
            hotkey: key(n),
            coldkey: key(n),
            axon: None,
            stake: u64::from(n),
            permit,
            active: true,
            registered: BlockNumber(0),
            last_update: BlockNumber(0),
            incentive: 0,
        };
        Metagraph {
            block: BlockNumber(1),
            netuid: Netuid(1),
            tempo: 10,
            last_epoch: BlockNumber(0),
            certificates: std::collections::BTreeMap::new(),
            neurons: permits.iter().map(neuron).collect(),
        }
    }

    #[test]
    fn a_permit_or_the_configuration_admits() {
        let allowlist = Allowlist::new([ValidatorKey(key(9))]);
        assert!(allowlist.admits(ValidatorKey(key(9))));
        assert!(!allowlist.admits(ValidatorKey(key(1))));
        allowlist.update(&metagraph(&[(1, true), (2, false)]));
        assert!(allowlist.admits(ValidatorKey(key(1))));
        assert!(!allowlist.admits(ValidatorKey(key(2))));
        let stakes = [1, 2, 9].map(|n| allowlist.stake(ValidatorKey(key(n))));
        assert_eq!(stakes, [1, 0, 0], "a stake counts with a permit only");
        allowlist.update(&metagraph(&[(1, false)]));
        assert!(!allowlist.admits(ValidatorKey(key(1))));
        assert!(allowlist.admits(ValidatorKey(key(9))));
    }
}
