//! A validator's view of its miners' collateral: reads the source again and again, keeps the last good reading, and
//! judges miners by it.
//!
//! An outage keeps the reading until it is too old. From then on miners are neither trusted nor let through: routing
//! names the unknown collateral as the reason.

mod config;
mod page;
mod slashing;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use muster_chain::{Metagraph, Netuid};
use muster_collateral::{
    ChainDirectory, ChainLink, CollateralError, CollateralSource, EvmCollateral, LedgerCollateral,
};
use muster_process::SharedClock;
use muster_protocol::{Hotkey, MinerKey};
use muster_routing::CollateralVerdict;
use muster_validator_store::Store;

pub use config::{CollateralConfig, CollateralKind, CollateralLedgerConfig};
pub(crate) use page::{CollateralStatus, SlashRequest};
pub(crate) use slashing::SlashRefusal;

use watched::WatchedSource;

/// The least time between two readings, also while unread miners wait or the source fails.
const PAUSE: Duration = Duration::from_secs(5);

/// The miners' collateral.
#[derive(Debug)]
pub(crate) struct CollateralView {
    /// `None` if this validator asks for no collateral.
    watched: Option<WatchedSource>,
    store: Arc<Store>,
    clock: SharedClock,
}

/// The validator and the chain for which a view is made.
#[derive(Clone, Debug)]
pub(crate) struct ViewSubject {
    /// The endpoints of the chain, the preferred one first.
    pub endpoints: Vec<String>,
    /// The subnet whose miners are read.
    pub netuid: Netuid,
    /// The validator's own hotkey.
    pub validator: Hotkey,
}

impl CollateralView {
    /// The view that the configuration asks for. Does not connect yet.
    ///
    /// # Errors
    /// The HTTP client cannot be built.
    pub(crate) fn new(
        config: &CollateralConfig,
        subject: ViewSubject,
        store: Arc<Store>,
        clock: SharedClock,
    ) -> Result<Self, CollateralError> {
        let link = ChainLink::new(subject.endpoints, Arc::clone(&clock));
        let source: Option<(&str, Arc<dyn CollateralSource>)> = match config.source {
            CollateralKind::None => None,
            CollateralKind::Evm => {
                let directory = ChainDirectory {
                    link,
                    netuid: subject.netuid,
                    validator: subject.validator,
                };
                let (settings, clock) = (config.evm(), Arc::clone(&clock));
                let source = EvmCollateral::new(settings, subject.netuid, Arc::new(directory), clock)?;
                Some(("evm", Arc::new(source)))
            }
            // `CollateralConfig::problems` asks for both accounts.
            CollateralKind::Ledger => config.ledger().map(|settings| {
                let source = LedgerCollateral::new(settings, link, Arc::clone(&store));
                let source: Arc<dyn CollateralSource> = Arc::new(source);
                ("ledger", source)
            }),
        };
        let interval = Duration::from_secs(config.interval_s);
        let watched = source.zip(config.rule());
        Ok(Self {
            watched: watched.map(|((kind, source), rule)| WatchedSource::new(kind, source, rule, interval)),
            store,
            clock,
        })
    }

    /// The verdict about a miner now.
    pub(crate) fn verdict(&self, miner: MinerKey) -> CollateralVerdict {
        match &self.watched {
            None => CollateralVerdict::NotRequired,
            Some(watched) => watched.verdict(miner, self.clock.now()),
        }
    }

    /// Whether this validator asks for collateral.
    pub(crate) fn is_required(&self) -> bool {
        self.watched.is_some()
    }

    /// Reads the source for the miners of the subnet, and waits until it is time to read it again. Returns at once if
    /// this validator asks for no collateral.
    pub(crate) async fn read_and_rest(&self, metagraph: &Metagraph) {
        let Some(watched) = &self.watched else { return };
        watched.read(metagraph, &self.clock).await;
        let pause = if watched.has_failed() {
            PAUSE.min(watched.interval)
        } else {
            watched.interval
        };
        tokio::select! {
            () = self.clock.sleep(pause) => {}
            () = watched.wake.notified() => self.clock.sleep(PAUSE.min(watched.interval)).await,
        }
    }
}
