//! Checks of sr25519 signatures, one by one and in batches.

use std::fmt;

use muster_protocol::receipt::ReceiptError;
use muster_protocol::{ErrorCode, Hotkey, Signature, Timestamp};
use sp_core::Pair as _;
use sp_core::sr25519;

use crate::signing_message::WRAP;

/// Whether `signature` is `key`'s over `message`, or over `<Bytes>` message `</Bytes>`.
///
/// Bytes that are not a point of the curve or not a signature give `false`.
pub fn verify(key: &Hotkey, message: &[u8], signature: &Signature) -> bool {
    let public = sr25519::Public::from_raw(*key.as_bytes());
    let signature = sr25519::Signature::from_raw(*signature.as_bytes());
    if sr25519::Pair::verify(&signature, message, &public) {
        return true;
    }
    let wrapped = [WRAP.0, message, WRAP.1].concat();
    sr25519::Pair::verify(&signature, wrapped, &public)
}

/// The claim that `signature` is `key`'s over `message`.
#[derive(Debug, Clone, Copy)]
pub struct SignatureClaim<'a> {
    /// The key that is claimed to have signed.
    pub key: &'a Hotkey,
    /// The bytes that are claimed to be signed.
    pub message: &'a [u8],
    /// The signature to check.
    pub signature: &'a Signature,
}

