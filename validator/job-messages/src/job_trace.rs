//! The stages of a job's way as its validator reports them: its own, and those that miners and executors reported.

use muster_protocol::job::{Attempt, Outcome};
use muster_protocol::trace::TRACE_KEY;
use muster_protocol::{AttemptId, JobTrace, ParticipantType, StageTime, Timestamp, TraceParent, TraceStage};
use serde_json::Value;

use crate::last_status::EndedAttempt;

/// The most stages of one attempt that a miner is believed: twice as many as there are.
const MAX_TOLD: usize = 32;

/// When the validator had a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTimes {
    /// When the job arrived.
    pub arrived: Timestamp,
    /// When the job was over for its user.
    pub closed: Timestamp,
}

/// The validator's own stages of an attempt: those that it has left, and the whole once it has ended.
pub fn attempt_stages(attempt: &Attempt) -> Vec<StageTime> {
    let (validator, reached) = (ParticipantType::Validator, attempt.reached());
    let left = reached.iter().zip(reached.iter().skip(1));
    let mut stages: Vec<_> = left
        .map(|((stage, began), (_, ended))| StageTime::new(validator, *stage, *began, *ended))
        .collect();
    if let (Some((_, began)), Some((TraceStage::Receipts, ended))) = (reached.first(), reached.last()) {
        stages.push(StageTime::new(validator, TraceStage::Attempt, *began, *ended));
    }
    stages
}

/// The trace of a job that has ended. `attempts` are in order.
pub fn trace_job(context: TraceParent, times: JobTimes, attempts: &[EndedAttempt]) -> JobTrace {
    let mut trace = JobTrace::new(context);
    let mut waiting_since = Some(times.arrived);
    for ended in attempts {
        let of_attempt = |stage: StageTime| StageTime {
            attempt: Some(ended.attempt),
            ..stage
        };
        let whole = ended.stages.iter().find(|time| time.stage == TraceStage::Attempt);
        if let (Some(since), Some(whole)) = (waiting_since, whole) {
            let queue = StageTime::new(
                ParticipantType::Validator,
                TraceStage::Queue,
                // A clock may be set back.
                since.min(whole.began()),
                whole.began(),
            );
            trace.stages.push(of_attempt(queue));
        }
        waiting_since = whole.map(StageTime::ended);
        trace.stages.extend(ended.stages.iter().copied().map(of_attempt));
        trace
            .stages
            .extend(told_stages(&ended.outcome, context, ended.attempt));
    }
    if let (Some(ended), Some(last)) = (waiting_since, attempts.last()) {
        trace.stages.push(StageTime {
            attempt: Some(last.attempt),
            ..StageTime::new(
                ParticipantType::Validator,
                TraceStage::Receipts,
                ended,
                times.closed.max(ended),
            )
        });
    }
    let own = trace
        .stages
        .iter()
        .filter(|time| time.role == ParticipantType::Validator);
    let first = own
        .clone()
        .map(StageTime::began)
        .fold(times.arrived, Timestamp::min);
    let last = own.map(StageTime::ended).fold(times.closed, Timestamp::max);
    let whole = StageTime::new(ParticipantType::Validator, TraceStage::Job, first, last);
    trace.stages.push(whole);
    trace
}

