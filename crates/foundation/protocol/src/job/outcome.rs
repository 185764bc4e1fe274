//! The ends of an attempt, and the party at fault.
//!
//! A failure's reason mostly shows the party at fault. Where it does not (`generic_error` and its kin), the miner's
//! side may name the party in `context.fault`, and is believed:
//!
//! * against itself: a confession;
//!
//! * against anyone else: an [excuse](Outcome::is_excuse). It spares the miner an incident, because no other party can
//!   distinguish a mistyped image from a missing one. It is counted apart, so that a miner with many excuses is asked
//!   after its equals, and it is paid only if it blames the user of an executor that was ready (`docs/adr/0070`).
//!
//! An image that does not come has a reason of its own in `context.image_fetch` ([`ImageFetchFailure`]): it blames the
//! user or nobody, and is no excuse until another miner gets the image.
//!
//! A reason that shows the party at fault by itself is not overruled: a lost executor is the miner's fault, whatever
//! the miner claims.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::image_fetch::{IMAGE_FETCH_KEY, ImageFetchFailure};
use super::partial_result::RAN_KEY;
use crate::ImageId;
use crate::status::{
    HordeFailureReason, JobFailureReason, JobRejectionReason, JobStage, JobStatus, ParticipantType,
};
use crate::wire::facilitator::{
    FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails, StatusMetadata,
};

/// The key in a failure's `context` that is `true` if the miner's side says that no container can be started of the
/// job's image with the job's program.
pub const BROKEN_IMAGE_KEY: &str = "broken_image";

/// The end of an attempt, with the details for its user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The program ended with exit code 0 and its outputs are delivered.
    Completed(Box<MinerResponse>),
    /// No executor ran the job.
    Rejected(RejectionDetails),
    /// The job failed by its own fault.
    Failed(Box<FailureDetails>),
    /// The subnet failed the job.
    HordeFailed(HordeFailureDetails),
}

/// The party at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// No party: the attempt succeeded.
    Nobody,
    /// The user that submitted the job.
    User,
    /// The executor that ran the container.
    Executor,
    /// The miner of the executor.
    Miner,
    /// The validator that routed the job.
    Validator,
    /// The facilitator that accepted the job.
    Facilitator,
    /// The network between the parties.
    Network,
}

impl Fault {
    /// The party's name: the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::User => "user",
            Self::Executor => "executor",
            Self::Miner => "miner",
            Self::Validator => "validator",
            Self::Facilitator => "facilitator",
            Self::Network => "network",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Outcome {
    /// The end of a job that its user cancelled at `stage`, with the user's `reason`.
    ///
    /// ComputeHorde has no status for a cancelled job: it appears as a failure of the job's own, with the reason
    /// `unknown`, and `context` holds the details.
    pub fn cancelled(stage: JobStage, reason: &str) -> Self {
        Self::Failed(Box::new(FailureDetails {
            reason: JobFailureReason::Unknown,
            stage,
            message: "the job was cancelled by its user".to_owned(),
            context: Some(json!({ "cancelled": true, "reason": reason, "fault": Fault::User })),
            docker_process_exit_status: None,
            docker_process_stdout: None,
            docker_process_stderr: None,
        }))
    }

    /// The failure that a status reports; `None` for a status of another kind.
    pub fn failure_in(metadata: &StatusMetadata) -> Option<Self> {
        let StatusMetadata {
            job_rejection_details,
            job_failure_details,
            horde_failure_details,
            ..
        } = metadata;
        if let Some(details) = job_rejection_details {
            return Some(Self::Rejected(details.clone()));
        }
        if let Some(details) = job_failure_details {
            return Some(Self::Failed(Box::new(details.clone())));
        }
        horde_failure_details.clone().map(Self::HordeFailed)
    }

    /// The status that the user sees.
    pub fn status(&self) -> JobStatus {
        match self {
            Self::Completed(_) => JobStatus::Completed,
            Self::Rejected(_) => JobStatus::Rejected,
            Self::Failed(_) => JobStatus::Failed,
            Self::HordeFailed(_) => JobStatus::HordeFailed,
        }
    }

    /// The details that accompany that status.
    pub fn metadata(&self) -> StatusMetadata {
        let mut metadata = StatusMetadata::default();
        match self {
            Self::Completed(response) => metadata.miner_response = Some((**response).clone()),
            Self::Rejected(details) => metadata.job_rejection_details = Some(details.clone()),
            Self::Failed(details) => metadata.job_failure_details = Some((**details).clone()),
            Self::HordeFailed(details) => metadata.horde_failure_details = Some(details.clone()),
        }
        metadata
    }

    /// Whether an attempt that ends so is paid for the time since its executor was ready: the work was done, or the
    /// user is at fault, or called the job off (`docs/adr/0070`). An image that did not come, or that cannot be started
    /// as the miner's side says, is paid to nobody: no program ran.
    pub fn is_paid(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Rejected(_) => false,
            Self::Failed(_) if self.blames_the_image() => false,
            Self::Failed(_) | Self::HordeFailed(_) => {
                self.fault() == Fault::User && self.image_fetch_failure().is_none()
            }
        }
    }

