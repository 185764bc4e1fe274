//! One task per job: choose a miner, see the attempt through, choose another if it failed by no fault of the user's, tell the
//! user once.
//!
//! Read [`conduct`] for one attempt, [`link`] for its connection, [`papers`] and [`messages`] for what is said on it.

mod conduct;
mod link;
pub mod messages;
mod papers;

use std::sync::Arc;
use std::time::Duration;

use muster_chain::{Metagraph, Uid};
use muster_kit::store::StoreError;
use muster_protocol::job::{Attempt, Outcome, Plan};
use muster_protocol::status::{JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::{JobRequest, RejectionDetails, StatusMetadata};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{AttemptId, ErrorCode, JobId, JobStatus, MinerKey, Receipt};
use muster_routing::retry::{self, Facts, Next};
use muster_routing::{Candidate, Policy, Route, Subject, Thing, Wish, route};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::report::{Tried, in_words, metadata, with_complaint};
use crate::shared::{CancelEar, Shared};
use crate::store::{OwnReceipt, StoredAttempt};
use conduct::{Conduct, Flow};

/// A job for its driver.
#[derive(Debug)]
struct Task {
    request: JobRequest,
    /// Why its user called it off before the driver began.
    cancelled: Option<String>,
    /// Its attempts, oldest first. Whoever is there was left by a process that is gone.
    attempts: Vec<StoredAttempt>,
    /// The receipts of the last of them.
    receipts: Vec<OwnReceipt>,
}

/// Drives a job that was just taken and is in the store.
pub(crate) fn start(shared: &Arc<Shared>, request: JobRequest) {
    let task = Task {
        request,
        cancelled: None,
        attempts: Vec::new(),
        receipts: Vec::new(),
    };
    begin_to_drive(shared, task);
}

/// Takes up every job that an earlier process left open.
pub(crate) async fn resume(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let (mut after, mut resumed) = (None, 0_usize);
    loop {
        let open = shared.store.open_after(after).await?;
        let Some(last) = open.last() else { break };
        after = Some(last.place.clone());
        resumed = resumed.saturating_add(open.len());
        for job in open {
            let task = Task {
                request: job.request,
                cancelled: job.cancelled,
                attempts: job.attempts,
                receipts: job.receipts,
            };
            begin_to_drive(shared, task);
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
        drive(&driving, task, cancel).await
    });
}

async fn drive(shared: &Arc<Shared>, task: Task, mut cancel: CancelEar) -> Result<(), StoreError> {
    let Task {
        request,
        mut attempts,
        receipts,
        ..
    } = task;
    let job = request.uuid;
    let (mut attempt, mut receipts, mut resumed) = match attempts.pop() {
        Some(last) => (last, receipts, true),
        None => match begin(shared, &request, &attempts, &mut cancel).await? {
            Begun::Attempt(first) => (*first, Vec::new(), false),
            Begun::Nobody(outcome) => return close(shared, job, &outcome, &[], vec![]).await,
            Begun::Stopped => return Ok(()),
        },
    };
    loop {
        let mut conduct = Conduct::new(shared, &request, attempt, receipts, resumed);
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
            tracing::info!(%job, ended = in_words(&outcome), miner = %another.miner, "trying another miner");
            conduct.leave().await;
            (attempt, receipts, resumed) = (*another, Vec::new(), false);
            continue;
        }
        let receipts = match conduct.settle().await? {
            None => return Ok(()),
            Some(receipts) => receipts.iter().filter_map(OwnReceipt::complete).collect(),
        };
        return close(shared, job, &outcome, &attempts, receipts).await;
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
    Attempt(Box<StoredAttempt>),
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
    let wish = Wish {
        job: request.uuid,
        class: request.executor_class,
        image: Thing::image(&request.docker_image),
        inputs: Thing::inputs(request.volume.as_ref()),
        tried: earlier.iter().map(|attempt| attempt.miner).collect(),
    };
    let policy = shared.config.routing.policy(shared.keypair.hotkey());
    let mut block = metagraph.block;
    let (mut found, mut chosen) = choose(shared, &wish, &metagraph, &policy);
    // A miner may have announced itself since the subnet was last read: nobody is turned away by an old picture.
    if chosen.is_none()
        && let Some(newer) = shared.outlook.newer_than(&metagraph).await
    {
        block = newer.block;
        (found, chosen) = choose(shared, &wish, &newer, &policy);
    }
    let now = shared.clock.now();
    let ordinal = u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1);
    let decision = found.decision(wish.class, block.0);
    let Some(chosen) = chosen else {
        shared
            .store
            .keep_decision(request.uuid, ordinal, &decision, now)
            .await?;
        return Ok(Begun::Nobody(nobody_fits(request, &found)));
    };
    // The first attempt carries the job's own id on the wire, so that old peers see one job as one uuid.
    let id = match earlier {
        [] => AttemptId::first_of(request.uuid),
        [..] => AttemptId::from_uuid(Uuid::new_v4()),
    };
    let attempt = StoredAttempt {
        id,
        ordinal,
        miner: chosen.miner,
        uid: Uid(chosen.uid),
        address: chosen.address,
        machine: Attempt::new(plan(shared, request), now),
        started_at: now,
    };
    shared
        .store
        .begin_attempt(request.uuid, &attempt, &decision)
        .await?;
    Ok(Begun::Attempt(Box::new(attempt)))
}

/// Routes, and takes the place of whoever is chosen: the next job finds it taken.
fn choose(
    shared: &Shared,
    wish: &Wish,
    metagraph: &Metagraph,
    policy: &Policy,
) -> (Route, Option<Candidate>) {
    let subjects: Vec<_> = metagraph
        .neurons
        .iter()
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
    let standings = ledger.standings(subjects.iter().map(|subject| subject.miner), &about, now);
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
    job: JobId,
    outcome: &Outcome,
    attempts: &[StoredAttempt],
    receipts: Vec<Receipt>,
) -> Result<(), StoreError> {
    let tried = tried(attempts);
    let fault = outcome.fault();
    tracing::info!(%job, outcome = in_words(outcome), ?fault, attempts = tried.len(), "job over");
    shared
        .store
        .close_job(
            job,
            outcome,
            &metadata(outcome, &tried, receipts),
            shared.clock.now(),
        )
        .await
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
