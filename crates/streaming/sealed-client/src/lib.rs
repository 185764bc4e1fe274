//! The client's side of a sealed session, as a gateway and a grader use it.
//!
//! [`SealedClient`] connects to one sealed endpoint. [`CheckedBody`] hashes a response while it passes and finds its
//! proof. [`SealedSession`] joins the two: it opens a session only if the miner's attestation is what was asked for,
//! sends requests, and keeps the ledger of the session's proofs.

mod checked_body;
mod client;
mod session;

pub use checked_body::{CheckedBody, ProofError, ReceivedResponse, SentRequest};
pub use client::{ClientError, ClosingStatement, SealedClient, SealedPeer};
pub use muster_http::http1::{BodyError, MalformedResponse, ResponseBody};
pub use session::{
    AddressPermit, AwaitedProof, ResponseReport, SealedRequest, SealedResponse, SealedSession,
    SessionParameters, draw_nonce,
};
