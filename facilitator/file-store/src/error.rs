//! The errors of requests about files.

use muster_http::range::InvalidContentRange;
use muster_process::Coded;
use muster_protocol::ErrorCode;
use muster_store::StoreError;

use crate::object_storage::StorageError;
use crate::signed_urls::UrlRejection;
use crate::upload_plan::WriteRejection;

/// The reason why a request about a file failed. Only the last two are the facilitator's fault.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no such file, or it is another account's. The answer does not state which.
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
    #[error(
        "the account's files may have at most {quota} bytes together; delete some, or wait until they expire"
    )]
    Quota {
        /// The configured quota in bytes.
        quota: u64,
    },
    /// The file would exceed the bound on the files of all accounts.
    #[error("the file store is full; try again later, or ask the facilitator's operator for room")]
    Full,
    /// The account has announced as many files as it may have.
    #[error("the account may have at most {limit} files; delete some, or wait until they expire")]
    TooManyFiles {
        /// The configured maximum.
        limit: u64,
    },
    /// The bytes of replaced and deleted files take too much room until they are deleted.
    #[error(
        "replaced and deleted bytes take too much room until they are deleted; try again in {wait_s} seconds"
    )]
    AwaitsDeletion {
        /// Seconds until the next sweep has deleted some.
        wait_s: u64,
    },
    /// The account's signed URLs are used too often.
    #[error("the signed URLs of this account are used too often; try again in {wait_s} seconds")]
    Throttled {
        /// Seconds until the next request is allowed.
        wait_s: u64,
    },
    /// The signed URL does not permit the request.
    #[error(transparent)]
    Url(#[from] UrlRejection),
    /// The header `Content-Range` is not valid.
    #[error(transparent)]
    Part(#[from] InvalidContentRange),
    /// The upload does not fit the file.
    #[error(transparent)]
    Write(#[from] WriteRejection),
    /// A newer upload of the file has begun, or has already sent these bytes.
    #[error("another upload of this file has replaced this one; it continues at byte {offset}")]
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
    #[error("the body has more bytes than the request announced")]
    TooMuch,
    /// The content does not have the digest that was announced.
    #[error("the content's sha256 is {found} instead of {promised}; upload it again")]
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
            | Self::Full
            | Self::TooManyFiles { .. }
            | Self::AwaitsDeletion { .. }
            | Self::Throttled { .. }
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderMap, HeaderValue, header};

    use crate::upload_plan::WriteRejection;

    /// The statuses and the words of every error that a client can cause, so that every change of a text is seen in a
    /// review.
    #[test]
    fn clients_get_these_statuses_and_words() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_RANGE, HeaderValue::from_static("x"));
        let part = crate::file_routes::parse_write_request(&headers).unwrap_err();
        for (error, status, text) in [
            (
                FileError::NotFound,
                404,
                "there is no such file; it may have expired",
            ),
            (FileError::Empty, 404, "the file has not been uploaded yet"),
            (
                FileError::Name,
                400,
                "a file's name has 1 to 255 characters and no control characters",
            ),
            (
                FileError::TooLarge { limit: 10 },
                413,
                "a file may have at most 10 bytes here",
            ),
            (
                FileError::Quota { quota: 10 },
                413,
                "the account's files may have at most 10 bytes together; delete some, or wait until they expire",
            ),
            (
                FileError::Full,
                413,
                "the file store is full; try again later, or ask the facilitator's operator for room",
            ),
            (
                UrlRejection::Signature.into(),
                403,
                "the URL's signature is not valid for this file and this use",
            ),
            (
                UrlRejection::Expired.into(),
                403,
                "the URL has expired; ask the facilitator for a fresh one at /api/v1/files/ID/",
            ),
            (
                part,
                400,
                "Content-Range must be `bytes FIRST-LAST/TOTAL`, or `*` for a total that is not known yet",
            ),
            (
                WriteRejection::TooLarge { bound: 10 }.into(),
                413,
                "the file may have at most 10 bytes",
            ),
            (
                WriteRejection::OtherSize {
                    declared: 10,
                    asked: 9,
                }
                .into(),
                400,
                "the file was declared to have 10 bytes, not 9",
            ),
            (
                WriteRejection::OutOfOrder { offset: 4 }.into(),
                409,
                "parts come in order: the next one begins at byte 4",
            ),
            (
                FileError::Overtaken { offset: 4 },
                409,
                "another upload of this file has replaced this one; it continues at byte 4",
            ),
            (
                FileError::Broken { offset: 4 },
                400,
                "the upload was interrupted; continue at byte 4",
            ),
            (
                FileError::TooMuch,
                400,
                "the body has more bytes than the request announced",
            ),
            (
                FileError::Mismatch {
                    promised: "aa".to_owned(),
                    found: "bb".to_owned(),
                },
                422,
                "the content's sha256 is bb instead of aa; upload it again",
            ),
        ] {
            assert_eq!(
                (error.status().as_u16(), error.public_detail().as_str()),
                (status, text)
            );
        }
    }
}
