//! Failures of an attempt as they are reported: who is at fault, at which stage, and with which error page.

use muster_protocol::job::{DAMAGED_CHECKPOINT, Fault, ImageFetchFailure, OUT_OF_MEMORY, STALLED};
use muster_protocol::{ErrorCode, HordeFailureReason, JobFailureReason, JobStage};

use super::program_end::{ProgramExit, StopReason};

/// A failure that ends an attempt and is reported to the miner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptFailure {
    /// The job's own failure or the subnet's.
    pub kind: FailureKind,
    /// The stage of the job that failed.
    pub stage: JobStage,
    /// The description that the user reads.
    pub message: String,
    /// The error code whose page explains what to do, if there is one.
    pub code: Option<ErrorCode>,
    /// The party at fault.
    pub fault: Fault,
    /// The reason for which the image did not come, if that is the failure.
    pub image_fetch: Option<ImageFetchFailure>,
    /// Whether no container can be started of the job's image, or the program is not in it.
    pub broken_image: bool,
    /// The hint of the failure for going on from a checkpoint, if it gives one.
    pub resume: Option<ResumeHint>,
}

/// The hint of a failure for going on from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeHint {
    /// The program ran out of memory: a smaller batch may do.
    OutOfMemory,
    /// The data that the attempt was to begin from differs from its manifest.
    DamagedCheckpoint,
    /// The program made no progress: another machine may do better.
    Stalled,
}

impl ResumeHint {
    /// The word in a failure's context.
    pub const fn word(self) -> &'static str {
        match self {
            Self::OutOfMemory => OUT_OF_MEMORY,
            Self::DamagedCheckpoint => DAMAGED_CHECKPOINT,
            Self::Stalled => STALLED,
        }
    }
}

/// Which of the two messages reports a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Reported by `V0JobFailedRequest`: the job's own failure.
    Job {
        /// The reason field of the message.
        reason: JobFailureReason,
        /// The program's exit code, if it ended.
        exit_code: Option<i64>,
    },
    /// Reported by `V0HordeFailedRequest`, with its reason field: the subnet's failure.
    Horde(HordeFailureReason),
}

impl AttemptFailure {
    /// The job's own failure, with its user at fault.
    pub fn job(reason: JobFailureReason, stage: JobStage, message: impl Into<String>) -> Self {
        let kind = FailureKind::Job {
            reason,
            exit_code: None,
        };
        Self {
            kind,
            stage,
            message: message.into(),
            code: None,
            fault: Fault::User,
            image_fetch: None,
            broken_image: false,
            resume: None,
        }
    }

    /// The subnet's failure, with this executor at fault.
    pub fn horde(reason: HordeFailureReason, stage: JobStage, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Horde(reason),
            stage,
            message: message.into(),
            code: None,
            fault: Fault::Executor,
            image_fetch: None,
            broken_image: false,
            resume: None,
        }
    }

    /// The failure of an image that does not come.
    pub fn image(failure: ImageFetchFailure, message: impl Into<String>) -> Self {
        Self {
            image_fetch: Some(failure),
            ..Self::horde(
                HordeFailureReason::GenericError,
                JobStage::ExecutorStartup,
                message,
            )
            .with_code(ErrorCode::ImageMissing)
            .blame(failure.fault())
        }
    }

    /// The failure of a job of whose image no container can be started, for the reason `why`.
    pub fn broken_image(why: &str) -> Self {
        let message = format!("the image cannot be started: {why}");
        Self {
            broken_image: true,
            ..Self::job(JobFailureReason::Unknown, JobStage::Execution, message)
        }
        .with_code(ErrorCode::ImageBroken)
    }

    /// The same failure with an error code.
    #[must_use]
    pub fn with_code(self, code: ErrorCode) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    /// The same failure, caused by resume data that does not match its manifest.
    #[must_use]
    pub fn with_damaged_checkpoint(self) -> Self {
        Self {
            resume: Some(ResumeHint::DamagedCheckpoint),
            ..self
        }
    }

    /// The same failure with another party at fault.
    #[must_use]
    pub fn blame(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    /// The failure of a program that ended by itself, with an exit code other than 0 or without having started.
    pub(crate) fn of_exit(exit: &ProgramExit) -> Self {
        let message = match (&exit.not_started, exit.oom_killed) {
            (Some(reason), _) => format!("the program could not be started: {reason}"),
            (None, true) => "the program was killed for using more memory than it is allowed".to_owned(),
            (None, false) => format!("the program ended with exit code {}", exit.code),
        };
        let kind = FailureKind::Job {
            reason: JobFailureReason::NonzeroReturnCode,
            exit_code: Some(exit.code),
        };
        let code = match exit.not_started {
            Some(_) => ErrorCode::ImageBroken,
            None => ErrorCode::JobExitCode,
        };
        Self {
            kind,
            broken_image: exit.not_started.is_some(),
            resume: exit.oom_killed.then_some(ResumeHint::OutOfMemory),
            ..Self::job(JobFailureReason::NonzeroReturnCode, JobStage::Execution, message)
        }
        .with_code(code)
    }

    /// The failure of a streaming job whose program ended before its first good health check.
    pub(crate) fn of_early_exit(exit: &ProgramExit) -> Self {
        let failure = Self::of_exit(exit);
        Self {
            stage: JobStage::StreamingStartup,
            message: format!("{}, before it answered", failure.message),
            ..failure
        }
    }

    /// The failure of a program that was stopped; `exit` is `None` if it did not end in time.
    pub(crate) fn of_stop(reason: StopReason, exit: Option<&ProgramExit>) -> Self {
        match reason {
            StopReason::TimedOut => {
                let message = "the job ran longer than it was allowed and was stopped";
                Self::of_stopped(JobFailureReason::Timeout, JobStage::Execution, message, exit)
                    .with_code(ErrorCode::JobTimeout)
            }
            StopReason::NeverAnswered => {
                let message =
                    "the streaming job did not answer its health check within the time it has to start";
                Self::of_stopped(
                    JobFailureReason::Timeout,
                    JobStage::StreamingStartup,
                    message,
                    exit,
                )
                .with_code(ErrorCode::SessionUnanswered)
            }
            StopReason::SessionOver => Self::horde(
                HordeFailureReason::GenericError,
                JobStage::Execution,
                "the container could not be stopped after its session",
            ),
            StopReason::DiskFull(limit) => {
                let message = format!("the job wrote more than {limit} bytes and was stopped");
                let reason = JobFailureReason::NonzeroReturnCode;
                Self::of_stopped(reason, JobStage::Execution, message, exit).with_code(ErrorCode::JobExitCode)
            }
            StopReason::Stalled(seconds) => {
                let message = format!(
                    "the program reported no progress for {seconds} s, the longest that its job allows, and was stopped"
                );
                let reason = JobFailureReason::Timeout;
                Self {
                    resume: Some(ResumeHint::Stalled),
                    ..Self::of_stopped(reason, JobStage::Execution, message, exit)
                }
                .with_code(ErrorCode::JobTimeout)
            }
        }
    }

    fn of_stopped(
        reason: JobFailureReason,
        stage: JobStage,
        message: impl Into<String>,
        exit: Option<&ProgramExit>,
    ) -> Self {
        let kind = FailureKind::Job {
            reason,
            exit_code: exit.map(|exit| exit.code),
        };
        Self {
            kind,
            ..Self::job(reason, stage, message)
        }
    }
}
