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
