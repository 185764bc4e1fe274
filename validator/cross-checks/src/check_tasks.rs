//! The tasks of a validator that run jobs again: jobs that have ended are entered and drawn block by block, and those
//! that are due run one after the other, users' jobs before the validator's own ones.
//!
//! Every step is stored before the next one, so a validator that was killed goes on where it was: a run that it had
//! begun is called off at its start, and begins anew.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use muster_audit::{AnswerJudgement, DrawBlock};
use muster_audit_runner::AuditRunner;
use muster_identity::Keypair;
use muster_own_jobs::OwnJobs;
use muster_process::SharedClock;
use muster_protocol::wire::checks::CheckOrigin;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::{Digest, Hotkey, JobId, MinerKey, Timestamp};
use muster_response_proof::ReportedAnswer;
use muster_scoring::{Neuron, QualityFactor};
use muster_store::StoreError;
use muster_subnet_view::SubnetView;
use muster_validator_store::Store;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::coldkey_test::{ColdkeyTestResult, WINDOW_DAYS, add_quality, test_results};
use crate::image_marks::{CheckEffect, ImageMark, effect_of, stands, uncounted};
use crate::job_draw::{draw_block, draw_job};
use crate::own_check_tasks::{OwnJobDrawer, step_own_checks};
use crate::refunds::reconcile_refunds;
use crate::report_verdict::{verdict_of_answer, verdict_of_audit};
use crate::rerun_job::rerun_job;
use crate::settings::CrossCheckSettings;
use crate::store::{CheckStore, DueCheck, EndedJob, NewCheck, UndrawnJob};
use crate::verdict::{CheckStep, CheckVerdict, RunEnd, next_step};

/// How far back a validator that starts looks for jobs that ended while it was away.
const LOOK_BACK: Duration = Duration::from_secs(86_400);

/// The time after which a job that could not run is not tried again.
const GIVE_UP_AFTER: Duration = Duration::from_secs(86_400);

/// The pause after the first run that found no executor. It doubles with each further one, to an hour at most.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// How long news are kept for the facilitator.
const NEWS_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// How long jobs that were not drawn are remembered, so that none is entered twice.
const UNDRAWN_KEPT: Duration = Duration::from_secs(2 * 86_400);

/// How long checks are kept: as long as the evidence counts.
const CHECKS_KEPT: Duration = Duration::from_secs((WINDOW_DAYS + 1) * 86_400);

/// News of one reading.
const NEWS_PAGE: u32 = 32;

/// The dependencies of [`CrossChecks`].
pub struct CheckDeps {
    /// Runs jobs on the validator's own miner; `None` if it has no such miner.
    pub own_jobs: Option<OwnJobs>,
    /// The chain and the subnet.
    pub subnet: Arc<SubnetView>,
    /// Audits of streamed answers; `None` without a gateway.
    pub audits: Option<AuditRunner>,
    /// The validator's store.
    pub store: Arc<Store>,
    /// The validator's key, which draws and signs.
    pub keypair: Keypair,
    /// The clock of the validator.
    pub clock: SharedClock,
}

/// Runs jobs again. Clones share one.
#[derive(Clone)]
pub struct CrossChecks {
    pub(crate) state: Arc<CheckerState>,
}

/// The state that the tasks share.
pub(crate) struct CheckerState {
    pub(crate) settings: CrossCheckSettings,
    pub(crate) deps: CheckDeps,
    pub(crate) store: CheckStore,
    /// Notified when a check has become due.
    pub(crate) due: Notify,
}

impl std::fmt::Debug for CrossChecks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CrossChecks")
    }
}

impl CrossChecks {
    /// Cross-checks with these settings, which nothing carries out before [`Self::run`].
    pub fn new(settings: CrossCheckSettings, deps: CheckDeps) -> Self {
        let state = CheckerState {
            settings,
            store: CheckStore::new(deps.store.pool(), deps.store.writer()),
            deps,
            due: Notify::new(),
        };
        Self {
            state: Arc::new(state),
        }
    }

    /// Draws jobs and runs them again until `stop`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StoreError> {
        let working = async { tokio::try_join!(draw_block_by_block(&self.state), run_due(&self.state)) };
        let ended = stop.run_until_cancelled(working).await;
        ended.map_or(Ok(()), |done| done.map(|_| ()))
    }

    /// The messages about checks and refunds behind this number, for a facilitator with the feature `cross-checks`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn news_after(&self, sequence: i64) -> Result<Vec<(i64, ToFacilitator)>, StoreError> {
        let since = self.state.deps.clock.now().minus(NEWS_KEPT);
        self.state.store.news_after(sequence, since, NEWS_PAGE).await
    }
}

