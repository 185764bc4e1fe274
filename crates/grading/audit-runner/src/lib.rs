//! Carries out spot checks for a validator. All that is judged is judged in `muster-audit`; this crate does what a
//! judgement needs.
//!
//! A validator opens an [`AuditRunner`] beside its gateway. Reading order: `log_keeper` (buckets are closed and drawn
//! from, block by block), `prompts` and `own_prompts` (the validator's own prompts), `gathering` (when a reference is
//! started), `audit_run` (one audit), `reference` (a machine that scores), `score_request` (its requests),
//! `evidence` (the bundle), `adoption` (the verdict counts), `calls` (the status page), [`store`], [`backend`] (the
//! validator's part).

mod adoption;
mod audit_run;
pub mod backend;
mod calls;
mod evidence;
mod gathering;
mod log_keeper;
mod own_prompts;
mod prompts;
mod reference;
mod reports;
mod score_request;
mod settings;
mod shares;
pub mod store;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_audit::{NoncePeriod, RevealedNonceKey};
use muster_gateway::AnswerLog;
use muster_gateway::trusted_sessions::TrustedSessions;
use muster_identity::Keypair;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Digest, Hotkey, MinerKey, ValidatorKey};
use muster_store::StoreError;
use muster_validator_store::Store;
use tokio::sync::{mpsc, oneshot};

pub use adoption::consequences;
pub use backend::AuditBackend;
pub use calls::AuditCalls;
pub use settings::{SecondEngine, Settings};
pub use store::{AuditRun, AuditStore, RunState};

use adoption::Adopter;
use evidence::AuditorFacts;
use gathering::{Subject, next_due};
use log_keeper::LogKeeper;
use prompts::Prompts;

/// Orders of the operator that may wait for an audit to end.
const MAX_WAITING_ORDERS: usize = 4;

/// The pause before the next audit by itself after one that ended without a verdict.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(600);

/// The dependencies of an [`AuditRunner`].
pub struct AuditDeps {
    /// The validator whose answers are checked.
    pub backend: Arc<dyn AuditBackend>,
    /// The log of its gateway.
    pub log: AnswerLog,
    /// Sessions on the validator's own miner, on which references run; `None` if it has no such miner.
    pub trusted: Option<TrustedSessions>,
    /// The validator's store.
    pub store: Arc<Store>,
    /// The validator's key: it signs headers and draws.
    pub keypair: Keypair,
    /// The clock of the validator.
    pub clock: SharedClock,
    /// The task group of the runner. Its token stops the runner.
    pub tasks: Tasks,
    /// Called when the store fails. The validator cannot go on then.
    pub on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Runs spot checks. Clones share one runner.
#[derive(Clone)]
pub struct AuditRunner {
    state: Arc<RunnerState>,
    orders: mpsc::Sender<AuditOrder>,
}

/// The operator's order: everything that has gathered is audited now.
struct AuditOrder {
    /// The only model that is audited; `None` for all.
    model: Option<String>,
    done: oneshot::Sender<Vec<AuditRun>>,
}

/// Why an order of the operator is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OrderRefusal {
    /// Other orders wait already.
    #[error(
        "other orders wait for their audits: look at `muster audit ls`, and try again when they have ended"
    )]
    Busy,
    /// The validator is stopping.
    #[error("the validator is stopping")]
    Stopping,
}

/// A key of nonces with all that is needed to check it.
#[derive(Clone, Copy)]
pub(crate) struct RevealedKey {
    pub(crate) key: [u8; 32],
    pub(crate) revealed: RevealedNonceKey,
    pub(crate) auditor: AuditorFacts,
}

/// Why a key of nonces is not told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HiddenKey {
    /// Nonces may still be made by it.
    #[error("the key of these nonces is told from block {0} on")]
    NotYet(u64),
    /// The validator made no nonces by this key, or has forgotten it.
    #[error("this validator made no nonces in that period, or it is too long ago")]
    NotUsed,
    /// The chain has not answered yet.
    #[error("the chain has not answered yet")]
    NoChain,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The state that the tasks of a runner share.
