//! A source with what it last showed.

use std::sync::Arc;
use std::time::Duration;

use muster_chain::Metagraph;
use muster_collateral::{CollateralSource, MinerAccount};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{MinerKey, Timestamp};
use muster_routing::{CollateralReading, CollateralRule, CollateralVerdict, judge_collateral};
use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify};

/// A source with what it last showed.
#[derive(Debug)]
pub(crate) struct WatchedSource {
    pub(crate) rule: CollateralRule,
    /// The word in the store and for people: `evm` or `ledger`.
    pub(crate) kind: &'static str,
    pub(crate) source: Arc<dyn CollateralSource>,
    pub(crate) interval: Duration,
    pub(crate) latest: RwLock<LatestReading>,
    /// Notified when the source should be read now: a miner came, or was slashed.
    pub(crate) wake: Notify,
    /// One slash at a time.
    pub(crate) slashing: Mutex<()>,
}

/// The last reading, and whether a later attempt failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestReading {
    /// `None` until the source has answered.
    pub(crate) good: Option<Arc<CollateralReading>>,
    /// Why the last attempt failed; `None` if it did not.
    pub(crate) failure: Option<String>,
}

impl WatchedSource {
    pub(crate) fn new(
        kind: &'static str,
        source: Arc<dyn CollateralSource>,
        rule: CollateralRule,
        interval: Duration,
    ) -> Self {
        Self {
            rule,
            kind,
            source,
            interval,
            latest: RwLock::default(),
            wake: Notify::new(),
            slashing: Mutex::default(),
        }
    }

    pub(crate) fn verdict(&self, miner: MinerKey, now: Timestamp) -> CollateralVerdict {
        let latest = self.latest.read();
        let verdict = judge_collateral(self.rule, latest.good.as_deref(), miner, now);
        if verdict == (CollateralVerdict::Unknown { age_s: None }) {
            // It came after the last reading.
            self.wake.notify_one();
        }
        verdict
    }

    /// Has the source read soon.
    pub(crate) fn read_soon(&self) {
        self.wake.notify_one();
    }

    /// Whether the last attempt to read failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.latest.read().failure.is_some()
    }

    /// Reads the source once. A failure keeps the last good reading.
    pub(crate) async fn read(&self, metagraph: &Metagraph, clock: &SharedClock) {
        let miners = miner_accounts(metagraph);
        // The deposits are at least as old as the question.
        let at = clock.now();
        match self.source.read(&miners).await {
            Ok(deposits) => {
                let good = Some(Arc::new(CollateralReading { at, deposits }));
                *self.latest.write() = LatestReading { good, failure: None };
            }
            Err(error) => {
                let reason = Causes(&error).to_string();
                tracing::warn!(
                    reason,
                    "the miners' collateral cannot be read; the last reading counts until it is too old"
                );
                self.latest.write().failure = Some(reason);
            }
        }
    }
}

/// The neurons of the subnet as a source needs them.
pub(crate) fn miner_accounts(metagraph: &Metagraph) -> Vec<MinerAccount> {
    let neurons = metagraph.neurons.iter();
    neurons
        .map(|neuron| MinerAccount {
            uid: neuron.uid,
            miner: MinerKey(neuron.hotkey),
            owner: neuron.coldkey,
            registered: neuron.registered,
        })
        .collect()
}