/// Enters the jobs that have ended, draws, and brings refunds in line with verdicts, once a block.
async fn draw_block_by_block(state: &CheckerState) -> Result<Infallible, StoreError> {
    let mut read_from = state.now().minus(LOOK_BACK);
    let (mut block, mut own_jobs) = (0, OwnJobDrawer::default());
    loop {
        (block, _) = state.deps.subnet.wait_for_block_after(block).await;
        read_from = enter_ended(state, read_from, block).await?;
        draw_jobs(state, block).await?;
        own_jobs.draw_to(state, block).await?;
        reconcile_refunds(&state.store, &state.deps.store, state.now()).await?;
        let now = state.now();
        state
            .store
            .forget(now.minus(UNDRAWN_KEPT), now.minus(CHECKS_KEPT))
            .await?;
        state.store.forget_own(now.minus(CHECKS_KEPT)).await?;
    }
}

/// Enters the deterministic jobs that have ended since; returns the time from which to read on.
async fn enter_ended(state: &CheckerState, since: Timestamp, head: u64) -> Result<Timestamp, StoreError> {
    if state.deps.own_jobs.is_none() || state.settings.share_ppm == 0 {
        return Ok(since);
    }
    let (ended, next) = state.store.ended_since(since).await?;
    for job in ended {
        if !may_be_drawn(&job) {
            continue;
        }
        let check = NewCheck {
            job: job.request.uuid,
            origin: CheckOrigin::Drawn,
            account: job.request.account(),
            coldkey: state.owner_of(job.miner),
            model: None,
            answer: None,
            draw_block: Some(draw_block(job.block.unwrap_or(head))),
            ended: Some(job),
        };
        state.store.insert(&check, state.now()).await?;
    }
    Ok(next)
}

/// Whether a job may be drawn: it declares itself deterministic, answers no requests, and ran on a miner of the subnet.
fn may_be_drawn(job: &EndedJob) -> bool {
    let request = &job.request;
    request.terms().deterministic && request.streaming_details.is_none() && !request.on_trusted_miner
}

/// Draws from the jobs whose draw block is there.
async fn draw_jobs(state: &CheckerState, head: u64) -> Result<(), StoreError> {
    let waiting = state.store.undrawn(head).await?;
    let mut hashes: BTreeMap<u64, Option<Digest>> = BTreeMap::new();
    for UndrawnJob {
        job,
        receipt,
        draw_block,
    } in waiting
    {
        let hash = match hashes.get(&draw_block) {
            Some(known) => *known,
            None => {
                let read = state.deps.subnet.block_hash(draw_block).await;
                hashes.insert(draw_block, read);
                read
            }
        };
        let (Some(hash), Some((genesis, netuid))) = (hash, state.subnet()) else {
            continue;
        };
        let block = DrawBlock {
            genesis,
            netuid,
            number: draw_block,
            hash,
        };
        let (is_drawn, proof) = draw_job(&state.deps.keypair, &block, &receipt, state.settings.share_ppm);
        let now = state.now();
        state.store.put_draw(job, is_drawn, &hash, &proof, now).await?;
        if is_drawn {
            tracing::info!(%job, block = draw_block, "a deterministic job was drawn and runs again");
            state.due.notify_one();
        }
    }
    Ok(())
}

/// Carries out the checks that are due, one after the other.
async fn run_due(state: &CheckerState) -> Result<Infallible, StoreError> {
    let mut block = 0;
    loop {
        while let Some(check) = state.store.next_due(state.now()).await? {
            carry_out(state, check).await?;
        }
        step_own_checks(state).await?;
        tokio::select! {
            () = state.due.notified() => {}
            (next, _) = state.deps.subnet.wait_for_block_after(block) => block = next,
        }
    }
}

