//! Uploads a job's outputs: single files and whole folders, each in one request, some at the same time.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use indexmap::IndexMap;
use muster_http::addresses::{AddressRules, RuleError};
use muster_process::error::Causes;
use muster_protocol::OutputUpload;
use muster_protocol::upload::{FileUpload, OutputKind, WHOLE_OUTPUT, ZipUpload};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::download::TransferProgress;
use crate::error::{HttpError, UploadError};
use crate::found_outputs::FoundOutputs;
use crate::job_url::Target;
use crate::linked_path::{LinkedEntry, open_linked};
use crate::multipart_form::build_form;
use crate::output_folder::{Folder, FolderEntry};
use crate::pinned_request::PinnedClient;
use crate::retry::Pace;
use crate::safe_names::shown;
use crate::settings::Settings;
use crate::tar_output::{PackedTree, pack_file, pack_matching, pack_tree};
use crate::upload_one::{UploadProgress, UploadRequest, UploadTally, send, signed_headers};
use crate::upload_record::{DoneUpload, UploadId, UploadRecord};
use crate::upload_reports::format_results;
use crate::zip_output::zip_folder;

/// Number of uploads at the same time, the same as ComputeHorde's.
const MAX_PARALLEL: usize = 3;
const MAX_UPLOADS: usize = 1_000;
/// The name of the whole folder in results and forms.
const WHOLE: &str = "output.zip";
const SYSTEM: &str = "system_output";

/// Makes uploads under an operator's settings.
#[derive(Clone)]
pub struct Uploader {
    rules: Arc<AddressRules>,
    limit: u64,
    pace: Pace,
    progress: TransferProgress,
    /// The uploads that an earlier process has made.
    record: Option<UploadRecord>,
    /// The folder in which archives are packed; the parent of the output folder by default.
    scratch: Option<PathBuf>,
    /// Paths that are in no archive of a folder.
    unpacked: Vec<PathBuf>,
}

/// The result of a job's uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// By path, `output.zip` or `system_output`: the JSON text `{"headers": {…}, "body": "…"}` of the server's answer.
    pub results: IndexMap<String, String>,
    /// Lines for the job's stderr about files that were left out.
    pub notices: Vec<String>,
}

/// One request to be made.
#[derive(Debug)]
struct UploadPlan {
    key: String,
    target: Target,
    headers: HeaderMap,
    /// The fields of a form; `None` if the file is the body.
    form: Option<IndexMap<String, String>>,
    what: UploadSource,
}

#[derive(Debug)]
enum UploadSource {
    /// A regular file to which no link leads: ComputeHorde's form.
    File(PathBuf),
    /// The whole folder without these files: ComputeHorde's form.
    Folder(Vec<PathBuf>),
    /// A file, also behind links that stay inside. It is skipped if there is an alternative and nothing at the path but
    /// a folder.
    LinkedFile { path: PathBuf, has_alternative: bool },
    /// The files that match a pattern.
    Matching(String),
    /// A folder with all that it holds. It is skipped if there is an alternative and no folder at the path.
    Tree { path: PathBuf, has_alternative: bool },
}

/// An output that is open for sending.
struct OpenOutput {
    file: File,
    len: u64,
    notice: Option<String>,
}

impl UploadPlan {
    fn id(&self) -> UploadId {
        UploadId::new(&self.key, self.target.url().as_str())
    }
}

impl Uploader {
    /// Creates an uploader under an operator's settings.
    ///
    /// # Errors
    /// An entry of `allow` cannot be read.
    pub fn new(settings: &Settings) -> Result<Self, RuleError> {
        Ok(Self {
            rules: Arc::new(AddressRules::parse(&settings.allow)?),
            limit: settings.max_upload_mib.saturating_mul(1 << 20),
            pace: Pace::default(),
            progress: Arc::new(|_, _| {}),
            record: None,
            scratch: None,
            unpacked: Vec::new(),
        })
    }

    /// Packs the archives of folders below `scratch`, and leaves the files at these paths of the output folder out of
    /// them.
    #[must_use]
    pub fn with_archives(self, scratch: &Path, without: Vec<PathBuf>) -> Self {
        Self {
            scratch: Some(scratch.to_owned()),
            unpacked: without,
            ..self
        }
    }

    /// Reports progress: the bytes sent of all outputs, and their total once it is known.
    #[must_use]
    pub fn with_progress(self, progress: TransferProgress) -> Self {
        Self { progress, ..self }
    }

