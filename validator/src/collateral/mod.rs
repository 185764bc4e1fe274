//! The validator's view of its miners' collateral: reads the source again and again, keeps the last good reading, and
//! judges miners by it.
//!
//! An outage keeps the reading until it is too old. From then on miners are neither trusted nor let through: routing
//! names the unknown collateral as the reason.

mod book;
pub(crate) mod config;
pub(crate) mod http;
pub(crate) mod slashing;

use std::sync::Arc;
use std::time::Duration;

use muster_chain::Metagraph;
use muster_collateral::{
    ChainDirectory, ChainLink, CollateralSource, EvmCollateral, LedgerCollateral, MinerAccount,
};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Hotkey, MinerKey, Rao, Timestamp};
use muster_routing::{CollateralReading, CollateralRule, CollateralVerdict, Deposit, judge_collateral};
use muster_store::StoreError;
use parking_lot::RwLock;
use serde::Serialize;
use tokio::sync::{Mutex, Notify};

use crate::config::Config;
use crate::state::ValidatorState;
use crate::store::Store;
use book::StoredLedger;
use config::CollateralKind;

/// The least time between two readings, also while unread miners wait or the source fails.
const PAUSE: Duration = Duration::from_secs(5);

/// The miners' collateral.
#[derive(Debug)]
pub(crate) struct CollateralView {
    /// `None` if this validator asks for no collateral.
    watched: Option<WatchedSource>,
    clock: SharedClock,
}

/// A source with what it last showed.
#[derive(Debug)]
pub(crate) struct WatchedSource {
    rule: CollateralRule,
    /// The word in the store and for people: `evm` or `ledger`.
    pub(crate) kind: &'static str,
    pub(crate) source: Arc<dyn CollateralSource>,
    interval: Duration,
    latest: RwLock<LatestReading>,
    /// Told when the source should be read now: a miner came, or was slashed.
    wake: Notify,
    /// One slash at a time.
    pub(crate) slashing: Mutex<()>,
}

#[derive(Clone, Debug, Default)]
struct LatestReading {
    /// `None` until the source has answered.
    good: Option<Arc<CollateralReading>>,
    /// Why the last attempt failed; `None` if it did not.
    failure: Option<String>,
}

/// `GET /v0/collateral`, and a part of `GET /v0/state`.
#[derive(Debug, Serialize)]
pub(crate) struct CollateralStatus {
    /// `none`, `evm` or `ledger`.
    source: &'static str,
    /// The source's place, for people.
    place: Option<String>,
    /// The least deposit of a miner that gets jobs, in rao.
    required: Option<Rao>,
    /// When the source last answered; `None` if it has not since the start.
    read_at: Option<Timestamp>,
    /// Why the last attempt to read it failed.
    failure: Option<String>,
}

/// One miner of `GET /v0/collateral`.
#[derive(Debug, Serialize)]
pub(crate) struct MinerCollateral {
    uid: u16,
    miner: MinerKey,
    /// The deposit by the last reading, however old.
    deposit: Option<Deposit>,
    #[serde(flatten)]
    verdict: CollateralVerdict,
}

impl CollateralView {
    /// The view that the configuration asks for. Does not connect yet.
    ///
    /// # Errors
    /// The HTTP client cannot be built.
    pub(crate) fn new(
        config: &Config,
        me: Hotkey,
        store: &Arc<Store>,
        clock: &SharedClock,
    ) -> Result<Self, crate::Error> {
        let link = || ChainLink::new(config.chain.endpoints(), Arc::clone(clock));
        let netuid = config.chain.netuid;
        let source: Option<(&str, Arc<dyn CollateralSource>)> = match config.collateral.source {
            CollateralKind::None => None,
            CollateralKind::Evm => {
                let directory = ChainDirectory {
                    link: link(),
                    netuid,
                    validator: me,
                };
                let settings = config.collateral.evm();
                let source = EvmCollateral::new(settings, netuid, Arc::new(directory), Arc::clone(clock));
                Some(("evm", Arc::new(source.map_err(crate::Error::Collateral)?)))
            }
            // `Config::validate` asks for both accounts.
            CollateralKind::Ledger => config.collateral.ledger().map(|settings| {
                let book = Arc::new(StoredLedger(Arc::clone(store)));
                let source: Arc<dyn CollateralSource> =
                    Arc::new(LedgerCollateral::new(settings, link(), book));
                ("ledger", source)
            }),
        };
        let interval = Duration::from_secs(config.collateral.interval_s);
        let watched = source.zip(config.collateral.rule());
        Ok(Self {
            watched: watched.map(|((kind, source), rule)| WatchedSource::new(kind, source, rule, interval)),
            clock: Arc::clone(clock),
        })
    }

    /// The verdict about a miner now.
    pub(crate) fn verdict(&self, miner: MinerKey) -> CollateralVerdict {
        match &self.watched {
            None => CollateralVerdict::NotRequired,
            Some(watched) => watched.verdict(miner, self.clock.now()),
        }
    }

    /// The source; `None` if this validator asks for no collateral.
    pub(crate) fn watched(&self) -> Option<&WatchedSource> {
        self.watched.as_ref()
    }

    /// The state of the source, for the operator.
    pub(crate) fn status(&self) -> CollateralStatus {
        let latest = self.watched.as_ref().map(|watched| watched.latest.read().clone());
        let latest = latest.unwrap_or_default();
        CollateralStatus {
            source: self.watched.as_ref().map_or("none", |watched| watched.kind),
            place: self.watched.as_ref().map(|watched| watched.source.describe()),
            required: self.watched.as_ref().map(|watched| watched.rule.required),
            read_at: latest.good.map(|reading| reading.at),
            failure: latest.failure,
        }
    }

    /// The deposit of each miner of the subnet with its verdict; empty if no collateral is asked for.
    pub(crate) fn miners(&self, metagraph: &Metagraph) -> Vec<MinerCollateral> {
        let Some(watched) = &self.watched else {
            return Vec::new();
        };
        let (good, now) = (watched.latest.read().good.clone(), self.clock.now());
        let deposits = good.as_ref().map(|reading| &reading.deposits);
        let neurons = metagraph.neurons.iter();
        neurons
            .map(|neuron| {
                let miner = MinerKey(neuron.hotkey);
                MinerCollateral {
                    uid: neuron.uid.0,
                    miner,
                    deposit: deposits.and_then(|deposits| deposits.get(&miner)).copied(),
                    verdict: judge_collateral(watched.rule, good.as_deref(), miner, now),
                }
            })
            .collect()
    }
}

impl WatchedSource {
    fn new(
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

    fn verdict(&self, miner: MinerKey, now: Timestamp) -> CollateralVerdict {
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

    /// Reads the source once. A failure keeps the last good reading.
    async fn read(&self, metagraph: &Metagraph, clock: &SharedClock) {
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

/// Reads the source until the validator stops.
pub(crate) async fn follow(state: Arc<ValidatorState>) -> Result<(), StoreError> {
    let Some(watched) = state.collateral.watched() else {
        return Ok(());
    };
    let reading = async {
        loop {
            let metagraph = state.subnet.metagraph().await;
            watched.read(&metagraph, &state.clock).await;
            let failed = watched.latest.read().failure.is_some();
            let pause = if failed {
                PAUSE.min(watched.interval)
            } else {
                watched.interval
            };
            tokio::select! {
                () = state.clock.sleep(pause) => {}
                () = watched.wake.notified() => state.clock.sleep(PAUSE.min(watched.interval)).await,
            }
        }
    };
    state.tasks.token().run_until_cancelled(reading).await;
    Ok(())
}
