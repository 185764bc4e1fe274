//! One task per job: choose a miner, see the attempt through, choose another if it failed by no fault of the user's, tell the
//! user once.
//!
//! Read [`conduct`] for one attempt, [`papers`] and [`messages`] for what is said about it, [`strays`] for what is said about
//! attempts that are over. How it is carried is the business of `muster_websocket::lines`.

mod conduct;
mod manifest;
pub mod messages;
mod papers;
mod strays;

use std::sync::Arc;
use std::time::Duration;

use muster_chain::{Metagraph, Uid};
use muster_gateway::host::News;
use muster_process::store::StoreError;
use muster_protocol::job::{Attempt, Outcome, Plan};
use muster_protocol::status::{JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::{JobRequest, RejectionDetails, StatusMetadata};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{AttemptId, ErrorCode, JobId, JobStatus, MinerKey, Receipt};
use muster_routing::retry::{self, Facts, Next};
use muster_routing::{Candidate, Decision, Policy, Route, Subject, Thing, Wish, route};
use muster_websocket::lines::Line;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::report::{self, Tried, in_words, metadata, of_our_own, with_complaint};
use crate::shared::{CancelEar, Shared};
use crate::store::{Beginning, OwnReceipt, StoredAttempt};
use conduct::{Conduct, Flow};
pub(crate) use manifest::fetch_manifest;
pub(crate) use papers::GRADING;
use papers::Papers;
pub(crate) use strays::run as look_at_strays;

/// A job for its driver.
#[derive(Debug)]
struct Task {
    request: JobRequest,
    /// Why its user called it off before the driver began.
    cancelled: Option<String>,
    /// Its attempts, oldest first.
    attempts: Vec<StoredAttempt>,
    /// The receipts of the last of them.
    receipts: Vec<OwnReceipt>,
    /// Whether a process that is gone left them.
    resumed: bool,
    /// The line of the last of them.
    line: Option<Line>,
}

/// The first attempt of a new job, if a miner is known for it at once. Whoever is chosen is taken from here on, so the job
/// must be driven.
pub(crate) fn first(shared: &Shared, request: &JobRequest) -> Option<Box<Beginning>> {
    let metagraph = shared.outlook.fresh()?;
    let (wish, policy) = (wish(request, &[]), policy(shared));
    let (found, chosen) = choose(shared, &wish, &metagraph, &policy);
    let decision = found.decision(wish.class, metagraph.block.0);
    Some(Box::new(beginning(shared, request, &[], chosen?, decision)))
}

/// Gives a place back that was taken for a job which turned out to be known.
pub(crate) fn withdraw(shared: &Shared, attempt: &StoredAttempt) {
    let class = attempt.machine.plan().class;
    shared
        .ledger()
        .withdrawn(attempt.miner, class, attempt.started_at);
}

/// A line for an attempt. Nothing is dialled yet.
pub(crate) fn line(shared: &Shared, attempt: &StoredAttempt) -> Line {
    shared.lines.line(attempt.id, attempt.miner, attempt.address)
}

/// Drives a job that was just taken and is in the store with its first attempt, if it has one already, and then `line` is
/// that one's.
pub(crate) fn start(
    shared: &Arc<Shared>,
    request: JobRequest,
    first: Option<Box<Beginning>>,
    line: Option<Line>,
) {
    let (attempts, receipts) = match first.map(|first| *first) {
        Some(first) => (vec![first.attempt], vec![first.receipt]),
        None => (Vec::new(), Vec::new()),
    };
    let task = Task {
        request,
        cancelled: None,
        attempts,
        resumed: false,
        receipts,
        line,
    };
    begin_to_drive(shared, task);
}

/// Takes up every job that an earlier process left open. While the jobs of one page get their drivers the next page is read.
pub(crate) async fn resume(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let read = |after| {
        let reading = Arc::clone(shared);
        let reading = async move { reading.store.open_after(after).await };
        shared.tasks.spawn("read open jobs", reading)
    };
    let (mut next, mut resumed) = (read(None), 0_usize);
    loop {
        // Who reads ends early only if what is there cannot be read.
        let page = next
            .join()
            .await
            .map_err(|error| StoreError::corrupt("jobs", error))??;
        let Some(last) = page.last()? else { break };
        next = read(Some(last));
        for job in page.read()? {
            let task = Task {
                request: job.request,
                cancelled: job.cancelled,
                // What a miner says as soon as the first of these dials it is about all of them.
                line: job.attempts.last().map(|last| line(shared, last)),
                attempts: job.attempts,
                receipts: job.receipts,
                resumed: true,
            };
            begin_to_drive(shared, task);
            resumed = resumed.saturating_add(1);
        }
    }
    shared.resumed.send_replace(true);
    if resumed > 0 {
        tracing::info!(jobs = resumed, "resumed open jobs");
    }
    Ok(())
}

fn begin_to_drive(shared: &Arc<Shared>, task: Task) {
    // Whoever cancels finds the driver from here on, also before its task has run for the first time.
    let cancel = shared.listen_for_cancel(task.request.uuid, task.cancelled.clone());
    let driving = Arc::clone(shared);
    shared.spawn("job", async move {
        // While a hundred thousand are being read, none of them dials: the first would keep the others from being read.
        let (stop, mut resumed) = (driving.tasks.token(), driving.resumed.subscribe());
        let all_are_there = async { resumed.wait_for(|all| *all).await.is_ok() };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = all_are_there => {}
        }
        // Driving takes kilobytes; a hundred thousand that only wait for the last of them should not.
        Box::pin(drive(&driving, task, cancel)).await
    });
}

