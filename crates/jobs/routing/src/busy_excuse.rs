//! Whether a miner that declines a job as busy has shown that it is.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::receipt::{AcceptedReceipt, AttemptAtWork, StartedReceipt};
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, ReceiptPayload, Timestamp, ValidatorKey};

/// How long after its expiry a receipt still excuses, for clocks that differ.
const LEEWAY: Duration = Duration::from_secs(2);

/// A miner's rejection of an offer because it is busy.
#[derive(Clone, Copy, Debug)]
pub struct BusyRejection {
    /// The miner that rejects.
    pub miner: MinerKey,
    /// The validator that made the offer.
    pub validator: ValidatorKey,
    /// The attempt that was offered.
    pub attempt: AttemptId,
    /// The class of executor that was asked for.
    pub class: ExecutorClass,
    /// The time of the rejection.
    pub at: Timestamp,
    /// Executors of the class by the miner's last manifest; `None` if no manifest is known.
    pub executors: Option<u32>,
}

/// The result of weighing a rejection's receipts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusyEvidence {
    /// They do not show every executor of the class at work.
    Lacking,
    /// The miner is believed, because its number of executors is not known.
    Believed,
    /// They show every executor of the class at work. The list holds the attempts, sorted, without the offering
    /// validator's own leases for grading: those are no excuse towards itself.
    AtWork(Vec<AttemptAtWork>),
}

impl BusyEvidence {
    /// Whether the rejection leaves no mark on the miner's record.
    pub const fn is_excuse(&self) -> bool {
        match self {
            Self::Lacking => false,
            Self::Believed | Self::AtWork(_) => true,
        }
    }
}

/// Weighs `receipts`, whose signatures have been checked, as evidence about the executors of the class.
///
/// A started receipt shows it while the executor is reserved, for some seconds. The accepted receipt of the same
/// attempt, written by the same validator, shows it until the job must have ended; ComputeHorde's miners do not show
/// it. `counts` selects the validators whose receipts are evidence; otherwise a miner could write its own excuses. A
/// miner without a known manifest is believed.
pub fn weigh_excuse<'a>(
    rejection: &BusyRejection,
    receipts: impl IntoIterator<Item = &'a ReceiptPayload>,
    counts: impl Fn(ValidatorKey) -> bool,
) -> BusyEvidence {
    let Some(executors) = rejection.executors else {
        return BusyEvidence::Believed;
    };
    let mut at_work = BTreeMap::<AttemptId, (bool, AttemptAtWork)>::new();
    for (receipt, until) in shown_work(rejection.miner, rejection.at, receipts) {
        let is_such_work = receipt.executor_class == rejection.class
            && receipt.job_uuid != rejection.attempt
            && counts(receipt.validator_hotkey);
        if is_such_work {
            let shown = AttemptAtWork {
                attempt: receipt.job_uuid,
                shown_at: rejection.at,
                until,
                is_organic: receipt.is_organic,
            };
            let is_excuse = receipt.is_organic || receipt.validator_hotkey != rejection.validator;
            at_work.entry(receipt.job_uuid).or_insert((is_excuse, shown));
        }
    }
    if u32::try_from(at_work.len()).unwrap_or(u32::MAX) < executors {
        return BusyEvidence::Lacking;
    }
    let excuses = at_work.into_values().filter(|(is_excuse, _)| *is_excuse);
    BusyEvidence::AtWork(excuses.map(|(_, shown)| shown).collect())
}

/// The started receipts of a miner whose attempts are under way at a time, by themselves or by the accepted receipt of
/// the same attempt and validator, each with the time by which the attempt must have ended. The same attempt may be
/// listed twice.
pub(crate) fn shown_work<'a>(
    miner: MinerKey,
    at: Timestamp,
    receipts: impl IntoIterator<Item = &'a ReceiptPayload>,
) -> Vec<(&'a StartedReceipt, Timestamp)> {
    let (mut started, mut accepted) = (Vec::new(), BTreeMap::<_, Vec<&AcceptedReceipt>>::new());
    for receipt in receipts {
        match receipt {
            ReceiptPayload::Started(receipt) if receipt.miner_hotkey == miner => started.push(receipt),
            ReceiptPayload::Accepted(receipt) if receipt.miner_hotkey == miner => {
                let of_attempt = (receipt.job_uuid, receipt.validator_hotkey);
                accepted.entry(of_attempt).or_default().push(receipt);
            }
            ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_) => {}
        }
    }
    // The time at which a receipt expires, if it is valid at that time.
    let expiry = |written: Timestamp, ttl: u64| {
        let until = written.plus(Duration::from_secs(ttl));
        (written < at && at < until.plus(LEEWAY)).then_some(until)
    };
    let until = |receipt: &StartedReceipt| {
        let of_attempt = (receipt.job_uuid, receipt.validator_hotkey);
        let accepted = accepted.get(&of_attempt).into_iter().flatten();
        let accepted = accepted.filter_map(|accepted| expiry(accepted.timestamp, accepted.ttl));
        let own = expiry(receipt.timestamp, receipt.ttl);
        own.into_iter().chain(accepted).max()
    };
    started
        .into_iter()
        .filter_map(|receipt| Some((receipt, until(receipt)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use muster_protocol::receipt::{AcceptedTag, StartedTag};
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
            validator: ValidatorKey(key(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(1)),
            class: CLASS,
            at: NOW(105),
            executors,
        }
    }

    fn excuses(rejection: &BusyRejection, receipts: &[ReceiptPayload]) -> bool {
        weigh_excuse(rejection, receipts, |validator| validator == ValidatorKey(key(2))).is_excuse()
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
    fn the_validators_own_leases_for_grading_are_no_excuse_towards_it() {
        let grading = |attempt, validator| StartedReceipt {
            is_organic: false,
            validator_hotkey: ValidatorKey(key(validator)),
            ..started(attempt)
        };
        let receipts = [grading(2, 2), grading(3, 3), started(4)].map(ReceiptPayload::Started);
        let BusyEvidence::AtWork(shown) = weigh_excuse(&rejection(Some(3)), &receipts, |_| true) else {
            panic!("three executors are at work")
        };
        let shown: Vec<_> = shown
            .iter()
            .map(|work| (work.attempt.as_uuid().as_u128(), work.is_organic))
            .collect();
        assert_eq!(shown, [(3, false), (4, true)]);
        let until = |receipts: &[ReceiptPayload]| match weigh_excuse(&rejection(Some(1)), receipts, |_| true)
        {
            BusyEvidence::AtWork(shown) => shown.first().map(|work| (work.shown_at, work.until)),
            BusyEvidence::Lacking | BusyEvidence::Believed => None,
        };
        let pair = [
            ReceiptPayload::Started(started(2)),
            ReceiptPayload::Accepted(accepted(2)),
        ];
        assert_eq!(until(&pair[..1]), Some((NOW(105), NOW(110))));
        assert_eq!(
            until(&pair),
            Some((NOW(105), NOW(3_701))),
            "the accepted receipt covers the whole job"
        );
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
