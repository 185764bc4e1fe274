//! Destinations of a job's outputs (field `output_upload_type`).

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::job_files::relative_path::check_relative_path;

/// The header in an upload's `signed_headers` by which a user asks for the output also of a job that has failed. The
/// header is sent with the upload, and a peer that does not know it only sends it.
pub const PARTIAL_HEADER: &str = "muster-partial";

/// The one value of [`PARTIAL_HEADER`].
pub const PARTIAL_KEEP: &str = "keep";

/// The path of an output folder that is all of `/output`.
pub const WHOLE_OUTPUT: &str = ".";

/// The most files that match one output's pattern.
pub const MAX_MATCHING: usize = 1_000;

/// The kind of an output in Muster's form (feature `folders`). An upload without one is in ComputeHorde's form: a
/// regular file, to which no link leads. Two uploads of one path, a file's and a folder's, are alternatives: the one
/// whose kind the program left is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// The contents of a regular file; links that stay below `/output` are followed.
    File,
    /// A folder, or all of `/output` by the path [`WHOLE_OUTPUT`], as a tar archive. It holds files and folders with
    /// their modes, and the links that stay inside it.
    Folder,
    /// The files whose paths below `/output` match the upload's path as a pattern, as a tar archive (feature
    /// `output-patterns`). There is at least one, and at most [`MAX_MATCHING`].
    Matching,
}

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
    /// The kind of the output in Muster's form; absent in ComputeHorde's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<OutputKind>,
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
    /// The kind of the output in Muster's form; absent in ComputeHorde's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<OutputKind>,
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

    /// The kind of the output; `None` in ComputeHorde's form.
    pub fn kind(&self) -> Option<OutputKind> {
        match self {
            Self::SingleFilePost(post) => post.kind,
            Self::SingleFilePut(put) => put.kind,
        }
    }

    /// Whether the upload is of a folder.
    pub fn is_folder(&self) -> bool {
        self.kind() == Some(OutputKind::Folder)
    }

    /// Whether the upload is of the files that match a pattern.
    pub fn is_pattern(&self) -> bool {
        self.kind() == Some(OutputKind::Matching)
    }

    /// Checks the spelling of the path.
    ///
    /// # Errors
    /// The reason, to stand behind the path in a sentence.
    pub fn check_path(&self) -> Result<(), &'static str> {
        match self.relative_path() {
            WHOLE_OUTPUT if self.is_folder() => Ok(()),
            path => check_relative_path(path),
        }
    }

    fn forget_kind(&mut self) {
        match self {
            Self::SingleFilePost(post) => post.kind = None,
            Self::SingleFilePut(put) => put.kind = None,
        }
    }
}

/// Whether an executor without the feature `folders` could not make one of the uploads: a folder's without the
/// alternative of a file.
pub fn needs_folders(uploads: &[FileUpload]) -> bool {
    uploads.iter().any(|upload| {
        let path = upload.relative_path();
        let is_alternative =
            |other: &FileUpload| other.kind() == Some(OutputKind::File) && other.relative_path() == path;
        upload.is_folder() && !uploads.iter().any(is_alternative)
    })
}

/// Whether a user who writes this path means the files that match it.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?'])
}

/// Whether an executor without the feature `output-patterns` could not make one of the uploads.
pub fn needs_patterns(uploads: &[FileUpload]) -> bool {
    uploads.iter().any(FileUpload::is_pattern)
}