async fn drive(shared: &Arc<Shared>, task: Task, mut cancel: CancelEar) -> Result<(), StoreError> {
    let Task {
        request,
        mut attempts,
        receipts,
        resumed,
        line: mut begun,
        ..
    } = task;
    let job = request.uuid;
    let (mut attempt, mut receipts, mut resumed) = match attempts.pop() {
        Some(last) => (last, receipts, resumed),
        None => match begin(shared, &request, &attempts, &mut cancel).await? {
            Begun::Attempt(first) => (first.attempt, vec![first.receipt], false),
            Begun::Nobody(outcome) => return close(shared, &request, outcome, &[], vec![]).await,
            Begun::Stopped => return Ok(()),
        },
    };
    loop {
        let line = begun.take().unwrap_or_else(|| line(shared, &attempt));
        let mut conduct = Conduct::new(shared, &request, attempt, receipts, line, resumed);
        let outcome = match conduct.run(&mut cancel).await? {
            Flow::Stopped => {
                conduct.leave().await;
                return Ok(());
            }
            Flow::Ended(outcome) => with_complaint(outcome, conduct.complaint()),
        };
        attempts.push(conduct.attempt().clone());
        let facts = Facts {
            attempts: u32::try_from(attempts.len()).unwrap_or(u32::MAX),
            max_attempts: shared.config.routing.max_attempts,
            cancelled: cancel.called_off().is_some(),
            address_told: address_told(shared, &request).await?,
        };
        if retry::next(&outcome, facts) == Next::TryAnother
            && let Begun::Attempt(another) = begin(shared, &request, &attempts, &mut cancel).await?
        {
            tracing::info!(%job, ended = in_words(&outcome), miner = %another.attempt.miner, "trying another miner");
            conduct.leave().await;
            (attempt, receipts, resumed) = (another.attempt, vec![another.receipt], false);
            continue;
        }
        let receipts = match conduct.settle().await? {
            None => return Ok(()),
            Some(receipts) => receipts.iter().filter_map(OwnReceipt::complete).collect(),
        };
        return close(shared, &request, outcome, &attempts, receipts).await;
    }
}

/// Whether the user was told where a streaming job answers.
async fn address_told(shared: &Shared, request: &JobRequest) -> Result<bool, StoreError> {
    if request.streaming_details.is_none() {
        return Ok(false);
    }
    let told = shared.store.told(request.uuid).await?;
    Ok(told.is_some_and(|told| matches!(told, JobStatus::StreamingReady | JobStatus::ExecutionDone)))
}

/// What came of choosing a miner.
enum Begun {
    /// One was found and the attempt written down.
    Attempt(Box<Beginning>),
    /// There is none, or nobody wants one; what the user is told if there was no attempt before.
    Nobody(Outcome),
    /// The validator stops.
    Stopped,
}

