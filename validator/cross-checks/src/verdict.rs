//! The verdict about one job that was run again. Pure.
//!
//! A job whose outputs agree with those of one run on the validator's own miner agrees. A job whose outputs differ is
//! run a second time: only if the two runs agree with each other, the difference is the miner's.

use muster_protocol::JobFailureReason;
use muster_protocol::job::Outcome;
use muster_protocol::wire::checks::{CheckState, CheckedOutput};

use crate::outputs::JobOutputs;

/// The end of one run on the validator's own miner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// It has completed.
    Completed(JobOutputs),
    /// The job cannot be run again; the reason as text.
    Impossible(String),
    /// The miner had no executor, or was lost: the run may be tried again later. The reason as text.
    TryLater(String),
}

impl RunEnd {
    /// The meaning of the end of a run's job.
    pub fn of(outcome: &Outcome) -> Self {
        if outcome.is_cancellation() {
            return Self::TryLater("the validator was restarted".to_owned());
        }
        match outcome {
            Outcome::Completed(response) => Self::Completed(JobOutputs::of(response)),
            Outcome::Rejected(details) => Self::TryLater(details.message.clone()),
            Outcome::Failed(details) => Self::Impossible(match details.reason {
                JobFailureReason::DownloadFailed => {
                    format!("its inputs cannot be fetched any more: {}", details.message)
                }
                JobFailureReason::Unknown
                | JobFailureReason::Timeout
                | JobFailureReason::NonzeroReturnCode
                | JobFailureReason::UploadFailed => {
                    format!("it failed on the validator's own miner: {}", details.message)
                }
            }),
            Outcome::HordeFailed(details) => match outcome.image_fetch_failure() {
                Some(_) => Self::Impossible(format!(
                    "its image did not come to the validator's own miner: {}",
                    details.message
                )),
                None => Self::TryLater(details.message.clone()),
            },
        }
    }
}

/// The step that follows from the runs so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckStep {
    /// The job is run once more.
    RunAgain,
    /// The check is over.
    Done(CheckVerdict),
}

/// The verdict about one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckVerdict {
    /// The finding of the runs; never [`CheckState::Pending`].
    pub state: CheckState,
    /// The reason as text, for the user.
    pub reason: String,
    /// The outputs that were compared, those that differ first.
    pub outputs: Vec<CheckedOutput>,
}

impl CheckVerdict {
    /// A verdict that proves nothing, for this reason.
    pub fn unproven(reason: impl Into<String>) -> Self {
        Self {
            state: CheckState::Unproven,
            reason: reason.into(),
            outputs: Vec::new(),
        }
    }
}