/// Puts uploads into ComputeHorde's form, for a peer without the feature `folders`. Folders and the files of a pattern
/// are left out.
pub fn forget_kinds(uploads: &mut Vec<FileUpload>) {
    uploads.retain(|upload| !upload.is_folder() && !upload.is_pattern());
    uploads.iter_mut().for_each(FileUpload::forget_kind);
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
        self.files()
            .into_iter()
            .filter(FileUpload::is_kept_on_failure)
            .collect()
    }

    /// The uploads of files and folders that it contains.
    pub fn files(&self) -> Vec<FileUpload> {
        match self {
            Self::MultiUpload(multi) => multi.uploads.clone(),
            Self::SingleFilePost(post) => vec![FileUpload::SingleFilePost(post.clone())],
            Self::SingleFilePut(put) => vec![FileUpload::SingleFilePut(put.clone())],
            Self::ZipAndHttpPost(_) | Self::ZipAndHttpPut(_) => Vec::new(),
        }
    }

    /// Puts it into ComputeHorde's form, for a peer without the feature `folders`.
    pub fn forget_kinds(&mut self) {
        match self {
            Self::MultiUpload(multi) => forget_kinds(&mut multi.uploads),
            Self::SingleFilePost(post) => post.kind = None,
            Self::SingleFilePut(put) => put.kind = None,
            Self::ZipAndHttpPost(_) | Self::ZipAndHttpPut(_) => {}
        }
    }

    /// Leaves out the files of patterns, for a peer without the feature `output-patterns`.
    pub fn forget_patterns(&mut self) {
        match self {
            Self::MultiUpload(multi) => multi.uploads.retain(|upload| !upload.is_pattern()),
            Self::SingleFilePost(post) => post.kind = post.kind.filter(|kind| *kind != OutputKind::Matching),
            Self::SingleFilePut(put) => put.kind = put.kind.filter(|kind| *kind != OutputKind::Matching),
            Self::ZipAndHttpPost(_) | Self::ZipAndHttpPut(_) => {}
        }
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
    fn put(path: &str, kind: Option<OutputKind>) -> FileUpload {
        FileUpload::SingleFilePut(FilePut {
            url: "http://h/".to_owned(),
            relative_path: path.to_owned(),
            signed_headers: None,
            kind,
        })
    }

    #[test]
    fn the_kind_of_an_output_is_a_field_of_its_own_and_absent_in_computehordes_form() {
        let plain = r#"{"output_upload_type":"single_file_put","url":"http://h/","relative_path":"a","signed_headers":null}"#;
        assert_eq!(serde_json::to_string(&put("a", None)).unwrap(), plain);
        let folder = r#"{"output_upload_type":"single_file_put","url":"http://h/","relative_path":"a","signed_headers":null,"kind":"folder"}"#;
        let upload = put("a", Some(OutputKind::Folder));
        assert_eq!(serde_json::to_string(&upload).unwrap(), folder);
        assert_eq!(serde_json::from_str::<FileUpload>(folder).unwrap(), upload);
        let post = r#"{"output_upload_type":"single_file_post","url":"http://h/","form_fields":null,"relative_path":"a","signed_headers":null,"kind":"file"}"#;
        let read: FileUpload = serde_json::from_str(post).unwrap();
        assert_eq!(read.kind(), Some(OutputKind::File));
        assert_eq!(serde_json::to_string(&read).unwrap(), post);
    }

    #[test]
    fn an_older_peer_gets_files_alone_and_only_a_folder_without_an_alternative_needs_a_newer_one() {
        let (file, folder) = (Some(OutputKind::File), Some(OutputKind::Folder));
        let mut uploads = vec![put("a", file), put("a", folder), put("b", None)];
        assert!(!needs_folders(&uploads));
        forget_kinds(&mut uploads);
        assert_eq!(uploads, [put("a", None), put("b", None)]);
        assert!(needs_folders(&[put("a", folder), put("b", file)]));
        assert!(needs_folders(&[put("a", folder), put("a", None)]));
        let mut patterns = vec![put("*.csv", Some(OutputKind::Matching)), put("b", file)];
        assert!(needs_patterns(&patterns) && !needs_patterns(&uploads) && !needs_folders(&patterns));
        forget_kinds(&mut patterns);
        assert_eq!(patterns, [put("b", None)]);
    }

    #[test]
    fn only_a_folder_may_be_all_of_the_outputs() {
        assert_eq!(put(WHOLE_OUTPUT, Some(OutputKind::Folder)).check_path(), Ok(()));
        assert!(put(WHOLE_OUTPUT, Some(OutputKind::File)).check_path().is_err());
        assert!(put("a/", Some(OutputKind::Folder)).check_path().is_err());
        assert!(put("a//b", None).check_path().is_err());
    }
}
