//! The bodies of the job REST API, as ComputeHorde's SDK sends and reads them.

mod accounts;
mod files;
mod jobs;

use serde::{Deserialize, Serialize};

pub use accounts::{
    ApiKey, AuditEntry, AuditPage, CreateKey, KeyList, LoginError, LoginNonce, LoginRequest, Token,
};
pub use files::{CreateFile, FilePage, FileView};
pub use jobs::{
    CreateJob, Feedback, JobPage, JobView, LogEvent, ProgressEvent, ReportCheat, StatusEntry, events,
};

/// Names of the headers that carry a user's signature on a request.
pub mod headers {
    /// Always `bittensor`.
    pub const SIGNATURE_TYPE: &str = "x-ch-signature-type";
    /// ss58 of who signed.
    pub const SIGNATORY: &str = "x-ch-signatory";
    /// Unix nanoseconds, part of what is signed.
    pub const TIMESTAMP_NS: &str = "x-ch-timestamp-ns";
    /// Base64.
    pub const SIGNATURE: &str = "x-ch-signature";
    /// `SignedFields` or `FullRequest`.
    pub const SIGNATURE_SCOPE: &str = "x-ch-signature-scope";
    /// The client's own name for a new job: a request that repeats it answers with the job of the first one.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
}

/// A success that needs no more than words: `{"message": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    /// What was done.
    pub message: String,
}

/// An error of the API proper: `{"detail": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Detail {
    /// What failed and what to do.
    pub detail: String,
}
