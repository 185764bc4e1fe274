//! Time limits of an attempt: those that the job brings and those that the operator sets.

use std::time::Duration;

use muster_protocol::wire::miner::InitialJobRequest;

/// Limits of a job without stage limits: the values that Python validators send in the older single field.
const DEFAULT_TIMEOUT_SECS: u64 = 300;
const DEFAULT_LEEWAY_SECS: u64 = 5;

/// The longest time that each stage of a job may take, by its offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageLimits {
    /// Slack for the whole job.
    pub leeway: Duration,
    /// For the rest of the request and for the inputs.
    pub download: Duration,
    /// For the program.
    pub execution: Duration,
    /// For the outputs.
    pub upload: Duration,
    /// From the start of the program to its first good health check; only for streaming jobs.
    pub streaming_start: Duration,
}

/// How long an attempt waits for things that do not count as the job's own time. The operator sets these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// For the miner to offer the job.
    pub offer: Duration,
    /// For the image to be pulled or loaded.
    pub image: Duration,
    /// For the program to end after it was asked to stop.
    pub grace: Duration,
}

/// The time beyond a job's limits and its grace after which its container ends without an executor. An executor that
/// lives ends it earlier, on a slow machine too.
const ORPHAN_MARGIN: Duration = Duration::from_secs(60);

impl StageLimits {
    /// The time after which no executor that lives lets the job's container run, from before the program's start.
    pub(crate) fn longest_run(&self, grace: Duration) -> Duration {
        [self.execution, self.streaming_start, self.leeway, grace]
            .into_iter()
            .fold(ORPHAN_MARGIN, Duration::saturating_add)
    }

    /// The limits of an offer. An offer without stage limits has one older time-out, which bounds the whole job.
    pub(crate) fn of(offer: &InitialJobRequest) -> Self {
        let secs = Duration::from_secs;
        match offer.executor_timing {
            Some(timing) => Self {
                leeway: secs(timing.allowed_leeway),
                download: secs(timing.download_time_limit),
                execution: secs(timing.execution_time_limit),
                upload: secs(timing.upload_time_limit),
                streaming_start: secs(timing.streaming_start_time_limit),
            },
            None => Self {
                leeway: secs(DEFAULT_LEEWAY_SECS),
                download: Duration::ZERO,
                execution: secs(offer.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECS)),
                upload: Duration::ZERO,
                streaming_start: secs(offer.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECS)),
            },
        }
    }
}
