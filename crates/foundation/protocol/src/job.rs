//! The life of a job: the limits and the terms of a request, one attempt on one miner as a pure state machine, and the
//! ways it can end.

mod attempt;
mod checkpoints;
mod completion;
mod credentials;
mod image_fetch;
mod limits;
mod metrics;
mod outcome;
mod partial_result;
mod printed;
mod program_start;
mod terms;

pub use attempt::{Attempt, AttemptPlan, Effect, Event, IllegalEvent, ImageClock, JobState};
pub use checkpoints::{
    BestMetric, CheckpointTerms, DAMAGED_CHECKPOINT, DEFAULT_CHECKPOINT_EVERY, DEFAULT_CHECKPOINT_FOLDER,
    KeptCheckpoint, LEASE_OVER, MAX_CHECKPOINT_EVERY, MAX_CHECKPOINT_FOLDER_BYTES, MAX_FATAL_EXIT_CODES,
    MAX_STALL_SECS, MIN_STALL_SECS, OUT_OF_MEMORY, RESUME_KEY, ResumeSource, SAVED_EXIT_CODE, STALLED,
    SaveSignal, SaveSignalError,
};
pub(crate) use completion::read_completion;
pub use completion::{
    COMPLETION_KEY, CompletionReport, MAX_LISTED_OUTPUTS, MAX_OUTPUT_PATH_BYTES, OutputFile,
};
pub use credentials::{
    MAX_REGISTRY_PASSWORD_BYTES, MAX_REGISTRY_USER_BYTES, RegistryCredentials, SealedCredentials,
    SealedCredentialsError,
};
pub use image_fetch::{
    IMAGE_FETCH_KEY, ImageFetchFailure, MAX_SLOT_LEASES, SLOT_LEASES_KEY, take_slot_leases,
};
pub use limits::{
    BoundedFields, MAX_ENTRIES, MAX_IMAGE_CHARS, MAX_JOB_SECS, MAX_TEXT_BYTES, OverLimit, find_over_limits,
};
pub use metrics::{
    MAX_METRIC_NAME_BYTES, MAX_METRIC_PATTERN_BYTES, MAX_METRIC_RULES, MAX_METRICS, MetricName,
    MetricNameError, MetricRule, MetricValue, MetricValueError, NonFiniteValue, ProgramReport,
};
pub use outcome::{BROKEN_IMAGE_KEY, Fault, Outcome, forget_another_image};
pub use partial_result::{FailureContext, PartialResult};
pub use printed::{OutputShortfall, PrintedStream, PrintedStreams, StoredStream};
pub use program_start::{MAX_PROGRAM_PATH_BYTES, ProgramStart};
pub use terms::{
    ArchiveSource, DEFAULT_IMAGE_SECS, JobTerms, MAX_ARCHIVE_BYTES, MAX_ARCHIVE_URL_BYTES, MAX_IMAGE_SECS,
    MAX_QUEUE_SECS, Priority, PriorityError,
};