    /// Notes each upload that succeeds in the file at `path`, and does not repeat those that the file already has. The
    /// file belongs to one job.
    #[must_use]
    pub fn with_record(self, path: &Path) -> Self {
        Self {
            record: Some(UploadRecord::new(path)),
            ..self
        }
    }

    /// Replaces the default timeouts and pauses.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// Finds mistakes that no run of the job can mend, so that the job need not run.
    ///
    /// # Errors
    /// A path is not valid, or a URL or a header is refused.
    pub fn check(&self, upload: &OutputUpload) -> Result<(), UploadError> {
        for plan in self.plan_all(upload)? {
            let name = file_name(&plan);
            build_form(plan.form.as_ref(), &name, [0; 16]).map_err(|reason| refused(&plan.key, reason))?;
        }
        Ok(())
    }

    /// Sends everything that `upload` names below `output`. Archives are packed in the parent folder of `output`. All
    /// uploads are tried even if one fails: the first value holds those that succeeded. Ends soon after it is
    /// cancelled.
    ///
    /// # Errors
    /// The second value holds the first failure in the order of the job.
    pub async fn upload(
        &self,
        upload: &OutputUpload,
        output: &Path,
        called_off: &CancellationToken,
    ) -> (Uploaded, Result<(), UploadError>) {
        let sent = tokio::select! {
            biased;
            () = called_off.cancelled() => Err(UploadError::CalledOff),
            sent = self.all(upload, output, called_off) => sent,
        };
        sent.unwrap_or_else(|error| (Uploaded::default(), Err(error)))
    }

    async fn all(
        &self,
        upload: &OutputUpload,
        output: &Path,
        called_off: &CancellationToken,
    ) -> Result<(Uploaded, Result<(), UploadError>), UploadError> {
        let plans = self.plan_all(upload)?;
        let http = PinnedClient::new(Arc::clone(&self.rules)).with_pace(self.pace);
        let root = output.to_owned();
        let folder = Arc::new(blocking(move || Folder::open(&root).map_err(UploadError::Disk)).await?);
        let tally = Arc::new(UploadTally::new(plans.len(), Arc::clone(&self.progress)));
        let before = self.read_record().await;
        let sending = plans.into_iter().enumerate().map(|(index, plan)| {
            let (http, folder) = (&http, Arc::clone(&folder));
            let progress = Arc::new(UploadProgress::new(index, &tally));
            let (id, key) = (plan.id(), plan.key.clone());
            let done = before.get(&id).cloned();
            async move {
                if let Some(done) = done {
                    progress.skip();
                    return Ok(Some((key, done)));
                }
                let Some(done) = self
                    .upload_one(http, plan, folder, output, &progress, called_off)
                    .await?
                else {
                    progress.skip();
                    return Ok(None);
                };
                self.note(id, &done).await;
                Ok(Some((key, done)))
            }
        });
        let outcomes: Vec<_> = stream::iter(sending).buffered(MAX_PARALLEL).collect().await;
        let mut answers = Vec::new();
        let mut notices = Vec::new();
        let mut first_failure = Ok(());
        for outcome in outcomes {
            match outcome {
                // Its alternative is there.
                Ok(None) => {}
                Ok(Some((key, done))) => {
                    answers.push((key, done.answer));
                    notices.extend(done.notice);
                }
                Err(error) => first_failure = first_failure.and(Err(error)),
            }
        }
        let uploaded = Uploaded {
            results: format_results(answers),
            notices,
        };
        Ok((uploaded, first_failure))
    }

    /// The uploads that an earlier process has made. A record that cannot be read costs their repetition.
    async fn read_record(&self) -> HashMap<UploadId, DoneUpload> {
        let Some(record) = self.record.clone() else {
            return HashMap::new();
        };
        let read = blocking(move || record.read().map_err(UploadError::Disk)).await;
        read.unwrap_or_else(|error| {
            tracing::warn!(error = %Causes(&error), "the record of the job's uploads cannot be read");
            HashMap::new()
        })
    }

    async fn note(&self, upload: UploadId, done: &DoneUpload) {
        let (Some(record), done) = (self.record.clone(), done.clone()) else {
            return;
        };
        let noted = blocking(move || record.add(upload, &done).map_err(UploadError::Disk)).await;
        if let Err(error) = noted {
            tracing::warn!(error = %Causes(&error), "the record of the job's uploads cannot be written");
        }
    }

