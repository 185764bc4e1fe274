//! Proofs of hardware that a laptop can check: MATMUL proves a rate of computing, WALK proves memory and its bandwidth.
//!
//! `docs/proofs.md` defines both proofs. Reading order: `chacha`, `keys`, `merkle` (the primitives); [`spec`] (the shared
//! vocabulary); [`chain`] and [`walk`] (the two proofs); `message`, [`session`] (the conversation); [`Evidence`] (the record
//! of a conversation, and its verdict); [`prover`] (computes the answers); [`grade`] (compares measurements with thresholds).
//! The crate has no IO, no clock and no randomness of its own.

pub mod chacha;
pub mod chain;
mod codec;
mod evidence;
pub mod grade;
pub mod keys;
pub mod merkle;
pub mod message;
pub mod prover;
pub mod session;
#[expect(
    unsafe_code,
    reason = "vector and tile instructions; nothing else in this crate is unsafe"
)]
mod simd;
pub mod spec;
mod verdict;
pub mod walk;

pub use codec::DecodeError;
pub use evidence::{Ending, Evidence, Limits, MOST_BYTES, Received, Sent};
pub use keys::Draws;
pub use simd::Engine;
pub use verdict::{Measured, Reason, Verdict};

/// Computes block `index` of a WALK's memory with these instructions.
pub fn label_block(engine: Engine, memory: &spec::Memory, index: u64, out: &mut [u8; merkle::LEAF]) {
    simd::label_block(engine, &memory.label_key(), index, memory.work, out);
}
