//! The vocabulary of Muster: the messages between roles, the texts that they sign, and the rules of a job's life.
//!
//! Everything here is a value or a pure function, without sockets, clocks or randomness: the time is an argument. The
//! wire is ComputeHorde's (see `docs/protocol.md`); Muster's additions are optional and marked as such.

pub mod account_api;
pub mod canonical;
pub mod error_code;
pub mod features;
pub mod image_reference;
pub mod job_files;
pub mod login;
mod macros;

pub mod class;
pub mod digest;
pub mod ids;
pub mod job;
pub mod job_reference;
pub mod job_state;
pub mod keys;
pub mod receipt;
pub mod rest;
pub mod signature;
pub mod status;
pub mod subnet;
pub mod time;
pub mod trace;
pub mod trace_context;
pub mod wire;

pub use crate::error_code::ErrorCode;
pub use crate::features::{Feature, FeatureSet, MUSTER_FEATURES_HEADER};
pub use crate::job_files::upload::OutputUpload;
pub use crate::job_files::volume::Volume;
pub use crate::job_files::{relative_path, upload, volume};
pub use class::{ExecutorClass, Manifest};
pub use digest::{Digest, ImageId};
pub use ids::{AttemptId, ExecutorToken, JobId};
pub use job_reference::{JobIdPrefix, JobName, JobReference};
pub use job_state::JobState;
pub use keys::{Hotkey, MinerKey, UserKey, ValidatorKey};
pub use receipt::{Receipt, ReceiptKind, ReceiptPayload};
pub use signature::Signature;
pub use status::{
    HordeFailureReason, JobFailureReason, JobRejectionReason, JobStage, JobStatus, ParticipantType,
};
pub use subnet::{BlockNumber, Epoch, Netuid, Rao, Uid};
pub use time::Timestamp;
pub use trace::{JobTrace, StageTime, TraceParent, TraceStage, context_below, context_for_validator};

/// The request and response header by which a websocket peer shows that it is Muster.
///
/// Muster's own messages are sent only to peers that showed it: ComputeHorde peers see only ComputeHorde's messages.
pub const MUSTER_PROTOCOL_HEADER: &str = "muster-protocol";

/// The version of our additions to the wire, the value of [`MUSTER_PROTOCOL_HEADER`].
pub const MUSTER_PROTOCOL_VERSION: &str = "1";
