//! WALK: dependent reads all over a filled memory, which prove the size of the memory and its bandwidth.
//!
//! A word (64 bytes) is a one-way function applied t times to the word's number, so recomputing a word costs more than
//! storing it. A block is sixteen words. Many walks run side by side. Each step mixes the whole block at the state's
//! address into the state, so the next address is unknown until the block has been read. The prover commits to all
//! states. The verifier draws single steps and replays them with recomputed blocks; it stores no memory.

pub(crate) mod check;

use sha2::{Digest as _, Sha256};

use crate::chacha::{self, ChaChaState, Key};
use crate::challenge_keys::{self, ChallengeId, ChallengeIdentity, DOMAIN, Draws, KeyPurpose};
use crate::codec::{DecodeError, Reader};
use crate::merkle::{Hash, LEAF};
use crate::spec::{SpecError, WalkMemory, push_identity, read_identity};

/// States in one leaf of the tree: 1 KiB.
pub const LEAF_STATES: u64 = 32;

/// The state of a walk between two steps.
pub type WalkState = [u8; 32];

/// The size of a WALK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WalkShape {
    /// Blocks of 1 KiB, 1 to 2³².
    pub blocks: u64,
    /// Applications of the one-way function per word (t), 1 to 65,536.
    pub work: u32,
    /// log₂ of the number of walks, which run side by side; 0 to 20.
    pub log2_walks: u8,
    /// log₂ of the number of leaves (of 32 states each) to which each walk commits; 0 to 20.
    pub log2_leaves: u8,
    /// The number of drawn steps, 1 to 1,024.
    pub draws: u16,
}

/// A complete WALK challenge, whose shape is within its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WalkSpec {
    identity: ChallengeIdentity,
    shape: WalkShape,
}

/// The position of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepPosition {
    /// The number of the walk, from 0.
    pub walk: u32,
    /// The number of the step in its walk, from 0.
    pub step: u64,
}

impl StepPosition {
    /// Whether the leaf before must be opened too: the state before the first step of a leaf is the last one of that
    /// leaf.
    pub fn needs_leaf_before(&self) -> bool {
        self.step > 0 && self.step.is_multiple_of(LEAF_STATES)
    }
}

impl WalkSpec {
    /// The length of the fixed layout.
    pub const BYTES: usize = 116;

    /// Makes a challenge of a shape that is within its bounds.
    ///
    /// # Errors
    /// Names the first value outside its range.
    pub fn new(identity: ChallengeIdentity, shape: WalkShape) -> Result<Self, SpecError> {
        if shape.log2_walks > 20 {
            return Err(SpecError("number of walks"));
        }
        if shape.log2_leaves > 20 {
            return Err(SpecError("number of leaves"));
        }
        if !(1..=1024).contains(&shape.draws) {
            return Err(SpecError("number of drawn steps"));
        }
        let spec = Self { identity, shape };
        spec.memory().validate()?;
        Ok(spec)
    }

    /// The identity of the challenge.
    pub fn identity(&self) -> &ChallengeIdentity {
        &self.identity
    }

    /// The size of the memory and of the walks.
    pub fn shape(&self) -> &WalkShape {
        &self.shape
    }

    /// The memory that the prover must fill.
    pub fn memory(&self) -> WalkMemory {
        WalkMemory {
            challenge_id: self.challenge_id(),
            blocks: self.shape.blocks,
            work: self.shape.work,
        }
    }

    /// The number of walks.
    pub fn walks(&self) -> u32 {
        1 << self.shape.log2_walks
    }

    /// The number of steps of each walk.
    pub fn steps(&self) -> u64 {
        LEAF_STATES << self.shape.log2_leaves
    }

    /// The number of levels of the tree over all leaves of all walks, the root not counted.
    pub fn depth(&self) -> usize {
        usize::from(self.shape.log2_walks) + usize::from(self.shape.log2_leaves)
    }

