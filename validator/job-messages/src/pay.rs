//! The pay of an attempt, as its finished receipt states it (`docs/adr/0070`). Pure.
//!
//! An attempt is paid from the time at which its executor was ready. The amount is the least of the time that the job
//! reserved, the time that the attempt took, and twice the median of what other attempts at the same work took.

use std::collections::BTreeSet;

use muster_protocol::job::Outcome;
use muster_protocol::receipt::MINIMUM_CHARGE_US;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{Digest, Hotkey, canonical};
use serde_json::json;

/// The newest attempts at the same work that show how long it takes.
pub const USUAL_OF: usize = 20;

/// Owners of miners whose attempts have to be among them: fewer could agree to stall.
const USUAL_OWNERS: usize = 3;

/// A receipt's amounts are whole seconds, since ComputeHorde's validators stop at any other.
const SECOND_US: u64 = 1_000_000;

/// An earlier attempt at the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkedAttempt {
    /// The owner of its miner.
    pub coldkey: Hotkey,
    /// The time from the ready executor to the end, in microseconds.
    pub took_us: u64,
}

/// The facts that decide the amount of an attempt that is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredWork {
    /// The time that the job reserved, in microseconds.
    pub reserved_us: u64,
    /// The time from the ready executor to the end, by the validator's stamps, in microseconds.
    pub took_us: u64,
    /// The median of the same work, in microseconds; `None` where it is not known.
    pub usual_us: Option<u64>,
    /// Whether it was a sealed session, which is paid for the time that it lived, and has no minimum.
    pub sealed: bool,
    /// The most that the session's proven answers are worth, in microseconds; `None` for other work.
    pub rated_us: Option<u64>,
}

impl MeasuredWork {
    /// The amount in executor-microseconds, in whole seconds rounded up.
    pub fn pay_us(&self) -> u64 {
        let amount = if self.sealed {
            self.took_us.min(self.rated_us.unwrap_or(u64::MAX))
        } else {
            let usual = self.usual_us.map_or(u64::MAX, |usual| usual.saturating_mul(2));
            self.took_us.min(usual).max(MINIMUM_CHARGE_US)
        };
        let whole = amount.div_ceil(SECOND_US).saturating_mul(SECOND_US);
        whole.min(self.reserved_us)
    }
}

/// Whether an attempt is paid that ended with `outcome` after its executor was ready. The user of the validator's own
/// job is the validator, and its failures and cancellations are paid to nobody.
pub fn is_paid_end(outcome: &Outcome, own: bool) -> bool {
    match outcome {
        Outcome::Completed(_) => true,
        Outcome::Rejected(_) | Outcome::Failed(_) | Outcome::HordeFailed(_) => !own && outcome.is_paid(),
    }
}

/// The median of the newest attempts at the same work, newest first; `None` if the miners of fewer than three owners
/// made them. Of an even number, the lower one of the two in the middle counts.
pub fn usual_time(newest: &[WorkedAttempt]) -> Option<u64> {
    let newest = newest.get(..USUAL_OF).unwrap_or(newest);
    let owners: BTreeSet<Hotkey> = newest.iter().map(|attempt| attempt.coldkey).collect();
    if owners.len() < USUAL_OWNERS {
        return None;
    }
    let mut times: Vec<u64> = newest.iter().map(|attempt| attempt.took_us).collect();
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}

/// The name of the work that a job asks for: the same image, arguments, start of the program and class. `None` for a
/// sealed session, whose time depends on its clients, and for a job that leaves checkpoints, whose attempts are parts
/// of its work.
pub fn work_digest(request: &UserJobRequest) -> Option<Digest> {
    let details = request.streaming_details.as_ref();
    if details.is_some_and(|details| details.muster.is_some()) || request.terms().checkpoints.is_some() {
        return None;
    }
    let mut work = json!({
        "args": request.args,
        "class": request.executor_class,
        "image": request.docker_image,
    });
    if let (Some(start), Some(fields)) = (request.terms().start, work.as_object_mut()) {
        fields.insert("start".to_owned(), json!(start));
    }
    Some(Digest::of(canonical::sorted_compact(&work).as_bytes()))
}

