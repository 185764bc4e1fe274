//! The way of a job over the roles: the times of the stages that each role went through, in a trace of W3C's.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::ids::{AttemptId, JobId};
use crate::macros::open_enum;
use crate::status::ParticipantType;
use crate::time::Timestamp;
use crate::trace_context::{SpanId, TraceId};

pub use crate::trace_context::{TRACEPARENT_HEADER, TraceParent};

/// The key of a [`JobTrace`] in a result's further fields and in a failure's `context`.
pub const TRACE_KEY: &str = "trace";

/// The most stages of one [`JobTrace`] that are read; the rest of a longer list is dropped.
pub const MAX_STAGES: usize = 512;

open_enum!(
    /// A stage of a job at one role.
    TraceStage {
        /// The facilitator's whole time, from the request to the last status.
        Request = "request",
        /// From the request until the validator has the job.
        Delivery = "delivery",
        /// The validator's whole time.
        Job = "job",
        /// The job waits for an executor.
        Queue = "queue",
        /// One attempt: the validator's time for it, or the executor's.
        Attempt = "attempt",
        /// The validator dials the miner.
        Dial = "dial",
        /// The miner has the offer and has not answered; at an executor, the miner has not offered the job.
        Offer = "offer",
        /// An executor starts.
        Start = "start",
        /// The executor looks for the image on its machine.
        Image = "image",
        /// The image waits for its turn to be fetched, or for a free executor afterwards.
        FetchWait = "fetch_wait",
        /// The image is fetched.
        Pull = "pull",
        /// The executor is ready, and the rest of the job is on its way.
        Handover = "handover",
        /// The inputs are put in place.
        Volumes = "volumes",
        /// The program runs.
        Run = "run",
        /// The program answers requests.
        Serve = "serve",
        /// The program was asked to stop.
        Stop = "stop",
        /// The outputs are collected and delivered.
        Collect = "collect",
        /// The attempt is over, and the miner signs the receipt.
        Receipts = "receipts",
        /// The miner's whole time for an attempt.
        Lease = "lease",
    }
);

/// The time of one stage, by the clock of its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTime {
    /// The role that went through the stage and reports it.
    pub role: ParticipantType,
    /// The stage that began and ended.
    pub stage: TraceStage,
    /// The attempt that it belongs to. A message about one attempt leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// The beginning, in microseconds since 1970.
    pub began_us: i64,
    /// The length in microseconds.
    pub took_us: u64,
}

/// The stages of a job as one role knows them: its own, and those that the roles behind it reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTrace {
    /// The trace context that the role was given.
    pub traceparent: TraceParent,
    /// The stages, in no order.
    #[serde(default)]
    pub stages: Vec<StageTime>,
}

/// The context in which a job's validator works: the trace of the user's request, or else one that is named by the job.
pub fn context_for_validator(user: Option<TraceParent>, job: JobId) -> TraceParent {
    let trace = user.map_or_else(
        || TraceId::from_bytes(*job.as_uuid().as_bytes()),
        |user| user.trace,
    );
    TraceParent {
        trace,
        span: span_id(
            trace,
            job.as_uuid(),
            ParticipantType::Facilitator,
            TraceStage::Request,
        ),
        sampled: user.is_none_or(|user| user.sampled),
    }
}

/// The context under a stage that `role` has for `owner`, the attempt or the job.
pub fn context_below(
    context: TraceParent,
    owner: &Uuid,
    role: ParticipantType,
    stage: TraceStage,
) -> TraceParent {
    TraceParent {
        span: span_id(context.trace, owner, role, stage),
        ..context
    }
}

/// The id of the span of a stage that `role` has for `owner`, the attempt or the job.
pub fn span_id(trace: TraceId, owner: &Uuid, role: ParticipantType, stage: TraceStage) -> SpanId {
    SpanId::of(trace, *owner.as_bytes(), role.as_str(), stage.as_str())
}

// === impl StageTime ===

impl StageTime {
    /// A stage of `role` from `began` to `ended`.
    pub fn new(role: ParticipantType, stage: TraceStage, began: Timestamp, ended: Timestamp) -> Self {
        Self {
            role,
            stage,
            attempt: None,
            began_us: began.micros(),
            took_us: u64::try_from(ended.since(began).as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// The time at which it began, by the role's clock.
    pub fn began(&self) -> Timestamp {
        Timestamp::from_micros(self.began_us)
    }

    /// The time at which it ended, by the role's clock.
    pub fn ended(&self) -> Timestamp {
        let took = i64::try_from(self.took_us).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.began_us.saturating_add(took))
    }
}

// === impl JobTrace ===

impl JobTrace {
    /// A trace without stages.
    pub const fn new(traceparent: TraceParent) -> Self {
        Self {
            traceparent,
            stages: Vec::new(),
        }
    }

    /// Takes a trace out of fields that are free in form. Another form is left where it is.
    pub fn take_from(fields: &mut Map<String, Value>) -> Option<Self> {
        let trace = Self::read(fields.get(TRACE_KEY)?)?;
        fields.shift_remove(TRACE_KEY);
        Some(trace)
    }

    /// Reads a trace that a peer sent; `None` for any other form.
    pub fn read(value: &Value) -> Option<Self> {
        let mut trace = Self::deserialize(value).ok()?;
        trace.stages.truncate(MAX_STAGES);
        Some(trace)
    }
}

/// Reads a trace of a peer. One that cannot be read is none: it must not stop a result.
pub(crate) fn read_trace<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Box<JobTrace>>, D::Error> {
    let value = Value::deserialize(d)?;
    Ok(JobTrace::read(&value).map(Box::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the W3C's recommendation.
    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const JOB: &str = "11111111-2222-4333-8444-555555555555";

    fn job() -> JobId {
        JOB.parse().unwrap()
    }

    #[test]
    fn ids_follow_from_the_job_and_never_change() {
        let parent = context_for_validator(None, job());
        assert_eq!(
            parent.to_string(),
            "00-11111111222243338444555555555555-SPAN-01".replace("SPAN", &parent.span.to_string())
        );
        let user: TraceParent = EXAMPLE.parse().unwrap();
        let of_user = context_for_validator(Some(user), job());
        assert_eq!((of_user.trace, of_user.sampled), (user.trace, true));
        assert_ne!(of_user.span, parent.span);
        let attempt = AttemptId::first_of(job());
        let below = context_below(
            parent,
            attempt.as_uuid(),
            ParticipantType::Validator,
            TraceStage::Attempt,
        );
        insta::assert_snapshot!(format!("{parent}\n{of_user}\n{below}"), @r"
        00-11111111222243338444555555555555-f0ae5e36cf6fd322-01
        00-0af7651916cd43dd8448eb211c80319c-4fbbf6636e88ac66-01
        00-11111111222243338444555555555555-c2de46e2022748a0-01
        ");
    }
}
