//! The messages of a challenge: a four-byte head, the challenge id, and a body whose length the specification fixes.

use sha2::{Digest as _, Sha256};

use crate::challenge_keys::{ChallengeId, ChallengeIdentity, DOMAIN};
use crate::codec::{DecodeError, Reader};
use crate::matmul::MatmulSpec;
use crate::memory_walk::{StepPosition, WalkSpec};
use crate::merkle::Hash;
use crate::spec::WalkMemory;

/// Bytes of a message before its body: the head and the challenge id.
pub const HEAD: usize = 36;

/// The kind of a message; its number is the second byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// From the validator: the specification.
    Challenge = 1,
    /// From the executor, when its memory is full: the confirmation of the labels' key.
    Filled = 2,
    /// From the validator: the seed of the walks.
    Seed = 3,
    /// From the executor: the confirmation of its key, then its roots. The clock stops when it arrives.
    Commitment = 4,
    /// From the validator: the digest of the commitment, then the randomness of the draw.
    Draw = 5,
    /// From the executor: the digest of the commitment, then the openings in the order of the draw.
    Opening = 6,
    /// From the validator: a [`crate::ProofVerdict::code`] and two zero bytes.
    Verdict = 7,
}

/// A message, split into its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFrame<'a> {
    /// The kind of the message.
    pub kind: MessageKind,
    /// The id of the challenge to which the message belongs.
    pub challenge_id: ChallengeId,
    /// The bytes after the head and the id.
    pub body: &'a [u8],
}

impl<'a> MessageFrame<'a> {
    /// Splits a message.
    ///
    /// # Errors
    /// The bytes are too few, of another version, or of an unknown kind.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let [version, kind, zero @ ..] = *reader.take::<4>()?;
        if version != 1 || zero != [0, 0] {
            return Err(DecodeError::Unknown("version of the message"));
        }
        let kind = match kind {
            1 => MessageKind::Challenge,
            2 => MessageKind::Filled,
            3 => MessageKind::Seed,
            4 => MessageKind::Commitment,
            5 => MessageKind::Draw,
            6 => MessageKind::Opening,
            7 => MessageKind::Verdict,
            0 | 8.. => return Err(DecodeError::Unknown("kind of message")),
        };
        Ok(Self {
            kind,
            challenge_id: ChallengeId(*reader.take()?),
            body: reader.rest(),
        })
    }

    /// The body, if it has exactly `N` bytes.
    pub(crate) fn exactly<const N: usize>(&self) -> Result<&'a [u8; N], DecodeError> {
        let mut reader = Reader::new(self.body);
        let bytes = reader.take()?;
        reader.finish()?;
        Ok(bytes)
    }
}

/// Encodes a message whose body is the concatenation of `parts`.
pub fn encode_message(kind: MessageKind, challenge_id: &ChallengeId, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + parts.iter().map(|part| part.len()).sum::<usize>());
    out.extend([1, kind as u8, 0, 0]);
    out.extend(challenge_id.0);
    for part in parts {
        out.extend(*part);
    }
    out
}

/// The specification of a challenge of either kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProofSpec {
    /// A challenge to prove a rate of computing.
    Matmul(MatmulSpec),
    /// A challenge to prove memory and its bandwidth.
    Walk(WalkSpec),
}

/// The positions that a prover must open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrawnPositions {
    /// Entries of a MATMUL's products.
    Matmul(Vec<crate::matmul::EntryPosition>),
    /// Steps of a WALK.
    Walk(Vec<StepPosition>),
}

impl ProofSpec {
    /// Reads the fixed layout of either kind.
    ///
    /// # Errors
    /// The kind is unknown, or the layout of that kind is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.get(DOMAIN.len()) {
            Some(1) => MatmulSpec::from_bytes(bytes).map(Self::Matmul),
            Some(2) => WalkSpec::from_bytes(bytes).map(Self::Walk),
            None | Some(_) => Err(DecodeError::Unknown("kind of proof")),
        }
    }

    /// Encodes the fixed layout.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Matmul(spec) => spec.to_bytes(),
            Self::Walk(spec) => spec.to_bytes(),
        }
    }

    /// The digest of the fixed layout, which every message carries.
    pub fn challenge_id(&self) -> ChallengeId {
        match self {
            Self::Matmul(spec) => spec.challenge_id(),
            Self::Walk(spec) => spec.challenge_id(),
        }
    }

    /// The identity of the challenge.
    pub fn identity(&self) -> &ChallengeIdentity {
        match self {
            Self::Matmul(spec) => spec.identity(),
            Self::Walk(spec) => spec.identity(),
        }
    }

    /// The memory that a WALK fills; `None` for a MATMUL.
    pub fn walk_memory(&self) -> Option<WalkMemory> {
        match self {
            Self::Matmul(_) => None,
            Self::Walk(spec) => Some(spec.memory()),
        }
    }

    /// The number of roots in a commitment.
    pub fn root_count(&self) -> usize {
        match self {
            Self::Matmul(spec) => usize::from(spec.shape().rounds),
            Self::Walk(_) => 1,
        }
    }

    /// Draws the positions to open from a commitment and the validator's randomness.
    pub fn draw_positions(&self, commitment: &Hash, entropy: &[u8; 32]) -> DrawnPositions {
        match self {
            Self::Matmul(spec) => DrawnPositions::Matmul(spec.draw_positions(commitment, entropy)),
            Self::Walk(spec) => DrawnPositions::Walk(spec.draw_positions(commitment, entropy)),
        }
    }

    /// The length of the commitment message in bytes.
    pub fn commitment_bytes(&self) -> usize {
        HEAD + 16 + 32 * self.root_count()
    }

    /// The length in bytes of the message that opens these positions.
    pub fn opening_bytes(&self, places: &DrawnPositions) -> usize {
        let opened = match (self, places) {
            (Self::Matmul(spec), DrawnPositions::Matmul(places)) => places.len() * spec.opening_bytes(),
            (Self::Walk(spec), DrawnPositions::Walk(places)) => {
                places.iter().map(|place| spec.opening_bytes(place)).sum()
            }
            (Self::Matmul(_), DrawnPositions::Walk(_)) | (Self::Walk(_), DrawnPositions::Matmul(_)) => 0,
        };
        HEAD + 32 + opened
    }
}

/// The digest over the seed (zeros for a MATMUL) and the whole commitment message. The draw depends on it, and the
/// opening repeats it.
pub fn commitment_digest(seed: &[u8; 32], message: &[u8]) -> Hash {
    Sha256::new()
        .chain_update(DOMAIN)
        .chain_update(seed)
        .chain_update(message)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_heads_are_read() {
        let challenge_id = ChallengeId([5; 32]);
        let bytes = encode_message(MessageKind::Filled, &challenge_id, &[b"abc", b"d"]);
        assert_eq!(
            MessageFrame::parse(&bytes),
            Ok(MessageFrame {
                kind: MessageKind::Filled,
                challenge_id,
                body: b"abcd"
            })
        );
        for (place, value) in [(0, 2), (1, 0), (1, 8), (2, 1), (3, 1)] {
            let mut other = bytes.clone();
            other[place] = value;
            assert!(matches!(
                MessageFrame::parse(&other),
                Err(DecodeError::Unknown(_))
            ));
        }
        assert_eq!(
            MessageFrame::parse(&bytes[..35]),
            Err(DecodeError::Length {
                expected: 36,
                got: 35
            })
        );
    }
}
