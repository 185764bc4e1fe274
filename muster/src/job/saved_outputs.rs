//! The outputs of a job, written to this machine: files and folders from the facilitator's store, and artifacts from
//! its result.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use muster_client::files::file_of;
use muster_client::output_tree::{permissions_here, unpack_tree};
use muster_client::{Client, ClientError};
use muster_process::error::Causes;
use muster_protocol::relative_path::check_relative_path;
use muster_protocol::rest::{FileView, JobView};
use muster_protocol::upload::{FileUpload, WHOLE_OUTPUT};
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::{job_text, print};
use serde::Serialize;

use super::local_place::{put_at, scratch_in};
use crate::failure::Result;

/// The permission bits of a file whose mode nobody has told, before the umask takes its part.
const USUAL_FILE: u32 = 0o666;

/// Something that was written to this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Saved {
    /// In the container.
    from: String,
    /// The path on this machine.
    to: PathBuf,
    bytes: u64,
    /// The new name of what was at that path before.
    #[serde(skip_serializing_if = "Option::is_none")]
    earlier: Option<PathBuf>,
}

/// The results of a job that were written to this machine.
#[derive(Debug, Default)]
pub(crate) struct FetchedResults {
    pub(crate) saved: Vec<Saved>,
    /// Those that could not be written.
    failed: usize,
}

impl FetchedResults {
    /// Adds what was written, or tells why it was not.
    pub(crate) fn add(&mut self, saved: anyhow::Result<Vec<Saved>>) {
        match saved {
            Ok(saved) => self.saved.extend(saved),
            Err(error) => {
                print::problem(format_args!("{error:#}"));
                self.failed += 1;
            }
        }
    }

    /// Fails if something could not be written here, after everything else was.
    pub(crate) fn check(&self, view: &JobView) -> Result<()> {
        if self.failed == 0 {
            return Ok(());
        }
        let (failed, job) = (self.failed, view.uuid);
        Err(anyhow::anyhow!(
            "{failed} of the job's results could not be written here; `muster job get {job} --save FOLDER` fetches them \
             again"
        )
        .into())
    }
}

/// An upload to the facilitator's store, and what lies there.
struct StoredOutput<'a> {
    upload: &'a FileUpload,
    path: &'a str,
    /// `None` once it was deleted.
    file: Option<FileView>,
}

impl StoredOutput<'_> {
    fn is_delivered(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.complete)
    }
}

/// Fetches the wanted outputs that lie in the facilitator's store. Others went where their URLs lead.
pub(crate) async fn save_outputs(
    client: &Client,
    view: &JobView,
    is_wanted: impl Fn(&FileUpload) -> bool,
    folder: &Path,
    live: &LiveDisplay,
) -> FetchedResults {
    let mut fetched = FetchedResults::default();
    let mut stored = Vec::new();
    for upload in &view.uploads {
        if !is_wanted(upload) {
            continue;
        }
        let (path, url) = job_text::output(upload);
        let Some(id) = file_of(url) else { continue };
        let file = match client.file(&id).await {
            Ok(file) => Some(file),
            Err(ClientError::Refused { status, .. }) if status.as_u16() == 404 => None,
            Err(error) => {
                fetched.add(Err(
                    anyhow::Error::new(error).context(format!("cannot ask for the output {path}"))
                ));
                continue;
            }
        };
        stored.push(StoredOutput { upload, path, file });
    }
    for (at, output) in stored.iter().enumerate() {
        if let Some(file) = output.file.as_ref().filter(|file| file.complete) {
            let saved = save_output(client, view, output, file, folder, live).await;
            fetched.add(saved.with_context(|| format!("the output {} was not written", output.path)));
            continue;
        }
        let same = |other: &&StoredOutput<'_>| other.path == output.path;
        if stored.iter().filter(same).any(StoredOutput::is_delivered) {
            // The other kind was delivered: this place stays empty.
            if let Some(file) = &output.file {
                let _ = client.delete_file(&file.id).await;
            }
        } else if !stored.iter().take(at).any(|other| same(&other)) {
            let why = match output.file {
                Some(_) => "was not delivered",
                None => "is gone: its time in the store was over, or it was deleted",
            };
            live.print_line(&format!("  output {} {why}", output.path));
        }
    }
    fetched
}

