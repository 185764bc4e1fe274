//! The proof of one answer as `GET /v1/proofs/{id}` returns it.

use muster_openai::TokenUsage;
use muster_protocol::{MinerKey, Timestamp, ValidatorKey};
use serde::{Deserialize, Serialize};

/// One answer with its proof and the attestation of its session: all that a third party needs to check it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofView {
    /// The answer's id, 64 hex digits.
    pub id: String,
    /// The nonce that the gateway gave the session with the request, 64 hex digits. Gateways of earlier releases do not
    /// state it: there the id is the nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// The nonce that the gateway drew for the request's pseudonym, 64 hex digits; absent if the client named a nonce.
    /// With it the client shows its facilitator that the answer is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pseudonym_nonce: Option<String>,
    /// `proven`, or why the answer is not proven.
    pub verdict: String,
    /// The model that answered.
    pub model: String,
    /// The miner that ran the session.
    pub miner: MinerKey,
    /// The validator whose gateway checked the proof.
    pub validator: ValidatorKey,
    /// How the answer ended: as the session signed it, or as the gateway observed it.
    pub end: String,
    /// When the gateway sent the request, by its own clock.
    pub asked_at: Timestamp,
    /// When the first byte of the answer arrived, by the gateway's clock.
    pub first_byte_at: Option<Timestamp>,
    /// When the answer ended, by the gateway's clock.
    pub ended_at: Timestamp,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// Tokens, by the gateway's own count.
    pub usage: TokenUsage,
    /// The price of the answer, in rao.
    pub cost: u64,
    /// The proof that the session signed: base64 of the statement and its signature.
    pub proof: Option<String>,
    /// The attestation of the session that its miner signed, in the same form.
    pub attestation: String,
}