    /// Whether the user, or the validator for a job of its own, called the job off.
    pub fn is_cancellation(&self) -> bool {
        match self {
            Self::Failed(details) => {
                let context = details.context.as_ref();
                context.and_then(|context| context.get("cancelled")) == Some(&json!(true))
            }
            Self::Completed(_) | Self::Rejected(_) | Self::HordeFailed(_) => false,
        }
    }

    /// Whether the miner's side says that the job's image cannot be started, or lacks the job's program, and names the
    /// image's content. Another miner that starts the same shows what the claim is worth.
    pub fn is_broken_image(&self) -> bool {
        self.blames_the_image() && self.ran_image().is_some()
    }

    /// Whether the miner's side says so and does not name the image's content. No other miner can show what such a
    /// claim is worth, so it is not believed.
    pub fn is_unnamed_broken_image(&self) -> bool {
        self.blames_the_image() && self.ran_image().is_none()
    }

    /// Whether the miner's side says that the job's image cannot be started, with the image's content or without.
    fn blames_the_image(&self) -> bool {
        match self {
            Self::Failed(details) => {
                let context = details.context.as_ref();
                context.and_then(|context| context.get(BROKEN_IMAGE_KEY)) == Some(&json!(true))
            }
            Self::Completed(_) | Self::Rejected(_) | Self::HordeFailed(_) => false,
        }
    }

    /// The content of the image that the attempt ran or was to run, as its miner reports it.
    pub fn ran_image(&self) -> Option<ImageId> {
        let image = match self {
            Self::Completed(response) => response.extra.get("image"),
            Self::Failed(details) => details.context.as_ref()?.get(RAN_KEY),
            Self::HordeFailed(details) => details.context.as_ref()?.get(RAN_KEY),
            Self::Rejected(_) => None,
        };
        image?.get("id")?.as_str()?.parse().ok()
    }

    /// Whether the executor itself says that it failed the job, so that it was there and reached its miner. A user's
    /// image may provoke such an answer, whatever it blames.
    pub fn is_executors_own_failure(&self) -> bool {
        match self {
            Self::Completed(_) | Self::Rejected(_) | Self::Failed(_) => false,
            Self::HordeFailed(details) => details.reported_by == ParticipantType::Executor,
        }
    }

    /// Whether the program ran to an end of its own, so that the time that it took shows how long such work takes.
    pub fn ran_to_its_end(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Failed(_) if self.blames_the_image() => false,
            Self::Failed(details) => match details.reason {
                JobFailureReason::NonzeroReturnCode => true,
                JobFailureReason::Unknown
                | JobFailureReason::Timeout
                | JobFailureReason::DownloadFailed
                | JobFailureReason::UploadFailed => false,
            },
            Self::Rejected(_) | Self::HordeFailed(_) => false,
        }
    }

    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Completed(_) => Fault::Nobody,
            Self::Rejected(details) => match details.reason {
                JobRejectionReason::InvalidSignature => Fault::User,
                JobRejectionReason::NoMinerForJob => Fault::Validator,
                JobRejectionReason::Unknown
                | JobRejectionReason::Busy
                | JobRejectionReason::ValidatorBlacklisted
                | JobRejectionReason::InvalidReceipt => Fault::Miner,
            },
            Self::Failed(details) => match details.reason {
                JobFailureReason::Unknown
                | JobFailureReason::Timeout
                | JobFailureReason::NonzeroReturnCode
                | JobFailureReason::DownloadFailed
                | JobFailureReason::UploadFailed => Fault::User,
            },
            Self::HordeFailed(details) => match fetch_failure(details) {
                Some(failure) => failure.fault(),
                None => claimed_fault(details).unwrap_or_else(|| horde_fault(details)),
            },
        }
    }

    /// The reason for which the job's image did not come, if the attempt failed by that.
    pub fn image_fetch_failure(&self) -> Option<ImageFetchFailure> {
        match self {
            Self::Completed(_) | Self::Rejected(_) | Self::Failed(_) => None,
            Self::HordeFailed(details) => fetch_failure(details),
        }
    }

    /// Whether the miner's side blames another party with no evidence but its word.
    pub fn is_excuse(&self) -> bool {
        match self {
            Self::Completed(_) | Self::Rejected(_) | Self::Failed(_) => false,
            // Whether another miner gets the image shows what the claim is worth.
            Self::HordeFailed(details) if fetch_failure(details).is_some() => false,
            Self::HordeFailed(details) => match claimed_fault(details) {
                Some(Fault::User | Fault::Validator | Fault::Facilitator | Fault::Network) => true,
                Some(Fault::Nobody | Fault::Executor | Fault::Miner) | None => false,
            },
        }
    }
}