#[cfg(test)]
mod tests {
    use muster_protocol::status::{
        HordeFailureReason, JobFailureReason, JobRejectionReason, JobStage, ParticipantType,
    };
    use muster_protocol::wire::facilitator::{
        FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails,
    };
    use muster_protocol::wire::muster::JobExtension;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::testing::request;

    const SECOND: u64 = SECOND_US;

    fn failed(reason: JobFailureReason) -> Outcome {
        Outcome::Failed(Box::new(FailureDetails {
            reason,
            stage: JobStage::Execution,
            message: String::new(),
            context: None,
            docker_process_exit_status: None,
            docker_process_stdout: None,
            docker_process_stderr: None,
        }))
    }

    fn horde(reported_by: ParticipantType, reason: HordeFailureReason, context: Value) -> Outcome {
        Outcome::HordeFailed(HordeFailureDetails {
            reported_by,
            reason,
            message: String::new(),
            context: Some(context),
        })
    }

    #[test]
    fn every_end_has_its_pay() {
        use HordeFailureReason as Why;
        use ParticipantType as By;
        let declined = Outcome::Rejected(RejectionDetails {
            rejected_by: By::Miner,
            reason: JobRejectionReason::Busy,
            message: String::new(),
            context: None,
        });
        let none = json!({});
        let rows = [
            (
                "completed",
                true,
                Outcome::Completed(Box::<MinerResponse>::default()),
            ),
            (
                "the program failed",
                true,
                failed(JobFailureReason::NonzeroReturnCode),
            ),
            (
                "the program's time is over",
                true,
                failed(JobFailureReason::Timeout),
            ),
            (
                "the inputs cannot be had",
                true,
                failed(JobFailureReason::DownloadFailed),
            ),
            (
                "the outputs cannot be sent",
                true,
                failed(JobFailureReason::UploadFailed),
            ),
            (
                "another failure of the job",
                true,
                failed(JobFailureReason::Unknown),
            ),
            (
                "called off by the user",
                true,
                Outcome::cancelled(JobStage::Execution, "enough"),
            ),
            (
                "the image cannot be run, as the miner says",
                true,
                horde(By::Executor, Why::GenericError, json!({"fault": "user"})),
            ),
            (
                "the image did not come, for the user's reason",
                false,
                horde(
                    By::Executor,
                    Why::GenericError,
                    json!({"image_fetch": "no_such_image", "fault": "user"}),
                ),
            ),
            (
                "the image did not come, for nobody's reason",
                false,
                horde(By::Executor, Why::GenericError, json!({"image_fetch": "stalled"})),
            ),
            (
                "the executor failed",
                false,
                horde(By::Executor, Why::GenericError, none.clone()),
            ),
            (
                "the miner failed",
                false,
                horde(By::Miner, Why::UnhandledException, none.clone()),
            ),
            (
                "the executor was lost",
                false,
                horde(By::Miner, Why::ExecutorDisconnected, json!({"fault": "user"})),
            ),
            (
                "the miner was late",
                false,
                horde(By::Validator, Why::ExecutionTimedOut, none.clone()),
            ),
            (
                "the miner was lost",
                false,
                horde(By::Validator, Why::MinerConnectionFailed, none.clone()),
            ),
            (
                "the validator failed",
                false,
                horde(By::Validator, Why::UnhandledException, none),
            ),
            (
                "the validator failed, as the miner says",
                false,
                horde(By::Miner, Why::GenericError, json!({"fault": "validator"})),
            ),
            (
                "the network failed, as the miner says",
                false,
                horde(By::Miner, Why::GenericError, json!({"fault": "network"})),
            ),
            ("declined", false, declined),
        ];
        for (what, paid, outcome) in rows {
            assert_eq!(is_paid_end(&outcome, false), paid, "{what}");
            let completed = matches!(outcome, Outcome::Completed(_));
            assert_eq!(
                is_paid_end(&outcome, true),
                completed,
                "{what}, in the validator's own job"
            );
        }
    }

    fn work(reserved: u64, took: u64, usual: Option<u64>) -> MeasuredWork {
        MeasuredWork {
            reserved_us: reserved * SECOND,
            took_us: took * SECOND,
            usual_us: usual.map(|usual| usual * SECOND),
            sealed: false,
            rated_us: None,
        }
    }

