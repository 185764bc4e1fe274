//! The decisions about streaming sessions, without clock, socket or store.
//!
//! * [`whitelist`]: which images may serve which models.
//! * [`attestation`]: whether a miner's attestation matches the session that was ordered.
//! * [`pool`]: how many sessions of a model there are, and which session serves which request.
//! * [`queue`]: the order in which requests that wait are served.
//!
//! A session is one container behind one seal. A gateway reports events to the pool and carries out its effects.

pub mod attestation;
pub mod pool;
pub mod queue;
pub mod whitelist;

pub use attestation::{AttestationMismatch, OrderedSession};
pub use pool::{
    CloseReason, Effect, Event, Limits, RequestNumber, SessionNumber, SessionPool, WaitingFor, WaitingPlace,
};
pub use whitelist::{Service, TokenizerFile, Whitelist};
