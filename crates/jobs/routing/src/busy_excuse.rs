//! Whether a miner that declines a job as busy has shown that it is.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_protocol::receipt::StartedReceipt;
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, Timestamp, ValidatorKey};

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
/// `counts` selects the validators whose receipts are evidence; otherwise a miner could write its own excuses. A miner
/// without a known manifest is believed.
pub fn is_excused<'a>(
    rejection: &BusyRejection,
    receipts: impl IntoIterator<Item = &'a StartedReceipt>,
    counts: impl Fn(ValidatorKey) -> bool,
) -> bool {
    let Some(executors) = rejection.executors else {
        return true;
    };
    let holds = |receipt: &&StartedReceipt| {
        let until = receipt
            .timestamp
            .plus(Duration::from_secs(receipt.ttl))
            .plus(LEEWAY);
        receipt.miner_hotkey == rejection.miner
            && receipt.executor_class == rejection.class
            && receipt.job_uuid != rejection.attempt
            && receipt.timestamp < rejection.at
            && rejection.at < until
            && counts(receipt.validator_hotkey)
    };
    let at_work: BTreeSet<_> = receipts
        .into_iter()
        .filter(holds)
        .map(|receipt| receipt.job_uuid)
        .collect();
    u32::try_from(at_work.len()).unwrap_or(u32::MAX) >= executors
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use muster_protocol::receipt::StartedTag;
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

    fn rejection(executors: Option<u32>) -> BusyRejection {
        BusyRejection {
            miner: MinerKey(key(1)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(1)),
            class: CLASS,
            at: NOW(105),
            executors,
        }
    }

    #[test]
    fn as_many_receipts_as_executors_excuse() {
        let receipts = [started(2), started(3)];
        let all = |_| true;
        assert!(is_excused(&rejection(Some(2)), &receipts, all));
        assert!(!is_excused(&rejection(Some(3)), &receipts, all));
        assert!(is_excused(&rejection(Some(0)), &[], all), "it has none");
        assert!(
            is_excused(&rejection(None), &[], all),
            "its manifest is not known"
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
        let counts = |validator| validator == ValidatorKey(key(2));
        for (what, spoil) in spoilt {
            let mut receipt = started(2);
            spoil(&mut receipt);
            assert!(!is_excused(&rejection(Some(1)), &[receipt], counts), "{what}");
        }
        assert!(is_excused(&rejection(Some(1)), &[started(2)], counts));
        assert!(
            !is_excused(&rejection(Some(2)), &[started(2), started(2)], counts),
            "the same twice"
        );
    }
}