    fn plan_all(&self, upload: &OutputUpload) -> Result<Vec<UploadPlan>, UploadError> {
        match upload {
            OutputUpload::ZipAndHttpPost(post) => {
                let form = Some(post.form_fields.clone().unwrap_or_default());
                Ok(vec![self.plan(
                    WHOLE,
                    &post.url,
                    None,
                    form,
                    UploadSource::Folder(vec![]),
                )?])
            }
            OutputUpload::ZipAndHttpPut(put) => Ok(vec![self.plan(
                WHOLE,
                &put.url,
                None,
                None,
                UploadSource::Folder(vec![]),
            )?]),
            OutputUpload::SingleFilePost(post) => {
                Ok(vec![self.file(&FileUpload::SingleFilePost(post.clone()), false)?])
            }
            OutputUpload::SingleFilePut(put) => {
                Ok(vec![self.file(&FileUpload::SingleFilePut(put.clone()), false)?])
            }
            OutputUpload::MultiUpload(multi) => {
                if multi.uploads.len() > MAX_UPLOADS {
                    return Err(UploadError::TooMany {
                        what: "uploads",
                        limit: MAX_UPLOADS,
                    });
                }
                let mut plans = multi
                    .uploads
                    .iter()
                    .map(|upload| self.file(upload, has_alternative(upload, &multi.uploads)))
                    .collect::<Result<Vec<_>, _>>()?;
                // A file with an upload of its own is not packed into the archive.
                let own = plans.iter().filter_map(|plan| match &plan.what {
                    UploadSource::File(path) | UploadSource::LinkedFile { path, .. } => Some(path.clone()),
                    UploadSource::Folder(_) | UploadSource::Tree { .. } | UploadSource::Matching(_) => None,
                });
                let rest = UploadSource::Folder(own.collect());
                match &multi.system_output {
                    None => {}
                    Some(ZipUpload::ZipAndHttpPost(post)) => {
                        let form = Some(post.form_fields.clone().unwrap_or_default());
                        plans.push(self.plan(SYSTEM, &post.url, None, form, rest)?);
                    }
                    Some(ZipUpload::ZipAndHttpPut(put)) => {
                        plans.push(self.plan(SYSTEM, &put.url, None, None, rest)?);
                    }
                }
                Ok(plans)
            }
        }
    }

    fn file(&self, upload: &FileUpload, has_alternative: bool) -> Result<UploadPlan, UploadError> {
        let (path, url, headers, form) = match upload {
            FileUpload::SingleFilePost(post) => {
                let form = Some(post.form_fields.clone().unwrap_or_default());
                (&post.relative_path, &post.url, &post.signed_headers, form)
            }
            FileUpload::SingleFilePut(put) => (&put.relative_path, &put.url, &put.signed_headers, None),
        };
        upload.check_path().map_err(|reason| refused(path, reason))?;
        let is_whole = upload.is_folder() && path == WHOLE_OUTPUT;
        let plain = if is_whole {
            PathBuf::new()
        } else {
            PathBuf::from(path)
        };
        let what = match upload.kind() {
            None => UploadSource::File(plain),
            Some(OutputKind::File) => UploadSource::LinkedFile {
                path: plain,
                has_alternative,
            },
            Some(OutputKind::Folder) => UploadSource::Tree {
                path: plain,
                has_alternative,
            },
            Some(OutputKind::Matching) => UploadSource::Matching(path.clone()),
        };
        self.plan(path, url, headers.as_ref(), form, what)
    }

    fn plan(
        &self,
        key: &str,
        url: &str,
        headers: Option<&IndexMap<String, String>>,
        form: Option<IndexMap<String, String>>,
        what: UploadSource,
    ) -> Result<UploadPlan, UploadError> {
        let failed = |source| UploadError::Send {
            name: shown(key),
            source,
        };
        let target = Target::parse(url, &self.rules).map_err(|error| failed(error.into()))?;
        let headers = signed_headers(headers, &target).map_err(failed)?;
        Ok(UploadPlan {
            key: key.to_owned(),
            target,
            headers,
            form,
            what,
        })
    }

