//! The mark that the end of an attempt leaves on its miner's record.

use muster_protocol::job::{Fault, ImageFetchFailure, Outcome};
use serde::{Deserialize, Serialize};

/// The mark that the end of an attempt leaves on its miner's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptMark {
    /// The attempt succeeded: it counts for the miner.
    Done,
    /// No effect: the user's failure, or a rejection that counts against no party.
    Clean,
    /// The miner had no slot for the fetch of the image, and seldom has none. No effect; a bounded part of a miner's
    /// offers may end so.
    NoSlot,
    /// The miner was busy, although its manifest lists executors and no receipt shows them at work, or often had no
    /// slot for the fetch of an image and did not show the leases that hold the slots. Like an [`Self::Excuse`], the
    /// mark puts the miner behind its equals and never excludes it.
    Unexcused,
    /// The attempt failed by another party's fault, as the miner claims. Excuses never exclude a miner, or users'
    /// mistakes would; they put it behind its equals, so that excuses earn it neither pay nor jobs.
    Excuse,
    /// The miner's side failed a user's job, which may have provoked that. The mark puts the miner behind its equals
    /// and never excludes it. A validator with a known image answers it by a trial. Without, only what an executor
    /// says of itself is a suspect, and becomes an [`Self::Incident`] if the miner of another owner starts the same
    /// program.
    Suspect,
    /// The attempt failed by the miner's fault, or its connection was lost. Enough incidents exclude a miner.
    Incident,
    /// The miner failed a trial, as it failed the one before: it is benched until it passes one.
    FailedTrial,
}

impl AttemptMark {
    /// All marks that exist.
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Clean,
        Self::NoSlot,
        Self::Unexcused,
        Self::Excuse,
        Self::Suspect,
        Self::Incident,
        Self::FailedTrial,
    ];

    /// The mark's text form in stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Clean => "clean",
            Self::NoSlot => "no_slot",
            Self::Unexcused => "unexcused",
            Self::Excuse => "excuse",
            Self::Suspect => "suspect",
            Self::Incident => "incident",
            Self::FailedTrial => "failed_trial",
        }
    }

    /// Reads the text form in stores.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mark| mark.as_str() == word)
    }
}

/// The facts beyond an attempt's end that decide its mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkEvidence {
    /// Whether a rejection is justified: by receipts of work under way, because no manifest of the miner is known, or
    /// by the leases that hold the miner's fetch slots.
    pub excused: bool,
    /// Whether the miner may be without a slot once more for nothing.
    pub free_no_slot: bool,
    /// Whether another miner had the job's image lately.
    pub image_elsewhere: bool,
    /// The party that ordered the job, and what for.
    pub job: MarkedJob,
    /// Whether the miner of another owner lately started the same program of the same image.
    pub started_elsewhere: bool,
}

/// A job, as far as it decides what its failure is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkedJob {
    /// A user's job.
    Users {
        /// Whether a trial of the validator's own answers its failure.
        is_tried: bool,
    },
    /// A job of the validator's own.
    #[default]
    Own,
    /// The known image at a miner under suspicion.
    Trial {
        /// Whether the miner failed the trial before.
        is_last_chance: bool,
    },
}

impl MarkedJob {
    /// The mark of a failure that is the miner's fault whatever the job did.
    fn incident(self) -> AttemptMark {
        match self {
            Self::Users { .. }
            | Self::Own
            | Self::Trial {
                is_last_chance: false,
            } => AttemptMark::Incident,
            Self::Trial { is_last_chance: true } => AttemptMark::FailedTrial,
        }
    }

    /// The mark of a failure of the miner's side. `is_own_word` if its executor reported it, and `started_elsewhere` if
    /// the miner of another owner started the program.
    fn failure(self, is_own_word: bool, started_elsewhere: bool) -> AttemptMark {
        match self {
            Self::Users { is_tried: true } => AttemptMark::Suspect,
            Self::Users { is_tried: false } if is_own_word && !started_elsewhere => AttemptMark::Suspect,
            Self::Users { is_tried: false } | Self::Own | Self::Trial { .. } => self.incident(),
        }
    }

    /// Whether a suspect at this job becomes an incident once the miner of another owner starts the same program. The
    /// end of a program is no witness where a trial is: a program may end well at one miner and break another.
    pub fn suspects_wait_for_witness(self) -> bool {
        match self {
            Self::Users { is_tried } => !is_tried,
            Self::Own | Self::Trial { .. } => false,
        }
    }
}