/// The stages that the miner's side reported of an attempt: of this trace only, and none in the name of another role.
fn told_stages(outcome: &Outcome, context: TraceParent, attempt: AttemptId) -> Vec<StageTime> {
    let in_context = |context: &'_ Option<Value>| context.as_ref()?.get(TRACE_KEY).and_then(JobTrace::read);
    let told = match outcome {
        Outcome::Completed(response) => response.extra.get(TRACE_KEY).and_then(JobTrace::read),
        Outcome::Rejected(_) => None,
        Outcome::Failed(details) => in_context(&details.context),
        Outcome::HordeFailed(details) => in_context(&details.context),
    };
    let told = told.filter(|told| told.traceparent.trace == context.trace);
    let stages = told.map(|told| told.stages).unwrap_or_default();
    stages
        .into_iter()
        .filter(|time| match time.role {
            ParticipantType::Miner | ParticipantType::Executor => time.stage != TraceStage::Unknown,
            ParticipantType::Validator
            | ParticipantType::Facilitator
            | ParticipantType::Sdk
            | ParticipantType::Unknown => false,
        })
        .take(MAX_TOLD)
        .map(|time| StageTime {
            attempt: Some(attempt),
            ..time
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::facilitator::MinerResponse;
    use muster_protocol::{JobId, TraceParent, context_for_validator};
    use serde_json::json;

    use super::*;
    use crate::testing::{job, miner};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn own(stage: TraceStage, began: i64, ended: i64) -> StageTime {
        StageTime::new(ParticipantType::Validator, stage, at(began), at(ended))
    }

    fn ended(seed: u128, told: Value, stages: Vec<StageTime>) -> EndedAttempt {
        let mut response = MinerResponse::default();
        response.extra.insert("trace".to_owned(), told);
        EndedAttempt {
            ordinal: 1,
            attempt: AttemptId::first_of(job(seed)),
            miner: miner(1),
            outcome: Outcome::Completed(Box::new(response)),
            stages,
        }
    }

    fn context() -> TraceParent {
        context_for_validator(None, JobId::from_uuid(*job(1).as_uuid()))
    }

    #[test]
    fn the_waits_between_the_attempts_and_the_wait_for_the_receipt_are_stages_too() {
        let attempts = [
            ended(1, json!(null), vec![own(TraceStage::Attempt, 10, 20)]),
            ended(2, json!(null), vec![own(TraceStage::Attempt, 25, 40)]),
        ];
        let times = JobTimes {
            arrived: at(4),
            closed: at(41),
        };
        let trace = trace_job(context(), times, &attempts);
        let seen: Vec<_> = trace
            .stages
            .iter()
            .map(|time| (time.stage.as_str(), time.began().secs(), time.ended().secs()))
            .collect();
        assert_eq!(
            seen,
            [
                ("queue", 4, 10),
                ("attempt", 10, 20),
                ("queue", 20, 25),
                ("attempt", 25, 40),
                ("receipts", 40, 41),
                ("job", 4, 41),
            ]
        );
        assert_eq!(trace.stages[3].attempt, Some(AttemptId::first_of(job(2))));
        assert_eq!(trace.stages[5].attempt, None);
        // A clock that was set back loses no stage, and no stage ends before it began.
        let set_back = JobTimes {
            arrived: at(30),
            closed: at(35),
        };
        let trace = trace_job(context(), set_back, &attempts);
        assert_eq!(trace.stages.len(), 6);
        assert!(trace.stages.iter().all(|time| time.began() <= time.ended()));
        let whole = trace.stages.last().unwrap();
        assert_eq!((whole.began(), whole.ended()), (at(10), at(40)));
    }

    #[test]
    fn a_miner_speaks_for_itself_and_its_executor_only() {
        let stage = |role: &str, stage: &str| json!({"role": role, "stage": stage, "began_us": 1, "took_us": 2, "attempt": null});
        let told = |parent: TraceParent, stages: Vec<Value>| json!({"traceparent": parent, "stages": stages});
        let count = |told: Value| {
            let times = JobTimes {
                arrived: at(1),
                closed: at(2),
            };
            let trace = trace_job(context(), times, &[ended(1, told, vec![])]);
            let told = trace.stages.iter();
            told.filter(|time| time.role != ParticipantType::Validator)
                .count()
        };
        let honest = vec![stage("miner", "lease"), stage("executor", "run")];
        assert_eq!(count(told(context(), honest.clone())), 2);
        let other = context_for_validator(None, job(9));
        assert_eq!(count(told(other, honest)), 0, "another trace");
        let names = ["validator", "facilitator", "sdk", "king"].map(|role| stage(role, "run"));
        assert_eq!(count(told(context(), names.to_vec())), 0);
        assert_eq!(count(told(context(), vec![stage("miner", "<script>")])), 0);
        assert_eq!(
            count(told(context(), vec![stage("miner", "start"); 1_000])),
            MAX_TOLD
        );
        assert_eq!(count(json!("a trace")), 0);
        for hostile in [
            json!(7),
            json!({ "traceparent": 7 }),
            json!({ "traceparent": context(), "stages": "all" }),
            json!({ "traceparent": context(), "stages": [{ "role": "executor" }] }),
        ] {
            assert_eq!(count(hostile), 0);
        }
        // Times of any size are times.
        let odd = json!({"role": "miner", "stage": "run", "began_us": i64::MIN, "took_us": u64::MAX});
        let read = JobTrace::read(&told(context(), vec![odd; 10_000])).unwrap();
        assert_eq!(read.stages.len(), muster_protocol::trace::MAX_STAGES);
        let first = read.stages.first().unwrap();
        assert_eq!(first.began(), at(0));
        assert!(first.ended() >= first.began());
    }
}