    /// Opens or packs one output and sends it; `None` if its alternative is there instead.
    async fn upload_one(
        &self,
        http: &PinnedClient,
        mut plan: UploadPlan,
        folder: Arc<Folder>,
        output: &Path,
        progress: &Arc<UploadProgress>,
        called_off: &CancellationToken,
    ) -> Result<Option<DoneUpload>, UploadError> {
        let name = file_name(&plan);
        let source = std::mem::replace(&mut plan.what, UploadSource::Folder(Vec::new()));
        let opening = OpeningOutput {
            folder,
            key: plan.key.clone(),
            limit: self.limit,
            scratch: match &self.scratch {
                Some(scratch) => scratch.clone(),
                None => output.parent().unwrap_or(output).to_owned(),
            },
            unpacked: self.unpacked.clone(),
            called_off: called_off.clone(),
        };
        let Some(opened) = blocking(move || opening.open(source)).await? else {
            return Ok(None);
        };
        send_one(http, plan, name, opened, Arc::clone(progress))
            .await
            .map(Some)
    }
}

/// Whether an upload of the other kind names the same path.
fn has_alternative(upload: &FileUpload, all: &[FileUpload]) -> bool {
    let is_other = |other: &FileUpload| {
        other.relative_path() == upload.relative_path()
            && matches!(
                (other.kind(), upload.kind()),
                (Some(OutputKind::File), Some(OutputKind::Folder))
                    | (Some(OutputKind::Folder), Some(OutputKind::File))
            )
    };
    all.iter().any(is_other)
}

/// The arguments for opening one output.
struct OpeningOutput {
    folder: Arc<Folder>,
    key: String,
    limit: u64,
    scratch: PathBuf,
    unpacked: Vec<PathBuf>,
    called_off: CancellationToken,
}

impl OpeningOutput {
    /// Opens or packs an output; `None` if its alternative is there instead.
    fn open(&self, source: UploadSource) -> Result<Option<OpenOutput>, UploadError> {
        match source {
            UploadSource::File(path) => {
                let (file, len) = self.open_regular(&path)?;
                Ok(Some(OpenOutput {
                    file,
                    len,
                    notice: None,
                }))
            }
            UploadSource::Folder(without) => {
                let file = tempfile::tempfile_in(&self.scratch).map_err(UploadError::Disk)?;
                let zipped = zip_folder(&self.folder, &without, &file, self.limit, &self.called_off)?;
                let reason =
                    "not in the uploaded archive, since they are not regular files or cannot be read";
                Ok(Some(OpenOutput {
                    file,
                    len: zipped.len,
                    notice: zipped.omitted.notice(reason),
                }))
            }
            UploadSource::LinkedFile {
                path,
                has_alternative,
            } => self.open_file(&path, has_alternative),
            UploadSource::Tree {
                path,
                has_alternative,
            } => self.pack(&path, has_alternative),
            UploadSource::Matching(pattern) => self.pack_matching(&pattern).map(Some),
        }
    }

    fn pack_matching(&self, pattern: &str) -> Result<OpenOutput, UploadError> {
        let file = tempfile::tempfile_in(&self.scratch).map_err(UploadError::Disk)?;
        let tree = self.tree(&self.folder, Path::new(""));
        let packed = pack_matching(&tree, pattern, &file, &self.called_off)?;
        let packed = packed.ok_or_else(|| self.missing())?;
        Ok(OpenOutput {
            file,
            len: packed.len,
            notice: packed.notice,
        })
    }

    /// Opens a regular file to which no link leads.
    fn open_regular(&self, path: &Path) -> Result<(File, u64), UploadError> {
        match self.folder.file(path).map_err(UploadError::Disk)? {
            FolderEntry::File(_, len) if len > self.limit => Err(UploadError::TooLarge {
                name: shown(&self.key),
                limit: self.limit,
            }),
            FolderEntry::File(file, len) => Ok((file, len)),
            FolderEntry::Nothing => Err(self.missing()),
            FolderEntry::Other => Err(refused(
                &self.key,
                "is not a regular file that can be read; links are not followed",
            )),
        }
    }

    /// The job did not leave this output.
    fn missing(&self) -> UploadError {
        UploadError::Missing {
            name: shown(&self.key),
            found: FoundOutputs::read(&self.folder, &self.unpacked),
        }
    }

    fn open_file(&self, path: &Path, has_alternative: bool) -> Result<Option<OpenOutput>, UploadError> {
        match open_linked(&self.folder, path).map_err(UploadError::Disk)? {
            LinkedEntry::File(_, len) if len > self.limit => Err(UploadError::TooLarge {
                name: shown(&self.key),
                limit: self.limit,
            }),
            LinkedEntry::File(file, len) => Ok(Some(OpenOutput {
                file,
                len,
                notice: None,
            })),
            LinkedEntry::Folder(_) if has_alternative => Ok(None),
            LinkedEntry::Folder(_) => Err(refused(&self.key, "is a folder; ask for it as a folder")),
            LinkedEntry::Nothing => Err(self.missing()),
            LinkedEntry::Other => Err(refused(
                &self.key,
                "is no file and no folder that can be read, or a link that leads out of /output",
            )),
        }
    }

