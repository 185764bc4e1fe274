//! Carries out spot checks for a validator. All that is judged is judged in `muster-audit`; this crate does what a
//! judgement needs.
//!
//! A validator opens an [`AuditRunner`] beside its gateway. Reading order: `log_keeper` (buckets are closed and drawn
//! from, block by block), `prompts` and `prompt_sources` (the validator's own prompts), `gathering` (when a reference
//! is started), `phases` (in which a validator may be killed), `audit_run` (one audit), `audited_subject`,
//! `session_choice` and `unshown_answers` (its answers), `self_test` (a cheat that is planted), `rescoring` (others'
//! bundles), `reference` and `reference_engine` (a machine that scores), `score_request` (its requests), `evidence` and
//! `session_check` (the bundle), `adoption` (the verdict counts), `recovery` (audits of an earlier process), `notices`
//! and `delivery` (what miners are told), `reported` (answers that clients show), `appeals`, `appeal_rule` and
//! `fresh_answers`, `calls` (the status page), `store` and `notice_store`.

mod adoption;
mod answer_words;
mod appeal_rule;
mod appeals;
mod audit_run;
mod audited_subject;
mod calls;
mod delivery;
mod evidence;
mod fresh_answers;
mod gathering;
mod log_keeper;
mod notice_store;
mod notices;
mod phases;
mod prompt_sources;
mod prompts;
mod recovery;
mod reference;
mod reference_engine;
mod reported;
mod reports;
mod rescoring;
mod sampler_fields;
mod score_request;
mod self_test;
mod self_test_store;
mod session_check;
mod session_choice;
mod settings;
mod shares;
mod store;
#[cfg(test)]
mod testing;
mod unshown_answers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use muster_audit::{AnswerJudgement, Calibration, NoncePeriod, RescorablePair, RevealedNonceKey, TokenScore};
use muster_gateway::miner_sessions::MinerSessions;
use muster_gateway::store::StoredBucket;
use muster_gateway::{AnswerLog, Gateway};
use muster_identity::Keypair;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{CheckedWords, ResponseProof};
use muster_session_pool::Service;
use muster_store::StoreError;
use muster_subnet_view::SubnetView;
use muster_validator_store::Store;
use tokio::sync::{mpsc, oneshot};

pub use adoption::consequences;
pub use appeals::StoredAppeal;
pub use calls::AuditCalls;
pub use phases::{AuditPhase, PhaseObserver};
pub use reference_engine::{ReferenceEngine, SamplerSettings};
pub use self_test_store::{SelfTest, SelfTestState};
pub use settings::{PlantedCheat, SecondEngine, SelfTestSettings, Settings};
pub use store::{AuditRun, AuditStore, RunState};

use adoption::Adopter;
use appeals::AppealRefusal;
use evidence::AuditorFacts;
use gathering::{AuditPauses, Subject, next_due};
use log_keeper::{DueWork, LogKeeper};
use prompts::Prompts;
use self_test::SelfTests;

/// Orders of the operator that may wait for an audit to end.
const MAX_WAITING_ORDERS: usize = 4;

/// The miners that get no sessions for clients, by model: spot checks accuse them.
pub type BarredMiners = parking_lot::Mutex<BTreeMap<String, BTreeSet<MinerKey>>>;

