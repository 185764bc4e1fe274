//! Whole proofs: against the Python reference, in conversation, and under attack.

mod conversation;
mod soundness;
mod support;
mod vectors;
