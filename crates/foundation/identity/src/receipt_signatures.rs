//! Receipts: offered by a validator, countersigned by a miner, checked by any party.

use muster_protocol::receipt::{MAX_AHEAD, OfferedReceipt, Receipt};
use muster_protocol::{ReceiptPayload, Signature, Timestamp};

use crate::key::Keypair;
use crate::signing_message::SigningMessage;
use crate::verified::Verified;
use crate::verify::{Party, SignatureClaim, VerifyError, require, verify_batch};

/// Signs the payload of a receipt. [`offer_receipt`] and [`countersign`] also check that it names the signer.
pub fn sign_receipt(party: &Keypair, payload: &ReceiptPayload) -> Signature {
    party.sign(&SigningMessage::built(payload.signed_bytes()))
}

/// Signs a receipt as its validator, for the miner to countersign.
///
/// # Errors
/// The payload names another validator, so the receipt would be worthless.
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
    let validator_signature = sign_receipt(validator, &payload);
    Ok(Verified::new(OfferedReceipt {
        payload,
        validator_signature,
    }))
}

/// Signs an offered receipt as its miner, which completes it.
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
    let signature = sign_receipt(miner, &offered.payload);
    Ok(Verified::new(
        offered.into_inner().with_countersignature(signature),
    ))
}

/// Checks the validator's half of a receipt, its limits, and that it is not from the future.
///
/// # Errors
/// The fault of the receipt, as a text for the peer.
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
/// The fault of the receipt, as a text for the peer that served it.
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

/// Checks many receipts as [`verify_receipt`] checks one, in one batch. The results are in the order of the receipts.
pub fn verify_receipts(
    receipts: Vec<Receipt>,
    now: Timestamp,
) -> Vec<Result<Verified<Receipt>, VerifyError>> {
    let contents: Vec<_> = receipts
        .iter()
        .map(|receipt| check_content(&receipt.payload, now))
        .collect();
    let parties: Vec<_> = receipts
        .iter()
        .map(|receipt| (receipt.payload.validator().0, receipt.payload.miner().0))
        .collect();
    let messages: Vec<_> = receipts
        .iter()
        .map(|receipt| receipt.payload.signed_bytes())
        .collect();
    let signed_receipts = receipts.iter().zip(&parties).zip(&messages);
    let claims: Vec<_> = signed_receipts
        .flat_map(|((receipt, (validator, miner)), message)| {
            [
                (validator, &receipt.validator_signature),
                (miner, &receipt.miner_signature),
            ]
            .map(|(key, signature)| SignatureClaim {
                key,
                message,
                signature,
            })
        })
        .collect();
    let mut answers = verify_batch(&claims).into_iter();
    let mut holds = || answers.next().unwrap_or(false);
    let judged = receipts.into_iter().zip(contents).zip(parties);
    judged
        .map(|((receipt, content), (validator, miner))| {
            let (by_validator, by_miner) = (holds(), holds());
            content?;
            let wrong = |party, key| VerifyError::Signature { party, key };
            if !by_validator {
                return Err(wrong(Party::Validator, validator));
            }
            if !by_miner {
                return Err(wrong(Party::Miner, miner));
            }
            Ok(Verified::new(receipt))
        })
        .collect()
}

/// Checks a receipt that a miner hands back for an offered one: complete, and with exactly the content that was
/// offered.
///
/// # Errors
/// The content differs from the offered one, or a signature is wrong.
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

#[cfg(test)]
mod tests {
    use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
    use muster_protocol::{AttemptId, MinerKey, Signature, ValidatorKey};

    use super::*;

    fn receipt(attempt: u32) -> Receipt {
        let (validator, miner) = (Keypair::from_seed([1; 32]), Keypair::from_seed([2; 32]));
        let now = Timestamp::from_secs(1_769_000_000);
        let id = format!("11111111-2222-4333-8444-{attempt:012}");
        let payload = ReceiptPayload::Finished(FinishedReceipt {
            job_uuid: id.parse::<AttemptId>().unwrap(),
            miner_hotkey: MinerKey(miner.hotkey()),
            validator_hotkey: ValidatorKey(validator.hotkey()),
            timestamp: now,
            receipt_type: FinishedTag,
            time_started: now,
            time_took_us: 1,
            score_str: "1.000000".to_owned(),
            block_numbers: vec![],
        });
        let offered = offer_receipt(&validator, payload).unwrap();
        countersign(&miner, offered).unwrap().into_inner()
    }

    #[test]
    fn a_batch_of_receipts_is_judged_as_each_would_be_alone() {
        let mut receipts: Vec<_> = (0..20).map(receipt).collect();
        receipts[3].miner_signature = receipts[4].miner_signature;
        receipts[5].validator_signature = Signature::from_bytes([7; 64]);
        if let ReceiptPayload::Finished(finished) = &mut receipts[6].payload {
            finished.score_str = "9.000000".to_owned();
        }
        if let ReceiptPayload::Finished(finished) = &mut receipts[7].payload {
            finished.score_str = "much".to_owned();
        }
        for now in [1_769_000_000, 1_768_990_000] {
            let now = Timestamp::from_secs(now);
            let alone: Vec<_> = receipts
                .iter()
                .map(|receipt| verify_receipt(receipt.clone(), now))
                .collect();
            assert_eq!(verify_receipts(receipts.clone(), now), alone);
        }
        assert_eq!(verify_receipts(vec![], Timestamp::from_secs(0)), []);
    }
}
