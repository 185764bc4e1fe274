//! Proofs of hardware that a laptop can check: MATMUL proves a rate of computing, WALK proves memory and its bandwidth.
//!
//! `docs/proofs.md` defines both proofs. Reading order: `chacha`, `keys`, `merkle` (the primitives); [`spec`] (the
//! shared vocabulary); [`matmul`] and [`memory_walk`] (the two proofs); `message`, [`conversation`] (the conversation);
//! [`Evidence`] (the record of a conversation, and its verdict); [`prover`] (computes the answers); [`grade`] (compares
//! measurements with thresholds). The crate has no IO, no clock and no randomness of its own.

pub mod chacha;
pub mod challenge_keys;
pub mod challenge_message;
mod codec;
pub mod conversation;
mod evidence;
pub mod grade;
pub mod matmul;
pub mod memory_walk;
pub mod merkle;
mod proof_verdict;
pub mod prover;
#[expect(
    unsafe_code,
    reason = "vector and tile instructions; nothing else in this crate is unsafe"
)]
mod simd;
pub mod spec;

pub use challenge_keys::Draws;
pub use codec::DecodeError;
pub use evidence::{ConversationEnd, Evidence, Limits, MAX_EVIDENCE_BYTES, ReceivedMessage, SentRandomness};
pub use proof_verdict::{Measurement, ProofVerdict, ZeroReason};
pub use simd::InstructionSet;

/// Computes block `index` of a WALK's memory with these instructions.
pub fn compute_label_block(
    engine: InstructionSet,
    memory: &spec::WalkMemory,
    index: u64,
    out: &mut [u8; merkle::LEAF],
) {
    simd::compute_label_block(engine, &memory.label_key(), index, memory.work, out);
}
