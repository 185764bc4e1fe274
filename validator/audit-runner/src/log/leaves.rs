//! The leaves of a bucket's answers, and the proofs in them. Pure.

use muster_gateway::store::LoggedAnswer;
use muster_protocol::Digest;
use muster_response_proof::{Envelope, ResponseProof};

/// The hashes of the leaves of a bucket's answers; `None` if a proof cannot be decoded.
pub(crate) fn leaf_hashes(answers: &[LoggedAnswer]) -> Option<Vec<Digest>> {
    let hash = |answer: &LoggedAnswer| Some(answer.leaf()?.hash());
    answers.iter().map(hash).collect()
}

/// The proof of an answer's session; `None` if it cannot be read.
pub(crate) fn proof_of(answer: &LoggedAnswer) -> Option<ResponseProof> {
    Envelope::<ResponseProof>::from_text(&answer.proof)
        .ok()?
        .statement()
        .ok()
}
