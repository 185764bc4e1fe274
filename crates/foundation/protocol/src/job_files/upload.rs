//! Destinations of a job's outputs (field `output_upload_type`).

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// The header in an upload's `signed_headers` by which a user asks for the output also of a job that has failed. The
/// header is sent with the upload, and a peer that does not know it only sends it.
pub const PARTIAL_HEADER: &str = "muster-partial";

/// The one value of [`PARTIAL_HEADER`].
pub const PARTIAL_KEEP: &str = "keep";

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

impl FileUpload {
    /// Whether the user asks for the output also of a job that has failed.
    pub fn is_kept_on_failure(&self) -> bool {
        let headers = match self {
            Self::SingleFilePost(post) => &post.signed_headers,
            Self::SingleFilePut(put) => &put.signed_headers,
        };
        let mut headers = headers.iter().flatten();
        headers.any(|(name, value)| name.eq_ignore_ascii_case(PARTIAL_HEADER) && value == PARTIAL_KEEP)
    }

    /// The path of the file under `/output`.
    pub fn relative_path(&self) -> &str {
        match self {
            Self::SingleFilePost(post) => &post.relative_path,
            Self::SingleFilePut(put) => &put.relative_path,
        }
    }
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
    /// The uploads of single files that the user asks for also of a job that has failed.
    pub fn kept_on_failure(&self) -> Vec<FileUpload> {
        let uploads = match self {
            Self::MultiUpload(multi) => multi.uploads.clone(),
            Self::SingleFilePost(post) => vec![FileUpload::SingleFilePost(post.clone())],
            Self::SingleFilePut(put) => vec![FileUpload::SingleFilePut(put.clone())],
            Self::ZipAndHttpPost(_) | Self::ZipAndHttpPut(_) => vec![],
        };
        uploads
            .into_iter()
            .filter(FileUpload::is_kept_on_failure)
            .collect()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_a_failed_job_are_kept_only_where_their_user_asks_for_it() {
        let put = |path: &str, headers: &str| {
            format!(
                r#"{{"output_upload_type":"single_file_put","url":"http://h/","relative_path":"{path}","signed_headers":{headers}}}"#
            )
        };
        let multi = format!(
            r#"{{"output_upload_type":"multi_upload","uploads":[{},{},{}],"system_output":null}}"#,
            put("a", r#"{"Muster-Partial":"keep"}"#),
            put("b", r#"{"muster-partial":"no"}"#),
            put("c", "null"),
        );
        let multi: OutputUpload = serde_json::from_str(&multi).unwrap();
        let kept = multi.kept_on_failure();
        let paths: Vec<_> = kept.iter().map(FileUpload::relative_path).collect();
        assert_eq!(paths, ["a"]);
        let zip = r#"{"output_upload_type":"zip_and_http_put","url":"http://h/"}"#;
        assert!(
            serde_json::from_str::<OutputUpload>(zip)
                .unwrap()
                .kept_on_failure()
                .is_empty()
        );
    }
}
