//! What Muster adds to ComputeHorde's wire. Sent only to peers that showed the header `Muster-Protocol`.

use serde::{Deserialize, Serialize};

use crate::ids::AttemptId;
use crate::receipt::Receipt;

/// `MusterReceiptCountersigned`, miner to validator: a receipt the miner has signed and stored.
///
/// ComputeHorde's validators learn of the miner's half only by reading its receipt pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptCountersigned {
    /// With both signatures.
    pub receipt: Receipt,
}

/// `MusterCancelJob`, validator to miner and miner to executor: stop the attempt and free its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelJob {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// In words.
    pub reason: String,
}

/// The key `muster` inside the metadata of a status update, which ComputeHorde's models let pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusExtension {
    /// The attempt that brought the job this far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// Receipts of that attempt with both signatures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipts: Vec<Receipt>,
}
