//! Whether a miner that declines a job as busy has shown that it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_protocol::receipt::AcceptedReceipt;
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, ReceiptPayload, Timestamp, ValidatorKey};

/// How long after its expiry a receipt still excuses, for clocks that differ.
const LEEWAY: Duration = Duration::from_secs(2);

/// A miner's rejection of an offer because it is busy.
#[derive(Clone, Copy, Debug)]
pub struct BusyRejection {
    /// The miner that rejects.
    pub miner: MinerKey,
    /// The attempt that was offered.
    pub attempt: AttemptId,
    /// The class of executor that was asked for.
    pub class: ExecutorClass,
    /// The time of the rejection.
    pub at: Timestamp,
    /// Executors of the class by the miner's last manifest; `None` if no manifest is known.
    pub executors: Option<u32>,
}

/// Whether `receipts`, whose signatures have been checked, show every executor of the class at work.
///
/// A started receipt shows it while the executor is reserved, for some seconds. The accepted receipt of the same
/// attempt, written by the same validator, shows it until the job must have ended; ComputeHorde's miners do not show
/// it. `counts` selects the validators whose receipts are evidence; otherwise a miner could write its own excuses. A
/// miner without a known manifest is believed.
pub fn is_excused<'a>(
    rejection: &BusyRejection,
    receipts: impl IntoIterator<Item = &'a ReceiptPayload>,
    counts: impl Fn(ValidatorKey) -> bool,
) -> bool {
    let Some(executors) = rejection.executors else {
        return true;
    };
    let (mut started, mut accepted) = (Vec::new(), BTreeMap::<_, Vec<&AcceptedReceipt>>::new());
    for receipt in receipts {
        match receipt {
            ReceiptPayload::Started(receipt) => started.push(receipt),
            ReceiptPayload::Accepted(receipt) => {
                let of_attempt = (receipt.job_uuid, receipt.validator_hotkey);
                accepted.entry(of_attempt).or_default().push(receipt);
            }
            ReceiptPayload::Finished(_) => {}
        }
    }
    let covers = |written: Timestamp, ttl: u64| {
        let until = written.plus(Duration::from_secs(ttl)).plus(LEEWAY);
        written < rejection.at && rejection.at < until
    };
    let at_work: BTreeSet<_> = started
        .into_iter()
        .filter(|receipt| {
            let of_attempt = (receipt.job_uuid, receipt.validator_hotkey);
            let accepted = accepted.get(&of_attempt).into_iter().flatten();
            let mut accepted = accepted.filter(|accepted| accepted.miner_hotkey == rejection.miner);
            receipt.miner_hotkey == rejection.miner
                && receipt.executor_class == rejection.class
                && receipt.job_uuid != rejection.attempt
                && counts(receipt.validator_hotkey)
                && (covers(receipt.timestamp, receipt.ttl)
                    || accepted.any(|accepted| covers(accepted.timestamp, accepted.ttl)))
        })
        .map(|receipt| receipt.job_uuid)
        .collect();
    u32::try_from(at_work.len()).unwrap_or(u32::MAX) >= executors
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use muster_protocol::receipt::{AcceptedTag, StartedReceipt, StartedTag};
    use uuid::Uuid;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const NOW: fn(i64) -> Timestamp = Timestamp::from_secs;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn started(attempt: u128) -> StartedReceipt {
        StartedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
            miner_hotkey: MinerKey(key(1)),
            validator_hotkey: ValidatorKey(key(2)),
            timestamp: NOW(100),
            receipt_type: StartedTag,
            executor_class: CLASS,
            is_organic: true,
            ttl: 10,
        }
    }

    fn accepted(attempt: u128) -> AcceptedReceipt {
        AcceptedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
            miner_hotkey: MinerKey(key(1)),
            validator_hotkey: ValidatorKey(key(2)),
            timestamp: NOW(101),
            receipt_type: AcceptedTag,
            time_accepted: NOW(101),
            ttl: 3_600,
        }
    }

    fn rejection(executors: Option<u32>) -> BusyRejection {
        BusyRejection {
            miner: MinerKey(key(1)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(1)),
            class: CLASS,
            at: NOW(105),
            executors,
        }
    }

    fn excuses(rejection: &BusyRejection, receipts: &[ReceiptPayload]) -> bool {
        is_excused(rejection, receipts, |validator| validator == ValidatorKey(key(2)))
    }

    #[test]
    fn as_many_receipts_as_executors_excuse() {
        let receipts = [2, 3].map(|n| ReceiptPayload::Started(started(n)));
        assert!(excuses(&rejection(Some(2)), &receipts));
        assert!(!excuses(&rejection(Some(3)), &receipts));
        assert!(excuses(&rejection(Some(0)), &[]), "it has none");
        assert!(excuses(&rejection(None), &[]), "its manifest is not known");
    }

    #[test]
    fn a_receipt_excuses_once_and_only_if_it_is_about_such_work_now() {
        type Spoil = fn(&mut StartedReceipt);
        let spoilt: [(&str, Spoil); 6] = [
            ("another miner's", |r| r.miner_hotkey = MinerKey(key(9))),
            ("another class", |r| {
                r.executor_class = ExecutorClass::AlwaysOnLlmA6000
            }),
            ("the very offer", |r| {
                r.job_uuid = AttemptId::from_uuid(Uuid::from_u128(1))
            }),
            ("over", |r| r.timestamp = NOW(92)),
            ("of the future", |r| r.timestamp = NOW(106)),
            ("of an unknown validator", |r| {
                r.validator_hotkey = ValidatorKey(key(7))
            }),
        ];
        for (what, spoil) in spoilt {
            let mut receipt = started(2);
            spoil(&mut receipt);
            let receipt = ReceiptPayload::Started(receipt);
            assert!(!excuses(&rejection(Some(1)), &[receipt]), "{what}");
        }
        let receipt = || ReceiptPayload::Started(started(2));
        assert!(excuses(&rejection(Some(1)), &[receipt()]));
        assert!(
            !excuses(&rejection(Some(2)), &[receipt(), receipt()]),
            "the same twice"
        );
    }

    #[test]
    fn an_accepted_receipt_excuses_for_as_long_as_its_job_may_take() {
        let long_ago = BusyRejection {
            at: NOW(3_000),
            ..rejection(Some(1))
        };
        let pair = |spoil: fn(&mut AcceptedReceipt)| {
            let mut accepted = accepted(2);
            spoil(&mut accepted);
            [
                ReceiptPayload::Started(started(2)),
                ReceiptPayload::Accepted(accepted),
            ]
        };
        assert!(excuses(&long_ago, &pair(|_| {})));
        assert!(
            !excuses(&long_ago, &pair(|_| {})[..1]),
            "the reservation is long over"
        );
        assert!(!excuses(&long_ago, &pair(|_| {})[1..]), "no class is shown");
        let after = BusyRejection {
            at: NOW(3_704),
            ..long_ago
        };
        assert!(!excuses(&after, &pair(|_| {})), "the job must have ended");
        let other = |r: &mut AcceptedReceipt| r.job_uuid = AttemptId::from_uuid(Uuid::from_u128(3));
        assert!(!excuses(&long_ago, &pair(other)), "another attempt");
        let other = |r: &mut AcceptedReceipt| r.validator_hotkey = ValidatorKey(key(7));
        assert!(!excuses(&long_ago, &pair(other)), "another validator");
        let other = |r: &mut AcceptedReceipt| r.miner_hotkey = MinerKey(key(7));
        assert!(!excuses(&long_ago, &pair(other)), "another miner");
        let again = [pair(|_| {}), pair(|_| {})].concat();
        assert!(
            !excuses(
                &BusyRejection {
                    executors: Some(2),
                    ..long_ago
                },
                &again
            ),
            "the same twice"
        );
    }
}
