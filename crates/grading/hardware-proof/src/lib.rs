//! Proofs of hardware that a laptop can check: CHAIN for compute, WALK for memory and its bandwidth.
//!
//! `docs/proofs.md` defines them and says what they prove. Reading order: `chacha`, `keys`, `merkle` (the parts);
//! [`chain`] and [`walk`] (what is proven); `message`, [`session`] (the conversation); [`Evidence`] (what is kept and
//! judged); [`prover`] (who answers); [`grade`] (what it is worth). No IO, no clock, no randomness of its own.

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

/// Block `index` of a WALK's memory, by the fastest way of this engine.
pub fn label_block(engine: Engine, memory: &spec::Memory, index: u64, out: &mut [u8; merkle::LEAF]) {
    simd::label_block(engine, &memory.label_key(), index, memory.work, out);
}
