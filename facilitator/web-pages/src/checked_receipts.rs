//! The receipts of a job's end, each with the check of its signatures.

use muster_identity::verify_receipt;
use muster_protocol::rest::JobView;
use muster_protocol::{Receipt, Timestamp};

/// A receipt, with the result of checking both of its signatures.
#[derive(Clone, Debug)]
pub struct CheckedReceipt {
    /// The receipt as it came with the job's end.
    pub receipt: Receipt,
    /// Whether the validator and the miner that it names have signed it.
    pub is_valid: bool,
}

/// The receipts that came with the job's end, each with the check of both signatures.
pub fn check_receipts(view: &JobView, now: Timestamp) -> Vec<CheckedReceipt> {
    let last = view
        .status_history
        .last()
        .and_then(|entry| entry.metadata.as_ref());
    let extension = last.and_then(|metadata| metadata.muster.as_ref());
    let receipts: &[Receipt] = extension
        .map(|found| found.receipts.as_slice())
        .unwrap_or_default();
    let check = |receipt: &Receipt| CheckedReceipt {
        is_valid: verify_receipt(receipt.clone(), now).is_ok(),
        receipt: receipt.clone(),
    };
    receipts.iter().map(check).collect()
}

/// Receipts of tests.
#[cfg(test)]
pub(crate) mod fixtures {
    use muster_protocol::{Receipt, Signature};

    use super::CheckedReceipt;

    /// The attempt of every receipt.
    pub(crate) const ATTEMPT: &str = "11111111-2222-4333-8444-555555555555";
    /// The miner of every receipt.
    pub(crate) const MINER: &str = "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy";

    /// A finished receipt with this score, in seconds.
    pub(crate) fn checked(score: &str, is_valid: bool) -> CheckedReceipt {
        let receipt = serde_json::json!({
            "payload": {
                "job_uuid": ATTEMPT, "miner_hotkey": MINER, "validator_hotkey": MINER, "timestamp": "2026-01-21T12:34:56Z",
                "receipt_type": "JobFinishedReceipt", "time_started": "2026-01-21T12:34:50Z", "time_took_us": 5_000_000,
                "score_str": score, "block_numbers": [],
            },
            "validator_signature": Signature::from_bytes([0; 64]), "miner_signature": Signature::from_bytes([0; 64]),
        });
        CheckedReceipt {
            receipt: serde_json::from_value::<Receipt>(receipt).unwrap(),
            is_valid,
        }
    }
}
