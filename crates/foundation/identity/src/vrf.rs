//! Verifiable random outputs: bytes that only one key can compute for an input, and that everybody can check.
//!
//! The function is sr25519's own (schnorrkel's VRF, as `sp_core` calls it). A key has exactly one output for an input,
//! so its owner cannot choose among several.

use std::fmt;
use std::str::FromStr;

use muster_protocol::Hotkey;
use schnorrkel::vrf;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sp_core::crypto::{VrfPublic as _, VrfSecret as _};
use sp_core::sr25519;
use sp_core::sr25519::vrf::{VrfPreOutput, VrfProof, VrfSignature, VrfTranscript};

use crate::Keypair;

/// The label of all transcripts of ours.
const LABEL: &[u8] = b"muster/vrf/1";

/// The input of the function: a domain, which keeps the uses of one key apart, and the bytes of one use.
#[derive(Clone, Copy, Debug)]
pub struct VrfInput<'a> {
    /// The purpose and its version, such as `muster/audit-draw/1`.
    pub domain: &'static str,
    /// The bytes for which an output is wanted.
    pub message: &'a [u8],
}

impl VrfInput<'_> {
    fn transcript(&self) -> VrfTranscript {
        let parts: [(&'static [u8], &[u8]); 2] =
            [(b"domain", self.domain.as_bytes()), (b"message", self.message)];
        VrfTranscript::new(LABEL, &parts)
    }
}

/// The text is no proof of an output; it is 192 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a proof of a random output is 96 bytes, written as 192 lower-case hex digits")]
pub struct VrfTextError;

/// An output that was computed elsewhere: 32 bytes of the output's point and 64 of the proof, not yet checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProvenOutput([u8; 96]);

impl ProvenOutput {
    /// Wraps the bytes as they were sent.
    pub const fn from_bytes(bytes: [u8; 96]) -> Self {
        Self(bytes)
    }

    /// The bytes as they are sent.
    pub const fn as_bytes(&self) -> &[u8; 96] {
        &self.0
    }

    /// The 32 bytes that `key` has for `input`; `None` if the proof is of another key, of another input, or altered.
    pub fn check(&self, key: &Hotkey, input: &VrfInput<'_>) -> Option<[u8; 32]> {
        let signature = self.signature()?;
        let public = sr25519::Public::from_raw(*key.as_bytes());
        let transcript = input.transcript();
        if !public.vrf_verify(&transcript.clone().into_sign_data(), &signature) {
            return None;
        }
        let context = input.domain.as_bytes();
        public
            .make_bytes(context, &transcript, &signature.pre_output)
            .ok()
    }

    fn signature(&self) -> Option<VrfSignature> {
        let (point, proof) = self.0.split_at_checked(32)?;
        Some(VrfSignature {
            pre_output: VrfPreOutput(vrf::VRFPreOut::from_bytes(point).ok()?),
            proof: VrfProof(vrf::VRFProof::from_bytes(proof).ok()?),
        })
    }
}

impl fmt::Display for ProvenOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ProvenOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ProvenOutput {
    type Err = VrfTextError;

    fn from_str(text: &str) -> Result<Self, VrfTextError> {
        let mut bytes = [0; 96];
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(VrfTextError);
        }
        hex::decode_to_slice(text, &mut bytes).map_err(|_| VrfTextError)?;
        Ok(Self(bytes))
    }
}

impl Serialize for ProvenOutput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProvenOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Keypair {
    /// The 32 bytes that this key has for `input`, and the proof with which others check them.
    pub fn prove_output(&self, input: &VrfInput<'_>) -> ([u8; 32], ProvenOutput) {
        let transcript = input.transcript();
        let signature = self.pair().vrf_sign(&transcript.clone().into_sign_data());
        let mut bytes = [0; 96];
        let (point, proof) = bytes.split_at_mut(32);
        point.copy_from_slice(signature.pre_output.0.as_bytes());
        proof.copy_from_slice(&signature.proof.0.to_bytes());
        let output = self.pair().make_bytes(input.domain.as_bytes(), &transcript);
        (output, ProvenOutput(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DOMAIN: &str = "muster/test/1";

    fn input(message: &[u8]) -> VrfInput<'_> {
        VrfInput {
            domain: DOMAIN,
            message,
        }
    }

    #[test]
    fn an_output_is_unique_for_its_key_and_input() {
        let pair = Keypair::from_seed([1; 32]);
        let (first, proof) = pair.prove_output(&input(b"block"));
        let (second, other_proof) = pair.prove_output(&input(b"block"));
        assert_eq!(first, second);
        assert_ne!(
            proof, other_proof,
            "a proof holds randomness, the output does not"
        );
        assert_eq!(other_proof.check(&pair.hotkey(), &input(b"block")), Some(first));
        // The output of this seed must never change: draws of earlier releases are replayed.
        let golden = "383abad4a027df5edcdd457c0df57330";
        assert_eq!(hex::encode(&first[..16]), golden);
    }

    #[test]
    fn another_key_another_input_and_another_domain_are_refused() {
        let (pair, other) = (Keypair::from_seed([1; 32]), Keypair::from_seed([2; 32]));
        let (output, proof) = pair.prove_output(&input(b"block"));
        assert_eq!(proof.check(&pair.hotkey(), &input(b"block")), Some(output));
        assert_eq!(proof.check(&other.hotkey(), &input(b"block")), None);
        assert_eq!(proof.check(&pair.hotkey(), &input(b"another block")), None);
        let domain = VrfInput {
            domain: "muster/test/2",
            message: b"block",
        };
        assert_eq!(proof.check(&pair.hotkey(), &domain), None);
        assert_eq!(proof.to_string().parse(), Ok(proof));
        assert_eq!("00".parse::<ProvenOutput>(), Err(VrfTextError));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_changed_bit_is_refused(at in 0_usize..96, bit in 0_u8..8) {
            let pair = Keypair::from_seed([3; 32]);
            let (_, proof) = pair.prove_output(&input(b"block"));
            let mut bytes = *proof.as_bytes();
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(ProvenOutput::from_bytes(bytes).check(&pair.hotkey(), &input(b"block")), None);
        }
    }
}
