//! MATMUL: a sequence of dependent matrix products, which proves a rate of computing.
//!
//! `C_k = A_k · B` for `k = 0 … K-1`, all exact integers modulo 2³². B and A₀ follow from the challenge id, `A_{k+1}`
//! follows from the Merkle root over `C_k`. So no round can be computed before the round before it. After all roots are
//! committed, single entries are drawn and opened. To check one entry, a verifier computes one row of A, one column of
//! B and one inner product.

pub(crate) mod check;

use sha2::{Digest as _, Sha256};

use crate::chacha::{self, Key};
use crate::challenge_keys::{self, ChallengeId, ChallengeIdentity, DOMAIN, Draws, KeyPurpose};
use crate::codec::{DecodeError, Reader};
use crate::merkle::{Hash, LEAF};
use crate::simd::{self, InstructionSet};
use crate::spec::{NumberFormat, SpecError, WalkMemory, push_identity, read_identity};

/// Entries of C in one leaf: 256 columns of one row.
pub const LEAF_ENTRIES: u32 = 256;

/// The size of a MATMUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// The format of the entries.
    pub numbers: NumberFormat,
    /// log₂ of the side n of the matrices, 8 to 16.
    pub log2_n: u8,
    /// The number of products, 1 to 256.
    pub rounds: u16,
    /// The number of drawn entries, from `rounds` to 1,024.
    pub entries: u16,
}

/// Binds the products to a filled memory: blocks of a WALK are XORed over the beginning of every row of A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryBinding {
    /// Blocks of memory per row of A, 1 to `n · width / 1024`.
    pub blocks_per_row: u16,
    /// The memory that must be filled.
    pub memory: WalkMemory,
}

/// A complete MATMUL challenge, whose shape and binding are within their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulSpec {
    identity: ChallengeIdentity,
    shape: MatmulShape,
    binding: Option<MemoryBinding>,
}

/// The position of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryPosition {
    /// The number of the product, from 0.
    pub round: u32,
    /// The row of C, below n.
    pub row: u32,
    /// The column of C, below n.
    pub column: u32,
}

impl MatmulSpec {
    /// The length of the fixed layout.
    pub const BYTES: usize = 152;

    /// Makes a challenge of a shape that is within its bounds.
    ///
    /// # Errors
    /// Names the first value outside its range.
    pub fn new(
        identity: ChallengeIdentity,
        shape: MatmulShape,
        binding: Option<MemoryBinding>,
    ) -> Result<Self, SpecError> {
        if !(8..=16).contains(&shape.log2_n) {
            return Err(SpecError("side"));
        }
        if !(1..=256).contains(&shape.rounds) {
            return Err(SpecError("number of rounds"));
        }
        if !(shape.rounds..=1024).contains(&shape.entries) {
            return Err(SpecError("number of entries"));
        }
        let spec = Self {
            identity,
            shape,
            binding,
        };
        if let Some(binding) = binding {
            let most = spec.row_bytes() / LEAF;
            if binding.blocks_per_row == 0 || usize::from(binding.blocks_per_row) > most {
                return Err(SpecError("number of bound blocks"));
            }
            binding.memory.validate()?;
        }
        Ok(spec)
    }

    /// The identity of the challenge.
    pub fn identity(&self) -> &ChallengeIdentity {
        &self.identity
    }

    /// The size of the products.
    pub fn shape(&self) -> &MatmulShape {
        &self.shape
    }

    /// The memory to which the products are bound, if any.
    pub fn binding(&self) -> Option<&MemoryBinding> {
        self.binding.as_ref()
    }

    /// The side of the matrices.
    pub fn n(&self) -> usize {
        1 << self.shape.log2_n
    }

    /// Bytes of keystream for one row of A or one column of B.
    pub fn row_bytes(&self) -> usize {
        self.n() * self.shape.numbers.width()
    }

    /// The number of levels of the tree over one C, the root not counted.
    pub fn depth(&self) -> usize {
        2 * usize::from(self.shape.log2_n) - 8
    }

    /// Bytes of one opened entry: its position, its leaf, its path.
    pub fn opening_bytes(&self) -> usize {
        12 + LEAF + 32 * self.depth()
    }