    #[test]
    fn the_least_of_reserved_measured_and_twice_the_usual_time_is_paid() {
        for (what, pay, work) in [
            ("measured", 70, work(3_600, 70, Some(60))),
            ("twice the usual time", 120, work(3_600, 3_000, Some(60))),
            ("the usual time is not known", 3_000, work(3_600, 3_000, None)),
            ("reserved", 3_600, work(3_600, 4_000, None)),
            ("at least ten seconds", 10, work(3_600, 1, Some(1))),
            ("and no more than was reserved", 3, work(3, 1, None)),
        ] {
            assert_eq!(work.pay_us(), pay * SECOND, "{what}");
        }
        let odd = MeasuredWork {
            took_us: 70 * SECOND + 1,
            ..work(3_600, 0, None)
        };
        assert_eq!(odd.pay_us(), 71 * SECOND, "whole seconds");
    }

    #[test]
    fn a_sealed_session_is_paid_what_its_answers_are_worth_and_has_no_minimum() {
        let session = |took, rated| MeasuredWork {
            sealed: true,
            rated_us: rated,
            ..work(60, took, Some(1))
        };
        assert_eq!(session(5, None).pay_us(), 5 * SECOND);
        assert_eq!(session(500, None).pay_us(), 60 * SECOND);
        assert_eq!(session(50, Some(2 * SECOND + 1)).pay_us(), 3 * SECOND);
        assert_eq!(session(50, Some(0)).pay_us(), 0);
    }

    fn attempts(of: &[(u8, u64)]) -> Vec<WorkedAttempt> {
        let attempt = |(owner, took_us): &(u8, u64)| WorkedAttempt {
            coldkey: Hotkey::from_bytes([*owner; 32]),
            took_us: *took_us,
        };
        of.iter().map(attempt).collect()
    }

    #[test]
    fn the_usual_time_needs_three_owners_and_the_newest_twenty_attempts() {
        assert_eq!(usual_time(&attempts(&[(1, 5), (2, 5), (1, 5), (2, 5)])), None);
        assert_eq!(usual_time(&attempts(&[(1, 5), (2, 9), (3, 7)])), Some(7));
        assert_eq!(usual_time(&attempts(&[(1, 5), (2, 9), (3, 7), (3, 8)])), Some(7));
        let mut many = attempts(&[(1, 5), (2, 5), (3, 5)].repeat(7)[..20]);
        many.extend(attempts(&[(4, 900); 40]));
        assert_eq!(usual_time(&many), Some(5), "older attempts do not count");
        assert_eq!(usual_time(&[]), None);
    }

    #[test]
    fn the_same_work_is_the_same_image_arguments_and_class() {
        let digest = |change: &dyn Fn(&mut UserJobRequest)| {
            let mut request = request();
            change(&mut request);
            work_digest(&request)
        };
        let same = digest(&|_| {});
        assert!(same.is_some());
        assert_eq!(same, digest(&|request| request.execution_time_limit = 900));
        assert_eq!(same, digest(&|request| request.env.clear()));
        assert_ne!(same, digest(&|request| request.args.push("more".to_owned())));
        assert_ne!(same, digest(&|request| request.docker_image.push('2')));
        let start = JobExtension {
            terms: serde_json::from_str(r#"{"start":{"entrypoint":"sh"}}"#).unwrap(),
            ..JobExtension::default()
        };
        let other_start = digest(&|request| request.muster = Some(Box::new(start.clone())));
        assert!(other_start.is_some() && other_start != same);
        assert_ne!(
            same,
            digest(&|request| request.executor_class = muster_protocol::ExecutorClass::AlwaysOnGpu24Gb)
        );
    }

    proptest! {
        #[test]
        fn no_pay_exceeds_the_reservation_and_no_minority_moves_the_usual_time(
            reserved in 0_u64..4_000, took in 0_u64..10_000, usual in proptest::option::of(0_u64..10_000),
            honest in 1_u64..1_000, lie in 0_u64..1_000_000, liars in 0_usize..10,
        ) {
            let work = work(reserved, took, usual);
            prop_assert!(work.pay_us() <= reserved * SECOND);
            prop_assert!(work.pay_us() <= took.max(10) * SECOND);
            let mut newest = attempts(&[(1, honest), (2, honest), (3, honest)].repeat(7)[..20 - liars]);
            newest.extend(attempts(&vec![(4, lie); liars]));
            prop_assert_eq!(usual_time(&newest), Some(honest));
        }
    }
}