    /// The folder at `path`, all of `/output` if that is empty.
    fn tree<'a>(&'a self, folder: &'a Folder, path: &'a Path) -> PackedTree<'a> {
        let is_whole = path.as_os_str().is_empty();
        PackedTree {
            folder,
            root: path,
            without: if is_whole { &self.unpacked } else { &[] },
            limit: self.limit,
        }
    }

    fn pack(&self, path: &Path, has_alternative: bool) -> Result<Option<OpenOutput>, UploadError> {
        let found = match path.as_os_str().is_empty() {
            true => None,
            false => Some(open_linked(&self.folder, path).map_err(UploadError::Disk)?),
        };
        let file = || tempfile::tempfile_in(&self.scratch).map_err(UploadError::Disk);
        let (into, packed) = match found {
            None => {
                let into = file()?;
                let packed = pack_tree(&self.tree(&self.folder, path), &into, &self.called_off)?;
                (into, packed)
            }
            Some(LinkedEntry::Folder(folder)) => {
                let into = file()?;
                let packed = pack_tree(&self.tree(&folder, path), &into, &self.called_off)?;
                (into, packed)
            }
            // The upload of the file is made, or says what is wrong.
            Some(LinkedEntry::File(..) | LinkedEntry::Nothing | LinkedEntry::Other) if has_alternative => {
                return Ok(None);
            }
            Some(LinkedEntry::File(found, len)) => {
                let into = file()?;
                let packed = pack_file(
                    &self.tree(&self.folder, path),
                    found,
                    len,
                    &into,
                    &self.called_off,
                )?;
                (into, packed)
            }
            Some(LinkedEntry::Nothing) => return Err(self.missing()),
            Some(LinkedEntry::Other) => {
                return Err(refused(
                    &self.key,
                    "is no folder that can be read, or a link that leads out of /output",
                ));
            }
        };
        Ok(Some(OpenOutput {
            file: into,
            len: packed.len,
            notice: packed.notice,
        }))
    }
}

/// Sends an output that is open.
async fn send_one(
    http: &PinnedClient,
    plan: UploadPlan,
    name: String,
    OpenOutput { file, len, notice }: OpenOutput,
    progress: Arc<UploadProgress>,
) -> Result<DoneUpload, UploadError> {
    let failed = |source| UploadError::Send {
        name: shown(&plan.key),
        source,
    };
    let mut request = UploadRequest {
        method: Method::PUT,
        target: plan.target,
        headers: plan.headers,
        before: Bytes::new(),
        file: Arc::new(file),
        len,
        after: Bytes::new(),
        progress,
    };
    if let Some(fields) = plan.form {
        let mut boundary = [0; 16];
        getrandom::fill(&mut boundary).map_err(|error| UploadError::Disk(error.into()))?;
        let form = build_form(Some(&fields), &name, boundary).map_err(|reason| refused(&plan.key, reason))?;
        let header = |_| HttpError::Header {
            name: "content-type".to_owned(),
            reason: "cannot be written",
        };
        let content_type = HeaderValue::try_from(form.content_type)
            .map_err(header)
            .map_err(failed)?;
        request.method = Method::POST;
        request.headers.insert(CONTENT_TYPE, content_type);
        request.before = form.before.into();
        request.after = form.after.into();
    }
    let answer = send(http, &request).await.map_err(failed)?;
    Ok(DoneUpload { answer, notice })
}

fn refused(name: &str, reason: &'static str) -> UploadError {
    UploadError::Name {
        name: shown(name),
        reason,
    }
}

/// The name of the file in a form: the last component of its path.
fn file_name(plan: &UploadPlan) -> String {
    match &plan.what {
        UploadSource::Folder(_) => WHOLE.to_owned(),
        UploadSource::File(path) | UploadSource::LinkedFile { path, .. } => last_name(path),
        UploadSource::Matching(_) => "output.tar".to_owned(),
        UploadSource::Tree { path, .. } if path.as_os_str().is_empty() => "output.tar".to_owned(),
        UploadSource::Tree { path, .. } => format!("{}.tar", last_name(path)),
    }
}

fn last_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UploadError> + Send + 'static,
) -> Result<T, UploadError> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(UploadError::Disk(std::io::Error::other(error))))
}
