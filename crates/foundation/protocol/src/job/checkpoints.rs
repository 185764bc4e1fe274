//! The part of a job's terms about its checkpoints, and the checkpoints that are kept.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::metrics::{MetricName, MetricValue};
use crate::digest::Digest;
use crate::ids::{AttemptId, JobId};
use crate::macros::serde_as_text;
use crate::time::Timestamp;

/// The folder in the container where a program leaves its checkpoints, if the terms name none.
pub const DEFAULT_CHECKPOINT_FOLDER: &str = "/checkpoint";

/// The value of `MUSTER_CHECKPOINT_EVERY` for a job whose terms name none.
pub const DEFAULT_CHECKPOINT_EVERY: u32 = 5;

/// The most epochs between two checkpoints that a program is asked for.
pub const MAX_CHECKPOINT_EVERY: u32 = 1_000_000;

/// The exit code of a program that has saved its state and asks to be run again.
pub const SAVED_EXIT_CODE: u8 = 85;

/// The longest folder of checkpoints, in bytes.
pub const MAX_CHECKPOINT_FOLDER_BYTES: usize = 255;

/// The key in a failure's context that shows whether another attempt helps: [`OUT_OF_MEMORY`], [`DAMAGED_CHECKPOINT`],
/// [`STALLED`] or [`LEASE_OVER`].
pub const RESUME_KEY: &str = "resume";

/// The program ran out of memory.
pub const OUT_OF_MEMORY: &str = "out_of_memory";

/// The data that the attempt was to begin from is not what its manifest says.
pub const DAMAGED_CHECKPOINT: &str = "damaged_checkpoint";

/// The time was over for which the miner lends an executor to one program, and the program did not leave.
pub const LEASE_OVER: &str = "lease_over";

/// The program made no progress for as long as its job allows.
pub const STALLED: &str = "stalled";

/// The longest time without progress that a job may allow before its program is stopped, in seconds: a week.
pub const MAX_STALL_SECS: u32 = 604_800;

/// The shortest such time, in seconds. The executor looks for progress once a second.
pub const MIN_STALL_SECS: u32 = 10;

/// The most exit codes that a job calls fatal.
pub const MAX_FATAL_EXIT_CODES: usize = 32;

/// The terms of a job that leaves checkpoints, from which another attempt goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointTerms {
    /// The folder in the container, an absolute path; `/checkpoint` if absent.
    #[serde(default = "default_folder")]
    pub folder: String,
    /// How often the program is asked to save, in epochs: 1 to 1,000,000; 5 if absent. The program alone acts on it.
    #[serde(default = "default_every")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub every: u32,
    /// The metric by which the best checkpoint is kept beside the three newest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestMetric>,
    /// The signal that asks the program to save and to end with exit code 85.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub signal: SaveSignal,
    /// The exit codes after which the job never goes on, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fatal_exit_codes: Vec<u8>,
    /// The checkpoint of an earlier job of the same account that this job begins from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResumeSource>,
    /// The seconds without progress after which the program is stopped and the job goes on from its last checkpoint: 10
    /// to 604,800. Progress is a line of the progress file or a metric that says something new, and a new checkpoint.
    /// Never, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 10, maximum = 604_800))]
    pub stall_s: Option<u32>,
}

/// A metric by which checkpoints are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BestMetric {
    /// The metric's name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: MetricName,
    /// Whether a larger value is better, as of an accuracy; a smaller one is, as of a loss, if absent.
    #[serde(default)]
    pub larger_is_better: bool,
}

/// A checkpoint of another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumeSource {
    /// The job that left it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub job: JobId,
    /// Its number in that job.
    pub ordinal: u32,
}

/// The signal that asks a program to save its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveSignal {
    /// `TERM`, which most programs know.
    #[default]
    Term,
    /// `USR1`, for programs that end at `TERM` without saving.
    Usr1,
    /// `USR2`, for programs whose libraries use `USR1`.
    Usr2,
}

/// The text is no signal that asks a program to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signal is TERM, USR1 or USR2")]
pub struct SaveSignalError;

/// A checkpoint that is kept: its blocks are durable in the file store of the job's facilitator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KeptCheckpoint {
    /// Its number in the job; the first is 1.
    pub ordinal: u32,
    /// The attempt that left it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub attempt: AttemptId,
    /// The SHA-256 of its manifest.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub manifest: Digest,
    /// The name of the file or the folder in the folder of checkpoints.
    pub name: String,
    /// The bytes of all its files together.
    pub bytes: u64,
    /// The epoch that the program had reported last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The step that the program had reported last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The value of the metric in [`CheckpointTerms::best`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub metric: Option<MetricValue>,
    /// When the validator stored it, by its clock.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub at: Timestamp,
}

fn default_folder() -> String {
    DEFAULT_CHECKPOINT_FOLDER.to_owned()
}

const fn default_every() -> u32 {
    DEFAULT_CHECKPOINT_EVERY
}

impl Default for CheckpointTerms {
    fn default() -> Self {
        Self {
            folder: default_folder(),
            every: DEFAULT_CHECKPOINT_EVERY,
            best: None,
            signal: SaveSignal::Term,
            fatal_exit_codes: Vec::new(),
            resume_from: None,
            stall_s: None,
        }
    }
}