/// Takes one step of a check: one run, or the verdict.
async fn carry_out(state: &CheckerState, mut check: DueCheck) -> Result<(), StoreError> {
    if let Some(model) = check.model.clone() {
        return audit_session(state, &check, model).await;
    }
    let Some(outputs) = check.outputs.clone() else {
        let verdict = CheckVerdict::unproven("the validator does not have the job's result");
        return conclude(state, &check, verdict).await;
    };
    let verdict = match next_step(&outputs, &check.runs) {
        CheckStep::Done(verdict) => verdict,
        CheckStep::RunAgain if let Some(mark) = mark_of(state, &check).await? => {
            CheckVerdict::unproven(uncounted(&mark))
        }
        CheckStep::RunAgain => match run_once(state, check.job).await? {
            RunEnd::Completed(run) => {
                check.runs.push(run);
                state.store.put_runs(check.job, &check.runs).await?;
                match next_step(&outputs, &check.runs) {
                    CheckStep::Done(verdict) => verdict,
                    // The row is still due.
                    CheckStep::RunAgain => return Ok(()),
                }
            }
            RunEnd::Impossible(reason) => CheckVerdict::unproven(reason),
            RunEnd::TryLater(reason) => match try_later(state, &check, &reason).await? {
                None => return Ok(()),
                Some(verdict) => verdict,
            },
        },
    };
    conclude(state, &check, verdict).await
}

/// The image of a job that has run on the validator's own miner: its id, or its reference if no id is known. By its
/// word the checked miner could have any image marked.
async fn image_of(state: &CheckerState, check: &DueCheck) -> Result<Option<String>, StoreError> {
    let Some(run) = check.runs.first() else {
        return Ok(None);
    };
    if let Some(image) = run.image {
        return Ok(Some(image.to_string()));
    }
    let stored = state.deps.store.job(check.job).await?;
    Ok(stored.map(|stored| format!("reference {}", stored.request.docker_image)))
}

/// The mark of a job's image, if it stands.
async fn mark_of(state: &CheckerState, check: &DueCheck) -> Result<Option<ImageMark>, StoreError> {
    let Some(image) = image_of(state, check).await? else {
        return Ok(None);
    };
    let mark = state.store.image_mark(&image).await?;
    Ok(mark.filter(|mark| stands(mark, state.now())))
}

/// Runs a job once on the validator's own miner.
pub(crate) async fn run_once(state: &CheckerState, job: JobId) -> Result<RunEnd, StoreError> {
    let Some(own_jobs) = &state.deps.own_jobs else {
        return Ok(RunEnd::Impossible(
            "this validator keeps no miner of its own, on which jobs run again".to_owned(),
        ));
    };
    let Some(stored) = state.deps.store.job(job).await? else {
        return Ok(RunEnd::Impossible("the validator has deleted the job".to_owned()));
    };
    let id = JobId::from_uuid(Uuid::new_v4());
    let request = rerun_job(&stored.request, id, &state.deps.keypair, state.now());
    tracing::info!(%job, run = %id, "a job runs again on the validator's own miner");
    if let Err(reason) = own_jobs.run(request, None).await {
        return Ok(RunEnd::TryLater(reason));
    }
    Ok(match state.deps.store.end_of(id).await? {
        Some((outcome, ..)) => RunEnd::of(&outcome),
        None => RunEnd::TryLater("its run has no end".to_owned()),
    })
}

/// Puts a run off; a verdict if it was put off for too long.
async fn try_later(
    state: &CheckerState,
    check: &DueCheck,
    reason: &str,
) -> Result<Option<CheckVerdict>, StoreError> {
    let now = state.now();
    if now.since(check.created_at) >= GIVE_UP_AFTER {
        return Ok(Some(CheckVerdict::unproven(format!(
            "the validator's own miner did not run it within a day: {reason}"
        ))));
    }
    let tries = check.tries.saturating_add(1);
    tracing::info!(job = %check.job, reason, tries, "a job that is to run again waits");
    state
        .store
        .put_try(check.job, tries, now.plus(pause_after(tries)), reason)
        .await?;
    Ok(None)
}

/// The pause after this many runs that found no executor.
pub(crate) fn pause_after(tries: u64) -> Duration {
    let doublings = u32::try_from(tries.saturating_sub(1).min(10)).unwrap_or(10);
    FIRST_PAUSE
        .saturating_mul(2_u32.saturating_pow(doublings))
        .min(LONGEST_PAUSE)
}

