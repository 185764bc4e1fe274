//! What is signed about a streaming session, and what a row of such statements proves. No IO, no keys, no clock.
//!
//! A miner *attests* a session: this key and these certificates speak for this container. The session key then signs one
//! [`ResponseProof`] for each response, numbered and chained, and a [`SessionClose`] that carries the last number. The bytes
//! are specified in `docs/protocol.md`; signatures are checked by whoever has the keys.

mod attestation;
mod close;
mod envelope;
mod layout;
mod ledger;
mod proof;
mod scheme;
mod token;
mod tree;

pub use attestation::{Attestation, Price, SessionId};
pub use close::SessionClose;
pub use envelope::{Envelope, EnvelopeError, Sealable};
pub use layout::{LayoutError, MAX_TEXT, Nonce, Text, TextError};
pub use ledger::{Bounds, Exchange, Forgery, Ledger};
pub use proof::{EngineFacts, ResponseProof, TokenFacts};
pub use scheme::{HashScheme, StreamEnd};
pub use token::{GatewayToken, MAX_LIFETIME, TokenRefused};
pub use tree::{CHUNK, ChunkTree, Prefix, chunk_hash, root_of};