impl CheckpointTerms {
    /// The reason why these terms cannot be kept; `None` if they can.
    pub fn find_flaw(&self) -> Option<String> {
        let plain = |name: &str| !matches!(name, "" | "." | "..");
        let is_path = self
            .folder
            .strip_prefix('/')
            .is_some_and(|path| path.split('/').all(plain));
        let is_text = self.folder.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_path || !is_text || self.folder.len() > MAX_CHECKPOINT_FOLDER_BYTES {
            return Some(format!(
                "The folder of checkpoints must be an absolute path of at most {MAX_CHECKPOINT_FOLDER_BYTES} printable \
                 ASCII characters, such as {DEFAULT_CHECKPOINT_FOLDER}."
            ));
        }
        if !(1..=MAX_CHECKPOINT_EVERY).contains(&self.every) {
            return Some(format!(
                "The program may be asked to save every 1 to {MAX_CHECKPOINT_EVERY} epochs."
            ));
        }
        if self.fatal_exit_codes.len() > MAX_FATAL_EXIT_CODES {
            return Some(format!(
                "There may be {MAX_FATAL_EXIT_CODES} fatal exit codes at most."
            ));
        }
        if self.fatal_exit_codes.contains(&SAVED_EXIT_CODE) || self.fatal_exit_codes.contains(&0) {
            return Some(format!(
                "The exit codes 0 (done) and {SAVED_EXIT_CODE} (saved) are never fatal."
            ));
        }
        let bounds = MIN_STALL_SECS..=MAX_STALL_SECS;
        if self.stall_s.is_some_and(|seconds| !bounds.contains(&seconds)) {
            return Some(format!(
                "A program may be stopped after {MIN_STALL_SECS} to {MAX_STALL_SECS} seconds (a week) without progress."
            ));
        }
        None
    }

    /// Adds the fixed layout to the terms': the length of the folder (1) and the folder; `every` (4); the signal (1);
    /// the number of fatal exit codes (1) and each of them (1); whether there is a best metric (1), and if so whether
    /// larger is better (1), the length of its name (1) and the name; a byte whose lowest bit states whether there is a
    /// checkpoint to begin from, and whose second bit states whether a program without progress is stopped; the job
    /// (16) and the ordinal (4) of that checkpoint; the seconds without progress (4). Integers are little-endian.
    /// Longer parts are over their limits.
    pub(super) fn add_layout(&self, layout: &mut Vec<u8>) {
        layout.push(u8::try_from(self.folder.len()).unwrap_or(u8::MAX));
        layout.extend_from_slice(self.folder.as_bytes());
        layout.extend_from_slice(&self.every.to_le_bytes());
        layout.push(match self.signal {
            SaveSignal::Term => 0,
            SaveSignal::Usr1 => 1,
            SaveSignal::Usr2 => 2,
        });
        layout.push(u8::try_from(self.fatal_exit_codes.len()).unwrap_or(u8::MAX));
        layout.extend_from_slice(&self.fatal_exit_codes);
        layout.push(u8::from(self.best.is_some()));
        if let Some(best) = &self.best {
            let name = best.name.as_str().as_bytes();
            layout.push(u8::from(best.larger_is_better));
            layout.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            layout.extend_from_slice(name);
        }
        layout.push(u8::from(self.resume_from.is_some()) | (u8::from(self.stall_s.is_some()) << 1));
        if let Some(source) = &self.resume_from {
            layout.extend_from_slice(source.job.as_uuid().as_bytes());
            layout.extend_from_slice(&source.ordinal.to_le_bytes());
        }
        layout.extend(self.stall_s.into_iter().flat_map(u32::to_le_bytes));
    }
}

// === impl SaveSignal ===

impl SaveSignal {
    /// The name without `SIG`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Usr1 => "USR1",
            Self::Usr2 => "USR2",
        }
    }
}

impl fmt::Display for SaveSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SaveSignal {
    type Err = SaveSignalError;

    fn from_str(text: &str) -> Result<Self, SaveSignalError> {
        match text.strip_prefix("SIG").unwrap_or(text) {
            "TERM" => Ok(Self::Term),
            "USR1" => Ok(Self::Usr1),
            "USR2" => Ok(Self::Usr2),
            _ => Err(SaveSignalError),
        }
    }
}

serde_as_text!(SaveSignal);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_cannot_be_kept_say_why() {
        let with = |change: fn(&mut CheckpointTerms)| {
            let mut terms = CheckpointTerms::default();
            change(&mut terms);
            terms.find_flaw().is_some()
        };
        assert!(!with(|_| {}));
        assert!(!with(|terms| terms.folder = "/opt/ml/checkpoints".to_owned()));
        for folder in ["", "/", "checkpoint", "/a/../b", "/a//b", "/a b", "/ä"] {
            let terms = CheckpointTerms {
                folder: folder.to_owned(),
                ..CheckpointTerms::default()
            };
            assert!(terms.find_flaw().is_some(), "{folder}");
        }
        assert!(with(|terms| terms.folder = format!("/{}", "x".repeat(255))));
        assert!(with(|terms| terms.every = 0));
        assert!(with(|terms| terms.fatal_exit_codes = vec![1; 33]));
        assert!(with(|terms| terms.fatal_exit_codes = vec![SAVED_EXIT_CODE]));
        assert!(with(|terms| terms.stall_s = Some(MIN_STALL_SECS - 1)));
        assert!(with(|terms| terms.stall_s = Some(MAX_STALL_SECS + 1)));
        assert!(!with(|terms| terms.stall_s = Some(MIN_STALL_SECS)));
    }

    #[test]
    fn a_signal_is_read_with_and_without_its_prefix() {
        assert_eq!("SIGUSR1".parse(), Ok(SaveSignal::Usr1));
        assert_eq!("TERM".parse(), Ok(SaveSignal::Term));
        assert_eq!("KILL".parse::<SaveSignal>(), Err(SaveSignalError));
    }
}