/// Takes the content of the image out of a failure whose job names its image by the id (`sha256:…`), if it is the
/// content of another image: the miner's claim is then about no image of the job.
pub fn forget_another_image(details: &mut FailureDetails, docker_image: &str) {
    let Ok(named) = docker_image.parse::<ImageId>() else {
        return;
    };
    let Some(context) = details.context.as_mut().and_then(Value::as_object_mut) else {
        return;
    };
    let id = context
        .get(RAN_KEY)
        .and_then(|ran| ran.get("id")?.as_str()?.parse::<ImageId>().ok());
    if id != Some(named) {
        context.remove(RAN_KEY);
    }
}

/// The reason for which the image did not come: the validator's own observation, or a claim of the miner's side where
/// its claims count.
fn fetch_failure(details: &HordeFailureDetails) -> Option<ImageFetchFailure> {
    let counts = match details.reported_by {
        ParticipantType::Validator => true,
        ParticipantType::Executor | ParticipantType::Miner | ParticipantType::Unknown => {
            names_no_party(details.reason)
        }
        ParticipantType::Facilitator | ParticipantType::Sdk => false,
    };
    let claim = details.context.as_ref()?.get(IMAGE_FETCH_KEY)?;
    let failure = ImageFetchFailure::deserialize(claim).ok()?;
    let counted = match failure {
        ImageFetchFailure::Unknown => false,
        // A miner sees its own fetch and nobody else's.
        ImageFetchFailure::CameToNobody => details.reported_by == ParticipantType::Validator,
        ImageFetchFailure::NoSuchImage
        | ImageFetchFailure::NoRight
        | ImageFetchFailure::TooLarge
        | ImageFetchFailure::WrongPlatform
        | ImageFetchFailure::Stalled
        | ImageFetchFailure::TimedOut
        | ImageFetchFailure::Unreachable
        | ImageFetchFailure::NoSlot
        | ImageFetchFailure::NoExecutor => counts,
    };
    Some(failure).filter(|_| counted)
}

/// The party that the miner's side blames, where its claim counts.
fn claimed_fault(details: &HordeFailureDetails) -> Option<Fault> {
    let heard = match details.reported_by {
        ParticipantType::Executor | ParticipantType::Miner | ParticipantType::Unknown => {
            names_no_party(details.reason)
        }
        ParticipantType::Validator | ParticipantType::Facilitator | ParticipantType::Sdk => false,
    };
    let claim = details.context.as_ref()?.get("fault")?;
    match Fault::deserialize(claim).ok()? {
        // The attempt failed, so some party is at fault.
        Fault::Nobody => None,
        fault @ (Fault::User
        | Fault::Executor
        | Fault::Miner
        | Fault::Validator
        | Fault::Facilitator
        | Fault::Network) => Some(fault).filter(|_| heard),
    }
}

/// Whether the reason leaves open what went wrong.
fn names_no_party(reason: HordeFailureReason) -> bool {
    match reason {
        HordeFailureReason::Unknown
        | HordeFailureReason::GenericError
        | HordeFailureReason::UnhandledException
        | HordeFailureReason::UnhandledTimeout => true,
        HordeFailureReason::MinerConnectionFailed
        | HordeFailureReason::InitialResponseTimedOut
        | HordeFailureReason::ExecutorReadinessTimedOut
        | HordeFailureReason::VolumesTimedOut
        | HordeFailureReason::StreamingJobReadyTimedOut
        | HordeFailureReason::ExecutionTimedOut
        | HordeFailureReason::FinalResponseTimedOut
        | HordeFailureReason::ExecutorSpinupFailed
        | HordeFailureReason::ExecutorDisconnected
        | HordeFailureReason::StreamingFailed
        | HordeFailureReason::SecurityCheckFailed => false,
    }
}

