//! The records of provisioned executors: one file for each attempt, written before its command runs and removed after
//! its release.
//!
//! The file is the standard input of every command that runs for it, and locked meanwhile. A command that outlives a
//! killed miner keeps the lock, so the next process waits for the command before it releases the executor. If the
//! command takes longer than a command may, the executor is released beside it, and once more after its end.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::{AttemptId, ExecutorClass, Timestamp};
use serde::{Deserialize, Serialize};

use crate::daily_spend::MachineTime;
use crate::{ManagerError, Order};

/// Between two tries to lock the record of a command that outlived its miner.
const LOOK: Duration = Duration::from_secs(1);

/// A provisioned executor, as a later process must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) attempt: AttemptId,
    pub(crate) class: ExecutorClass,
    /// When it was written; `None` in a record of an earlier version.
    #[serde(default)]
    pub(crate) since: Option<Timestamp>,
    /// The most that its lease may take, in milliseconds; `None` in a record of an earlier version.
    #[serde(default)]
    pub(crate) lasts_ms: Option<u64>,
}

/// The folder of the records.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

/// A record that is locked by this process.
#[derive(Debug)]
pub(crate) struct LockedRecord {
    pub(crate) record: Record,
    path: PathBuf,
    file: File,
    /// Whether this process holds the lock.
    is_locked: bool,
}

impl Record {
    /// The record of an executor that is about to be provisioned.
    pub(crate) fn new(order: &Order, now: Timestamp) -> Self {
        Self {
            attempt: order.token.attempt(),
            class: order.class,
            since: Some(now),
            lasts_ms: Some(u64::try_from(order.lasts.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// The machine's time until its deadline; `None` if no deadline is known.
    pub(crate) fn time(&self) -> Option<MachineTime> {
        let (since, lasts) = self.since.zip(self.lasts_ms)?;
        let until = since.plus(Duration::from_millis(lasts));
        Some(MachineTime { since, until })
    }

    /// The time that is left until the deadline. A clock that was set back since makes it no longer than the lease.
    pub(crate) fn left(&self, now: Timestamp) -> Option<Duration> {
        let time = self.time()?;
        Some(time.until.since(now).min(time.until.since(time.since)))
    }
}

impl Records {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Writes a record durably.
    pub(crate) fn write(&self, record: Record) -> Result<LockedRecord, ManagerError> {
        let path = self.path_of(record.attempt);
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
        Ok(LockedRecord {
            record,
            path,
            file,
            is_locked: true,
        })
    }

    /// The file of an attempt's record, whether or not it exists.
    pub(crate) fn path_of(&self, attempt: AttemptId) -> PathBuf {
        self.folder.join(format!("{attempt}.json"))
    }

    /// The records that can be read, for what they state; none of them is locked.
    pub(crate) fn read_all(&self) -> Vec<Record> {
        let texts = self.paths().into_iter().filter_map(|path| fs::read(path).ok());
        texts
            .filter_map(|text| serde_json::from_slice(&text).ok())
            .collect()
    }

    /// The files of all records.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .collect();
        paths.sort();
        paths
    }

    /// Takes a record over once no command works on it, or without its lock after `patience`. `None` if the file is no
    /// record, or was removed meanwhile.
    pub(crate) async fn take_over(
        &self,
        path: &Path,
        patience: Duration,
        clock: &SharedClock,
    ) -> Option<LockedRecord> {
        let file = OpenOptions::new().read(true).append(true).open(path).ok()?;
        let is_locked = tokio::select! {
            biased;
            () = wait_for_lock(&file, path, clock) => true,
            () = clock.sleep(patience) => false,
        };
        let text = fs::read(path).ok()?;
        match serde_json::from_slice(&text) {
            Ok(record) => Some(LockedRecord {
                record,
                path: path.to_owned(),
                file,
                is_locked,
            }),
            // A crash tore it before its command ran: nothing was provisioned.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a record of a provisioned executor is torn and is removed");
                let _ = fs::remove_file(path);
                None
            }
        }
    }
}

/// Waits until no command works on a record, and locks it. A file system without locks is not waited for.
async fn wait_for_lock(file: &File, path: &Path, clock: &SharedClock) {
    loop {
        match file.try_lock() {
            Ok(()) => return,
            Err(TryLockError::WouldBlock) => clock.sleep(LOOK).await,
            Err(TryLockError::Error(error)) => {
                tracing::warn!(path = %path.display(), %error, "a record of a provisioned executor cannot be locked");
                return;
            }
        }
    }
}

impl LockedRecord {
    /// Whether a command of an earlier process may still work on it.
    pub(crate) const fn has_other_command(&self) -> bool {
        !self.is_locked
    }

    /// Waits until the command of the earlier process has ended.
    pub(crate) async fn wait_for_other_command(&mut self, clock: &SharedClock) {
        wait_for_lock(&self.file, &self.path, clock).await;
        self.is_locked = true;
    }

    /// A handle for a command's standard input, which keeps the lock for as long as the command lives.
    pub(crate) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Removes the record of an executor that is gone.
    pub(crate) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the record of a released executor stays; it is released again at the next start");
        }
    }
}