pub(crate) struct RunnerState {
    pub(crate) settings: Settings,
    pub(crate) backend: Arc<dyn AuditBackend>,
    pub(crate) adopter: Adopter,
    pub(crate) log: AnswerLog,
    pub(crate) trusted: Option<TrustedSessions>,
    pub(crate) store: AuditStore,
    pub(crate) prompts: Prompts,
    pub(crate) keypair: Keypair,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// The newest block that the log's keeper has seen; 0 before the first.
    pub(crate) seen_block: AtomicU64,
    on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl RunnerState {
    /// The validator and its subnet; `None` before the chain has answered.
    pub(crate) fn auditor(&self) -> Option<AuditorFacts> {
        let metagraph = self.backend.metagraph()?;
        let genesis = self.adopter.store.genesis();
        let mut bytes = [0; 32];
        hex::decode_to_slice(genesis.strip_prefix("0x")?, &mut bytes).ok()?;
        Some(AuditorFacts {
            genesis: Digest::from_bytes(bytes),
            netuid: metagraph.netuid.0,
            validator: ValidatorKey(self.keypair.hotkey()),
        })
    }

    /// The coldkey of every miner, as the chain states it; empty before the chain has answered.
    pub(crate) fn owners(&self) -> BTreeMap<MinerKey, Hotkey> {
        let metagraph = self.backend.metagraph();
        let neurons = metagraph.iter().flat_map(|metagraph| &metagraph.neurons);
        neurons
            .map(|neuron| (MinerKey(neuron.hotkey), neuron.coldkey))
            .collect()
    }

    /// The key of a period's nonces, which everybody may know.
    pub(crate) async fn reveal_nonce_key(&self, period: NoncePeriod) -> Result<RevealedKey, HiddenKey> {
        let auditor = self.auditor().ok_or(HiddenKey::NoChain)?;
        if self.seen_block.load(Ordering::Acquire) < period.reveal_block() {
            return Err(HiddenKey::NotYet(period.reveal_block()));
        }
        let hash = self.store.nonce_period(period).await?;
        let hash = hash.ok_or(HiddenKey::NotUsed)?;
        let (key, revealed) =
            RevealedNonceKey::prove(&self.keypair, &auditor.genesis, auditor.netuid, period, hash);
        Ok(RevealedKey {
            key,
            revealed,
            auditor,
        })
    }

    /// Reports that the store has failed.
    pub(crate) fn fail(&self, error: StoreError) {
        (self.on_store_failure)(error);
    }
}

impl std::fmt::Debug for AuditRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuditRunner")
    }
}

impl AuditRunner {
    /// Begins to keep the log, and to audit what has gathered.
    ///
    /// # Errors
    /// The database fails.
    pub async fn open(settings: Settings, deps: AuditDeps) -> Result<Self, StoreError> {
        let store = AuditStore::new(deps.store.pool());
        store.end_orphans(deps.clock.now()).await?;
        deps.log.store().release_unclosed().await?;
        let last = deps.log.store().last_bucket().await?;
        let prompts = Prompts::restore(&store, last.as_ref().map(|bucket| bucket.canary_list)).await?;
        let state = Arc::new(RunnerState {
            settings,
            adopter: Adopter {
                backend: Arc::clone(&deps.backend),
                store: deps.store,
                clock: Arc::clone(&deps.clock),
            },
            backend: deps.backend,
            log: deps.log,
            trusted: deps.trusted,
            store,
            prompts,
            keypair: deps.keypair,
            clock: deps.clock,
            tasks: deps.tasks,
            seen_block: AtomicU64::new(0),
            on_store_failure: deps.on_store_failure,
        });
        let (orders, waiting) = mpsc::channel(MAX_WAITING_ORDERS);
        let keeper = LogKeeper::new(Arc::clone(&state), last.map(|bucket| bucket.bucket));
        let keeping = keep_log(Arc::clone(&state), keeper);
        drop(state.tasks.spawn("answer log", keeping));
        let auditing = run_audits(Arc::clone(&state), waiting);
        drop(state.tasks.spawn("audits", auditing));
        Ok(Self { state, orders })
    }

