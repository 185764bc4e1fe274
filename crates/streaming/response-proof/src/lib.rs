//! Signed statements about streaming sessions, and the form in which HTTP carries them. Pure: no IO, no clock, and no
//! keys but the one that [`seal`] takes.
//!
//! A miner *attests* a session: an [`Attestation`] says that a key and two certificates stand for one container. The
//! session key then signs one [`ResponseProof`] for each response, numbered and chained, and at the end a
//! [`SessionClose`] with the last number. `docs/protocol.md` specifies the bytes. A [`ProofLedger`] checks them; the
//! caller supplies the function that checks signatures.
//!
//! The validator signs a [`BucketHeader`] for the proven answers of every 25 blocks, from which spot checks are drawn.
//!
//! The executor's proxy and the gateway's client share the form on the wire: [`headers`], the [`comment`] line at the
//! end of an event stream, the digests of bodies ([`body_digest`]), the paths of [`well_known`], and [`limits`].

mod answer_log;
pub mod answer_proof;
mod attestation;
mod audit_appeal;
pub mod audit_limits;
pub mod body_digest;
mod check;
mod client_key;
mod codec;
pub mod comment;
mod envelope;
mod hash_scheme;
pub mod headers;
pub mod limits;
mod nonce;
mod proof;
mod reported_answer;
mod session_close;
#[cfg(not(target_arch = "wasm32"))]
mod statement_signing;
mod stream_end;
mod token;
mod tree;
pub mod well_known;

pub use answer_log::{
    AnswerLeaf, AuditShare, BUCKET_BLOCKS, BucketHeader, BucketNumber, DAY_BUCKETS, MAX_SHARE_PPM,
};
pub use attestation::{Attestation, Price, SessionId};
pub use audit_appeal::AuditAppeal;
pub use body_digest::{BodyDigest, BodyHasher};
pub use check::{ClockTolerance, Forgery, ObservedExchange, ProofLedger};
pub use client_key::{ClientKey, ClientOpening};
pub use codec::{LayoutError, MAX_TEXT, Text, TextError};
pub use envelope::{Envelope, EnvelopeError, Sealable};
pub use hash_scheme::HashScheme;
pub use limits::Limits;
pub use nonce::{NonceInput, RequestNonce, answer_seed};
pub use proof::{EngineFacts, ResponseProof, TokenFacts};
pub use reported_answer::{CheckedWords, MAX_REPORTED_WORDS, ReportedAnswer, ReportedWords, WordsRejection};
pub use session_close::SessionClose;
#[cfg(not(target_arch = "wasm32"))]
pub use statement_signing::seal;
pub use stream_end::StreamEnd;
pub use token::{GatewayToken, MAX_LIFETIME, TokenRejection, client_pseudonym};
pub use tree::{CHUNK, ChunkTree, LeafTree, OutputPrefix, hash_chunk, inclusion_path, root_by_path, root_of};
