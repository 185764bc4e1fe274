//! CHAIN: a chain of matrix products that proves a rate of computing.
//!
//! `C_k = A_k · B` for `k = 0 … K-1`, all exact integers modulo 2³². B and A₀ follow from the session, `A_{k+1}` from the
//! Merkle root over `C_k`: nothing can be computed ahead or side by side. After all roots are committed, single entries
//! are drawn and opened; one entry costs its checker one row of A, one column of B and one inner product.

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

/// How large a CHAIN is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainShape {
    /// The kind of entries.
    pub numbers: Numbers,
    /// log₂ of the side of the matrices, 8 to 16.
    pub log2_n: u8,
    /// Products in the chain, 1 to 256.
    pub rounds: u16,
    /// Entries drawn, from `rounds` to 1,024.
    pub entries: u16,
}

/// Ties the chain to a filled memory: labels of a WALK are XORed over the beginning of every row of A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Blocks of memory per row of A, 1 to `n · width / 1024`.
    pub blocks_per_row: u16,
    /// The memory.
    pub memory: Memory,
}

/// A complete CHAIN challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainSpec {
    identity: Identity,
    shape: ChainShape,
    binding: Option<Binding>,
}

/// One drawn entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which product.
    pub round: u32,
    /// Row of C.
    pub row: u32,
    /// Column of C.
    pub column: u32,
}

impl ChainSpec {
    /// Bytes of the fixed layout.
    pub const BYTES: usize = 152;

    /// Checks the shape.
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

    /// Who is challenged.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How large it is.
    pub fn shape(&self) -> &ChainShape {
        &self.shape
    }

    /// The memory it is tied to.
    pub fn binding(&self) -> Option<&Binding> {
        self.binding.as_ref()
    }

    /// The side of the matrices.
    pub fn n(&self) -> usize {
        1 << self.shape.log2_n
    }

    /// Bytes of the generator for one row of A or column of B.
    pub fn row_bytes(&self) -> usize {
        self.n() * self.shape.numbers.width()
    }

    /// Levels of the tree over one C.
    pub fn depth(&self) -> usize {
        2 * usize::from(self.shape.log2_n) - 8
    }

    /// Bytes of one opened entry: its place, its leaf, its path.
    pub fn opening_bytes(&self) -> usize {
        12 + LEAF + 32 * self.depth()
    }

    /// Multiplications and additions in the whole chain.
    pub fn operations(&self) -> u128 {
        2 * (self.n() as u128).pow(3) * u128::from(self.shape.rounds)
    }

    /// The fixed layout; its hash is the session's id.
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
    /// A wrong length, an unknown tag, a value outside its range, bytes that should be zero and are not.
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

    /// The digest that every message and key carries.
    pub fn session(&self) -> SessionId {
        SessionId(Sha256::digest(self.to_bytes()).into())
    }

    /// The drawn entries: one of every round first, the rest of any round.
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

/// The generators of one chain.
#[derive(Debug, Clone)]
pub struct Generator {
    spec: ChainSpec,
    session: SessionId,
    b: Key,
    labels: Option<Key>,
    engine: Engine,
}

impl Generator {
    /// Derives what stays the same in all rounds.
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

    /// What a prover sends to show that it derived the same keys.
    pub fn print(&self) -> [u8; 16] {
        keys::print(&self.session, &self.b)
    }

    /// The key of B.
    pub fn b_key(&self) -> &Key {
        &self.b
    }

    /// The key of A in `round`, after the root of the round before (zeros for round 0).
    pub fn a_key(&self, round: u32, previous: &Hash) -> Key {
        keys::derive(&self.session, Purpose::MatrixA, round, previous)
    }

    /// Generates column `column` of B into `out`, `row_bytes` long.
    pub fn column(&self, column: u32, out: &mut [u8]) {
        simd::fill(self.engine, &self.b, u64::from(column), out);
    }

    /// Generates row `row` of A under `key` into `out`, without the bound blocks.
    pub fn row(&self, key: &Key, row: u32, out: &mut [u8]) {
        simd::fill(self.engine, key, u64::from(row), out);
    }

    /// Which blocks of memory lie over row `row` of A in `round`, in order; none without a binding.
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

    /// Computes `C[row, column]` of the round with nothing but the specification.
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

    /// Recomputes the 256 entries of the leaf that holds `place`; only to name a fault that was found.
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

    /// Generates row `row` of A as it is multiplied, labels of the bound memory recomputed.
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
