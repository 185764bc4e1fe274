//! The outputs of a job, written to this machine: files and folders from the facilitator's store, and artifacts from
//! its result.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use muster_client::files::{USUAL_FILE, file_of};
use muster_client::output_tree::{permissions_here, unpack_tree};
use muster_client::{Client, ClientError};
use muster_job_data::matches_path;
use muster_process::error::Causes;
use muster_protocol::ErrorCode;
use muster_protocol::relative_path::check_relative_path;
use muster_protocol::rest::{FileView, JobView};
use muster_protocol::upload::{FileUpload, WHOLE_OUTPUT};
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::{job_text, print};
use serde::Serialize;

use super::local_place::{
    Coming, Overwrite, PlaceError, Placed, is_there, put_all, put_at, put_fetched, scratch_in,
};
use crate::failure::{Failure, Result};

/// Something that was written to this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Saved {
    /// In the container.
    from: String,
    /// The path on this machine.
    to: PathBuf,
    bytes: u64,
    placed: Placed,
}

/// Where results are written, and whether files of the user's are replaced there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SaveTo<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) overwrite: Overwrite,
}

/// The results of a job that were written to this machine.
#[derive(Debug, Default)]
pub(crate) struct FetchedResults {
    pub(crate) saved: Vec<Saved>,
    /// Those that could not be written.
    failed: usize,
    /// Those of them whose place something of the user's has.
    taken: usize,
}

impl FetchedResults {
    /// Adds what was written, or tells why it was not.
    pub(crate) fn add(&mut self, saved: anyhow::Result<Vec<Saved>>) {
        match saved {
            Ok(saved) => self.saved.extend(saved),
            Err(error) => {
                print::problem(format_args!("{error:#}"));
                self.failed += 1;
                if let Some(PlaceError::Taken(_)) = error.downcast_ref() {
                    self.taken += 1;
                }
            }
        }
    }

    /// Whether there was nothing to write here.
    pub(crate) fn is_empty(&self) -> bool {
        self.saved.is_empty() && self.failed == 0
    }

