//! Receipts: offered by a validator, countersigned by a miner, checked by anybody.

use std::time::Duration;

use muster_protocol::receipt::{OfferedReceipt, Receipt};
use muster_protocol::{ReceiptPayload, Timestamp};

use crate::key::Keypair;
use crate::signed::Verified;
use crate::verify::{Party, VerifyError, require};

/// How far ahead of ours the clock of who wrote a receipt may be.
const MAX_AHEAD: Duration = Duration::from_secs(3600);

/// Signs a receipt as its validator, for the miner to countersign.
///
/// # Errors
/// The payload names another validator: such a receipt would be worth nothing.
pub fn offer_receipt(
    validator: &Keypair,
    payload: ReceiptPayload,
) -> Result<Verified<OfferedReceipt>, VerifyError> {
    let key = payload.validator().0;
    if key != validator.hotkey() {
        return Err(VerifyError::Signature {
            party: Party::Validator,
            key,
        });
    }
    let validator_signature = validator.sign(&payload.signed_bytes());
    Ok(Verified::new(OfferedReceipt {
        payload,
        validator_signature,
    }))
}

/// Signs an offered receipt as its miner, which makes it whole.
///
/// # Errors
/// The payload names another miner.
pub fn countersign(
    miner: &Keypair,
    offered: Verified<OfferedReceipt>,
) -> Result<Verified<Receipt>, VerifyError> {
    let key = offered.payload.miner().0;
    if key != miner.hotkey() {
        return Err(VerifyError::Signature {
            party: Party::Miner,
            key,
        });
    }
    let signature = miner.sign(&offered.payload.signed_bytes());
    Ok(Verified::new(offered.into_inner().countersigned(signature)))
}

/// Checks the validator's half of a receipt, its limits, and that it is not from the future.
///
/// # Errors
/// What is wrong, in words for the peer.
pub fn verify_offered(
    offered: OfferedReceipt,
    now: Timestamp,
) -> Result<Verified<OfferedReceipt>, VerifyError> {
    check_content(&offered.payload, now)?;
    let message = offered.payload.signed_bytes();
    let validator = offered.payload.validator().0;
    require(
        Party::Validator,
        validator,
        &message,
        &offered.validator_signature,
    )?;
    Ok(Verified::new(offered))
}

/// Checks both signatures of a receipt, its limits, and that it is not from the future.
///
/// # Errors
/// What is wrong, in words for whoever served it.
pub fn verify_receipt(receipt: Receipt, now: Timestamp) -> Result<Verified<Receipt>, VerifyError> {
    check_content(&receipt.payload, now)?;
    let message = receipt.payload.signed_bytes();
    let validator = receipt.payload.validator().0;
    require(
        Party::Validator,
        validator,
        &message,
        &receipt.validator_signature,
    )?;
    let miner = receipt.payload.miner().0;
    require(Party::Miner, miner, &message, &receipt.miner_signature)?;
    Ok(Verified::new(receipt))
}

/// Checks what a miner hands back for a receipt that we offered: whole, and about exactly what we signed.
///
/// # Errors
/// Another content than was offered, or a wrong signature.
pub fn verify_countersigned(
    receipt: Receipt,
    offered: &OfferedReceipt,
    now: Timestamp,
) -> Result<Verified<Receipt>, VerifyError> {
    if receipt.payload != offered.payload {
        let key = receipt.payload.validator().0;
        return Err(VerifyError::Signature {
            party: Party::Validator,
            key,
        });
    }
    verify_receipt(receipt, now)
}

fn check_content(payload: &ReceiptPayload, now: Timestamp) -> Result<(), VerifyError> {
    payload.check()?;
    let written = payload.timestamp();
    if written > now.plus(MAX_AHEAD) {
        return Err(VerifyError::Future { written });
    }
    Ok(())
}