/// Chooses a miner and writes the attempt down. Until the chain has answered for the first time nobody is known, and the
/// job waits for it, within bounds.
async fn begin(
    shared: &Shared,
    request: &JobRequest,
    earlier: &[StoredAttempt],
    cancel: &mut CancelEar,
) -> Result<Begun, StoreError> {
    let stop = shared.tasks.token();
    let metagraph = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(Begun::Stopped),
        reason = cancel.wait() => {
            return Ok(Begun::Nobody(Outcome::cancelled(JobStage::ExecutorStartup, &reason)));
        }
        metagraph = shared.outlook.metagraph() => metagraph,
        () = shared.clock.sleep(Duration::from_secs(shared.config.chain.wait_s)) => {
            let code = ErrorCode::ChainUnreachable;
            tracing::warn!(%code, job = %request.uuid, "the chain has not answered yet, so no miner is known for a job");
            let message = "the chain does not answer, so no miner is known; submit the job again later";
            return Ok(Begun::Nobody(no_miner(message, Value::Null)));
        }
    };
    let (wish, policy) = (wish(request, earlier), policy(shared));
    let mut block = metagraph.block;
    let (mut found, mut chosen) = choose(shared, &wish, &metagraph, &policy);
    // A miner may have announced itself since the subnet was last read: nobody is turned away by an old picture.
    if chosen.is_none()
        && let Some(newer) = shared.outlook.newer_than(&metagraph).await
    {
        block = newer.block;
        (found, chosen) = choose(shared, &wish, &newer, &policy);
    }
    let decision = found.decision(wish.class, block.0);
    let Some(chosen) = chosen else {
        let now = shared.clock.now();
        shared
            .store
            .keep_decision(request.uuid, ordinal(earlier), &decision, now)
            .await?;
        return Ok(Begun::Nobody(nobody_fits(request, &found)));
    };
    let beginning = beginning(shared, request, earlier, chosen, decision);
    shared.store.begin_attempt(request.uuid, &beginning).await?;
    Ok(Begun::Attempt(Box::new(beginning)))
}

fn wish(request: &JobRequest, earlier: &[StoredAttempt]) -> Wish {
    Wish {
        job: request.uuid,
        class: request.executor_class,
        image: Thing::image(&request.docker_image),
        inputs: Thing::inputs(request.volume.as_ref()),
        tried: earlier.iter().map(|attempt| attempt.miner).collect(),
    }
}

fn policy(shared: &Shared) -> Policy {
    shared.config.routing.policy(shared.keypair.hotkey())
}

/// Which attempt follows these.
fn ordinal(earlier: &[StoredAttempt]) -> u32 {
    u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1)
}

/// An attempt on whom was chosen, as it begins.
fn beginning(
    shared: &Shared,
    request: &JobRequest,
    earlier: &[StoredAttempt],
    chosen: Candidate,
    decision: Decision,
) -> Beginning {
    // The first attempt carries the job's own id on the wire, so that old peers see one job as one uuid.
    let id = match earlier {
        [] => AttemptId::first_of(request.uuid),
        [..] => AttemptId::from_uuid(Uuid::new_v4()),
    };
    let now = shared.clock.now();
    let plan = plan(shared, request);
    let papers = Papers {
        keypair: &shared.keypair,
        attempt: id,
        miner: chosen.miner,
        request,
        plan: &plan,
    };
    Beginning {
        receipt: papers.started(now),
        attempt: StoredAttempt {
            id,
            ordinal: ordinal(earlier),
            miner: chosen.miner,
            uid: Uid(chosen.uid),
            address: chosen.address,
            machine: Attempt::new(plan, now),
            started_at: now,
        },
        decision,
        block: shared.outlook.head(),
    }
}

