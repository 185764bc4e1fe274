//! What can go wrong with a file, and whose fault it is.

use muster_process::Coded;
use muster_process::store::StoreError;
use muster_protocol::ErrorCode;

use crate::grant::UrlRejection;
use crate::range::BadPart;
use crate::storage::StorageError;
use crate::write_plan::WriteRejection;

/// Why a request about a file failed. All but the last two are its sender's to mend.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// No such file, or one of another account: nobody is told which.
    #[error("there is no such file; it may have expired")]
    NotFound,
    /// Announced, and not uploaded yet.
    #[error("the file has not been uploaded yet")]
    Empty,
    /// A name that is no name.
    #[error("a file's name has 1 to 255 characters and no control characters")]
    Name,
    /// Larger than any file may be.
    #[error("a file may have at most {limit} bytes here")]
    TooLarge {
        /// The most.
        limit: u64,
    },
    /// The account has no room left.
    #[error("the account's files may have {quota} bytes in all: delete some, or wait until they expire")]
    Quota {
        /// Bytes.
        quota: u64,
    },
    /// Permission.
    #[error(transparent)]
    Url(#[from] UrlRejection),
    /// A header.
    #[error(transparent)]
    Part(#[from] BadPart),
    /// The upload does not fit the file.
    #[error(transparent)]
    Write(#[from] WriteRejection),
    /// Another upload of the same file has begun since, or has sent these bytes already.
    #[error("another upload of this file has taken over; it is at byte {offset}")]
    Overtaken {
        /// Where that one is.
        offset: u64,
    },
    /// The connection broke or stalled, or the body was shorter than announced. What came is kept.
    #[error("the upload broke off; go on at byte {offset}")]
    Broken {
        /// What is durable.
        offset: u64,
    },
    /// The body was longer than announced.
    #[error("more bytes came than the upload announced")]
    TooMuch,
    /// Other bytes than were promised.
    #[error("the content's sha256 is {found}, not {promised}; upload it again")]
    Mismatch {
        /// By its owner.
        promised: String,
        /// Computed.
        found: String,
    },
    /// The metadata's store: the facilitator's fault.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The bytes' store: the facilitator's fault.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Coded for FileError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Store(error) => error.code(),
            Self::Storage(error) => error.code(),
            Self::NotFound
            | Self::Empty
            | Self::Name
            | Self::TooLarge { .. }
            | Self::Quota { .. }
            | Self::Url(_)
            | Self::Part(_)
            | Self::Write(_)
            | Self::Overtaken { .. }
            | Self::Broken { .. }
            | Self::TooMuch
            | Self::Mismatch { .. } => None,
        }
    }
}

impl Coded for StorageError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::FileStoreFailed)
    }
}
