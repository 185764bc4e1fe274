//! The machine time of the last day, kept in a file beside the records of provisioned executors.
//!
//! A machine that runs is known by its record. A line in the file states what one took that is gone, so the limit holds
//! across restarts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_protocol::{AttemptId, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::daily_spend::{DailySpend, MachineTime, SpendExceeded};

/// The file in the folder of records.
const FILE: &str = "machine-time.jsonl";

/// The machine time against the limit.
#[derive(Debug)]
pub(crate) struct SpendLedger {
    /// The machine time of any 24 hours; `None` for no limit.
    limit: Option<Duration>,
    folder: PathBuf,
    spend: Mutex<DailySpend>,
}

/// One line of the file.
#[derive(Serialize, Deserialize)]
struct ReleasedMachine {
    attempt: AttemptId,
    #[serde(flatten)]
    time: MachineTime,
}

impl SpendLedger {
    /// The ledger in a folder, with the machines that `running` names. Lines older than a day go. Without a limit
    /// nothing is written.
    pub(crate) fn open(
        folder: PathBuf,
        limit: Option<Duration>,
        running: impl IntoIterator<Item = (AttemptId, MachineTime)>,
        now: Timestamp,
    ) -> Self {
        let mut spend = DailySpend::default();
        if limit.is_some() {
            let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
            // A crash tears the last line at most; its machine is still known by its record.
            let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
            for ReleasedMachine { attempt, time } in lines {
                spend.add_released(attempt, time, now);
            }
            for (attempt, time) in running {
                spend.begin(attempt, time);
            }
            if !text.is_empty()
                && let Err(error) = rewrite(&folder, &spend)
            {
                tracing::warn!(%error, "the machine time of earlier days stays in its file");
            }
        }
        Self {
            limit,
            folder,
            spend: Mutex::new(spend),
        }
    }

    /// Whether a machine fits which may take `lasts`.
    pub(crate) fn check(&self, lasts: Duration, now: Timestamp) -> Result<(), SpendExceeded> {
        match self.limit {
            Some(limit) => self.spend.lock().check(lasts, limit, now),
            None => Ok(()),
        }
    }

    /// Notes a machine that is about to be provisioned, if it fits.
    pub(crate) fn begin(
        &self,
        attempt: AttemptId,
        lasts: Duration,
        now: Timestamp,
    ) -> Result<(), SpendExceeded> {
        let Some(limit) = self.limit else { return Ok(()) };
        let mut spend = self.spend.lock();
        spend.check(lasts, limit, now)?;
        let until = now.plus(lasts);
        spend.begin(attempt, MachineTime { since: now, until });
        Ok(())
    }

    /// Notes that a machine is gone, durably.
    pub(crate) fn end(&self, attempt: AttemptId, now: Timestamp) {
        let Some(time) = self.spend.lock().end(attempt, now) else {
            return;
        };
        if let Err(error) = append(&self.folder, &ReleasedMachine { attempt, time }) {
            tracing::warn!(%attempt, %error, "the machine time of a released executor is not written down; a restart forgets it");
        }
    }
}

fn append(folder: &Path, machine: &ReleasedMachine) -> io::Result<()> {
    let mut line = serde_json::to_vec(machine).map_err(io::Error::other)?;
    line.push(b'\n');
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(folder.join(FILE))?;
    file.write_all(&line)?;
    file.sync_all()?;
    File::open(folder)?.sync_all()
}

fn rewrite(folder: &Path, spend: &DailySpend) -> io::Result<()> {
    let mut text = Vec::new();
    for (attempt, time) in spend.released() {
        let (attempt, time) = (*attempt, *time);
        serde_json::to_writer(&mut text, &ReleasedMachine { attempt, time }).map_err(io::Error::other)?;
        text.push(b'\n');
    }
    let fresh = folder.join("machine-time.new");
    let mut file = File::create(&fresh)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&fresh, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}
