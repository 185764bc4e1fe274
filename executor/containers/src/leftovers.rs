//! Removes the containers and folders that killed executors left behind.
//!
//! An executor that is killed cannot remove its container. The engine bounds a container's processors, memory and
//! processes but not its lifetime. The container runs on until the next executor of the same `work_dir` starts, or
//! until a supervisor calls [`reap`]. A supervisor of executors should call it when one of them has died.
//!
//! Several executors share a machine, and several operators may share an engine. The containers to remove are therefore
//! found from the folders in `work_dir`, never from the engine's list: a folder whose lock is free has no living owner
//! ([`crate::owned_folders::find_abandoned`]), and the containers whose label names exactly that folder were its
//! owner's. A container whose folder is in another place, in use, or gone is left alone.

use std::path::{Path, PathBuf};

use muster_process::error::Causes;
use muster_protocol::Timestamp;
use tokio::task::{JoinError, spawn_blocking};

use crate::docker_engine::{ContainerEngine, EngineError};
use crate::owned_folders::{AbandonedFolder, FolderError, find_abandoned};
use crate::sandbox::LABEL_EXECUTOR;

/// The result of one run of [`reap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapSummary {
    /// Number of folders removed.
    pub folders: usize,
    /// Number of containers removed.
    pub containers: usize,
    /// Number of folders that could not be removed, with their containers or files. The log has the reasons.
    pub left: usize,
}

/// The reason for which nothing could be removed.
#[derive(Debug, thiserror::Error)]
pub enum ReapError {
    /// The engine failed.
    #[error("the containers of dead executors cannot be removed")]
    Engine(#[from] EngineError),
    /// The folders cannot be read.
    #[error("the folders of dead executors cannot be found")]
    WorkDir(#[from] FolderError),
    /// The process is shutting down.
    #[error("the removal of dead executors' containers was interrupted")]
    Interrupted(#[from] JoinError),
}

/// Removes the containers and folders of executors of this `work_dir` whose processes are gone. Safe at any time,
/// beside running executors and beside another call of itself.
///
/// # Errors
/// The engine or `work_dir` cannot be used at all. Single failures are counted in [`ReapSummary::left`].
pub async fn reap(
    engine: &ContainerEngine,
    work_dir: &Path,
    now: Timestamp,
) -> Result<ReapSummary, ReapError> {
    let work_dir = PathBuf::from(work_dir);
    let mut reaped = ReapSummary::default();
    let mut emptied = Vec::new();
    // All containers first: they hold memory, processors and GPUs, while folders only hold disk.
    for folder in spawn_blocking(move || find_abandoned(&work_dir, now)).await?? {
        match containers_of(engine, &folder).await {
            Ok(removed) => {
                reaped.containers += removed;
                emptied.push(folder);
            }
            Err(error) => {
                tracing::warn!(error = %Causes(&error), folder = %folder.path().display(), "a dead executor's container stays");
                reaped.left += 1;
            }
        }
    }
    for removed in spawn_blocking(move || remove_all(emptied)).await? {
        match removed {
            Ok(()) => reaped.folders += 1,
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "a dead executor's folder stays");
                reaped.left += 1;
            }
        }
    }
    if reaped != ReapSummary::default() {
        tracing::info!(
            containers = reaped.containers,
            folders = reaped.folders,
            left = reaped.left,
            "removed the containers and folders of dead executors"
        );
    }
    Ok(reaped)
}

async fn containers_of(engine: &ContainerEngine, folder: &AbandonedFolder) -> Result<usize, EngineError> {
    let label = format!("{LABEL_EXECUTOR}={}", folder.path().display());
    let names = engine.list_labelled(&label).await?;
    for name in &names {
        engine.remove(name).await?;
    }
    Ok(names.len())
}

fn remove_all(folders: Vec<AbandonedFolder>) -> Vec<Result<(), FolderError>> {
    folders.into_iter().map(AbandonedFolder::remove).collect()
}