/// Has the answers of a reported session's model audited; the verdict about its miner's coldkey is the result.
async fn audit_session(state: &CheckerState, check: &DueCheck, model: String) -> Result<(), StoreError> {
    let verdict = match &state.deps.audits {
        None => CheckVerdict::unproven("this validator audits no answers"),
        Some(audits) => match audits.run_now(Some(model.clone())).await {
            Err(refusal) => {
                return match try_later(state, check, &refusal.to_string()).await? {
                    None => Ok(()),
                    Some(verdict) => conclude(state, check, verdict).await,
                };
            }
            Ok(runs) => {
                let of_coldkey = runs.iter().find(|run| Some(run.coldkey) == check.coldkey);
                let by_audit = verdict_of_audit(of_coldkey);
                match &check.answer {
                    None => by_audit,
                    Some(answer) => verdict_of_answer(judge(audits, &model, answer).await, by_audit),
                }
            }
        },
    };
    conclude(state, check, verdict).await
}

/// Has a reference score the reported answer, if its client shows its text.
async fn judge(
    audits: &AuditRunner,
    model: &str,
    answer: &ReportedAnswer,
) -> Result<AnswerJudgement, String> {
    let proof = answer.statement().ok_or("its proof cannot be read")?;
    let words = answer.words.as_ref().ok_or("its client keeps its words")?;
    let words = words.check(&proof).map_err(|rejection| rejection.to_string())?;
    audits.judge_answer(model, &proof, words).await
}

async fn conclude(state: &CheckerState, check: &DueCheck, verdict: CheckVerdict) -> Result<(), StoreError> {
    let (image, mark) = (image_of(state, check).await?, mark_of(state, check).await?);
    let now = state.now();
    let effect = effect_of(verdict, mark.as_ref(), now);
    let CheckEffect { verdict, refunds } = &effect;
    let (job, found) = (check.job, verdict.state.as_str());
    tracing::info!(%job, verdict = found, reason = verdict.reason, "a job was run again");
    if let Some(image) = image.as_deref().filter(|_| *refunds) {
        tracing::info!(%job, image, "the job is refunded, and for thirty days no check of its image counts");
    }
    metrics::counter!("muster_cross_checks_total", "verdict" => found).increment(1);
    state
        .store
        .put_verdict(check, &effect, image.as_deref(), now)
        .await
}

impl CheckerState {
    pub(crate) fn now(&self) -> Timestamp {
        self.deps.clock.now()
    }

    /// The owner of a miner, as the chain states it now.
    pub(crate) fn owner_of(&self, miner: MinerKey) -> Option<Hotkey> {
        let metagraph = self.deps.subnet.last_metagraph()?;
        metagraph.find(&miner.0).map(|neuron| neuron.coldkey)
    }

    /// The chain's first block and the subnet; `None` before the chain has answered.
    pub(crate) fn subnet(&self) -> Option<(Digest, u16)> {
        let metagraph = self.deps.subnet.last_metagraph()?;
        Some((self.deps.store.genesis_digest()?, metagraph.netuid.0))
    }

    /// The results of the own jobs of the last thirty days.
    pub(crate) async fn test_results(&self) -> Result<Vec<ColdkeyTestResult>, StoreError> {
        Ok(test_results(&self.store.own_results(self.now()).await?))
    }
}

/// The quality factors of a cycle, together with those that follow from the validator's own deterministic jobs.
///
/// # Errors
/// The database fails.
pub async fn quality_factors(
    store: &Store,
    factors: Vec<QualityFactor>,
    neurons: &[Neuron],
    now: Timestamp,
) -> Result<Vec<QualityFactor>, StoreError> {
    let results = CheckStore::new(store.pool(), store.writer())
        .own_results(now)
        .await?;
    let owners = neurons
        .iter()
        .map(|neuron| (MinerKey(neuron.hotkey), neuron.coldkey));
    Ok(add_quality(factors, &test_results(&results), &owners.collect()))
}

/// Whether a completed job may be run again because its user reported it, or why not.
pub(crate) fn may_be_reported(job: &EndedJob) -> Result<(), &'static str> {
    if job.request.on_trusted_miner {
        return Err("the job ran on the validator's own miner already");
    }
    if job.request.streaming_details.is_some() {
        return Err("a job that answers requests is not run again");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_an_hour() {
        let seconds: Vec<u64> = (1..13).map(|tries| pause_after(tries).as_secs()).collect();
        assert_eq!(
            seconds,
            [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600]
        );
    }
}
