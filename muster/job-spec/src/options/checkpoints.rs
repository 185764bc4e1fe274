//! The options of `muster job run` about checkpoints.

use clap::Args;
use muster_protocol::JobReference;
use muster_protocol::job::{
    BestMetric, CheckpointTerms, DEFAULT_CHECKPOINT_EVERY, DEFAULT_CHECKPOINT_FOLDER, ResumeSource,
    SaveSignal,
};

use crate::options::duration;

/// A checkpoint of an earlier job, as a person refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCheckpoint {
    /// The job that left it.
    pub job: JobReference,
    /// Which of the job's checkpoints.
    pub choice: CheckpointChoice,
}

/// One of the checkpoints of a job that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The one with this number.
    Numbered(u32),
    /// The one with the largest number.
    Newest,
}

/// The checkpoints of a job, from which another attempt goes on, on any miner.
#[derive(Debug, Default, Args)]
pub struct CheckpointOptions {
    /// Keep the checkpoints that the program leaves in FOLDER.
    ///
    /// FOLDER is in the container, by default /checkpoint; $MUSTER_CHECKPOINT_DIR has its path.
    ///
    /// A checkpoint is a file or a folder in it. It is kept after ten seconds without a change.
    ///
    /// A line in the file $MUSTER_PROGRESS has it kept after a second, and reports metrics:
    ///
    /// {"step": 20, "checkpoint": "step-20", "metrics": {"loss": 0.5}}
    ///
    /// So a file that is overwritten more often is kept only if such a line names it.
    ///
    /// Nothing more is kept once the program has ended well: its result belongs into /output.
    ///
    /// A name that ends in .tmp is never kept: write under such a name first, and rename it then.
    ///
    /// After a loss another attempt goes on from the newest one: $MUSTER_RESUME has its path.
    ///
    /// A job that begins anew has no $MUSTER_RESUME. --timeout is the time of all attempts together.
    ///
    /// `muster job checkpoints` lists and fetches what is kept.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true,
        default_missing_value = DEFAULT_CHECKPOINT_FOLDER, help_heading = "Checkpoints")]
    pub checkpoint: Option<String>,
    /// Ask the program to save every so many epochs; by default 5. $MUSTER_CHECKPOINT_EVERY has the number.
    #[arg(long, value_name = "N", help_heading = "Checkpoints", hide_short_help = true)]
    pub every: Option<u32>,
    /// Keep the checkpoint with the best value of this metric beside the three newest ones: loss, or accuracy=max.
    #[arg(long, value_name = "METRIC[=min|max]", value_parser = read_best_metric, help_heading = "Checkpoints", hide_short_help = true)]
    pub best: Option<BestMetric>,
    /// The signal that asks the program to save and to end with exit code 85: TERM (the default), USR1 or USR2.
    #[arg(
        long = "save-signal",
        value_name = "SIGNAL",
        help_heading = "Checkpoints",
        hide_short_help = true
    )]
    pub signal: Option<SaveSignal>,
    /// An exit code after which the job never goes on. Repeatable.
    #[arg(
        long = "fatal-exit",
        value_name = "CODE",
        help_heading = "Checkpoints",
        hide_short_help = true
    )]
    pub fatal: Vec<u8>,
    /// Begin from a checkpoint of an earlier job.
    ///
    /// The job, a colon and the number that `muster job checkpoints` shows; JOB alone for the newest one.
    ///
    /// Beside --again it changes this alone of the earlier job.
    #[arg(long, value_name = "JOB[:N]", value_parser = read_resume_source, help_heading = "Checkpoints")]
    pub resume_from: Option<NamedCheckpoint>,
    /// Stop the program after this time without progress (90s, 15m), and go on from its last checkpoint.
    #[arg(long, value_name = "TIME", value_parser = read_stall, help_heading = "Checkpoints", hide_short_help = true)]
    pub stall: Option<u32>,
}

