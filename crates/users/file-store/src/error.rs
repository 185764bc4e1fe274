//! The errors of requests about files.

use muster_process::Coded;
use muster_process::store::StoreError;
use muster_protocol::ErrorCode;

use crate::grant::UrlRejection;
use crate::range::BadPart;
use crate::storage::StorageError;
use crate::write_plan::WriteRejection;

/// The reason why a request about a file failed. Only the last two are the facilitator's fault.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no such file, or it is another account's. The answer does not tell which.
    #[error("there is no such file; it may have expired")]
    NotFound,
    /// The file is announced, but has no content yet.
    #[error("the file has not been uploaded yet")]
    Empty,
    /// The name is not valid.
    #[error("a file's name has 1 to 255 characters and no control characters")]
    Name,
    /// The file is larger than the configured maximum.
    #[error("a file may have at most {limit} bytes here")]
    TooLarge {
        /// The configured maximum in bytes.
        limit: u64,
    },
    /// The file would exceed the account's quota.
    #[error("the account's files may have {quota} bytes in all: delete some, or wait until they expire")]
    Quota {
        /// The configured quota in bytes.
        quota: u64,
    },
    /// The signed URL does not permit the request.
    #[error(transparent)]
    Url(#[from] UrlRejection),
    /// The header `Content-Range` is not valid.
    #[error(transparent)]
    Part(#[from] BadPart),
    /// The upload does not fit the file.
    #[error(transparent)]
    Write(#[from] WriteRejection),
    /// A newer upload of the file has begun, or has already sent these bytes.
    #[error("another upload of this file has taken over; it is at byte {offset}")]
    Overtaken {
        /// The next byte of the newer upload.
        offset: u64,
    },
    /// The connection broke or stalled, or the body was shorter than announced. The received bytes are kept.
    #[error("the upload was interrupted; continue at byte {offset}")]
    Broken {
        /// The number of durable bytes.
        offset: u64,
    },
    /// The body was longer than announced.
    #[error("more bytes came than the upload announced")]
    TooMuch,
    /// The content does not have the digest that was announced.
    #[error("the content's sha256 is {found}, not {promised}; upload it again")]
    Mismatch {
        /// The announced digest in hex.
        promised: String,
        /// The digest of the received bytes in hex.
        found: String,
    },
    /// The database with the metadata failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The object store with the bytes failed.
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