fn horde_fault(details: &HordeFailureDetails) -> Fault {
    match details.reason {
        HordeFailureReason::MinerConnectionFailed => Fault::Network,
        HordeFailureReason::InitialResponseTimedOut
        | HordeFailureReason::ExecutorReadinessTimedOut
        | HordeFailureReason::VolumesTimedOut
        | HordeFailureReason::StreamingJobReadyTimedOut
        | HordeFailureReason::ExecutionTimedOut
        | HordeFailureReason::FinalResponseTimedOut
        | HordeFailureReason::ExecutorSpinupFailed
        | HordeFailureReason::ExecutorDisconnected => Fault::Miner,
        HordeFailureReason::StreamingFailed | HordeFailureReason::SecurityCheckFailed => Fault::Executor,
        HordeFailureReason::Unknown
        | HordeFailureReason::GenericError
        | HordeFailureReason::UnhandledException
        | HordeFailureReason::UnhandledTimeout => match details.reported_by {
            ParticipantType::Executor => Fault::Executor,
            ParticipantType::Validator => Fault::Validator,
            ParticipantType::Facilitator => Fault::Facilitator,
            ParticipantType::Sdk => Fault::User,
            ParticipantType::Miner | ParticipantType::Unknown => Fault::Miner,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reported_by: ParticipantType, reason: HordeFailureReason, context: Value) -> Outcome {
        Outcome::HordeFailed(HordeFailureDetails {
            reported_by,
            reason,
            message: String::new(),
            context: Some(context),
        })
    }

    #[test]
    fn a_broken_image_is_paid_to_nobody_and_believed_only_with_the_images_content() {
        let broken = |context: Value| {
            Outcome::Failed(Box::new(FailureDetails {
                reason: JobFailureReason::NonzeroReturnCode,
                stage: JobStage::Execution,
                message: String::new(),
                context: Some(context),
                docker_process_exit_status: None,
                docker_process_stdout: None,
                docker_process_stderr: None,
            }))
        };
        let id = ImageId(crate::Digest::of(b"x"));
        let named = broken(json!({ BROKEN_IMAGE_KEY: true, RAN_KEY: { "id": id } }));
        let unnamed = broken(json!({ BROKEN_IMAGE_KEY: true, RAN_KEY: { "id": "x" } }));
        assert!(named.is_broken_image() && !named.is_unnamed_broken_image());
        assert!(!unnamed.is_broken_image() && unnamed.is_unnamed_broken_image());
        for outcome in [named, unnamed] {
            assert!(!outcome.is_paid() && !outcome.ran_to_its_end());
        }
        let exited = broken(json!({ RAN_KEY: { "id": id } }));
        assert!(!exited.is_broken_image() && !exited.is_unnamed_broken_image());
        assert!(exited.is_paid() && exited.ran_to_its_end());
    }

    #[test]
    fn a_failure_about_another_image_than_the_one_that_its_job_names_by_id_names_none() {
        let id = |text: &str| ImageId(crate::Digest::of(text.as_bytes())).to_string();
        for (docker_image, kept) in [(id("x"), true), (id("y"), false), ("alpine".to_owned(), true)] {
            let Outcome::Failed(mut details) = Outcome::cancelled(JobStage::Execution, "") else {
                panic!("another end");
            };
            details.context = Some(json!({ BROKEN_IMAGE_KEY: true, RAN_KEY: { "id": id("x") } }));
            forget_another_image(&mut details, &docker_image);
            assert_eq!(Outcome::Failed(details).is_broken_image(), kept, "{docker_image}");
        }
    }

    #[test]
    fn a_claim_is_heard_where_the_reason_says_nothing() {
        use HordeFailureReason::{ExecutorDisconnected, GenericError};
        use ParticipantType::{Executor, Miner, Validator};
        let user = json!({"code": "E0008", "fault": "user"});
        for (by, reason, context, fault, excuse) in [
            (Executor, GenericError, user.clone(), Fault::User, true),
            (Miner, GenericError, user.clone(), Fault::User, true),
            (
                Miner,
                GenericError,
                json!({"fault": "network"}),
                Fault::Network,
                true,
            ),
            (
                Miner,
                GenericError,
                json!({"fault": "validator"}),
                Fault::Validator,
                true,
            ),
            (
                Executor,
                GenericError,
                json!({"fault": "miner"}),
                Fault::Miner,
                false,
            ),
            (
                Executor,
                GenericError,
                json!({"fault": "nobody"}),
                Fault::Executor,
                false,
            ),
            (
                Executor,
                GenericError,
                json!({"fault": "the weather"}),
                Fault::Executor,
                false,
            ),
            (
                Executor,
                GenericError,
                json!({"fault": ["user"]}),
                Fault::Executor,
                false,
            ),
            (Miner, GenericError, json!("user"), Fault::Miner, false),
            (Miner, ExecutorDisconnected, user.clone(), Fault::Miner, false),
            (Validator, GenericError, user, Fault::Validator, false),
        ] {
            let outcome = failed(by, reason, context.clone());
            assert_eq!(
                (outcome.fault(), outcome.is_excuse(), outcome.is_paid()),
                (fault, excuse, fault == Fault::User),
                "{by:?} {reason:?} {context}"
            );
        }
    }
}
