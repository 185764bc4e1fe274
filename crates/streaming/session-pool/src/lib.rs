//! The decisions about streaming sessions, without clock, socket or store.
//!
//! * [`whitelist`]: which images may serve which models, and whether a miner attests what was asked for.
//! * [`pool`]: how many sessions of a model there are, and which session serves which request.
//! * [`queue`]: the order in which requests that wait are served.
//!
//! A session is one container behind one seal. A gateway reports events to the pool and carries out its effects.

pub mod pool;
pub mod queue;
pub mod whitelist;

pub use pool::{CloseReason, Effect, Event, Limits, RequestNumber, SessionNumber, SessionPool};
pub use whitelist::{Service, Whitelist};