    /// Multiplications and additions in all products.
    pub fn operations(&self) -> u128 {
        2 * (self.n() as u128).pow(3) * u128::from(self.shape.rounds)
    }

    /// Encodes the fixed layout, whose hash is the challenge id.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.extend(DOMAIN);
        out.extend([1, self.shape.numbers as u8, self.shape.log2_n, 0]);
        out.extend(self.shape.rounds.to_le_bytes());
        out.extend(self.shape.entries.to_le_bytes());
        push_identity(&mut out, &self.identity);
        match &self.binding {
            None => out.extend([0; 48]),
            Some(binding) => {
                out.extend(binding.blocks_per_row.to_le_bytes());
                out.extend([0; 2]);
                out.extend(binding.memory.work.to_le_bytes());
                out.extend(binding.memory.blocks.to_le_bytes());
                out.extend(binding.memory.challenge_id.0);
            }
        }
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
        let [kind, numbers, log2_n, zero] = *reader.take()?;
        if kind != 1 || zero != 0 {
            return Err(DecodeError::Unknown("kind of proof"));
        }
        let numbers = match numbers {
            0 => NumberFormat::Int8,
            1 => NumberFormat::Fp16,
            2.. => return Err(DecodeError::Unknown("kind of numbers")),
        };
        let shape = MatmulShape {
            numbers,
            log2_n,
            rounds: reader.u16()?,
            entries: reader.u16()?,
        };
        let identity = read_identity(&mut reader)?;
        let bound = reader.slice(48)?;
        reader.finish()?;
        let binding = if bound.iter().all(|byte| *byte == 0) {
            None
        } else {
            Some(read_binding(bound)?)
        };
        Self::new(identity, shape, binding).map_err(|SpecError(what)| DecodeError::Range(what))
    }

    /// The digest of the fixed layout. Every message carries it and every key depends on it.
    pub fn challenge_id(&self) -> ChallengeId {
        ChallengeId(Sha256::digest(self.to_bytes()).into())
    }

    /// Draws the entries to open: first one of every round, then the rest from any round.
    pub fn draw_positions(&self, commitment: &Hash, entropy: &[u8; 32]) -> Vec<EntryPosition> {
        let mut draws = Draws::new(challenge_keys::derive_draw_key(
            &self.challenge_id(),
            commitment,
            entropy,
        ));
        let rounds = u32::from(self.shape.rounds);
        let n = 1 << self.shape.log2_n;
        (0..u32::from(self.shape.entries))
            .map(|i| EntryPosition {
                round: if i < rounds { i } else { draws.draw_below(rounds) },
                row: draws.draw_below(n),
                column: draws.draw_below(n),
            })
            .collect()
    }
}

fn read_binding(bytes: &[u8]) -> Result<MemoryBinding, DecodeError> {
    let mut reader = Reader::new(bytes);
    let blocks_per_row = reader.u16()?;
    if reader.u16()? != 0 {
        return Err(DecodeError::Range("reserved field"));
    }
    let (work, blocks) = (reader.u32()?, reader.u64()?);
    let challenge_id = ChallengeId(*reader.take()?);
    Ok(MemoryBinding {
        blocks_per_row,
        memory: WalkMemory {
            challenge_id,
            blocks,
            work,
        },
    })
}

/// Generates the matrices of one challenge.
#[derive(Debug, Clone)]
pub struct MatrixGenerator {
    spec: MatmulSpec,
    challenge_id: ChallengeId,
    b: Key,
    labels: Option<Key>,
    engine: InstructionSet,
}

impl MatrixGenerator {
    /// Derives the keys that stay the same in all rounds.
    pub fn new(spec: MatmulSpec, engine: InstructionSet) -> Self {
        let challenge_id = spec.challenge_id();
        let b = challenge_keys::derive_key(&challenge_id, KeyPurpose::MatrixB, 0, &[0; 32]);
        let labels = spec.binding.map(|binding| binding.memory.label_key());
        Self {
            spec,
            challenge_id,
            b,
            labels,
            engine,
        }
    }

