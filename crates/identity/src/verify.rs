//! Checking signatures.

use std::fmt;

use muster_protocol::receipt::ReceiptError;
use muster_protocol::{ErrorCode, Hotkey, Signature, Timestamp};
use sp_core::Pair as _;
use sp_core::sr25519;

/// Browser wallets put these around what they sign, so that no page can make them sign a transaction.
const WRAP: (&[u8], &[u8]) = (b"<Bytes>", b"</Bytes>");

/// Whether `signature` is `key`'s over `message`, or over `<Bytes>` message `</Bytes>`.
///
/// Bytes that are no point of the curve, or no signature, are simply not a signature.
pub fn verify(key: &Hotkey, message: &[u8], signature: &Signature) -> bool {
    let public = sr25519::Public::from_raw(*key.as_bytes());
    let signature = sr25519::Signature::from_raw(*signature.as_bytes());
    if sr25519::Pair::verify(&signature, message, &public) {
        return true;
    }
    let wrapped = [WRAP.0, message, WRAP.1].concat();
    sr25519::Pair::verify(&signature, wrapped, &public)
}

/// That `signature` is `key`'s over `message`.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Who is said to have signed.
    pub key: &'a Hotkey,
    /// What.
    pub message: &'a [u8],
    /// The signature.
    pub signature: &'a Signature,
}

/// Checks many claims; the answers are in their order.
///
/// One after the other: sp-core hands out no batch equation for sr25519, and a batch that fails would not say which of
/// its claims is false. What this buys is one call to replace when that changes.
pub fn verify_batch(claims: &[Claim<'_>]) -> Vec<bool> {
    let check = |claim: &Claim<'_>| verify(claim.key, claim.message, claim.signature);
    claims.iter().map(check).collect()
}

/// Whose signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The validator's.
    Validator,
    /// The miner's.
    Miner,
    /// The user's.
    User,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Validator => "validator",
            Self::Miner => "miner",
            Self::User => "user",
        })
    }
}

/// Why something signed was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The signature is not that key's over these bytes.
    #[error("the {party}'s signature does not match: {key} did not sign exactly this")]
    Signature {
        /// In which role.
        party: Party,
        /// Who was to have signed.
        key: Hotkey,
    },
    /// Written later than now.
    #[error(
        "a receipt of {written} lies more than an hour in the future; the clock of who wrote it is wrong"
    )]
    Future {
        /// What it says.
        written: Timestamp,
    },
    /// Outside the limits that both implementations share.
    #[error("a receipt outside its limits: {0}")]
    Limits(#[from] ReceiptError),
    /// A signature that covers something else than is needed.
    #[error("the signature of a job must have the scope SignedFields")]
    Scope,
    /// Something that must be signed is absent, or is not signed.
    #[error("a part that must be signed, or its signature, is missing")]
    Missing,
    /// A public key that is not 64 hex digits.
    #[error("a public key is 64 hex digits without 0x")]
    PublicKey,
}

impl VerifyError {
    /// Its page in `docs/errors/`.
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::SignatureRefused
    }
}

/// Refuses unless `key` signed `message`.
pub(crate) fn require(
    party: Party,
    key: Hotkey,
    message: &[u8],
    signature: &Signature,
) -> Result<(), VerifyError> {
    if verify(&key, message, signature) {
        Ok(())
    } else {
        Err(VerifyError::Signature { party, key })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Keypair;

    #[test]
    fn a_wallets_wrapping_is_accepted_once() {
        let pair = Keypair::from_seed([1; 32]);
        let key = pair.hotkey();
        assert!(verify(&key, b"msg", &pair.sign(b"<Bytes>msg</Bytes>")));
        assert!(verify(
            &key,
            b"<Bytes>msg</Bytes>",
            &pair.sign(b"<Bytes>msg</Bytes>")
        ));
        assert!(!verify(&key, b"<Bytes>msg</Bytes>", &pair.sign(b"msg")));
        assert!(!verify(&key, b"msg", &pair.sign(b"<Bytes>msg")));
    }

    #[test]
    fn bytes_that_are_no_key_or_no_signature_verify_nothing() {
        let pair = Keypair::from_seed([1; 32]);
        let no_point = Hotkey::from_bytes([0xff; 32]);
        assert!(!verify(&no_point, b"msg", &pair.sign(b"msg")));
        for byte in [0, 0x7f, 0xff] {
            assert!(!verify(
                &pair.hotkey(),
                b"msg",
                &Signature::from_bytes([byte; 64])
            ));
        }
    }

    #[test]
    fn a_batch_says_which_claim_is_false() {
        let pairs: Vec<Keypair> = (0..4).map(|n| Keypair::from_seed([n; 32])).collect();
        let keys: Vec<Hotkey> = pairs.iter().map(Keypair::hotkey).collect();
        let mut signatures: Vec<Signature> = pairs.iter().map(|pair| pair.sign(b"msg")).collect();
        signatures[2] = pairs[1].sign(b"msg");
        let claims: Vec<Claim<'_>> = keys
            .iter()
            .zip(&signatures)
            .map(|(key, signature)| Claim {
                key,
                message: b"msg",
                signature,
            })
            .collect();
        assert_eq!(verify_batch(&claims), [true, true, false, true]);
        assert_eq!(verify_batch(&[]), Vec::<bool>::new());
    }

    proptest! {
        #[test]
        fn what_is_signed_verifies_and_any_flipped_bit_does_not(
            seed: [u8; 32], message in proptest::collection::vec(any::<u8>(), 1..64), bit: usize,
        ) {
            let pair = Keypair::from_seed(seed);
            let signature = pair.sign(&message);
            prop_assert!(verify(&pair.hotkey(), &message, &signature));

            let mut other = message.clone();
            let at = bit % (message.len() * 8);
            other[at / 8] ^= 1 << (at % 8);
            prop_assert!(!verify(&pair.hotkey(), &other, &signature));

            let mut bytes = *signature.as_bytes();
            bytes[bit % 512 / 8] ^= 1 << (bit % 8);
            prop_assert!(!verify(&pair.hotkey(), &message, &Signature::from_bytes(bytes)));
        }
    }
}