/// Fetches one output and puts it at its place.
async fn save_output(
    client: &Client,
    view: &JobView,
    output: &StoredOutput<'_>,
    file: &FileView,
    folder: &Path,
    live: &LiveDisplay,
) -> anyhow::Result<Vec<Saved>> {
    let path = output.path;
    let is_whole = output.upload.is_folder() && path == WHOLE_OUTPUT;
    if !is_whole && let Err(reason) = check_relative_path(path) {
        anyhow::bail!("the path {path:?} {reason}");
    }
    let to = if is_whole {
        folder.to_owned()
    } else {
        folder.join(path)
    };
    let near = if is_whole {
        folder
    } else {
        to.parent().unwrap_or(folder)
    };
    let scratch = scratch_in(near)?;
    if !output.upload.is_folder() {
        let fetched = scratch.path().join("file");
        let mode = mode_of(view, path, file);
        let bytes = client
            .fetch_file_as(file, &fetched, mode, live.transfer(path))
            .await?;
        return Ok(vec![place(&fetched, &to, path, bytes)?]);
    }
    let archive = scratch.path().join("archive");
    client.fetch_file(file, &archive, live.transfer(path)).await?;
    let tree = scratch.path().join("tree");
    let unpacked = {
        let (archive, tree) = (archive.clone(), tree.clone());
        tokio::task::spawn_blocking(move || unpack_tree(File::open(archive)?, &tree)).await?
    };
    let bytes = match unpacked {
        Ok(bytes) => bytes,
        Err(error) => {
            let name = if is_whole { "output" } else { path };
            let saved = place(
                &archive,
                &folder.join(format!("{name}.tar")),
                path,
                file.size.unwrap_or_default(),
            )?;
            print::problem(format_args!(
                "the folder {path} cannot be laid out here and stays in its archive: {}",
                Causes(&error)
            ));
            return Ok(vec![saved]);
        }
    };
    if !is_whole {
        return Ok(vec![place(&tree, &to, path, bytes)?]);
    }
    let mut saved = Vec::new();
    for entry in std::fs::read_dir(&tree).with_context(|| format!("cannot list {}", tree.display()))? {
        let name = entry
            .with_context(|| format!("cannot list {}", tree.display()))?
            .file_name();
        let from = tree.join(&name);
        let found = from
            .symlink_metadata()
            .with_context(|| format!("cannot read {}", from.display()))?;
        let bytes = if found.is_file() { found.len() } else { 0 };
        saved.push(place(&from, &folder.join(&name), &name.to_string_lossy(), bytes)?);
    }
    saved.sort_by(|a, b| a.from.cmp(&b.from));
    Ok(saved)
}

fn place(from: &Path, to: &Path, path: &str, bytes: u64) -> anyhow::Result<Saved> {
    let earlier = put_at(from, to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(Saved {
        from: format!("/output/{path}"),
        to: to.to_owned(),
        bytes,
        earlier,
    })
}

/// The mode of an output as its executor told it, if it told of these bytes.
fn mode_of(view: &JobView, path: &str, file: &FileView) -> u32 {
    let listed = view
        .completion
        .as_ref()
        .map_or(&[][..], |report| report.outputs.as_slice());
    let is_same = |sha256: String| file.sha256.as_deref() == Some(sha256.as_str());
    let mut same = listed.iter().filter(|listed| is_same(listed.sha256.hex()));
    // Behind a link the contents have another path.
    let found = same
        .clone()
        .find(|listed| listed.path == path)
        .or_else(|| same.next());
    found
        .and_then(|listed| listed.mode)
        .map_or(USUAL_FILE, permissions_here)
}

/// Writes what came inside the result. Only the last part of each path is used: it is the job that chose it.
pub(crate) fn save_artifacts(view: &JobView, folder: &Path) -> anyhow::Result<Vec<Saved>> {
    let mut saved = Vec::new();
    for (path, contents) in &view.artifacts {
        let scratch = scratch_in(folder)?;
        let contents = artifact(contents)?;
        let name = Path::new(path)
            .file_name()
            .context("an artifact without a name")?;
        let (from, to) = (scratch.path().join(name), folder.join(name));
        std::fs::write(&from, &contents).with_context(|| format!("cannot write {}", from.display()))?;
        let earlier = put_at(&from, &to).with_context(|| format!("cannot write {}", to.display()))?;
        let bytes = contents.len() as u64;
        saved.push(Saved {
            from: path.clone(),
            to,
            bytes,
            earlier,
        });
    }
    Ok(saved)
}

/// The bytes of an artifact.
pub(crate) fn artifact(contents: &str) -> anyhow::Result<Vec<u8>> {
    base64::engine::general_purpose::STANDARD
        .decode(contents)
        .context("the artifact is not base64")
}

/// A line for each thing that was written, and for each that was there before.
pub(crate) fn print_saved(live: &LiveDisplay, saved: &[Saved]) {
    for Saved {
        from,
        to,
        bytes,
        earlier,
    } in saved
    {
        live.print_line(&format!("  {from} -> {} ({})", to.display(), print::size(*bytes)));
        if let Some(earlier) = earlier {
            live.print_line(&format!(
                "  the earlier {} is {} now",
                to.display(),
                earlier.display()
            ));
        }
    }
}
