//! The bodies of the job REST API, as ComputeHorde's SDK sends and reads them.

mod cheat_reports;
mod files;
mod jobs;
mod subnet;
mod webhooks;

use serde::{Deserialize, Serialize};

pub use cheat_reports::{CheatReportView, ComparedOutput, ComparisonVerdict, OutputComparison};
pub use files::{CreateFile, FilePage, FileView};
pub use jobs::{
    CreateJob, Feedback, JobCheckpointsView, JobMetricsView, JobPage, JobView, LogEvent, MetricPoint,
    MetricSeries, NonFinitePoint, ProgressEvent, QueueEvent, QueuedJob, ReportCheat, ReportedState,
    StatusEntry, events,
};
pub use subnet::{
    ClassOffer, MinerReport, MinerView, SubnetCapacity, ValidatorCapacity, WATCHED_DISK, WATCHED_DISK_NOTE,
};
pub use webhooks::{AccountWebhookView, SetWebhook, WebhookDelivery, WebhookState};

/// Names of request headers, most of which carry a user's signature.
pub mod headers {
    /// The signature scheme; always `bittensor`.
    pub const SIGNATURE_TYPE: &str = "x-ch-signature-type";
    /// The ss58 address of the user that signed.
    pub const SIGNATORY: &str = "x-ch-signatory";
    /// Unix nanoseconds by the user's clock; the signature covers them.
    pub const TIMESTAMP_NS: &str = "x-ch-timestamp-ns";
    /// The signature, base64.
    pub const SIGNATURE: &str = "x-ch-signature";
    /// The part of the request that the signature covers: `SignedFields` or `FullRequest`.
    pub const SIGNATURE_SCOPE: &str = "x-ch-signature-scope";
    /// The client's own name for a new job: a request that repeats it answers with the job of the first one.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
}

/// The answer to a request whose success needs only words: `{"message": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    /// A sentence that says what was done.
    pub message: String,
}

/// An error of every request but the login: `{"detail": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Detail {
    /// The failure, and what to do about it.
    pub detail: String,
}
