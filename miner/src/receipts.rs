//! The miner's half of receipts: a validator's half is checked, then signed too.

use muster_identity::{Keypair, countersign, verify_offered};
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::wire::miner::InitialJobRequest;
use muster_protocol::{MinerKey, Receipt, ReceiptPayload, Timestamp, ValidatorKey};

use crate::admission::Flaw;

/// Signs as the miner what a validator has signed.
///
/// # Errors
/// In words for the validator: it names others than the two of us, lies outside the limits or in the future, or is not
/// signed by the validator.
pub fn complete(
    key: &Keypair,
    payload: OfferedReceipt,
    validator: ValidatorKey,
    now: Timestamp,
) -> Result<Receipt, String> {
    if payload.payload.validator() != validator {
        return Err(format!(
            "the receipt names validator {}, not {validator}",
            payload.payload.validator()
        ));
    }
    if payload.payload.miner() != MinerKey(key.hotkey()) {
        return Err(format!(
            "the receipt names miner {}, not {}",
            payload.payload.miner(),
            key.hotkey()
        ));
    }
    let verified = verify_offered(payload, now).map_err(|error| error.to_string())?;
    let receipt = countersign(key, verified).map_err(|error| error.to_string())?;
    Ok(receipt.into_inner())
}

/// The started receipt of an offer, completed.
///
/// ComputeHorde's miner at its head runs a job whose started receipt is forged and stores nothing; since 0.0.27 it
/// declines with `invalid_receipt`, and so do we: work without a receipt can neither be paid nor excuse anything.
///
/// # Errors
/// What does not hold.
pub fn started(
    key: &Keypair,
    offer: &InitialJobRequest,
    validator: ValidatorKey,
    now: Timestamp,
) -> Result<Receipt, Flaw> {
    let payload = &offer.job_started_receipt_payload;
    if payload.job_uuid != offer.job_uuid {
        return Err(Flaw::Receipt(
            "the started receipt is about another job".to_owned(),
        ));
    }
    if payload.executor_class != offer.executor_class {
        return Err(Flaw::Receipt(
            "the started receipt is for another executor class".to_owned(),
        ));
    }
    let offered = OfferedReceipt {
        payload: ReceiptPayload::Started(payload.clone()),
        validator_signature: offer.job_started_receipt_signature,
    };
    complete(key, offered, validator, now).map_err(Flaw::Receipt)
}
