//! Bodies about files: inputs and outputs of jobs in the facilitator's file store.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// `POST /api/v1/files/`: creates a file for an input or an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateFile {
    /// The owner's name for the file.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub name: String,
    /// The size in bytes; absent for an output whose size is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// For an output of unknown size: the most bytes that the store accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
    /// The SHA-256 of the contents, 64 hex digits; the store compares the upload with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 64, max_length = 64))]
    pub sha256: Option<String>,
}

/// A file in the store, with signed URLs that expire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileView {
    /// The id of the file in the API.
    pub id: String,
    /// The owner's name for the file.
    pub name: String,
    /// The size in bytes; null until it is known.
    pub size: Option<u64>,
    /// Bytes that the store has received.
    #[serde(default)]
    pub received: u64,
    /// Whether the store has received the whole file.
    #[serde(default)]
    pub complete: bool,
    /// The SHA-256 of the contents, 64 hex digits; null until the file is complete.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Accepts `PUT` of the whole file or of its parts in order; `HEAD` answers `Upload-Offset`.
    pub upload_url: String,
    /// Answers `GET`, also with ranges.
    pub download_url: String,
    /// The time at which both URLs expire.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub expires_at: Timestamp,
    /// The time of creation.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
}

/// `GET /api/v1/files/`: one page of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilePage {
    /// The number of files on all pages together.
    pub count: u64,
    /// The URL of the next page; null on the last one.
    pub next: Option<String>,
    /// The URL of the page before; null on the first one.
    pub previous: Option<String>,
    /// The files of this page, newest first.
    pub results: Vec<FileView>,
}
