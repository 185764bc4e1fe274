//! WALK: a memory full of words that cannot be had cheaper than by storing them, then dependent reads all over it.
//!
//! A word (64 bytes) is the t-fold iterate of a one-way function that starts at the word's number; a block is sixteen
//! words. Many walks run side by side; each step mixes the whole block at the state's address into the state, so the next
//! address is not known before the block is read. The states are committed, single steps are drawn and replayed from
//! recomputed labels: the checker stores nothing.

pub(crate) mod check;

use sha2::{Digest as _, Sha256};

use crate::chacha::{self, Key, State};
use crate::codec::{DecodeError, Reader};
use crate::keys::{self, DOMAIN, Draws, Identity, Purpose, SessionId};
use crate::merkle::{Hash, LEAF};
use crate::spec::{Memory, SpecError, push_identity, read_identity};

/// States in one leaf of the tree: 1 KiB.
pub const LEAF_STATES: u64 = 32;

/// The state of a walk between two steps.
pub type WalkState = [u8; 32];

/// How large a WALK is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WalkShape {
    /// Blocks of 1 KiB, 1 to 2³².
    pub blocks: u64,
    /// Applications of the one-way function per word (t), 1 to 65,536.
    pub work: u32,
    /// log₂ of the walks side by side, 0 to 20.
    pub log2_walks: u8,
    /// log₂ of the leaves of 32 states that each walk commits, 0 to 20.
    pub log2_leaves: u8,
    /// Steps drawn, 1 to 1,024.
    pub draws: u16,
}

/// A complete WALK challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WalkSpec {
    identity: Identity,
    shape: WalkShape,
}

/// One drawn step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepPlace {
    /// Which walk.
    pub walk: u32,
    /// Which of its steps, from 0.
    pub step: u64,
}

impl StepPlace {
    /// The state before the first step of a leaf stands in the leaf before it, which is then opened too.
    pub fn needs_leaf_before(&self) -> bool {
        self.step > 0 && self.step.is_multiple_of(LEAF_STATES)
    }
}

impl WalkSpec {
    /// Bytes of the fixed layout.
    pub const BYTES: usize = 116;

    /// Checks the shape.
    ///
    /// # Errors
    /// Names the first value outside its range.
    pub fn new(identity: Identity, shape: WalkShape) -> Result<Self, SpecError> {
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
        spec.memory().check()?;
        Ok(spec)
    }

    /// Who is challenged.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How large it is.
    pub fn shape(&self) -> &WalkShape {
        &self.shape
    }

    /// The memory that is filled.
    pub fn memory(&self) -> Memory {
        Memory {
            session: self.session(),
            blocks: self.shape.blocks,
            work: self.shape.work,
        }
    }

    /// Walks side by side.
    pub fn walks(&self) -> u32 {
        1 << self.shape.log2_walks
    }

    /// Steps of each walk.
    pub fn steps(&self) -> u64 {
        LEAF_STATES << self.shape.log2_leaves
    }

    /// Levels of the tree over all leaves of all walks.
    pub fn depth(&self) -> usize {
        usize::from(self.shape.log2_walks) + usize::from(self.shape.log2_leaves)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.shape.blocks * LEAF as u64
    }

    /// Bytes read by all steps.
    pub fn bytes_read(&self) -> u128 {
        u128::from(self.steps()) * u128::from(self.walks()) * LEAF as u128
    }

    /// Bytes of one opened step: its place, its leaf and path, and where it needs them those of the leaf before.
    pub fn opening_bytes(&self, place: &StepPlace) -> usize {
        let leaf = LEAF + 32 * self.depth();
        12 + if place.needs_leaf_before() { 2 * leaf } else { leaf }
    }

    /// The fixed layout; its hash is the session's id.
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
    /// A wrong length, an unknown tag, a value outside its range, bytes that should be zero and are not.
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

    /// The digest that every message and key carries.
    pub fn session(&self) -> SessionId {
        SessionId(Sha256::digest(self.to_bytes()).into())
    }

    /// The key of the first states, after the validator's seed.
    pub fn start_key(&self, seed: &[u8; 32]) -> Key {
        keys::derive(&self.session(), Purpose::WalkStart, 0, seed)
    }

    /// The drawn steps.
    pub fn places(&self, commitment: &Hash, entropy: &[u8; 32]) -> Vec<StepPlace> {
        let mut draws = Draws::new(keys::draw_key(&self.session(), commitment, entropy));
        // At most 2²⁵ steps a walk: the shift cannot overflow.
        let steps = 32 << self.shape.log2_leaves;
        (0..self.shape.draws)
            .map(|_| StepPlace {
                walk: draws.below(self.walks()),
                step: u64::from(draws.below(steps)),
            })
            .collect()
    }

    /// The index of the leaf that holds the state after step `step` of walk `walk`.
    pub fn leaf_index(&self, walk: u32, step: u64) -> u64 {
        (u64::from(walk) << self.shape.log2_leaves) + step / LEAF_STATES
    }
}

/// The first state of walk `walk`.
pub fn start(key: &Key, walk: u32) -> WalkState {
    head(chacha::initial(key, 0, u64::from(walk)))
}

/// Sixty-four bits of a state, from which the address of its block follows.
pub fn address_bits(state: &WalkState) -> u64 {
    state
        .as_chunks::<8>()
        .0
        .first()
        .copied()
        .map(u64::from_le_bytes)
        .unwrap_or_default()
}

/// One step: sixteen times a row of the block and one round, then the one-way function.
///
/// Rows meet the state as round keys of 512 bits. A sum over the block with a repeating key, as in NH, would let a prover
/// store the coefficients of that sum, a fifth of the block, in the block's place.
pub fn step(walk: u32, number: u64, state: &WalkState, block: &[u8; LEAF]) -> WalkState {
    let mut mixed = chacha::initial(&Key(*state), u64::from(walk), number);
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
    head(mixed)
}

fn head(mut state: State) -> WalkState {
    chacha::forward(&mut state);
    let mut out = [0; 32];
    for (place, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *place = word.to_le_bytes();
    }
    out
}
