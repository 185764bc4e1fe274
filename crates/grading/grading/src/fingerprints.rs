//! What distinguishes the evidence of one proof from every other: its challenge, its committed roots, and the challenge that a
//! message named. Copies between executors are found by comparing these.

use std::collections::BTreeMap;

use muster_hardware_proof::Evidence;
use muster_hardware_proof::keys::SessionId;
use muster_hardware_proof::message::{Frame, HEAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What the evidence of one proof says besides its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Which challenge.
    #[serde(with = "hexadecimal")]
    pub session: [u8; 32],
    /// SHA-256 over the committed roots.
    #[serde(default, with = "hexadecimal_option", skip_serializing_if = "Option::is_none")]
    pub roots: Option<[u8; 32]>,
    /// The challenge that a message named instead.
    #[serde(default, with = "hexadecimal_option", skip_serializing_if = "Option::is_none")]
    pub named: Option<[u8; 32]>,
}

/// The facts of every proof of a batch, by the executor's place in its plan. By these copies are told from mistakes.
pub type Marks = BTreeMap<usize, Vec<Facts>>;

impl Facts {
    /// What this evidence says.
    pub fn of(evidence: &Evidence) -> Self {
        let session = evidence.spec.session();
        let committed = evidence.commitment.as_ref().map(|received| &received.bytes);
        // Behind the head and the print of the keys stand the roots.
        let roots = committed
            .and_then(|bytes| bytes.get(HEAD.saturating_add(16)..))
            .filter(|roots| !roots.is_empty());
        let parts = [&evidence.filled, &evidence.commitment, &evidence.opening];
        let named = parts.into_iter().flatten().find_map(|received| {
            let frame = Frame::parse(&received.bytes).ok()?;
            (frame.session != session).then_some(frame.session.0)
        });
        let SessionId(session) = session;
        Self {
            session,
            roots: roots.map(|roots| Sha256::digest(roots).into()),
            named,
        }
    }
}

/// Thirty-two bytes as text.
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

/// Thirty-two bytes as text, or nothing.
mod hexadecimal_option {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "serde hands it over like this")]
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
