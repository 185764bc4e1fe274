//! MATMUL: a sequence of dependent matrix products, which proves a rate of computing.
//!
//! `C_k = A_k · B` for `k = 0 … K-1`, all exact integers modulo 2³². B and A₀ follow from the challenge id, `A_{k+1}` follows
//! from the Merkle root over `C_k`. So no round can be computed before the round before it. After all roots are committed,
//! single entries are drawn and opened. To check one entry, a verifier computes one row of A, one column of B and one inner
//! product.

pub(crate) mod check;

use sha2::{Digest as _, Sha256};

use crate::chacha::{self, Key};
use crate::codec::{DecodeError, Reader};
use crate::keys::{self, DOMAIN, Draws, Identity, Purpose, SessionId};
use crate::merkle::{Hash, LEAF};
use crate::simd::{self, Engine};
use crate::spec::{Memory, Numbers, SpecError, push_identity, read_identity};

/// Entries of C in one leaf: 256 columns of one row.
pub const LEAF_ENTRIES: u32 = 256;

/// The size of a MATMUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainShape {
    /// The format of the entries.
    pub numbers: Numbers,
    /// log₂ of the side n of the matrices, 8 to 16.
    pub log2_n: u8,
    /// The number of products, 1 to 256.
    pub rounds: u16,
    /// The number of drawn entries, from `rounds` to 1,024.
    pub entries: u16,
}

/// Binds the products to a filled memory: blocks of a WALK are XORed over the beginning of every row of A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Blocks of memory per row of A, 1 to `n · width / 1024`.
    pub blocks_per_row: u16,
    /// The memory that must be filled.
    pub memory: Memory,
}

/// A complete MATMUL challenge, whose shape and binding are within their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainSpec {
    identity: Identity,
    shape: ChainShape,
    binding: Option<Binding>,
}

/// The position of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The number of the product, from 0.
    pub round: u32,
    /// The row of C, below n.
    pub row: u32,
    /// The column of C, below n.
    pub column: u32,
}

impl ChainSpec {
    /// The length of the fixed layout.
    pub const BYTES: usize = 152;

    /// Makes a challenge of a shape that is within its bounds.
    ///
    /// # Errors
    /// Names the first value outside its range.
    pub fn new(identity: Identity, shape: ChainShape, binding: Option<Binding>) -> Result<Self, SpecError> {
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
            binding.memory.check()?;
        }
        Ok(spec)
    }

    /// The identity of the challenge.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The size of the products.
    pub fn shape(&self) -> &ChainShape {
        &self.shape
    }

    /// The memory to which the products are bound, if any.
    pub fn binding(&self) -> Option<&Binding> {
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
                out.extend(binding.memory.session.0);
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
            0 => Numbers::Int8,
            1 => Numbers::Fp16,
            2.. => return Err(DecodeError::Unknown("kind of numbers")),
        };
        let shape = ChainShape {
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
    pub fn session(&self) -> SessionId {
        SessionId(Sha256::digest(self.to_bytes()).into())
    }

    /// Draws the entries to open: first one of every round, then the rest from any round.
    pub fn places(&self, commitment: &Hash, entropy: &[u8; 32]) -> Vec<Place> {
        let mut draws = Draws::new(keys::draw_key(&self.session(), commitment, entropy));
        let rounds = u32::from(self.shape.rounds);
        let n = 1 << self.shape.log2_n;
        (0..u32::from(self.shape.entries))
            .map(|i| Place {
                round: if i < rounds { i } else { draws.below(rounds) },
                row: draws.below(n),
                column: draws.below(n),
            })
            .collect()
    }
}

fn read_binding(bytes: &[u8]) -> Result<Binding, DecodeError> {
    let mut reader = Reader::new(bytes);
    let blocks_per_row = reader.u16()?;
    if reader.u16()? != 0 {
        return Err(DecodeError::Range("reserved field"));
    }
    let (work, blocks) = (reader.u32()?, reader.u64()?);
    let session = SessionId(*reader.take()?);
    Ok(Binding {
        blocks_per_row,
        memory: Memory {
            session,
            blocks,
            work,
        },
    })
}

/// Generates the matrices of one challenge.
#[derive(Debug, Clone)]
pub struct Generator {
    spec: ChainSpec,
    session: SessionId,
    b: Key,
    labels: Option<Key>,
    engine: Engine,
}