    /// The bytes that a prover sends to show that it derived the same keys.
    pub fn key_confirmation(&self) -> [u8; 16] {
        challenge_keys::key_confirmation(&self.challenge_id, &self.b)
    }

    /// The key of B.
    pub fn b_key(&self) -> &Key {
        &self.b
    }

    /// Derives the key of A in `round` from the root of the round before (zeros for round 0).
    pub fn a_key(&self, round: u32, previous: &Hash) -> Key {
        challenge_keys::derive_key(&self.challenge_id, KeyPurpose::MatrixA, round, previous)
    }

    /// Generates column `column` of B into `out`, which has `row_bytes` bytes.
    pub fn fill_column(&self, column: u32, out: &mut [u8]) {
        simd::fill_keystream(self.engine, &self.b, u64::from(column), out);
    }

    /// Generates row `row` of A under `key` into `out`, without the blocks of a bound memory.
    pub fn fill_row(&self, key: &Key, row: u32, out: &mut [u8]) {
        simd::fill_keystream(self.engine, key, u64::from(row), out);
    }

    /// The addresses of the blocks that are XORed over row `row` of A in `round`, in order. Empty without a binding.
    pub fn bound_blocks(&self, round: u32, previous: &Hash, row: u32) -> Vec<u64> {
        let Some(binding) = &self.spec.binding else {
            return Vec::new();
        };
        let key = challenge_keys::derive_key(&self.challenge_id, KeyPurpose::BoundBlocks, round, previous);
        let mut stream = vec![0; usize::from(binding.blocks_per_row) * 8];
        chacha::fill_keystream(&key, u64::from(row), &mut stream);
        stream
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| binding.memory.address(u64::from_le_bytes(*word)))
            .collect()
    }

    /// Computes the entry at `place` from the specification and the root of the round before.
    pub fn compute_entry(&self, place: EntryPosition, previous: &Hash) -> i32 {
        let key = self.a_key(place.round, previous);
        let numbers = self.spec.shape.numbers;
        if self.labels.is_none() {
            let (a, b) = ((&key, u64::from(place.row)), (&self.b, u64::from(place.column)));
            return simd::dot_streams(self.engine, numbers, a, b, self.spec.n());
        }
        let mut a = vec![0; self.spec.row_bytes()];
        let mut b = a.clone();
        self.fill_bound_row(place.round, previous, place.row, &mut a);
        self.fill_column(place.column, &mut b);
        simd::dot(numbers, &a, &b)
    }

    /// Recomputes the 256 entries of the leaf that holds `place`. Used only to name a fault that was found.
    pub(crate) fn compute_leaf(&self, place: EntryPosition, previous: &Hash) -> Vec<i32> {
        let (mut a, mut b) = (vec![0; self.spec.row_bytes()], vec![0; self.spec.row_bytes()]);
        self.fill_bound_row(place.round, previous, place.row, &mut a);
        let first = place.column - place.column % LEAF_ENTRIES;
        let entry = |column| {
            self.fill_column(column, &mut b);
            simd::dot(self.spec.shape.numbers, &a, &b)
        };
        (first..first + LEAF_ENTRIES).map(entry).collect()
    }

    /// Generates row `row` of A as it is multiplied. The blocks of a bound memory are recomputed.
    pub fn fill_bound_row(&self, round: u32, previous: &Hash, row: u32, out: &mut [u8]) {
        self.fill_row(&self.a_key(round, previous), row, out);
        let (Some(binding), Some(labels)) = (&self.spec.binding, &self.labels) else {
            return;
        };
        let pieces = out.as_chunks_mut::<LEAF>().0;
        for (piece, address) in pieces.iter_mut().zip(self.bound_blocks(round, previous, row)) {
            let mut block = [0; LEAF];
            simd::compute_label_block(self.engine, labels, address, binding.memory.work, &mut block);
            xor_leaf(piece, &block);
        }
    }
}

/// `target ^= mask`.
pub(crate) fn xor_leaf(target: &mut [u8; LEAF], mask: &[u8; LEAF]) {
    for (byte, other) in target.iter_mut().zip(mask) {
        *byte ^= other;
    }
}
