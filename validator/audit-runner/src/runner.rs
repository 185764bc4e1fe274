//! Runs spot checks: one task keeps the log, one sends notices, and one audits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use muster_audit::{AnswerFinding, AnswerJudgement, Calibration, RescorablePair};
use muster_gateway::miner_sessions::MinerSessions;
use muster_gateway::store::StoredBucket;
use muster_gateway::{AnswerLog, Gateway};
use muster_identity::Keypair;
use muster_process::{SharedClock, Tasks};
use muster_response_proof::{CheckedWords, ResponseProof};
use muster_session_pool::Service;
use muster_store::StoreError;
use muster_subnet_view::SubnetView;
use muster_validator_store::Store;
use tokio::sync::{mpsc, oneshot};

use crate::appeals::appeal_admission::{self, AppealRefusal};
use crate::appeals::effects;
use crate::appeals::fresh_answers::{FreshSessions, ask_convicts, ask_fresh, audit_appeals};
use crate::appeals::stored_appeal::StoredAppeal;
use crate::audits::adoption::Adopter;
use crate::audits::audit_run::audit_model;
use crate::audits::recovery::recover_runs;
use crate::audits::reference_start::{AuditPauses, next_due};
use crate::audits::run_record::AuditRun;
use crate::audits::subject::{Gathered, Subject};
use crate::log::keeper::LogKeeper;
use crate::notices::delivery;
use crate::own_prompts::list_queue::ListQueue;
use crate::own_prompts::sources::PromptStock;
use crate::reference::plan::calibrated_service;
use crate::reference::{reported, rescoring};
use crate::runner_state::{BarredMiners, RunnerState};
use crate::self_test;
use crate::self_test::judging::{judge_drawn, measure_newest};
use crate::self_test::ordered_tests::SelfTests;
use crate::settings::Settings;
use crate::store::audit_store::AuditStore;

/// Orders of the operator that may wait for an audit to end.
const MAX_WAITING_ORDERS: usize = 4;

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
    pub(crate) state: Arc<RunnerState>,
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
        let store = AuditStore::new(deps.store.pool(), deps.store.writer());
        recover_runs(&store, &deps.store, deps.clock.now()).await?;
        store.end_orphaned_self_tests(deps.clock.now()).await?;
        measure_newest(&store).await?;
        if settings.own_prompts > 0 && settings.prompts.is_none() && settings.written_prompts == 0 {
            tracing::warn!(
                "neither audit.prompts nor audit.written_prompts is set: the built-in prompts are public, and a miner \
                 may know them"
            );
        }
        let log = deps.gateway.answer_log();
        log.store().release_unclosed().await?;
        let last = log.store().last_bucket().await?;
        let state = Arc::new(RunnerState {
            settings,
            adopter: Adopter {
                subnet: Arc::clone(&deps.subnet),
                store: deps.store,
                clock: Arc::clone(&deps.clock),
            },
            services: deps.services,
            subnet: deps.subnet,
            barred: deps.barred,
            gateway: deps.gateway,
            log,
            trusted: deps.trusted,
            store,
            stock: PromptStock::default(),
            lists: ListQueue::default(),
            open_prompts: parking_lot::Mutex::default(),
            self_tests: SelfTests::default(),
            keypair: deps.keypair,
            clock: deps.clock,
            tasks: deps.tasks,
            machines: tokio::sync::Mutex::default(),
            outcomes_due: AtomicBool::new(true),
            hearing: tokio::sync::Mutex::default(),
            asking: FreshSessions::default(),
            seen_block: AtomicU64::new(0),
            on_store_failure: deps.on_store_failure,
        });
        let (orders, waiting) = mpsc::channel(MAX_WAITING_ORDERS);
        let keeper = LogKeeper::new(Arc::clone(&state), last.map(|bucket| bucket.bucket));
        run_until_stopped(&state, "answer log", keep_log(Arc::clone(&state), keeper));
        let telling = delivery::deliver_notices(Arc::clone(&state));
        run_until_stopped(&state, "audit notices", telling);
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

    /// Orders a test of the spot checks with this model. It begins with the next block.
    ///
    /// # Errors
    /// The configuration names no cheaper engine or no calibration of the model, or the validator has no miner of its
    /// own: what to configure, as text.
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
    /// The reason why there is no reference, as text.
    pub async fn rescore(
        &self,
        model: &str,
        pairs: &[RescorablePair],
    ) -> Result<Vec<Option<AnswerFinding>>, String> {
        rescoring::rescore(&self.state, model, pairs).await
    }

    /// Has a reference score one answer that its client reports and shows.
    ///
    /// # Errors
    /// The reason why it is not judged, as text.
    pub async fn judge_answer(
        &self,
        model: &str,
        proof: &ResponseProof,
        words: CheckedWords,
    ) -> Result<AnswerJudgement, String> {
        reported::judge_answer(&self.state, model, proof, words).await
    }

    /// The calibration by which the own reference scores answers of a model; `None` if the configuration has none, or
    /// one of another engine than the whitelisted one, and without a miner of the validator's own.
    pub fn calibration(&self, model: &str) -> Option<Calibration> {
        self.state.trusted.as_ref()?;
        let (_, calibration) = calibrated_service(&self.state, model).ok()?;
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
        appeal_admission::hear_appeal(&self.state, text).await
    }

    /// Whether there is a miner on which references can run.
    pub fn has_references(&self) -> bool {
        self.state.trusted.is_some()
    }
}

