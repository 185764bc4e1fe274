//! The end of a persistent executor whose program was replaced by another version: it takes no more jobs, and ends once
//! a restart loses nothing.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_protocol::AttemptId;
use tokio::task::spawn_blocking;

use super::connection::PersistentExecutor;
use crate::journal::Journal;

/// How often the program is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The kernel's mark on the link to a file that has no name any more (proc(5)).
const DELETED: &str = " (deleted)";

/// Ends the process's tasks once the program that `link` leads to was replaced, and the next process can take over each
/// lease: a job in its container. A sealed session cannot be taken over, and is waited for.
pub(super) async fn end_when_replaced(executor: Arc<PersistentExecutor>, link: PathBuf) {
    let clock = Arc::clone(&executor.process.clock);
    loop {
        if is_replaced(&link) {
            // The miner may have sent an offer before it learnt of the end, so the first look only tells it.
            if !executor.is_ending.swap(true, Ordering::Relaxed) {
                tracing::info!(
                    "the program was replaced: the executor takes no more jobs, and ends for its successor"
                );
            } else if !executor.would_lose_leases().await {
                tracing::info!("ending: the next process takes over the jobs that run");
                executor.process.tasks.shutdown();
                return;
            }
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

fn is_replaced(link: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|program| program.to_string_lossy().ends_with(DELETED))
}

// === impl PersistentExecutor ===

impl PersistentExecutor {
    /// Whether there is a lease that another process could not take over.
    async fn would_lose_leases(&self) -> bool {
        let leases: Vec<AttemptId> = self.leases.lock().keys().copied().collect();
        let work_dir = self.process.config.work_dir.clone();
        let journaled = spawn_blocking(move || journaled_attempts(&work_dir)).await;
        let journaled = journaled.unwrap_or_default();
        leases.iter().any(|attempt| !journaled.contains(attempt))
    }
}

/// The attempts whose jobs have a journal in a folder below `work_dir`. Blocks.
fn journaled_attempts(work_dir: &Path) -> HashSet<AttemptId> {
    let Ok(folders) = std::fs::read_dir(work_dir) else {
        return HashSet::new();
    };
    folders
        .filter_map(|folder| Journal::read(&folder.ok()?.path()).ok()?)
        .map(|(_, job, _)| job.token.attempt())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_replaced_once_its_file_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("exe");
        assert!(!is_replaced(&link));
        for (program, replaced) in [("/usr/bin/muster", false), ("/usr/bin/muster (deleted)", true)] {
            std::os::unix::fs::symlink(program, &link).unwrap();
            assert_eq!(is_replaced(&link), replaced, "{program}");
            std::fs::remove_file(&link).unwrap();
        }
        assert!(!is_replaced(Path::new("/proc/self/exe")));
    }
}
