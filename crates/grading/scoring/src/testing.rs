//! Receipts for this crate's own tests.

use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, Timestamp, ValidatorKey};
use uuid::Uuid;

use crate::PaidReceipt;

/// A finished receipt over ten seconds that names these blocks.
pub(crate) fn paid(validator: ValidatorKey, miner: MinerKey, class: ExecutorClass, blocks: Vec<u64>) -> PaidReceipt {
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(7)),
            miner_hotkey: miner,
            validator_hotkey: validator,
            timestamp: Timestamp::from_secs(1_010),
            receipt_type: FinishedTag,
            time_started: Timestamp::from_secs(1_000),
            time_took_us: 10_000_000,
            score_str: "10.000000".to_owned(),
            block_numbers: blocks,
        },
        class: Some(class),
    }
}
