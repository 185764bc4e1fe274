//! What is provisioned, on disk: one file per attempt, there before its command runs and gone after its release.
//!
//! The file is the standard input of every command that runs for it, and locked meanwhile. A command that outlives a
//! killed miner holds the lock on, so the next process waits for it instead of releasing beside it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::{AttemptId, ExecutorClass};
use serde::{Deserialize, Serialize};

use crate::ManagerError;

/// How often it is tried whether a command that outlived its miner has ended.
const LOOK: Duration = Duration::from_secs(1);

/// One provisioned executor, as a later process must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) attempt: AttemptId,
    pub(crate) class: ExecutorClass,
}

/// The folder of the records.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

/// A record that nobody else works on.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) record: Record,
    path: PathBuf,
    file: File,
}

impl Records {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Writes a record down, durably.
    pub(crate) fn write(&self, record: Record) -> Result<Held, ManagerError> {
        let path = self.folder.join(format!("{}.json", record.attempt));
        let failed = |source| ManagerError::Record {
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec(&record)
            .map_err(io::Error::other)
            .map_err(failed)?;
        let make = || {
            fs::create_dir_all(&self.folder)?;
            let mut file = OpenOptions::new()
                .read(true)
                .append(true)
                .create_new(true)
                .open(&path)?;
            file.lock()?;
            file.write_all(&text)?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()?;
            Ok(file)
        };
        let file = make().map_err(failed)?;
        Ok(Held { record, path, file })
    }

    /// Every record that an earlier process left.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .collect();
        paths.sort();
        paths
    }

    /// Takes a record over once no command works on it, or once `patience` is over. `None` if it is none of ours, or
    /// has been released meanwhile.
    pub(crate) async fn take(&self, path: &Path, patience: Duration, clock: &SharedClock) -> Option<Held> {
        let file = OpenOptions::new().read(true).append(true).open(path).ok()?;
        let until = clock.now().plus(patience);
        while clock.now() < until {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => clock.sleep(LOOK).await,
                Err(TryLockError::Error(error)) => {
                    tracing::warn!(path = %path.display(), %error, "a record of a provisioned executor cannot be locked");
                    break;
                }
            }
        }
        let text = fs::read(path).ok()?;
        match serde_json::from_slice(&text) {
            Ok(record) => Some(Held {
                record,
                path: path.to_owned(),
                file,
            }),
            // Torn by a crash before its command ran: nothing was provisioned.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a record of a provisioned executor is torn and is removed");
                let _ = fs::remove_file(path);
                None
            }
        }
    }
}

impl Held {
    /// For a command's standard input, which keeps the lock for as long as the command lives.
    pub(crate) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The executor is gone and so is its record.
    pub(crate) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the record of a released executor stays; it is released again at the next start");
        }
    }
}
