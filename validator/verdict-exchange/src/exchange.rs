//! The exchange itself: reads what other validators show, and carries out what the adoption rule decides. The only part
//! that waits for anything. `gather` reads, `witness` notes the headers that others show, `rescore` has the own
//! reference score answers again, `decide` decides and adopts.
//!
//! One bundle is replayed at a time, and a bounded number of one author in a day, so a hostile author can neither fill
//! the disk nor keep the processor. A decision is stored in one transaction: a validator that is killed has adopted a
//! bundle or has not.

mod decide;
mod gather;
mod rescore;
mod witness;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_audit::{AnswerFinding, Calibration, RescorablePair};
use muster_chain::Metagraph;
use muster_identity::Keypair;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_receipts::Fetcher;
use muster_store::StoreError;
use muster_subnet_view::SubnetView;
use muster_validator_store::{Store, genesis_digest};
use tokio::sync::watch;

use crate::adoption_rule::AdoptionRule;
use crate::header_witness::READ_EVERY;
use crate::rescore_budget::RescoreBudget;

/// The time in which only a bounded number of bundles of one author is read.
const DAY: Duration = Duration::from_secs(86_400);

/// The findings of this validator's own reference, in the order of the answers: `None` for one that it did not score.
/// The error states as text why there is no reference.
pub type Rescored = Result<Vec<Option<AnswerFinding>>, String>;

/// Finds the calibration by which this validator's own reference scores answers of a model; `None` if it has no
/// reference.
pub type FindCalibration = Box<dyn Fn(&str) -> Option<Calibration> + Send + Sync>;

/// The dependencies of a [`VerdictExchange`].
pub struct ExchangeDeps {
    /// The chain and the subnet.
    pub subnet: Arc<SubnetView>,
    /// The addresses at which the other validators with a permit serve their pages.
    pub peers: watch::Receiver<BTreeMap<ValidatorKey, SocketAddr>>,
    /// The calibrations by the configuration, whose files may change at any time.
    pub calibration: FindCalibration,
    /// Has a reference of this validator score answers of a model again.
    pub rescore: Box<dyn Fn(String, Vec<RescorablePair>) -> BoxFuture<'static, Rescored> + Send + Sync>,
    /// The validator's store.
    pub store: Arc<Store>,
    /// The validator's key, which signs statements.
    pub keypair: Keypair,
    /// The clock of the validator.
    pub clock: SharedClock,
    /// The validator's tasks, whose token stops the exchange.
    pub tasks: Tasks,
    /// The rule by which it adopts.
    pub rule: AdoptionRule,
}

/// Gathers and adopts other validators' bundles.
pub struct VerdictExchange {
    deps: ExchangeDeps,
    fetcher: Fetcher,
    /// The block at which the others' lists were read last.
    read_at: Option<u64>,
    /// Fetches that brought no text, by author.
    failures: BTreeMap<ValidatorKey, Vec<Timestamp>>,
    /// The attempts to score bundles again.
    tries: BTreeMap<(ValidatorKey, Digest), RescoreTries>,
    /// When references were started for whose bundles.
    budget: RescoreBudget,
}

/// The attempts to score one bundle again that failed.
#[derive(Clone, Debug)]
struct RescoreTries {
    count: u32,
    not_before: u64,
    why: String,
}

/// The chain at one block.
struct Moment {
    block: u64,
    metagraph: Arc<Metagraph>,
    /// The genesis hash with its prefix `0x`.
    genesis: String,
    /// The genesis hash and the number of the subnet.
    subnet: (Digest, u16),
}

impl std::fmt::Debug for VerdictExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VerdictExchange")
    }
}

impl VerdictExchange {
    /// An exchange that has read nothing yet; `None` if no HTTP client can be made.
    pub fn new(deps: ExchangeDeps) -> Option<Self> {
        let fetcher = match Fetcher::new() {
            Ok(fetcher) => fetcher,
            Err(error) => {
                tracing::error!(error = %Causes(&error), "no verdicts of other validators can be gathered");
                return None;
            }
        };
        Some(Self {
            deps,
            fetcher,
            read_at: None,
            failures: BTreeMap::new(),
            tries: BTreeMap::new(),
            budget: RescoreBudget::default(),
        })
    }

    /// Gathers and adopts until the validator stops.
    ///
    /// # Errors
    /// The database fails.
    pub async fn run(mut self) -> Result<(), StoreError> {
        let stop = self.deps.tasks.token();
        let rounds = async {
            let mut block = 0;
            loop {
                (block, _) = self.deps.subnet.wait_for_block_after(block).await;
                match self.round(block).await {
                    Ok(()) => {}
                    Err(refused) if refused.is_refused_value() => {
                        tracing::error!(error = %Causes(&refused), "the store refuses a value of another validator's verdict");
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        stop.run_until_cancelled(rounds).await.unwrap_or(Ok(()))
    }

    /// Reads the others' lists if it is time, and decides about every bundle that waits.
    async fn round(&mut self, block: u64) -> Result<(), StoreError> {
        let Some(moment) = self.moment(block) else {
            return Ok(());
        };
        if self
            .read_at
            .is_none_or(|read| block >= read.saturating_add(READ_EVERY))
        {
            let peers = self.deps.peers.borrow().clone();
            if !peers.is_empty() {
                self.read_at = Some(block);
                self.gather(&moment, peers).await?;
            }
        }
        for offer in self.deps.store.open_offers().await? {
            self.decide(&moment, offer).await?;
        }
        let now = self.deps.clock.now();
        self.failures.retain(|_, at| {
            at.retain(|at| now.since(*at) < DAY);
            !at.is_empty()
        });
        Ok(())
    }

    fn moment(&self, block: u64) -> Option<Moment> {
        let metagraph = self.deps.subnet.last_metagraph()?;
        let genesis = self.deps.store.genesis();
        let subnet = (genesis_digest(&genesis)?, metagraph.netuid.0);
        Some(Moment {
            block,
            metagraph,
            genesis,
            subnet,
        })
    }
}
