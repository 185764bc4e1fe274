//! Which validators are served: those with a permit on the chain, as last read, and those of the configuration.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_chain::{ChainClient, ChainError, Metagraph, Netuid};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::ValidatorKey;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

/// How soon a failed reading is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The validators that are served. Clones are one roll.
#[derive(Clone, Debug, Default)]
pub struct Roll {
    configured: Arc<BTreeSet<ValidatorKey>>,
    permitted: Arc<RwLock<BTreeSet<ValidatorKey>>>,
}

// === impl Roll ===

impl Roll {
    /// A roll of the configured validators; nobody else has a permit until one is read.
    pub fn new(configured: impl IntoIterator<Item = ValidatorKey>) -> Self {
        Self {
            configured: Arc::new(configured.into_iter().collect()),
            permitted: Arc::default(),
        }
    }

    /// Whether this validator is served.
    pub fn admits(&self, validator: ValidatorKey) -> bool {
        self.configured.contains(&validator) || self.permitted.read().contains(&validator)
    }

    /// Takes the permits of a newer metagraph.
    pub fn update(&self, metagraph: &Metagraph) {
        let permitted = permits(metagraph);
        tracing::debug!(block = %metagraph.block, validators = permitted.len(), "read the validators' permits");
        *self.permitted.write() = permitted;
    }
}

/// Who may act as a validator.
fn permits(metagraph: &Metagraph) -> BTreeSet<ValidatorKey> {
    let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
    permitted.map(|neuron| ValidatorKey(neuron.hotkey)).collect()
}

/// Where the permits are read and how often.
#[derive(Clone, Debug)]
pub struct Source {
    /// The chain's endpoint.
    pub url: String,
    /// The subnet.
    pub netuid: Netuid,
    /// Between two readings.
    pub every: Duration,
}

/// Keeps the roll up to date until `stop`. A reading that fails leaves the last good one standing.
///
/// `tried` is cancelled once the first reading has succeeded or failed.
pub async fn keep_updated(
    roll: Roll,
    source: Source,
    clock: SharedClock,
    tried: CancellationToken,
    stop: CancellationToken,
) {
    let follow = async {
        let mut client = None;
        loop {
            let pause = match read(&mut client, &source).await {
                Ok(metagraph) => {
                    roll.update(&metagraph);
                    source.every
                }
                Err(error) => {
                    tracing::warn!(error = %Causes(&error), "the validators' permits could not be read; the last good ones stand");
                    RETRY_AFTER.min(source.every)
                }
            };
            tried.cancel();
            clock.sleep(pause).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}

async fn read(client: &mut Option<Arc<ChainClient>>, source: &Source) -> Result<Metagraph, ChainError> {
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
            stake: 0,
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
            neurons: permits.iter().map(neuron).collect(),
        }
    }

    #[test]
    fn a_permit_or_the_configuration_admits() {
        let roll = Roll::new([ValidatorKey(key(9))]);
        assert!(roll.admits(ValidatorKey(key(9))));
        assert!(!roll.admits(ValidatorKey(key(1))));
        roll.update(&metagraph(&[(1, true), (2, false)]));
        assert!(roll.admits(ValidatorKey(key(1))));
        assert!(!roll.admits(ValidatorKey(key(2))));
        roll.update(&metagraph(&[(1, false)]));
        assert!(!roll.admits(ValidatorKey(key(1))));
        assert!(roll.admits(ValidatorKey(key(9))));
    }
}