/// Spawns a task that ends with the validator. It may end between two writes, as when the process is killed.
fn run_until_stopped(
    state: &RunnerState,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let stop = state.tasks.token();
    let task = state
        .tasks
        .spawn(name, async move { stop.run_until_cancelled(task).await });
    drop(task);
}

/// Follows the chain's blocks for the log.
async fn keep_log(state: Arc<RunnerState>, mut keeper: LogKeeper) {
    let mut block = 0;
    loop {
        (block, _) = state.subnet.wait_for_block_after(block).await;
        let advanced = match keeper.advance(block).await {
            Ok(()) => begin_due(&state).await,
            Err(error) => Err(error),
        };
        let advanced = match advanced {
            Ok(()) => bar_sessions(&state).await,
            Err(error) => Err(error),
        };
        if let Err(error) = advanced
            && state.fail(error)
        {
            return;
        }
    }
}

/// Opens the sessions in which appeals, convicts and self-tests that are due get own prompts.
async fn begin_due(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    self_test::asking::begin_due(state).await?;
    ask_fresh(state).await?;
    ask_convicts(state).await
}

/// Names the miners that get no sessions for clients now.
async fn bar_sessions(state: &RunnerState) -> Result<(), StoreError> {
    let counting = state.adopter.store.counting_audits().await?;
    let barred = effects::barred(&counting, &state.owners(), state.clock.now());
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
                match judge_drawn(&state, block).await {
                    Ok(()) => audit_due(&state, &mut pauses).await,
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = audited
            && state.fail(error)
        {
            return;
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
        all.extend(audit_model(state, &model, subjects).await?);
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
    audit_appeals(state, pauses).await?;
    let (gathered, now) = (gathered(state).await?, state.clock.now());
    let ready = gathered
        .into_iter()
        .filter(|(subject, _)| state.settings.calibrations.contains_key(&subject.model))
        .filter(|(subject, _)| !pauses.is_paused(subject, now))
        .collect();
    if let Some((model, subjects)) = next_due(&ready, now, &state.settings) {
        let runs = audit_model(state, &model, subjects.clone()).await?;
        pauses.note(&subjects, &runs, state.clock.now());
    }
    Ok(())
}

async fn gathered(state: &RunnerState) -> Result<BTreeMap<Subject, Gathered>, StoreError> {
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