    /// The size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.blocks * LEAF as u64
    }

    /// Bytes that all steps together read.
    pub fn bytes_read(&self) -> u128 {
        u128::from(self.steps()) * u128::from(self.walks()) * LEAF as u128
    }

    /// Bytes of one opened step: its position, its leaf and path, and the leaf before with its path if the step needs
    /// it.
    pub fn opening_bytes(&self, place: &StepPosition) -> usize {
        let leaf = LEAF + 32 * self.depth();
        12 + if place.needs_leaf_before() { 2 * leaf } else { leaf }
    }

    /// Encodes the fixed layout, whose hash is the challenge id.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.extend(DOMAIN);
        out.extend([2, self.shape.log2_walks, self.shape.log2_leaves, 0]);
        out.extend(self.shape.draws.to_le_bytes());
        out.extend([0; 2]);
        out.extend(self.shape.work.to_le_bytes());
        out.extend(self.shape.blocks.to_le_bytes());
        push_identity(&mut out, &self.identity);
        out
    }

    /// Reads the fixed layout.
    ///
    /// # Errors
    /// The length is wrong, a tag is unknown, a value is outside its range, or a reserved byte is not zero.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if *reader.take()? != DOMAIN {
            return Err(DecodeError::Unknown("version of proofs"));
        }
        let [kind, log2_walks, log2_leaves, zero] = *reader.take()?;
        if kind != 2 || zero != 0 {
            return Err(DecodeError::Unknown("kind of proof"));
        }
        let draws = reader.u16()?;
        if reader.u16()? != 0 {
            return Err(DecodeError::Range("reserved field"));
        }
        let (work, blocks) = (reader.u32()?, reader.u64()?);
        let identity = read_identity(&mut reader)?;
        reader.finish()?;
        let shape = WalkShape {
            blocks,
            work,
            log2_walks,
            log2_leaves,
            draws,
        };
        Self::new(identity, shape).map_err(|SpecError(what)| DecodeError::Range(what))
    }

    /// The digest of the fixed layout. Every message carries it and every key depends on it.
    pub fn challenge_id(&self) -> ChallengeId {
        ChallengeId(Sha256::digest(self.to_bytes()).into())
    }

    /// Derives the key of the first states from the validator's seed.
    pub fn start_key(&self, seed: &[u8; 32]) -> Key {
        challenge_keys::derive_key(&self.challenge_id(), KeyPurpose::WalkStart, 0, seed)
    }

    /// Draws the steps to open.
    pub fn draw_positions(&self, commitment: &Hash, entropy: &[u8; 32]) -> Vec<StepPosition> {
        let mut draws = Draws::new(challenge_keys::derive_draw_key(
            &self.challenge_id(),
            commitment,
            entropy,
        ));
        // At most 2²⁵ steps a walk: the shift cannot overflow.
        let steps = 32 << self.shape.log2_leaves;
        (0..self.shape.draws)
            .map(|_| StepPosition {
                walk: draws.draw_below(self.walks()),
                step: u64::from(draws.draw_below(steps)),
            })
            .collect()
    }

    /// The index of the leaf that holds the state after step `step` of walk `walk`.
    pub fn leaf_index(&self, walk: u32, step: u64) -> u64 {
        (u64::from(walk) << self.shape.log2_leaves) + step / LEAF_STATES
    }
}

/// Computes the state of walk `walk` before its first step.
pub fn start_state(key: &Key, walk: u32) -> WalkState {
    state_head(chacha::initial_state(key, 0, u64::from(walk)))
}

/// The first 64 bits of a state, which determine the address of the next block.
pub fn address_bits(state: &WalkState) -> u64 {
    state
        .as_chunks::<8>()
        .0
        .first()
        .copied()
        .map(u64::from_le_bytes)
        .unwrap_or_default()
}

/// Computes the state after one step: XORs a row of the block and applies one round, sixteen times, then applies the
/// one-way function.
///
/// The rows act as round keys of 512 bits. A sum over the block with a repeating key, as in NH, would be weaker: a
/// prover could store the coefficients of that sum, a fifth of the block, instead of the block.
pub fn next_state(walk: u32, number: u64, state: &WalkState, block: &[u8; LEAF]) -> WalkState {
    let mut mixed = chacha::initial_state(&Key(*state), u64::from(walk), number);
    for (i, row) in block.as_chunks::<{ chacha::BLOCK }>().0.iter().enumerate() {
        for (word, bytes) in mixed.iter_mut().zip(row.as_chunks::<4>().0) {
            *word ^= u32::from_le_bytes(*bytes);
        }
        if i % 2 == 0 {
            chacha::column_round(&mut mixed)
        } else {
            chacha::diagonal_round(&mut mixed)
        }
    }
    state_head(mixed)
}

fn state_head(mut state: ChaChaState) -> WalkState {
    chacha::apply_block_function(&mut state);
    let mut out = [0; 32];
    for (place, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *place = word.to_le_bytes();
    }
    out
}