/// Decides what follows from the outputs of a job and from those of its runs on the validator's own miner.
pub fn next_step(job: &JobOutputs, runs: &[JobOutputs]) -> CheckStep {
    let [first, rest @ ..] = runs else {
        return CheckStep::RunAgain;
    };
    let compared = job.compare(first);
    let (differing, count) = compared.counts();
    if compared.agrees() {
        return CheckStep::Done(CheckVerdict {
            state: CheckState::Agrees,
            reason: format!("all outputs agree with those of the validator's own miner ({count} compared)"),
            outputs: compared.into_outputs(),
        });
    }
    let [second, ..] = rest else {
        return CheckStep::RunAgain;
    };
    CheckStep::Done(if first.compare(second).agrees() {
        CheckVerdict {
            state: CheckState::Differs,
            reason: format!(
                "{differing} of {count} outputs differ from those of two runs on the validator's own miner, which agree \
                 with each other"
            ),
            outputs: compared.into_outputs(),
        }
    } else {
        CheckVerdict {
            outputs: compared.into_outputs(),
            ..CheckVerdict::unproven(
                "the job is not deterministic: two runs on the validator's own miner differ from each other",
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStage, ParticipantType};
    use muster_protocol::wire::facilitator::{
        FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails,
    };
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn printed(stdout: &str) -> JobOutputs {
        JobOutputs::of(&MinerResponse {
            docker_process_stdout: stdout.to_owned(),
            ..MinerResponse::default()
        })
    }

    fn state(job: &str, runs: &[&str]) -> Option<CheckState> {
        let runs: Vec<_> = runs.iter().map(|run| printed(run)).collect();
        match next_step(&printed(job), &runs) {
            CheckStep::RunAgain => None,
            CheckStep::Done(verdict) => Some(verdict.state),
        }
    }

    #[test]
    fn only_two_runs_that_agree_with_each_other_speak_against_the_miner() {
        assert_eq!(state("a", &[]), None);
        assert_eq!(state("a", &["a"]), Some(CheckState::Agrees));
        assert_eq!(state("a", &["b"]), None, "a difference is confirmed first");
        assert_eq!(state("a", &["b", "b"]), Some(CheckState::Differs));
        assert_eq!(state("a", &["b", "c"]), Some(CheckState::Unproven));
        assert_eq!(
            state("a", &["b", "a"]),
            Some(CheckState::Unproven),
            "it differs from itself"
        );
        let CheckStep::Done(verdict) = next_step(&printed("a"), &[printed("b"), printed("a")]) else {
            panic!("a verdict was due")
        };
        assert!(verdict.reason.contains("not deterministic"), "{verdict:?}");
    }

    #[test]
    fn the_end_of_a_run_says_whether_to_try_again() {
        let failed = |reason| {
            Outcome::Failed(Box::new(FailureDetails {
                reason,
                stage: JobStage::VolumeDownload,
                message: "404".to_owned(),
                context: None,
                docker_process_exit_status: None,
                docker_process_stdout: None,
                docker_process_stderr: None,
            }))
        };
        let RunEnd::Impossible(reason) = RunEnd::of(&failed(JobFailureReason::DownloadFailed)) else {
            panic!("inputs that are gone do not come back")
        };
        assert_eq!(reason, "its inputs cannot be fetched any more: 404");
        assert!(matches!(
            RunEnd::of(&failed(JobFailureReason::NonzeroReturnCode)),
            RunEnd::Impossible(_)
        ));
        assert!(matches!(
            RunEnd::of(&Outcome::cancelled(
                JobStage::Execution,
                "the gateway was started anew"
            )),
            RunEnd::TryLater(_)
        ));
        let rejected = Outcome::Rejected(RejectionDetails {
            rejected_by: ParticipantType::Validator,
            reason: JobRejectionReason::Busy,
            message: "busy".to_owned(),
            context: None,
        });
        assert_eq!(RunEnd::of(&rejected), RunEnd::TryLater("busy".to_owned()));
        let horde = |context| {
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by: ParticipantType::Executor,
                reason: HordeFailureReason::GenericError,
                message: "lost".to_owned(),
                context,
            })
        };
        assert!(matches!(RunEnd::of(&horde(None)), RunEnd::TryLater(_)));
        let image = horde(Some(json!({"image_fetch": "no_such_image"})));
        assert!(matches!(RunEnd::of(&image), RunEnd::Impossible(_)), "{image:?}");
    }

    proptest! {
        #[test]
        fn a_check_ends_after_two_runs_and_blames_only_for_a_confirmed_difference(
            job in "[ab]", runs in prop::collection::vec("[abc]", 0..4),
        ) {
            let outputs: Vec<_> = runs.iter().map(|run| printed(run)).collect();
            let step = next_step(&printed(&job), &outputs);
            prop_assert!(runs.len() < 2 || step != CheckStep::RunAgain);
            if let CheckStep::Done(verdict) = step {
                let confirmed = runs.len() > 1 && runs[0] == runs[1] && runs[0] != job;
                prop_assert_eq!(verdict.state == CheckState::Differs, confirmed);
                prop_assert_eq!(verdict.state == CheckState::Agrees, runs[0] == job);
            }
        }
    }
}
