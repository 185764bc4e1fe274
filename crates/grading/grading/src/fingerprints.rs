//! The fingerprints of proofs: the challenge, the committed roots, and any other challenge that a message named.
//! Comparing them shows which executors copied from which.

use std::collections::BTreeMap;

use muster_hardware_proof::Evidence;
use muster_hardware_proof::challenge_keys::ChallengeId;
use muster_hardware_proof::challenge_message::{HEAD, MessageFrame};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The fingerprint of one proof, taken from its evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofFingerprint {
    /// The id of the challenge.
    #[serde(rename = "session", with = "hexadecimal")]
    pub challenge_id: [u8; 32],
    /// SHA-256 over the committed roots, if the executor committed to any.
    #[serde(default, with = "hexadecimal_option", skip_serializing_if = "Option::is_none")]
    pub roots: Option<[u8; 32]>,
    /// The other challenge that one of the executor's messages named, if any.
    #[serde(
        default,
        rename = "named",
        with = "hexadecimal_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub named_challenge: Option<[u8; 32]>,
}

/// The fingerprints of all proofs of a batch, by the executor's place in its plan.
pub type Fingerprints = BTreeMap<usize, Vec<ProofFingerprint>>;

impl ProofFingerprint {
    /// Takes the fingerprint of this evidence.
    pub fn of_evidence(evidence: &Evidence) -> Self {
        let session = evidence.spec.challenge_id();
        let committed = evidence.commitment.as_ref().map(|received| &received.bytes);
        // The roots follow the head and the key confirmation.
        let roots = committed
            .and_then(|bytes| bytes.get(HEAD.saturating_add(16)..))
            .filter(|roots| !roots.is_empty());
        let parts = [&evidence.filled, &evidence.commitment, &evidence.opening];
        let named_challenge = parts.into_iter().flatten().find_map(|received| {
            let frame = MessageFrame::parse(&received.bytes).ok()?;
            (frame.challenge_id != session).then_some(frame.challenge_id.0)
        });
        let ChallengeId(challenge_id) = session;
        Self {
            challenge_id,
            roots: roots.map(|roots| Sha256::digest(roots).into()),
            named_challenge,
        }
    }
}

/// Serialises thirty-two bytes as hexadecimal text.
pub(crate) mod hexadecimal {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(&text, &mut bytes).map_err(D::Error::custom)?;
        Ok(bytes)
    }
}

/// Serialises optional thirty-two bytes as hexadecimal text.
mod hexadecimal_option {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<[u8; 32]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_str(&hex::encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<[u8; 32]>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(&text, &mut bytes).map_err(D::Error::custom)?;
        Ok(Some(bytes))
    }
}