    /// Fails if something could not be written here, after everything else was.
    pub(crate) fn check(&self, view: &JobView) -> Result<()> {
        let (failed, job) = (self.failed, view.uuid);
        if self.failed == 0 {
            return Ok(());
        }
        if self.taken > 0 {
            let reason = anyhow::anyhow!(
                "{failed} of the job's results were not written here, and are kept at the facilitator: `muster job get \
                 {job} --save FOLDER` writes them into another folder, and with --force they replace your files"
            );
            return Err(Failure::new(ErrorCode::PlaceTaken, reason));
        }
        Err(anyhow::anyhow!(
            "{failed} of the job's results could not be written here; `muster job get {job} --save FOLDER` fetches them \
             again, and goes on where a download broke off"
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
    to: SaveTo<'_>,
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
            let saved = save_output(client, view, output, file, to, live).await;
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
    to: SaveTo<'_>,
    live: &LiveDisplay,
) -> anyhow::Result<Vec<Saved>> {
    let SaveTo { folder, overwrite } = to;
    let path = output.path;
    let is_whole = output.upload.is_folder() && path == WHOLE_OUTPUT;
    if !is_whole && let Err(reason) = check_relative_path(path) {
        anyhow::bail!("the path {path:?} {reason}");
    }
    if output.upload.is_folder() || output.upload.is_pattern() {
        return save_folder(client, output, file, to, live).await;
    }
    let place = folder.join(path);
    let coming = Coming::File(file);
    if is_there(&place, coming, overwrite)? {
        let bytes = file.size.unwrap_or_default();
        return Ok(vec![saved(path, &place, bytes, Placed::Unchanged)]);
    }
    let mode = mode_of(view, path, file);
    let fetched = client
        .fetch_beside(file, &place, mode, live.transfer(path))
        .await?;
    let placed = put_fetched(&fetched.path, &place, overwrite)?;
    Ok(vec![saved(path, &place, fetched.bytes, placed)])
}

/// Fetches the archive of a folder or of the files of a pattern, and puts what is in it at its place.
async fn save_folder(
    client: &Client,
    output: &StoredOutput<'_>,
    file: &FileView,
    to: SaveTo<'_>,
    live: &LiveDisplay,
) -> anyhow::Result<Vec<Saved>> {
    let SaveTo { folder, overwrite } = to;
    let path = output.path;
    let is_pattern = output.upload.is_pattern();
    let holds_entries = path == WHOLE_OUTPUT || is_pattern;
    let (place, name) = match holds_entries {
        true => (folder.to_owned(), "output"),
        false => (folder.join(path), path),
    };
    is_there(&place, Coming::Folder, overwrite)?;
    let tar = folder.join(format!("{name}.tar"));
    let archive = client
        .fetch_beside(file, &tar, USUAL_FILE, live.transfer(path))
        .await?
        .path;
    let scratch = scratch_in(tar.parent().unwrap_or(folder))?;
    let tree = scratch.path().join("tree");
    let unpacked = {
        let (archive, tree) = (archive.clone(), tree.clone());
        tokio::task::spawn_blocking(move || unpack_tree(File::open(archive)?, &tree)).await?
    };
    let bytes = match unpacked {
        Ok(bytes) => bytes,
        Err(error) => {
            let placed = put_fetched(&archive, &tar, overwrite)?;
            print::problem(format_args!(
                "the folder {path} cannot be laid out here and stays in its archive: {}",
                Causes(&error)
            ));
            return Ok(vec![saved(path, &tar, file.size.unwrap_or_default(), placed)]);
        }
    };
    std::fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    if is_pattern {
        check_matches(&tree, Path::new(""), path)?;
    }
    if !holds_entries {
        let placed = put_at(&tree, &place, overwrite)?;
        return Ok(vec![saved(path, &place, bytes, placed)]);
    }
    put_entries(&tree, folder, overwrite)
}

/// Checks that all files of an archive were asked for: another party made it.
fn check_matches(tree: &Path, below: &Path, pattern: &str) -> anyhow::Result<()> {
    let folder = tree.join(below);
    let listed = || format!("cannot list {}", folder.display());
    for entry in std::fs::read_dir(&folder).with_context(listed)? {
        let entry = entry.with_context(listed)?;
        let path = below.join(entry.file_name());
        if entry.file_type().with_context(listed)?.is_dir() {
            check_matches(tree, &path, pattern)?;
        } else if !path.to_str().is_some_and(|path| matches_path(pattern, path)) {
            anyhow::bail!("the output's archive holds {path:?}, which does not match; the miner is at fault");
        }
    }
    Ok(())
}

/// Puts each entry of `tree` into `folder`.
fn put_entries(tree: &Path, folder: &Path, overwrite: Overwrite) -> anyhow::Result<Vec<Saved>> {
    let listed = || format!("cannot list {}", tree.display());
    let mut pairs = Vec::new();
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(tree).with_context(listed)? {
        let entry = entry.with_context(listed)?;
        let (name, from) = (entry.file_name(), entry.path());
        let bytes = tree_bytes(&from)?;
        entries.push((name.to_string_lossy().into_owned(), bytes));
        pairs.push((from, folder.join(name)));
    }
    let placed = put_all(&pairs, overwrite)?;
    let mut all: Vec<_> = entries
        .iter()
        .zip(pairs)
        .zip(placed)
        .map(|(((name, bytes), (_, to)), placed)| saved(name, &to, *bytes, placed))
        .collect();
    all.sort_by(|a, b| a.from.cmp(&b.from));
    Ok(all)
}

/// The bytes of a file, or of all files in a folder.
fn tree_bytes(path: &Path) -> anyhow::Result<u64> {
    let read = || format!("cannot read {}", path.display());
    let found = path.symlink_metadata().with_context(read)?;
    if !found.is_dir() {
        return Ok(if found.is_file() { found.len() } else { 0 });
    }
    let mut bytes = 0_u64;
    for entry in std::fs::read_dir(path).with_context(read)? {
        bytes = bytes.saturating_add(tree_bytes(&entry.with_context(read)?.path())?);
    }
    Ok(bytes)
}

fn saved(path: &str, to: &Path, bytes: u64, placed: Placed) -> Saved {
    Saved {
        from: format!("/output/{path}"),
        to: to.to_owned(),
        bytes,
        placed,
    }
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
pub(crate) fn save_artifacts(view: &JobView, to: SaveTo<'_>) -> anyhow::Result<Vec<Saved>> {
    if view.artifacts.is_empty() {
        return Ok(Vec::new());
    }
    let scratch = scratch_in(to.folder)?;
    let mut pairs = Vec::new();
    let mut sizes = Vec::new();
    for (path, contents) in &view.artifacts {
        let contents = artifact(contents)?;
        let name = Path::new(path)
            .file_name()
            .context("an artifact without a name")?;
        let from = scratch.path().join(name);
        std::fs::write(&from, &contents).with_context(|| format!("cannot write {}", from.display()))?;
        pairs.push((from, to.folder.join(name)));
        sizes.push((path, contents.len() as u64));
    }
    let placed = put_all(&pairs, to.overwrite)?;
    let written = sizes.into_iter().zip(pairs).zip(placed);
    Ok(written
        .map(|(((path, bytes), (_, to)), placed)| Saved {
            from: path.clone(),
            to,
            bytes,
            placed,
        })
        .collect())
}

/// The bytes of an artifact.
pub(crate) fn artifact(contents: &str) -> anyhow::Result<Vec<u8>> {
    base64::engine::general_purpose::STANDARD
        .decode(contents)
        .context("the artifact is not base64")
}

/// A line for each thing that was written.
pub(crate) fn print_saved(live: &LiveDisplay, saved: &[Saved]) {
    for Saved {
        from,
        to,
        bytes,
        placed,
    } in saved
    {
        let note = placed.note();
        live.print_line(&format!(
            "  {from} -> {} ({}{note})",
            to.display(),
            print::size(*bytes)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_with_a_file_that_no_pattern_asked_for_is_refused() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("run1")).unwrap();
        std::fs::write(tree.path().join("run1/a.csv"), "").unwrap();
        let check = |pattern| check_matches(tree.path(), Path::new(""), pattern);
        check("*/*.csv").unwrap();
        assert!(check("*.csv").is_err());
        std::fs::create_dir_all(tree.path().join(".git")).unwrap();
        std::fs::write(tree.path().join(".git/config"), "").unwrap();
        let refused = check("*/*.csv").unwrap_err().to_string();
        assert!(refused.contains(".git/config"), "{refused}");
    }
}
