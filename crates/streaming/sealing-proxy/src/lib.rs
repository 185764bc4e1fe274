//! The sealing proxy of one session, on the executor: it passes requests to the engine in its container and responses
//! to the session's client, byte by byte as they arrive, and signs every response.
//!
//! Reading order: [`proof_signer`] (numbers, chains and signs), `request_intake` (a request is read), [`upstream`] with
//! [`socket`] and [`netns`] (the engine in its container is reached), `response_relay` (a response passes), [`proxy`]
//! (a request in, a signed response out), `upgrade` (WebSockets), [`endpoint`] (TLS for exactly one client).
//!
//! `muster_response_proof` has the signed statements and the headers, and `muster_sealed_client` is the other end. See
//! `docs/sealed-sessions.md`.

mod client_body;
pub mod endpoint;
pub mod netns;
mod pending_response;
pub mod proof_signer;
pub mod proxy;
mod rejection;
mod request_intake;
mod response_relay;
pub mod socket;
mod upgrade;
pub mod upstream;
mod well_known;

pub use client_body::{ClientStalled, SealedBody};
pub use endpoint::{Endpoint, EndpointError};
pub use muster_response_proof::Limits;
pub use proof_signer::{ProofSigner, SignerError};
pub use proxy::{GraderBackend, SealingProxy};
pub use upstream::{EngineAddress, Upstream, UpstreamError};