/// Routes, and takes the place of whoever is chosen: the next job finds it taken.
fn choose(
    shared: &Shared,
    wish: &Wish,
    metagraph: &Metagraph,
    policy: &Policy,
) -> (Route, Option<Candidate>) {
    let pinned = shared.pinned(wish.job);
    let neurons = metagraph.neurons.iter();
    let subjects: Vec<_> = neurons
        .filter(|neuron| pinned.is_none_or(|miner| miner.0 == neuron.hotkey))
        .map(|neuron| Subject {
            uid: neuron.uid.0,
            miner: MinerKey(neuron.hotkey),
            axon: neuron.axon,
        })
        .collect();
    let mut about = wish.inputs.clone();
    about.insert(wish.image);
    let now = shared.clock.now();
    let mut ledger = shared.ledger();
    // Whoever is meant alone is asked whatever is known of it: if it has nothing free, it is to show why.
    let known = subjects.iter().map(|subject| subject.miner);
    let known = known.filter(|_| pinned.is_none());
    let standings = ledger.standings(known, &about, now);
    let found = route(wish, &subjects, &standings, policy);
    let chosen = found.candidates.first().copied();
    if let Some(chosen) = chosen {
        ledger.opened(chosen.miner, wish.class);
        ledger.given(chosen.miner, now);
    }
    (found, chosen)
}

fn plan(shared: &Shared, request: &JobRequest) -> Plan {
    let timing = &shared.config.timing;
    Plan {
        class: request.executor_class,
        streaming: request.streaming_details.is_some(),
        timing: ExecutorTiming {
            allowed_leeway: timing.leeway_s,
            download_time_limit: request.download_time_limit,
            execution_time_limit: request.execution_time_limit,
            upload_time_limit: request.upload_time_limit,
            streaming_start_time_limit: request.streaming_start_time_limit,
        },
        dial: Duration::from_secs(timing.dial_s),
        reservation: Duration::from_secs(timing.reservation_s),
        startup: Duration::from_secs(timing.startup_s),
        reconnect: timing.reconnect(),
    }
}

fn nobody_fits(request: &JobRequest, route: &Route) -> Outcome {
    let code = ErrorCode::NoMiner;
    tracing::warn!(%code, job = %request.uuid, class = %request.executor_class, excluded = %route.explain(), "no miner for a job");
    let message = format!("no miner can take a job of class {} now", request.executor_class);
    no_miner(&message, json!({ "excluded": route.explain() }))
}

fn no_miner(message: &str, context: Value) -> Outcome {
    Outcome::Rejected(RejectionDetails {
        rejected_by: ParticipantType::Validator,
        reason: JobRejectionReason::NoMinerForJob,
        message: message.to_owned(),
        context: Some(context).filter(|context| !context.is_null()),
    })
}

async fn close(
    shared: &Shared,
    request: &JobRequest,
    outcome: Outcome,
    attempts: &[StoredAttempt],
    receipts: Vec<Receipt>,
) -> Result<(), StoreError> {
    let job = request.uuid;
    let tried = tried(attempts);
    let ours = request.signature.signatory.0 == shared.keypair.hotkey();
    let outcome = if ours { of_our_own(outcome) } else { outcome };
    let (outcome, fault) = (&outcome, report::fault(&outcome));
    tracing::info!(%job, outcome = in_words(outcome), ?fault, attempts = tried.len(), "job over");
    shared
        .store
        .close_job(
            job,
            outcome,
            &metadata(outcome, &tried, receipts),
            shared.clock.now(),
        )
        .await?;
    shared.tell(job, News::Ended(in_words(outcome)));
    Ok(())
}

fn tried(attempts: &[StoredAttempt]) -> Vec<Tried> {
    let ended = |attempt: &StoredAttempt| {
        Some(Tried {
            attempt: attempt.id,
            miner: attempt.miner,
            outcome: attempt.machine.outcome()?.clone(),
        })
    };
    attempts.iter().filter_map(ended).collect()
}

/// What goes with the last status of a job that has ended, with the signatures that have come since.
pub(crate) async fn last_word(shared: &Shared, job: JobId) -> Result<Option<StatusMetadata>, StoreError> {
    let Some((outcome, attempts)) = shared.store.end_of(job).await? else {
        return Ok(None);
    };
    let receipts = match attempts.last() {
        Some(last) => shared.store.receipts_of(last.id).await?,
        None => Vec::new(),
    };
    let receipts = receipts.iter().filter_map(OwnReceipt::complete).collect();
    Ok(Some(metadata(&outcome, &tried(&attempts), receipts)))
}