    /// Audits everything that has gathered, or what has gathered of one model, without waiting for more. Returns the
    /// audits once they have ended: none if nothing waits.
    ///
    /// # Errors
    /// Other orders wait, or the validator stops.
    pub async fn run_now(&self, model: Option<String>) -> Result<Vec<AuditRun>, OrderRefusal> {
        let (done, ended) = oneshot::channel();
        self.orders
            .try_send(AuditOrder { model, done })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => OrderRefusal::Busy,
                mpsc::error::TrySendError::Closed(_) => OrderRefusal::Stopping,
            })?;
        ended.await.map_err(|_| OrderRefusal::Stopping)
    }

    /// The audits that were begun.
    pub fn store(&self) -> &AuditStore {
        &self.state.store
    }

    /// The log of answers.
    pub fn log(&self) -> &AnswerLog {
        &self.state.log
    }

    /// Whether there is a miner on which references can run.
    pub fn has_references(&self) -> bool {
        self.state.trusted.is_some()
    }
}

/// Follows the chain's blocks for the log.
async fn keep_log(state: Arc<RunnerState>, mut keeper: LogKeeper) {
    let mut block = 0;
    loop {
        block = state.backend.next_block(block).await;
        let advanced = match keeper.advance(block).await {
            Ok(Some(_)) => prompts::ask_own(&state).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = advanced {
            return state.fail(error);
        }
    }
}

/// Audits one model after the other: what the operator orders, and what is due at a block.
async fn run_audits(state: Arc<RunnerState>, mut orders: mpsc::Receiver<AuditOrder>) {
    let mut block = 0;
    let mut not_before = state.clock.now();
    loop {
        let audited = tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(order) => carry_out(&state, order).await,
                None => return,
            },
            next = state.backend.next_block(block) => {
                block = next;
                if state.clock.now() < not_before {
                    continue;
                }
                audit_due(&state).await
            }
        };
        match audited {
            Ok(runs) if runs.iter().any(|run| run.verdict.is_none()) => {
                not_before = state.clock.now().plus(PAUSE_AFTER_FAILURE);
            }
            Ok(_) => {}
            Err(error) => return state.fail(error),
        }
    }
}

async fn carry_out(state: &Arc<RunnerState>, order: AuditOrder) -> Result<Vec<AuditRun>, StoreError> {
    let gathered = gathered(state).await?;
    let mut by_model: BTreeMap<String, Vec<Subject>> = BTreeMap::new();
    for subject in gathered.into_keys() {
        if order.model.as_ref().is_none_or(|model| *model == subject.model) {
            by_model.entry(subject.model.clone()).or_default().push(subject);
        }
    }
    let mut all = Vec::new();
    for (model, subjects) in by_model {
        all.extend(audit_run::audit_model(state, &model, subjects).await?);
    }
    // The operator may have gone.
    let _ = order.done.send(all.clone());
    Ok(all)
}

/// The audits of the model that is due; none if none is.
async fn audit_due(state: &Arc<RunnerState>) -> Result<Vec<AuditRun>, StoreError> {
    // Without a machine of its own the validator gathers and audits nothing.
    if state.trusted.is_none() {
        return Ok(Vec::new());
    }
    let gathered = gathered(state).await?;
    let calibrated = gathered
        .into_iter()
        .filter(|(subject, _)| state.settings.calibrations.contains_key(&subject.model))
        .collect();
    match next_due(&calibrated, state.clock.now(), &state.settings) {
        Some((model, subjects)) => audit_run::audit_model(state, &model, subjects).await,
        None => Ok(Vec::new()),
    }
}

async fn gathered(state: &RunnerState) -> Result<BTreeMap<Subject, gathering::Gathered>, StoreError> {
    let since = state.clock.now().minus(state.settings.window());
    state.store.gathered(since, &state.owners()).await
}