impl CheckpointOptions {
    /// The terms; `None` where no option was given. `resume_from` is the checkpoint that [`Self::resume_from`] names.
    pub fn terms(&self, resume_from: Option<ResumeSource>) -> Option<CheckpointTerms> {
        let is_given = self.checkpoint.is_some()
            || self.every.is_some()
            || self.best.is_some()
            || self.signal.is_some()
            || !self.fatal.is_empty()
            || resume_from.is_some()
            || self.stall.is_some();
        is_given.then(|| CheckpointTerms {
            folder: self
                .checkpoint
                .clone()
                .unwrap_or_else(|| DEFAULT_CHECKPOINT_FOLDER.to_owned()),
            every: self.every.unwrap_or(DEFAULT_CHECKPOINT_EVERY),
            best: self.best.clone(),
            signal: self.signal.unwrap_or_default(),
            fatal_exit_codes: self.fatal.clone(),
            resume_from,
            stall_s: self.stall,
        })
    }
}

/// Reads `METRIC`, `METRIC=min` or `METRIC=max`.
///
/// # Errors
/// The text is none of them.
pub fn read_best_metric(text: &str) -> Result<BestMetric, String> {
    let (name, larger_is_better) = match text.split_once('=') {
        Some((name, "max")) => (name, true),
        Some((name, "min")) => (name, false),
        Some(_) => return Err("write METRIC, METRIC=min or METRIC=max".to_owned()),
        None => (text, false),
    };
    let name = name.parse().map_err(|error| format!("{error}"))?;
    Ok(BestMetric {
        name,
        larger_is_better,
    })
}

/// Reads `JOB:N`, or `JOB` for the newest checkpoint.
///
/// # Errors
/// The text has another form.
pub fn read_resume_source(text: &str) -> Result<NamedCheckpoint, String> {
    let (job, choice) = match text.split_once(':') {
        Some((job, number)) => (job, read_choice(number)?),
        None => (text, CheckpointChoice::Newest),
    };
    let job = job.parse().map_err(|error| format!("{error}"))?;
    Ok(NamedCheckpoint { job, choice })
}

/// Reads the number of a checkpoint, or `newest`.
///
/// # Errors
/// The text is neither.
pub fn read_choice(text: &str) -> Result<CheckpointChoice, String> {
    match text {
        "newest" | "latest" => Ok(CheckpointChoice::Newest),
        number => number.parse().map(CheckpointChoice::Numbered).map_err(|_| {
            format!(
                "write the number that `muster job checkpoints JOB` shows, or newest, instead of {text:?}"
            )
        }),
    }
}

/// Reads the time without progress after which a program is stopped, in seconds.
///
/// # Errors
/// The text is no time, or one out of bounds.
pub fn read_stall(text: &str) -> Result<u32, String> {
    let terms = CheckpointTerms {
        stall_s: Some(u32::try_from(duration(text)?.as_secs()).unwrap_or(u32::MAX)),
        ..CheckpointTerms::default()
    };
    match (terms.find_flaw(), terms.stall_s) {
        (None, Some(seconds)) => Ok(seconds),
        (flaw, _) => Err(flaw.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_option_asks_for_checkpoints_and_none_for_none() {
        assert_eq!(CheckpointOptions::default().terms(None), None);
        let every = CheckpointOptions {
            every: Some(2),
            ..CheckpointOptions::default()
        };
        let expected = CheckpointTerms {
            every: 2,
            ..CheckpointTerms::default()
        };
        assert_eq!(every.terms(None), Some(expected));
    }

    #[test]
    fn a_time_without_progress_has_bounds() {
        assert_eq!(read_stall("15m"), Ok(900));
        for wrong in ["9", "8d", "soon", "99999999999d"] {
            read_stall(wrong).unwrap_err();
        }
    }

    #[test]
    fn metrics_and_sources_are_read() {
        assert!(read_best_metric("accuracy=max").unwrap().larger_is_better);
        assert!(!read_best_metric("loss").unwrap().larger_is_better);
        for wrong in ["loss=best", "a b", ""] {
            read_best_metric(wrong).unwrap_err();
        }
        let source = read_resume_source("11111111-2222-4333-8444-555555555555:3").unwrap();
        assert_eq!(source.choice, CheckpointChoice::Numbered(3));
        for newest in ["train", "train:newest", "train:latest"] {
            assert_eq!(
                read_resume_source(newest).unwrap().choice,
                CheckpointChoice::Newest
            );
        }
        assert_eq!(read_resume_source("@last:1").unwrap().job, JobReference::Last);
        for wrong in ["", "11111111-2222-4333-8444-555555555555:x", ":3"] {
            read_resume_source(wrong).unwrap_err();
        }
    }
}