impl Generator {
    /// Derives the keys that stay the same in all rounds.
    pub fn new(spec: ChainSpec, engine: Engine) -> Self {
        let session = spec.session();
        let b = keys::derive(&session, Purpose::MatrixB, 0, &[0; 32]);
        let labels = spec.binding.map(|binding| binding.memory.label_key());
        Self {
            spec,
            session,
            b,
            labels,
            engine,
        }
    }

    /// The bytes that a prover sends to show that it derived the same keys.
    pub fn print(&self) -> [u8; 16] {
        keys::print(&self.session, &self.b)
    }

    /// The key of B.
    pub fn b_key(&self) -> &Key {
        &self.b
    }

    /// Derives the key of A in `round` from the root of the round before (zeros for round 0).
    pub fn a_key(&self, round: u32, previous: &Hash) -> Key {
        keys::derive(&self.session, Purpose::MatrixA, round, previous)
    }

    /// Generates column `column` of B into `out`, which has `row_bytes` bytes.
    pub fn column(&self, column: u32, out: &mut [u8]) {
        simd::fill(self.engine, &self.b, u64::from(column), out);
    }

    /// Generates row `row` of A under `key` into `out`, without the blocks of a bound memory.
    pub fn row(&self, key: &Key, row: u32, out: &mut [u8]) {
        simd::fill(self.engine, key, u64::from(row), out);
    }

    /// The addresses of the blocks that are XORed over row `row` of A in `round`, in order. Empty without a binding.
    pub fn bound_blocks(&self, round: u32, previous: &Hash, row: u32) -> Vec<u64> {
        let Some(binding) = &self.spec.binding else {
            return Vec::new();
        };
        let key = keys::derive(&self.session, Purpose::BoundBlocks, round, previous);
        let mut stream = vec![0; usize::from(binding.blocks_per_row) * 8];
        chacha::fill(&key, u64::from(row), &mut stream);
        stream
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| binding.memory.address(u64::from_le_bytes(*word)))
            .collect()
    }

    /// Computes the entry at `place` from the specification and the root of the round before.
    pub fn entry(&self, place: Place, previous: &Hash) -> i32 {
        let key = self.a_key(place.round, previous);
        let numbers = self.spec.shape.numbers;
        if self.labels.is_none() {
            let (a, b) = ((&key, u64::from(place.row)), (&self.b, u64::from(place.column)));
            return simd::stream_dot(self.engine, numbers, a, b, self.spec.n());
        }
        let mut a = vec![0; self.spec.row_bytes()];
        let mut b = a.clone();
        self.whole_row(place.round, previous, place.row, &mut a);
        self.column(place.column, &mut b);
        simd::dot(numbers, &a, &b)
    }

    /// Recomputes the 256 entries of the leaf that holds `place`. Used only to name a fault that was found.
    pub(crate) fn leaf(&self, place: Place, previous: &Hash) -> Vec<i32> {
        let (mut a, mut b) = (vec![0; self.spec.row_bytes()], vec![0; self.spec.row_bytes()]);
        self.whole_row(place.round, previous, place.row, &mut a);
        let first = place.column - place.column % LEAF_ENTRIES;
        let entry = |column| {
            self.column(column, &mut b);
            simd::dot(self.spec.shape.numbers, &a, &b)
        };
        (first..first + LEAF_ENTRIES).map(entry).collect()
    }

    /// Generates row `row` of A as it is multiplied. The blocks of a bound memory are recomputed.
    pub fn whole_row(&self, round: u32, previous: &Hash, row: u32, out: &mut [u8]) {
        self.row(&self.a_key(round, previous), row, out);
        let (Some(binding), Some(labels)) = (&self.spec.binding, &self.labels) else {
            return;
        };
        let pieces = out.as_chunks_mut::<LEAF>().0;
        for (piece, address) in pieces.iter_mut().zip(self.bound_blocks(round, previous, row)) {
            let mut block = [0; LEAF];
            simd::label_block(self.engine, labels, address, binding.memory.work, &mut block);
            xor(piece, &block);
        }
    }
}

/// `target ^= mask`.
pub(crate) fn xor(target: &mut [u8; LEAF], mask: &[u8; LEAF]) {
    for (byte, other) in target.iter_mut().zip(mask) {
        *byte ^= other;
    }
}