/// The mark of an attempt's end. An image that does not come marks nobody, unless another miner has it.
pub fn mark_attempt(outcome: &Outcome, evidence: MarkEvidence) -> AttemptMark {
    let MarkEvidence {
        excused,
        free_no_slot,
        image_elsewhere,
        job,
        started_elsewhere,
    } = evidence;
    match outcome {
        // A passed trial is no work, so it does not make up for failures.
        Outcome::Completed(_) if matches!(job, MarkedJob::Trial { .. }) => AttemptMark::Clean,
        Outcome::Completed(_) => AttemptMark::Done,
        Outcome::Failed(_) if outcome.is_broken_image() && started_elsewhere => job.incident(),
        Outcome::Failed(_) if outcome.is_unnamed_broken_image() => AttemptMark::Excuse,
        Outcome::Failed(_) => AttemptMark::Clean,
        Outcome::Rejected(_) if excused => AttemptMark::Clean,
        Outcome::Rejected(_) => AttemptMark::Unexcused,
        // The word of a miner that it fetches too much else is one that it is busy.
        Outcome::HordeFailed(_) if outcome.image_fetch_failure() == Some(ImageFetchFailure::NoSlot) => {
            match (excused, free_no_slot) {
                (true, _) => AttemptMark::Clean,
                (false, true) => AttemptMark::NoSlot,
                (false, false) => AttemptMark::Unexcused,
            }
        }
        Outcome::HordeFailed(_) if outcome.image_fetch_failure().is_some() => {
            let about_miner = outcome
                .image_fetch_failure()
                .is_some_and(ImageFetchFailure::is_about_the_miner);
            if image_elsewhere && !about_miner {
                AttemptMark::Excuse
            } else {
                AttemptMark::Clean
            }
        }
        Outcome::HordeFailed(_) if outcome.is_excuse() => AttemptMark::Excuse,
        Outcome::HordeFailed(_) => match outcome.fault() {
            Fault::Miner | Fault::Executor | Fault::Network => {
                job.failure(outcome.is_executors_own_failure(), started_elsewhere)
            }
            Fault::Nobody | Fault::User | Fault::Validator | Fault::Facilitator => AttemptMark::Clean,
        },
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::job::Outcome;
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStage, ParticipantType};
    use muster_protocol::wire::facilitator::{FailureDetails, HordeFailureDetails, RejectionDetails};
    use muster_protocol::{Digest, ImageId, JobFailureReason, job::BROKEN_IMAGE_KEY};
    use serde_json::json;

    use super::*;

    fn broken_image() -> Outcome {
        let id = ImageId(Digest::of(b"x"));
        failed_with(json!({ BROKEN_IMAGE_KEY: true, "ran": { "id": id } }))
    }

    fn failed_with(context: serde_json::Value) -> Outcome {
        Outcome::Failed(Box::new(FailureDetails {
            reason: JobFailureReason::Unknown,
            stage: JobStage::Execution,
            message: String::new(),
            context: Some(context),
            docker_process_exit_status: None,
            docker_process_stdout: None,
            docker_process_stderr: None,
        }))
    }

    fn horde_failed(reported_by: ParticipantType, reason: HordeFailureReason) -> Outcome {
        Outcome::HordeFailed(HordeFailureDetails {
            reported_by,
            reason,
            message: String::new(),
            context: None,
        })
    }

    const UNTRIED: MarkedJob = MarkedJob::Users { is_tried: false };
    const TRIED: MarkedJob = MarkedJob::Users { is_tried: true };

    #[test]
    fn a_users_job_marks_no_incident_by_itself_and_one_with_a_witness_does() {
        let failed = horde_failed(
            ParticipantType::Executor,
            HordeFailureReason::ExecutorSpinupFailed,
        );
        let mark = |outcome: &Outcome, job, started_elsewhere| {
            let evidence = MarkEvidence {
                job,
                started_elsewhere,
                ..MarkEvidence::default()
            };
            mark_attempt(outcome, evidence)
        };
        assert_eq!(mark(&failed, UNTRIED, false), AttemptMark::Suspect);
        assert_eq!(mark(&failed, UNTRIED, true), AttemptMark::Incident);
        assert_eq!(
            mark(&failed, MarkedJob::Own, false),
            AttemptMark::Incident,
            "the validator's own image"
        );
        for job in [UNTRIED, TRIED, MarkedJob::Own] {
            assert_eq!(mark(&broken_image(), job, false), AttemptMark::Clean);
            assert_eq!(mark(&broken_image(), job, true), AttemptMark::Incident);
            let unnamed = failed_with(json!({ BROKEN_IMAGE_KEY: true }));
            assert_eq!(mark(&unnamed, job, false), AttemptMark::Excuse);
        }
    }

    #[test]
    fn where_a_trial_follows_no_failure_of_a_users_job_is_an_incident() {
        for reported_by in [
            ParticipantType::Executor,
            ParticipantType::Miner,
            ParticipantType::Validator,
        ] {
            for reason in [
                HordeFailureReason::MinerConnectionFailed,
                HordeFailureReason::InitialResponseTimedOut,
                HordeFailureReason::ExecutionTimedOut,
                HordeFailureReason::ExecutorDisconnected,
                HordeFailureReason::SecurityCheckFailed,
            ] {
                let outcome = horde_failed(reported_by, reason);
                let is_own_word = reported_by == ParticipantType::Executor;
                for started_elsewhere in [false, true] {
                    let mark = |job| {
                        let evidence = MarkEvidence {
                            job,
                            started_elsewhere,
                            ..MarkEvidence::default()
                        };
                        mark_attempt(&outcome, evidence)
                    };
                    assert_eq!(mark(TRIED), AttemptMark::Suspect, "{outcome:?}");
                    let untried = match is_own_word && !started_elsewhere {
                        true => AttemptMark::Suspect,
                        false => AttemptMark::Incident,
                    };
                    assert_eq!(mark(UNTRIED), untried, "{outcome:?}");
                    assert_eq!(mark(MarkedJob::Own), AttemptMark::Incident, "{outcome:?}");
                }
            }
        }
        assert!(UNTRIED.suspects_wait_for_witness() && !TRIED.suspects_wait_for_witness());
    }

    #[test]
    fn only_the_miners_side_is_marked_for_its_failures() {
        let horde = |reported_by, reason, context| {
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by,
                reason,
                message: String::new(),
                context,
            })
        };
        let busy = Outcome::Rejected(RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason: JobRejectionReason::Busy,
            message: String::new(),
            context: None,
        });
        let generic = HordeFailureReason::GenericError;
        for (outcome, excused, expected) in [
            (Outcome::Completed(Box::default()), false, AttemptMark::Done),
            (
                Outcome::cancelled(JobStage::Execution, "no"),
                false,
                AttemptMark::Clean,
            ),
            (busy.clone(), true, AttemptMark::Clean),
            (busy, false, AttemptMark::Unexcused),
            (
                horde(ParticipantType::Miner, generic, Some(json!({"fault": "user"}))),
                false,
                AttemptMark::Excuse,
            ),
            (
                horde(ParticipantType::Miner, generic, None),
                false,
                AttemptMark::Incident,
            ),
            (
                horde(ParticipantType::Validator, generic, None),
                false,
                AttemptMark::Clean,
            ),
            (
                horde(
                    ParticipantType::Validator,
                    HordeFailureReason::MinerConnectionFailed,
                    None,
                ),
                false,
                AttemptMark::Incident,
            ),
        ] {
            let evidence = MarkEvidence {
                excused,
                ..MarkEvidence::default()
            };
            assert_eq!(mark_attempt(&outcome, evidence), expected, "{outcome:?}");
        }
        let image = json!({"image_fetch": "no_such_image", "fault": "user"});
        let claimed = horde(ParticipantType::Executor, generic, Some(image));
        let of_miner = |failure: &str| {
            let context = json!({ "image_fetch": failure });
            horde(ParticipantType::Miner, generic, Some(context))
        };
        for (image_elsewhere, expected) in [(false, AttemptMark::Clean), (true, AttemptMark::Excuse)] {
            let evidence = MarkEvidence {
                image_elsewhere,
                ..MarkEvidence::default()
            };
            assert_eq!(mark_attempt(&claimed, evidence), expected);
            for (failure, expected) in [
                ("no_executor", AttemptMark::Clean),
                ("no_slot", AttemptMark::Unexcused),
            ] {
                let outcome = of_miner(failure);
                assert_eq!(mark_attempt(&outcome, evidence), expected, "{failure}");
                assert_eq!(outcome.fault(), Fault::Nobody, "never the user's");
            }
        }
        for (excused, free_no_slot, expected) in [
            (true, true, AttemptMark::Clean),
            (true, false, AttemptMark::Clean),
            (false, true, AttemptMark::NoSlot),
        ] {
            let evidence = MarkEvidence {
                excused,
                free_no_slot,
                ..MarkEvidence::default()
            };
            assert_eq!(mark_attempt(&of_miner("no_slot"), evidence), expected);
            let busy_elsewhere = mark_attempt(&of_miner("no_executor"), evidence);
            assert_eq!(busy_elsewhere, AttemptMark::Clean, "the allowance is for slots");
        }
        for mark in AttemptMark::ALL {
            assert_eq!(AttemptMark::from_word(mark.as_str()), Some(mark));
            assert_eq!(serde_json::to_value(mark).unwrap(), mark.as_str());
        }
    }
}
