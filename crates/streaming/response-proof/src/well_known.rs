//! Paths and documents under `/.well-known/muster/`, by which a session states what it has signed.

use serde::{Deserialize, Serialize};

/// The prefix of all these paths.
pub const PREFIX: &str = "/.well-known/muster/";
/// The path of the grader beside the engine: a GET starts it, a POST is passed on to it. Its responses are signed as
/// the engine's are.
pub const GRADE_PATH: &str = "/.well-known/muster/grade";
/// The most proofs in one answer.
pub const MAX_PROOFS: usize = 256;

/// The answer to `proofs?from=N`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofListing {
    /// The number that the session's next response will have.
    pub next: u64,
    /// Proofs with the number N and later ones, in order. They are fewer than exist if there are more than
    /// [`MAX_PROOFS`], or if the oldest are no longer kept.
    pub proofs: Vec<NumberedProof>,
}

/// A proof in a [`ProofListing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedProof {
    /// The response's number in the session.
    pub sequence: u64,
    /// The proof's text form.
    pub proof: String,
}
