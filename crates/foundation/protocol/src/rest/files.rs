//! Bodies about files: inputs and outputs of jobs in the facilitator's file store.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// `POST /api/v1/files/`: a place for an input or an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateFile {
    /// What its owner calls it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub name: String,
    /// Bytes; absent for an output whose size nobody knows yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Of an output: the most bytes that are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
    /// 64 hex digits; what is uploaded is held against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 64, max_length = 64))]
    pub sha256: Option<String>,
}

/// A file in the store, with signed addresses that expire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileView {
    /// Its name in the API.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// Bytes; null until it is known.
    pub size: Option<u64>,
    /// Bytes that have been taken in.
    #[serde(default)]
    pub received: u64,
    /// Whether it is whole.
    #[serde(default)]
    pub complete: bool,
    /// 64 hex digits, once it is whole.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Takes `PUT`, whole or in parts in order; `HEAD` tells `Upload-Offset`.
    pub upload_url: String,
    /// Takes `GET`, ranges too.
    pub download_url: String,
    /// When the addresses end.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub expires_at: Timestamp,
    /// When it was made.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
}

/// `GET /api/v1/files/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilePage {
    /// Files in all.
    pub count: u64,
    /// URL of the next page.
    pub next: Option<String>,
    /// URL of the page before.
    pub previous: Option<String>,
    /// The files, newest first.
    pub results: Vec<FileView>,
}