/// The dependencies of an [`AuditRunner`].
pub struct AuditDeps {
    /// The gateway whose answers are checked.
    pub gateway: Gateway,
    /// The whitelisted services.
    pub services: Vec<Service>,
    /// The chain and the subnet.
    pub subnet: Arc<SubnetView>,
    /// Set to the miners that get no sessions for clients.
    pub barred: Arc<BarredMiners>,
    /// Sessions on the validator's own miner, on which references run; `None` if it has no such miner.
    pub trusted: Option<MinerSessions>,
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
    pub(crate) adopter: Adopter,
    pub(crate) gateway: Gateway,
    pub(crate) services: Vec<Service>,
    pub(crate) subnet: Arc<SubnetView>,
    barred: Arc<BarredMiners>,
    pub(crate) log: AnswerLog,
    pub(crate) trusted: Option<MinerSessions>,
    pub(crate) store: AuditStore,
    pub(crate) prompts: Prompts,
    pub(crate) self_tests: SelfTests,
    pub(crate) keypair: Keypair,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Held while references run.
    pub(crate) machines: tokio::sync::Mutex<()>,
    /// Whether outcomes may have come that miners are not told: set when a bucket is closed or drawn from, and when an
    /// audit has its verdict.
    pub(crate) outcomes_due: AtomicBool,
    /// Held while an appeal is heard.
    pub(crate) hearing: tokio::sync::Mutex<()>,
    /// The bundles whose appeals have a session for fresh answers now.
    pub(crate) asking: parking_lot::Mutex<BTreeSet<Digest>>,
    /// The newest block that the log's keeper has seen; 0 before the first.
    pub(crate) seen_block: AtomicU64,
    on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl RunnerState {
    /// The validator and its subnet; `None` before the chain has answered.
    pub(crate) fn auditor(&self) -> Option<AuditorFacts> {
        let metagraph = self.subnet.last_metagraph()?;
        Some(AuditorFacts {
            genesis: self.adopter.store.genesis_digest()?,
            netuid: metagraph.netuid.0,
            validator: ValidatorKey(self.keypair.hotkey()),
        })
    }

    /// The coldkey of every miner, as the chain states it; empty before the chain has answered.
    pub(crate) fn owners(&self) -> BTreeMap<MinerKey, Hotkey> {
        let metagraph = self.subnet.last_metagraph();
        let neurons = metagraph.iter().flat_map(|metagraph| &metagraph.neurons);
        neurons
            .map(|neuron| (MinerKey(neuron.hotkey), neuron.coldkey))
            .collect()
    }

    /// The coldkeys and models whose answers are all audited now.
    pub(crate) async fn watched(&self) -> Result<BTreeSet<Subject>, StoreError> {
        let now = self.clock.now();
        let counting = self.adopter.store.counting_audits().await?;
        Ok(appeals::watched(&counting, &self.store.appeals(now).await?, now))
    }

    /// The models of open appeals.
    pub(crate) async fn appealed_models(&self) -> Result<Vec<String>, StoreError> {
        let appeals = self.store.appeals(self.clock.now()).await?;
        let open = appeals.into_iter().filter(StoredAppeal::is_open);
        let models: BTreeSet<String> = open.map(|appeal| appeal.model).collect();
        Ok(models.into_iter().collect())
    }

    /// Whether an appeal about a subject is open.
    pub(crate) async fn is_appealed(&self, subject: &Subject) -> Result<bool, StoreError> {
        let appeals = self.store.appeals(self.clock.now()).await?;
        Ok(appeals
            .iter()
            .any(|appeal| appeal.is_open() && appeal.subject() == *subject))
    }

    /// Since when the answers of a subject are judged.
    pub(crate) async fn judged_since(&self, subject: &Subject) -> Result<Timestamp, StoreError> {
        let window = self.clock.now().minus(self.settings.window());
        let appeals = self.store.appeals(window).await?;
        Ok(appeals::judged_since(subject, &appeals, window))
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

    /// A phase of an audit begins.
    pub(crate) async fn enter(&self, phase: AuditPhase) {
        self.settings.observer.enter(phase).await;
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
        recovery::recover_runs(&store, &deps.store, deps.clock.now()).await?;
        store.end_orphaned_self_tests(deps.clock.now()).await?;
        self_test::measure_newest(&store).await?;
        if settings.own_prompts > 0 && settings.prompts.is_none() && settings.written_prompts == 0 {
            tracing::warn!(
                "neither audit.prompts nor audit.written_prompts is set: the built-in prompts are public, and a miner \
                 may know them"
            );
        }
        let log = deps.gateway.answer_log();
        log.store().release_unclosed().await?;
        let last = log.store().last_bucket().await?;
        let prompts = Prompts::restore(&store, last.as_ref().map(|bucket| bucket.canary_list)).await?;
        let state = Arc::new(RunnerState {
            settings,
            adopter: Adopter {
                subnet: Arc::clone(&deps.subnet),
                store: deps.store,
                clock: Arc::clone(&deps.clock),
            },
            gateway: deps.gateway,
            services: deps.services,
            subnet: deps.subnet,
            barred: deps.barred,
            log,
            trusted: deps.trusted,
            store,
            prompts,
            self_tests: SelfTests::default(),
            keypair: deps.keypair,
            clock: deps.clock,
            tasks: deps.tasks,
            machines: tokio::sync::Mutex::default(),
            outcomes_due: AtomicBool::new(true),
            hearing: tokio::sync::Mutex::default(),
            asking: parking_lot::Mutex::default(),
            seen_block: AtomicU64::new(0),
            on_store_failure: deps.on_store_failure,
        });
        let (orders, waiting) = mpsc::channel(MAX_WAITING_ORDERS);
        let keeper = LogKeeper::new(Arc::clone(&state), last.map(|bucket| bucket.bucket));
        let keeping = keep_log(Arc::clone(&state), keeper);
        drop(state.tasks.spawn("answer log", keeping));
        let telling = delivery::deliver_notices(Arc::clone(&state));
        drop(state.tasks.spawn("audit notices", telling));
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

    /// Orders a test of the spot checks with this model. It begins once the next bucket is closed.
    ///
    /// # Errors
    /// The configuration names no cheaper engine or no calibration of the model, or the validator has no miner of its
    /// own: what to configure, in words.
    pub fn order_self_test(&self, model: &str) -> Result<(), String> {
        let settings = &self.state.settings;
        if self.state.trusted.is_none() {
            return Err("this validator has no miner of its own: [trusted_miner] names one".to_owned());
        }
        if !settings.calibrations.contains_key(model) {
            return Err(format!("[audit.calibrations] has no calibration of {model}"));
        }
        if !settings.self_test.cheats.contains_key(model) {
            return Err(format!(
                "[audit.self_test.cheats] names no cheaper engine of {model}"
            ));
        }
        self.state.self_tests.order(model.to_owned());
        Ok(())
    }

    /// Has a reference score answers of another validator's bundle again: the scores in the order of the pairs, `None`
    /// for one that it did not score.
    ///
    /// # Errors
    /// The reason why there is no reference, in words.
    pub async fn rescore(
        &self,
        model: &str,
        pairs: &[RescorablePair],
    ) -> Result<Vec<Option<Vec<TokenScore>>>, String> {
        rescoring::rescore(&self.state, model, pairs).await
    }

    /// Has a reference score one answer that its client reports and shows.
    ///
    /// # Errors
    /// The reason why it is not judged, in words.
    pub async fn judge_answer(
        &self,
        model: &str,
        proof: &ResponseProof,
        words: CheckedWords,
    ) -> Result<AnswerJudgement, String> {
        reported::judge_answer(&self.state, model, proof, words).await
    }

    /// The calibration of a model by the configuration; `None` if it has none, or one of another engine than the
    /// whitelisted one.
    pub fn calibration(&self, model: &str) -> Option<Calibration> {
        let (_, calibration) = audit_run::calibrated_service(&self.state, model).ok()?;
        Some(calibration)
    }

    /// The audits that were begun.
    pub fn store(&self) -> &AuditStore {
        &self.state.store
    }

    /// The log of answers.
    pub fn log(&self) -> &AnswerLog {
        &self.state.log
    }

    /// Whether the draw of a bucket is so old that every outcome is shown.
    pub(crate) fn is_reveal_due(&self, closed: &StoredBucket) -> bool {
        delivery::is_reveal_due(&self.state, closed)
    }

    /// Hears a miner's signed appeal.
    pub(crate) async fn hear_appeal(&self, text: &str) -> Result<StoredAppeal, AppealRefusal> {
        appeals::hear_appeal(&self.state, text).await
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
        (block, _) = state.subnet.wait_for_block_after(block).await;
        let advanced = match keeper.advance(block).await {
            Ok(due) => do_due(&state, due).await,
            Err(error) => Err(error),
        };
        let advanced = match advanced {
            Ok(()) => bar_sessions(&state).await,
            Err(error) => Err(error),
        };
        if let Err(error) = advanced {
            return state.fail(error);
        }
    }
}

/// Begins another list of own prompts after a bucket was closed, and asks its prompts once it is committed to.
async fn do_due(state: &Arc<RunnerState>, due: DueWork) -> Result<(), StoreError> {
    if let Some(closed) = due.closed {
        state.outcomes_due.store(true, Ordering::SeqCst);
        if !due.is_list_prepared {
            self_test::prepare_due(state).await?;
            prompts::prepare_list(state, closed).await?;
        }
    }
    if let Some(ended) = due.asked_after {
        self_test::begin_prepared(state);
        prompts::ask_own(state, ended).await?;
        fresh_answers::ask_fresh(state, ended).await?;
    }
    Ok(())
}

/// Names the miners that get no sessions for clients now.
async fn bar_sessions(state: &RunnerState) -> Result<(), StoreError> {
    let counting = state.adopter.store.counting_audits().await?;
    let barred = appeals::barred(&counting, &state.owners(), state.clock.now());
    *state.barred.lock() = barred;
    Ok(())
}

/// Audits one model after the other: what the operator orders, and what is due at a block.
async fn run_audits(state: Arc<RunnerState>, mut orders: mpsc::Receiver<AuditOrder>) {
    let mut block = 0;
    let mut pauses = AuditPauses::default();
    loop {
        let audited = tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(order) => carry_out(&state, order).await,
                None => return,
            },
            (next, _) = state.subnet.wait_for_block_after(block) => {
                block = next;
                if let Err(error) = self_test::judge_drawn(&state, block).await {
                    return state.fail(error);
                }
                audit_due(&state, &mut pauses).await
            }
        };
        if let Err(error) = audited {
            return state.fail(error);
        }
    }
}

async fn carry_out(state: &Arc<RunnerState>, order: AuditOrder) -> Result<(), StoreError> {
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
    let _ = order.done.send(all);
    Ok(())
}

/// Audits what appeals wait for, and the model that is due.
async fn audit_due(state: &Arc<RunnerState>, pauses: &mut AuditPauses) -> Result<(), StoreError> {
    // Without a machine of its own the validator gathers and audits nothing.
    if state.trusted.is_none() {
        return Ok(());
    }
    fresh_answers::audit_appeals(state, pauses).await?;
    let (gathered, now) = (gathered(state).await?, state.clock.now());
    let ready = gathered
        .into_iter()
        .filter(|(subject, _)| state.settings.calibrations.contains_key(&subject.model))
        .filter(|(subject, _)| !pauses.is_paused(subject, now))
        .collect();
    if let Some((model, subjects)) = next_due(&ready, now, &state.settings) {
        let runs = audit_run::audit_model(state, &model, subjects.clone()).await?;
        pauses.note(&subjects, &runs, state.clock.now());
    }
    Ok(())
}

async fn gathered(state: &RunnerState) -> Result<BTreeMap<Subject, gathering::Gathered>, StoreError> {
    let since = state.clock.now().minus(state.settings.window());
    let owners = state.owners();
    let mut gathered = state.store.gathered(since, since, &owners).await?;
    for appeal in state.store.appeals(since).await? {
        let subject = appeal.subject();
        // Its fresh answers are judged by themselves, once they are enough.
        if appeal.is_open() {
            gathered.remove(&subject);
            continue;
        }
        let judged_since = state.judged_since(&subject).await?;
        if judged_since > since && gathered.contains_key(&subject) {
            let mut fresh = state.store.gathered(since, judged_since, &owners).await?;
            match fresh.remove(&subject) {
                Some(fresh) => gathered.insert(subject, fresh),
                None => gathered.remove(&subject),
            };
        }
    }
    Ok(gathered)
}
