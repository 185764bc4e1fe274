//! The statuses and reasons in which ComputeHorde states a job's progress and its failures.

use crate::macros::open_enum;

open_enum!(
    /// The progress of a job, as its user sees it.
    JobStatus {
        /// The facilitator hands the job to a validator.
        Sent = "sent",
        /// The validator has the job.
        Received = "received",
        /// A miner has agreed to run the job.
        Accepted = "accepted",
        /// An executor is up and has the image.
        ExecutorReady = "executor_ready",
        /// A streaming job accepts requests.
        StreamingReady = "streaming_ready",
        /// The inputs are in place.
        VolumesReady = "volumes_ready",
        /// The program has ended; the outputs are being delivered.
        ExecutionDone = "execution_done",
        /// Terminal: the job succeeded.
        Completed = "completed",
        /// Terminal: no miner ran the job.
        Rejected = "rejected",
        /// Terminal: the job failed by its own fault.
        Failed = "failed",
        /// Terminal: the subnet failed the job.
        HordeFailed = "horde_failed",
    }
);

impl JobStatus {
    /// Whether no other status can follow.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Rejected | Self::Failed | Self::HordeFailed => true,
            Self::Unknown
            | Self::Sent
            | Self::Received
            | Self::Accepted
            | Self::ExecutorReady
            | Self::StreamingReady
            | Self::VolumesReady
            | Self::ExecutionDone => false,
        }
    }

    /// The position in the order of statuses; an unknown status has none.
    const fn rank(self) -> Option<u8> {
        Some(match self {
            Self::Unknown => return None,
            Self::Sent => 0,
            Self::Received => 1,
            Self::Accepted => 2,
            Self::ExecutorReady => 3,
            Self::VolumesReady => 4,
            Self::StreamingReady => 5,
            Self::ExecutionDone => 6,
            Self::Completed | Self::Rejected | Self::Failed | Self::HordeFailed => 7,
        })
    }

    /// Whether a user who has seen `previous` may be shown `self`: the status that users see only moves forward.
    ///
    /// An unknown status of a newer peer is kept but never moves a job past a terminal one.
    pub fn may_follow(self, previous: Self) -> bool {
        match (previous.rank(), self.rank()) {
            (Some(before), Some(after)) => after > before,
            (None, _) => true,
            (Some(_), None) => !previous.is_terminal(),
        }
    }

    /// The legacy display form in the `status` field of the REST API: `Streaming Ready`.
    pub fn display_name(self) -> String {
        let capitalise = |word: &str| {
            let mut letters = word.chars();
            letters
                .next()
                .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
                .unwrap_or_default()
        };
        self.as_str()
            .split('_')
            .map(capitalise)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

open_enum!(
    /// The stage of a job in which something went wrong.
    JobStage {
        /// From the lease to a ready executor.
        ExecutorStartup = "executor_startup",
        /// The inputs are being fetched.
        VolumeDownload = "volume_download",
        /// From the program's start to its first answer.
        StreamingStartup = "streaming_startup",
        /// The program runs.
        Execution = "execution",
        /// The outputs are being delivered.
        ResultUpload = "result_upload",
    }
);

open_enum!(
    /// The reason why the subnet failed a job.
    HordeFailureReason {
        /// No more specific reason is known.
        GenericError = "generic_error",
        /// A defect in a role.
        UnhandledException = "unhandled_exception",
        /// A defect in a role that showed as a time-out.
        UnhandledTimeout = "unhandled_timeout",
        /// The streaming endpoint failed.
        StreamingFailed = "streaming_failed",
        /// The miner could not be reached, or its connection was lost.
        MinerConnectionFailed = "miner_connection_failed",
        /// The miner neither accepted nor declined in time.
        InitialResponseTimedOut = "initial_response_timed_out",
        /// No executor became ready in time.
        ExecutorReadinessTimedOut = "executor_readiness_response_timed_out",
        /// The inputs were not in place in time.
        VolumesTimedOut = "volumes_timed_out",
        /// A streaming job did not answer in time.
        StreamingJobReadyTimedOut = "streaming_job_ready_timed_out",
        /// The end of the program was not reported in time.
        ExecutionTimedOut = "execution_timed_out",
        /// The result did not arrive in time.
        FinalResponseTimedOut = "final_response_timed_out",
        /// The miner could not start an executor.
        ExecutorSpinupFailed = "executor_spinup_failed",
        /// The miner lost its executor.
        ExecutorDisconnected = "executor_disconnected",
        /// The executor's machine did not pass its own checks.
        SecurityCheckFailed = "security_check_failed",
    }
);

open_enum!(
    /// The reason why a job failed by its own fault.
    JobFailureReason {
        /// The program ran longer than its user allowed.
        Timeout = "timeout",
        /// The program ended with another exit code than 0.
        NonzeroReturnCode = "nonzero_return_code",
        /// An input could not be fetched.
        DownloadFailed = "download_failed",
        /// An output could not be delivered.
        UploadFailed = "upload_failed",
    }
);

open_enum!(
    /// The reason why no executor ran a job.
    JobRejectionReason {
        /// Every executor of the class is at work.
        Busy = "busy",
        /// The user's signature is not valid for the job.
        InvalidSignature = "invalid_signature",
        /// No miner fits the job.
        NoMinerForJob = "no_miner_for_job",
        /// The miner does not serve this validator.
        ValidatorBlacklisted = "validator_blacklisted",
        /// The started receipt is not valid (since compute-horde 0.0.27).
        InvalidReceipt = "invalid_receipt",
    }
);

open_enum!(
    /// A party of a job, as reports of faults name it.
    ParticipantType {
        /// The user's own program.
        Sdk = "sdk",
        /// The facilitator that accepted the job.
        Facilitator = "facilitator",
        /// The validator that routes jobs and scores miners.
        Validator = "validator",
        /// The miner that provides executors.
        Miner = "miner",
        /// The executor that runs the container.
        Executor = "executor",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outward_status_never_turns_back() {
        for &previous in JobStatus::ALL {
            for &next in JobStatus::ALL {
                if previous.is_terminal() {
                    assert!(!next.may_follow(previous), "{previous} -> {next}");
                }
                if next == previous && next != JobStatus::Unknown {
                    assert!(!next.may_follow(previous), "{next} twice");
                }
            }
        }
        assert!(JobStatus::Completed.may_follow(JobStatus::ExecutionDone));
        assert!(JobStatus::Failed.may_follow(JobStatus::Sent));
        assert!(!JobStatus::Accepted.may_follow(JobStatus::ExecutorReady));
    }

    #[test]
    fn a_word_from_the_future_is_unknown() {
        assert_eq!(
            serde_json::from_str::<JobStatus>("\"paused\"").unwrap(),
            JobStatus::Unknown
        );
        assert!(serde_json::from_str::<JobStatus>("3").is_err());
        assert_eq!(JobStatus::StreamingReady.display_name(), "Streaming Ready");
    }
}