/// Checks many claims. The result has one entry per claim, in their order.
///
/// One equation covers all claims, which costs about half of checking each by itself (`cargo xtask bench signatures`).
/// It holds only if every claim does, so a batch that fails is halved until the false claims are alone. A peer that
/// sends only false claims costs at most twice the work of checking each claim by itself: fewer than `WORTH_A_BATCH`
/// claims are checked one by one.
pub fn verify_batch(claims: &[SignatureClaim<'_>]) -> Vec<bool> {
    if claims.len() < WORTH_A_BATCH {
        let check = |claim: &SignatureClaim<'_>| verify(claim.key, claim.message, claim.signature);
        return claims.iter().map(check).collect();
    }
    if all_hold(claims) {
        return vec![true; claims.len()];
    }
    let (left, right) = claims.split_at(claims.len() / 2);
    let mut answers = verify_batch(left);
    answers.extend(verify_batch(right));
    answers
}

/// Number of claims below which the batch equation saves less than its own set-up costs.
const WORTH_A_BATCH: usize = 8;

/// Substrate's signing context. sp-core has the same constant but does not export it.
const CONTEXT: &[u8] = b"substrate";

/// Whether every claim holds as it is, without a wallet's wrapping.
fn all_hold(claims: &[SignatureClaim<'_>]) -> bool {
    let context = schnorrkel::signing_context(CONTEXT);
    let mut keys = Vec::with_capacity(claims.len());
    let mut signatures = Vec::with_capacity(claims.len());
    for claim in claims {
        let key = schnorrkel::PublicKey::from_bytes(claim.key.as_bytes());
        let signature = schnorrkel::Signature::from_bytes(claim.signature.as_bytes());
        let (Ok(key), Ok(signature)) = (key, signature) else {
            return false;
        };
        keys.push(key);
        signatures.push(signature);
    }
    let messages = claims.iter().map(|claim| context.bytes(claim.message));
    schnorrkel::verify_batch(messages, &signatures, &keys, true).is_ok()
}

/// The role of a signer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The validator signs.
    Validator,
    /// The miner signs.
    Miner,
    /// The user signs.
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

/// The reason why something signed was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The signature is not that key's over these bytes.
    #[error("the {party}'s signature does not match: {key} did not sign exactly this")]
    Signature {
        /// The role of the claimed signer.
        party: Party,
        /// The key that is claimed to have signed.
        key: Hotkey,
    },
    /// The receipt's time lies too far in the future.
    #[error("a receipt of {written} lies more than an hour in the future; its writer's clock is wrong")]
    Future {
        /// The receipt's own timestamp.
        written: Timestamp,
    },
    /// A field lies outside the limits that both implementations share.
    #[error("a receipt outside its limits: {0}")]
    Limits(#[from] ReceiptError),
    /// The terms of a job are unsigned, or signed by another key or for another job.
    #[error("the terms' signature does not match: {key} did not sign these terms for this job")]
    Terms {
        /// The signatory of the job.
        key: Hotkey,
    },
    /// The signature covers another part of the request than is needed.
    #[error("the signature of a job must have the scope SignedFields")]
    Scope,
    /// A part that must be signed, or its signature, is missing.
    #[error("a part that must be signed, or its signature, is missing")]
    Missing,
    /// The public key is not 64 hex digits.
    #[error("a public key is 64 hex digits without 0x")]
    PublicKey,
}

impl VerifyError {
    /// The error's code, which has a page in `docs/errors/`.
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::SignatureRefused
    }
}

/// Checks that `key` signed `message`.
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
    use crate::{Keypair, SigningMessage};

    fn sign(pair: &Keypair, message: &[u8]) -> Signature {
        pair.sign(&SigningMessage::built(message))
    }

    #[test]
    fn a_wallets_wrapping_is_accepted_once() {
        let pair = Keypair::from_seed([1; 32]);
        let key = pair.hotkey();
        assert!(verify(&key, b"msg", &sign(&pair, b"<Bytes>msg</Bytes>")));
        assert!(verify(
            &key,
            b"<Bytes>msg</Bytes>",
            &sign(&pair, b"<Bytes>msg</Bytes>")
        ));
        assert!(!verify(&key, b"<Bytes>msg</Bytes>", &sign(&pair, b"msg")));
        assert!(!verify(&key, b"msg", &sign(&pair, b"<Bytes>msg")));
    }

    #[test]
    fn bytes_that_are_no_key_or_no_signature_verify_nothing() {
        let pair = Keypair::from_seed([1; 32]);
        let no_point = Hotkey::from_bytes([0xff; 32]);
        assert!(!verify(&no_point, b"msg", &sign(&pair, b"msg")));
        for byte in [0, 0x7f, 0xff] {
            assert!(!verify(
                &pair.hotkey(),
                b"msg",
                &Signature::from_bytes([byte; 64])
            ));
        }
    }

    /// A message with the signature that its key made or is claimed to have made.
    struct SignedText {
        key: Hotkey,
        message: Vec<u8>,
        signature: Signature,
    }

    fn text(seed: u8, message: &[u8], signed: &[u8]) -> SignedText {
        let pair = Keypair::from_seed([seed; 32]);
        SignedText {
            key: pair.hotkey(),
            message: message.to_vec(),
            signature: sign(&pair, signed),
        }
    }

    impl SignedText {
        fn claim(&self) -> SignatureClaim<'_> {
            let Self {
                key,
                message,
                signature,
            } = self;
            SignatureClaim {
                key,
                message,
                signature,
            }
        }
    }

    fn batch(texts: &[SignedText]) -> Vec<bool> {
        let claims: Vec<SignatureClaim<'_>> = texts.iter().map(SignedText::claim).collect();
        verify_batch(&claims)
    }

    #[test]
    fn a_batch_says_which_claims_are_false() {
        let mut texts: Vec<SignedText> = (0..40).map(|n| text(n % 5, &[n], &[n])).collect();
        assert_eq!(batch(&texts), [true; 40]);
        texts[3].signature = texts[4].signature;
        texts[22].key = Hotkey::from_bytes([0xff; 32]);
        texts[23].signature = Signature::from_bytes([0x7f; 64]);
        texts[39] = text(1, b"wrapped by a wallet", b"<Bytes>wrapped by a wallet</Bytes>");
        let answers = batch(&texts);
        let wrong: Vec<usize> = (0..40).filter(|n| !answers[*n]).collect();
        assert_eq!(wrong, [3, 22, 23]);
        assert_eq!(batch(&[]), Vec::<bool>::new());
    }

    #[test]
    fn two_false_claims_do_not_make_a_true_batch() {
        // With these two swapped, the sum over both would be right if the equation did not weigh each claim at random.
        let mut texts: Vec<SignedText> = (0..16).map(|n| text(7, &[n], &[n])).collect();
        let first = texts[0].signature;
        texts[0].signature = texts[1].signature;
        texts[1].signature = first;
        let answers = batch(&texts);
        assert_eq!(answers[..2], [false, false]);
        assert!(answers[2..].iter().all(|answer| *answer));
    }

    proptest! {
        // Each case signs and checks up to forty times.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_batch_answers_as_each_claim_would_alone(
            claims in proptest::collection::vec((0u8..4, 0u8..3, 0u8..3), 0..40),
        ) {
            let texts: Vec<SignedText> = claims.iter().map(|(seed, says, signed)| text(*seed, &[*says], &[*signed])).collect();
            let alone: Vec<bool> =
                texts.iter().map(|text| verify(&text.key, &text.message, &text.signature)).collect();
            prop_assert_eq!(batch(&texts), alone);
        }

        #[test]
        fn a_signed_message_verifies_and_any_flipped_bit_does_not(
            seed: [u8; 32], message in proptest::collection::vec(any::<u8>(), 1..64), bit: usize,
        ) {
            let pair = Keypair::from_seed(seed);
            let signature = sign(&pair, &message);
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
