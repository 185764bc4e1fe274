//! Errors between a user and a facilitator, each with its remedy.

use std::path::PathBuf;

use muster_process::Coded;
use muster_protocol::login::NonceTextError;
use muster_protocol::{ErrorCode, JobId};
use reqwest::StatusCode;

use crate::facilitator_url::FacilitatorUrlError;
use crate::find_job::JobCandidates;

/// Why a request brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address of the facilitator is none.
    #[error(transparent)]
    Address(#[from] FacilitatorUrlError),
    /// No answer, or one of a server that is not well. It may be well again in a moment.
    #[error("the facilitator at {base} does not answer")]
    Unreachable {
        /// The facilitator's URL.
        base: String,
        /// The error of the HTTP library.
        source: reqwest::Error,
    },
    /// It is busy or broken.
    #[error("the facilitator at {base} cannot answer now ({status}): {reason}")]
    Unwell {
        /// The facilitator's URL.
        base: String,
        /// The status of its answer.
        status: StatusCode,
        /// Its reason as text.
        reason: String,
    },
    /// It does not take our key, token or signature.
    #[error("the facilitator refused the login ({status}): {reason}")]
    Unauthorised {
        /// The status of its answer.
        status: StatusCode,
        /// Its reason as text.
        reason: String,
    },
    /// It will not do it.
    #[error("the facilitator refused ({status}): {reason}")]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// Its reason as text.
        reason: String,
    },
    /// It is older than what the job asks for.
    #[error(
        "the facilitator at {base} does not know {feature:?}, so it would ignore a part of the job; \
         leave that part out, or choose another facilitator"
    )]
    Lacks {
        /// The facilitator's URL.
        base: String,
        /// The feature's name.
        feature: &'static str,
    },
    /// It is older than this call.
    #[error(
        "the facilitator at {base} does not know {feature:?}, which this needs; ask its operator for a newer version, or \
         choose another facilitator"
    )]
    Older {
        /// The facilitator's URL.
        base: String,
        /// The feature's name.
        feature: &'static str,
    },
    /// Its answer cannot be read.
    #[error("the answer of the facilitator at {base} cannot be read; is that a facilitator?")]
    Unreadable {
        /// The facilitator's URL.
        base: String,
        /// The error of the HTTP library.
        source: reqwest::Error,
    },
    /// It asks for a signature over something that is no nonce.
    #[error(
        "the facilitator at {base} asks for a signature over something that is no nonce; nothing was signed. The \
         facilitator is at fault: do not use it before its operator has explained this"
    )]
    NoNonce {
        /// The facilitator's URL.
        base: String,
        /// The form that a nonce has.
        source: NonceTextError,
    },
    /// A key that no header can hold.
    #[error("the API key holds characters that no key has; it begins with msk_")]
    BadKey,
    /// The account has no such job.
    #[error("the account has no job {job}; `muster job ls` lists its jobs")]
    UnknownJob {
        /// The job, as the user referred to it.
        job: String,
    },
    /// The ids of several jobs begin as asked for.
    #[error("the ids of {} jobs begin with {job}; give more of it:{candidates}", candidates.count)]
    AmbiguousJob {
        /// The beginning that the user gave.
        job: String,
        /// The jobs that it may mean.
        candidates: JobCandidates,
    },
    /// The facilitator is too old to find jobs by the beginnings of their ids.
    #[error(
        "the facilitator at {base} is older and finds a job by its whole id only; `muster job ls` shows it"
    )]
    NeedsWholeId {
        /// The facilitator's URL.
        base: String,
    },
    /// A job that takes too long.
    #[error("job {job} did not end in time; it runs on, and `muster job logs {job} --follow` follows it")]
    TooLate {
        /// The job that ended.
        job: JobId,
    },
    /// A file of this machine.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file that changed while it was uploaded, or one damaged on its way.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// Which file of this machine.
        path: PathBuf,
        /// The defect as text.
        what: String,
    },
    /// The connection of an upload or a download broke again and again.
    #[error("{what} broke off again and again; try again: it goes on at byte {offset}")]
    BrokeOff {
        /// The part that is too long.
        what: String,
        /// How far it came.
        offset: u64,
    },
}

impl ClientError {
    /// Whether the same request may succeed in a moment.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unwell { .. })
    }

    /// The status, where the facilitator refused.
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Unwell { status, .. }
            | Self::Unauthorised { status, .. }
            | Self::Refused { status, .. } => Some(*status),
            Self::Unreachable { .. }
            | Self::Unreadable { .. }
            | Self::Lacks { .. }
            | Self::Older { .. }
            | Self::NoNonce { .. }
            | Self::Address(_)
            | Self::BadKey
            | Self::UnknownJob { .. }
            | Self::AmbiguousJob { .. }
            | Self::NeedsWholeId { .. }
            | Self::TooLate { .. }
            | Self::Io { .. }
            | Self::Damaged { .. }
            | Self::BrokeOff { .. } => None,
        }
    }
}

impl Coded for ClientError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Unreachable { .. } | Self::Unwell { .. } | Self::Unreadable { .. } => {
                Some(ErrorCode::FacilitatorUnreachable)
            }
            Self::Unauthorised { .. } | Self::NoNonce { .. } => Some(ErrorCode::SignatureRefused),
            Self::BadKey | Self::Address(_) => Some(ErrorCode::NotLoggedIn),
            Self::Damaged { .. } | Self::BrokeOff { .. } => Some(ErrorCode::FileRefused),
            Self::UnknownJob { .. } => Some(ErrorCode::JobUnknown),
            Self::AmbiguousJob { .. } => Some(ErrorCode::JobAmbiguous),
            Self::Refused { .. }
            | Self::Lacks { .. }
            | Self::Older { .. }
            | Self::NeedsWholeId { .. }
            | Self::TooLate { .. }
            | Self::Io { .. } => None,
        }
    }
}
