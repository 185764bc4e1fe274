//! One task per job: choose a miner, see the attempt through, choose another if nobody began, tell the user once.
//!
//! Read [`conduct`] for one attempt, [`link`] for its connection, [`papers`] and [`messages`] for what is said on it.

mod conduct;
mod link;
mod messages;
mod papers;

use std::sync::Arc;
use std::time::Duration;

use muster_kit::store::StoreError;
use muster_protocol::job::{Attempt, Outcome, Plan};
use muster_protocol::status::{JobRejectionReason, ParticipantType};
use muster_protocol::wire::facilitator::{JobRequest, RejectionDetails, StatusMetadata};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{AttemptId, ErrorCode, JobId, Receipt};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::report::{Tried, in_words, metadata, with_complaint};
use crate::routing::{self, Route, Wish};
use crate::shared::Shared;
use crate::store::{OwnReceipt, StoredAttempt};
use conduct::{Conduct, Flow};

/// Drives a job that is in the store and not closed.
pub(crate) fn start(shared: &Arc<Shared>, job: JobId) {
    let driving = Arc::clone(shared);
    shared.spawn("job", async move { drive(&driving, job).await });
}

/// Takes up every job that an earlier process left open.
pub(crate) async fn resume(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let open = shared.store.open_jobs().await?;
    if !open.is_empty() {
        tracing::info!(jobs = open.len(), "resuming open jobs");
    }
    for job in open {
        start(shared, job);
    }
    Ok(())
}

async fn drive(shared: &Arc<Shared>, job: JobId) -> Result<(), StoreError> {
    let Some(stored) = shared.store.job(job).await?.filter(|stored| !stored.closed) else {
        return Ok(());
    };
    let (request, mut attempts) = (stored.request, stored.attempts);
    // Whoever is in the store already was left there by a process that is gone.
    let mut resumed = !attempts.is_empty();
    loop {
        let begun = match attempts.pop() {
            Some(attempt) => attempt,
            None => match begin(shared, &request, &attempts).await? {
                Begun::Attempt(attempt) => *attempt,
                Begun::Nobody(outcome) => return close(shared, job, &outcome, &[], vec![]).await,
                Begun::Stopped => return Ok(()),
            },
        };
        let mut conduct = Conduct::new(shared, &request, begun, resumed).await?;
        resumed = false;
        let outcome = match conduct.run().await? {
            Flow::Stopped => {
                conduct.leave().await;
                return Ok(());
            }
            Flow::Ended(outcome) => with_complaint(outcome, conduct.complaint()),
        };
        let max = shared.config.routing.max_attempts;
        let then = next(&outcome, conduct.accepted(), attempts.len() + 1, max);
        attempts.push(conduct.attempt().clone());
        if then == Next::TryAnother
            && let Begun::Attempt(another) = begin(shared, &request, &attempts).await?
        {
            tracing::info!(%job, ended = in_words(&outcome), miner = %another.miner, "trying another miner");
            conduct.leave().await;
            attempts.push(*another);
            continue;
        }
        let receipts = match conduct.settle().await? {
            None => return Ok(()),
            Some(receipts) => receipts.iter().filter_map(OwnReceipt::complete).collect(),
        };
        return close(shared, job, &outcome, &attempts, receipts).await;
    }
}

/// What follows the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Ask another miner.
    TryAnother,
    /// Tell the user.
    Report,
}

/// Decides.
///
/// Once a miner has accepted, the job may have had effects outside (an upload, a request of its own while inputs were
/// fetched), so it is never run a second time behind its user's back. Before that, every end but the job's own failure
/// is a matter between us and that miner: the user's signature was checked at the door.
fn next(outcome: &Outcome, accepted: bool, attempts: usize, max_attempts: u32) -> Next {
    let left = attempts < usize::try_from(max_attempts).unwrap_or(usize::MAX);
    match outcome {
        Outcome::Completed(_) | Outcome::Failed(_) => Next::Report,
        Outcome::Rejected(_) | Outcome::HordeFailed(_) if accepted || !left => Next::Report,
        Outcome::Rejected(_) | Outcome::HordeFailed(_) => Next::TryAnother,
    }
}

/// What came of choosing a miner.
enum Begun {
    /// One was found and the attempt written down.
    Attempt(Box<StoredAttempt>),
    /// There is none; what the user is told.
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
) -> Result<Begun, StoreError> {
    let stop = shared.tasks.token();
    let metagraph = tokio::select! {
        () = stop.cancelled() => return Ok(Begun::Stopped),
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
        tried: earlier.iter().map(|attempt| attempt.miner).collect(),
    };
    let _alone = shared.routing.lock().await;
    let standings = shared.standings().await?;
    let max_incidents = shared.config.routing.max_incidents;
    let me = shared.keypair.hotkey();
    let mut route = routing::route(&wish, &metagraph, me, &standings, max_incidents);
    // A miner may have announced itself since the subnet was last read: nobody is turned away by an old picture.
    if route.candidates.is_empty()
        && let Some(newer) = shared.outlook.newer_than(&metagraph).await
    {
        route = routing::route(&wish, &newer, me, &standings, max_incidents);
    }
    let Some(chosen) = route.candidates.first() else {
        return Ok(Begun::Nobody(nobody_fits(request, &route)));
    };
    let now = shared.clock.now();
    // The first attempt carries the job's own id on the wire, so that old peers see one job as one uuid.
    let id = match earlier {
        [] => AttemptId::first_of(request.uuid),
        [..] => AttemptId::from_uuid(Uuid::new_v4()),
    };
    let attempt = StoredAttempt {
        id,
        ordinal: u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1),
        miner: chosen.miner,
        uid: chosen.uid,
        address: chosen.address,
        machine: Attempt::new(plan(shared, request), now),
        started_at: now,
    };
    shared.store.begin_attempt(request.uuid, &attempt).await?;
    Ok(Begun::Attempt(Box::new(attempt)))
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

#[cfg(test)]
mod tests {
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason, ParticipantType};
    use muster_protocol::wire::facilitator::{HordeFailureDetails, RejectionDetails};

    use super::*;

    #[test]
    fn only_what_no_miner_began_is_tried_again_and_not_for_ever() {
        let declined = Outcome::Rejected(RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason: JobRejectionReason::Busy,
            message: String::new(),
            context: None,
        });
        let lost = Outcome::HordeFailed(HordeFailureDetails {
            reported_by: ParticipantType::Validator,
            reason: HordeFailureReason::MinerConnectionFailed,
            message: String::new(),
            context: None,
        });
        for outcome in [&declined, &lost] {
            assert_eq!(next(outcome, false, 1, 3), Next::TryAnother);
            assert_eq!(next(outcome, false, 3, 3), Next::Report);
            assert_eq!(next(outcome, true, 1, 3), Next::Report);
        }
        assert_eq!(
            next(&Outcome::Completed(Box::default()), true, 1, 3),
            Next::Report
        );
    }
}
