//! Destinations of a job's outputs (field `output_upload_type`).

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// One destination or several. Paths are relative to `/output` in the job's container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "output_upload_type", rename_all = "snake_case")]
pub enum OutputUpload {
    /// All of `/output` as one zip, sent as a form.
    ZipAndHttpPost(ZipPost),
    /// All of `/output` as one zip, sent as a body.
    ZipAndHttpPut(ZipPut),
    /// One file, sent as a form.
    SingleFilePost(FilePost),
    /// One file, sent as a body.
    SingleFilePut(FilePut),
    /// `multi_upload`: several files, and the system's own output as a zip.
    MultiUpload(MultiUpload),
}

/// `zip_and_http_post`: all of `/output` as one zip, sent as a form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZipPost {
    /// The URL that receives the upload.
    pub url: String,
    /// Further fields of the form, in the order given.
    #[serde(default)]
    pub form_fields: Option<IndexMap<String, String>>,
}

/// `zip_and_http_put`: all of `/output` as one zip, sent as a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZipPut {
    /// The URL that receives the upload.
    pub url: String,
}

/// `single_file_post`: one file, sent as a form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilePost {
    /// The URL that receives the upload.
    pub url: String,
    /// Further fields of the form, in the order given.
    #[serde(default)]
    pub form_fields: Option<IndexMap<String, String>>,
    /// The path of the file under `/output`.
    pub relative_path: String,
    /// Headers to send, in the order given.
    #[serde(default)]
    pub signed_headers: Option<IndexMap<String, String>>,
}

/// `single_file_put`: one file, sent as a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilePut {
    /// The URL that receives the upload.
    pub url: String,
    /// The path of the file under `/output`.
    pub relative_path: String,
    /// Headers to send, in the order given.
    #[serde(default)]
    pub signed_headers: Option<IndexMap<String, String>>,
}

/// `multi_upload`: several files, and the system's own output as a zip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultiUpload {
    /// The uploads of the user's files.
    pub uploads: Vec<FileUpload>,
    /// The destination of one zip with stdout, stderr and the like.
    #[serde(default)]
    pub system_output: Option<ZipUpload>,
}

/// An upload of one file, as a job's signed fields list them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "output_upload_type", rename_all = "snake_case")]
pub enum FileUpload {
    /// See [`OutputUpload::SingleFilePost`].
    SingleFilePost(FilePost),
    /// See [`OutputUpload::SingleFilePut`].
    SingleFilePut(FilePut),
}

/// An upload of everything as one zip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "output_upload_type", rename_all = "snake_case")]
pub enum ZipUpload {
    /// See [`OutputUpload::ZipAndHttpPost`].
    ZipAndHttpPost(ZipPost),
    /// See [`OutputUpload::ZipAndHttpPut`].
    ZipAndHttpPut(ZipPut),
}

impl From<FileUpload> for OutputUpload {
    fn from(upload: FileUpload) -> Self {
        match upload {
            FileUpload::SingleFilePost(post) => Self::SingleFilePost(post),
            FileUpload::SingleFilePut(put) => Self::SingleFilePut(put),
        }
    }
}

impl OutputUpload {
    /// The user's own uploads that it contains, as their signature lists them.
    pub fn into_parts(self) -> Vec<Self> {
        match self {
            Self::MultiUpload(multi) => multi.uploads.into_iter().map(Into::into).collect(),
            Self::ZipAndHttpPost(_)
            | Self::ZipAndHttpPut(_)
            | Self::SingleFilePost(_)
            | Self::SingleFilePut(_) => {
                vec![self]
            }
        }
    }
}
