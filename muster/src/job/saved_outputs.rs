//! The outputs of a job, written to this machine: files from the facilitator's store, and artifacts from its result.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use muster_client::files::file_of;
use muster_client::{Client, ClientError};
use muster_protocol::relative_path::check_relative_path;
use muster_protocol::rest::JobView;
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::{job_text, print};
use serde::Serialize;

use crate::facilitator_access::client_failure;
use crate::failure::Result;

/// Something that was written to this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Saved {
    /// In the container.
    from: String,
    /// The path on this machine.
    to: PathBuf,
    bytes: u64,
}

/// Fetches the outputs that lie in the facilitator's store. Others went where their URLs lead.
pub(crate) async fn save_outputs(
    client: &Client,
    view: &JobView,
    folder: &Path,
    live: &LiveDisplay,
) -> Result<Vec<Saved>> {
    let mut saved = Vec::new();
    for upload in &view.uploads {
        let (path, url) = job_text::output(upload);
        let Some(id) = file_of(url) else { continue };
        let file = match client.file(&id).await {
            Ok(file) => file,
            Err(ClientError::Refused { status, .. }) if status.as_u16() == 404 => {
                live.print_line(&format!(
                    "  output {path} is gone: its time in the store was over, or it was deleted"
                ));
                continue;
            }
            Err(error) => return Err(client_failure(error)),
        };
        if !file.complete {
            live.print_line(&format!("  output {path} was not delivered"));
            continue;
        }
        if check_relative_path(path).is_err() {
            return Err(anyhow::anyhow!(
                "the output {path:?} would be written outside of {}",
                folder.display()
            )
            .into());
        }
        let to = folder.join(path);
        let bytes = client
            .fetch_file(&file, &to, live.transfer(path))
            .await
            .map_err(client_failure)?;
        let from = format!("/output/{path}");
        saved.push(Saved { from, to, bytes });
    }
    Ok(saved)
}

/// Writes what came inside the result. Only the last part of each path is used: it is the job that chose it.
pub(crate) fn save_artifacts(view: &JobView, folder: &Path) -> anyhow::Result<Vec<Saved>> {
    let mut saved = Vec::new();
    for (path, contents) in &view.artifacts {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let contents = artifact(contents)?;
        let name = Path::new(path)
            .file_name()
            .context("an artifact without a name")?;
        let to = folder.join(name);
        std::fs::write(&to, &contents).with_context(|| format!("cannot write {}", to.display()))?;
        let bytes = contents.len() as u64;
        saved.push(Saved {
            from: path.clone(),
            to,
            bytes,
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

/// A line for each thing that was written.
pub(crate) fn print_saved(live: &LiveDisplay, saved: &[Saved]) {
    for Saved { from, to, bytes } in saved {
        live.print_line(&format!("  {from} -> {} ({})", to.display(), print::size(*bytes)));
    }
}
