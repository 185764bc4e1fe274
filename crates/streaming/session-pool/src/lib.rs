//! What is decided about streaming sessions, all of it pure: which images may serve ([`whitelist`]), how many sessions of each
//! there are and who is served by which ([`pool`]), and in what order those who wait get their turn ([`queue`]).
//!
//! A session is one container behind one seal. No clock, no socket, no store: a gateway tells the pool what happened and does
//! what it answers.

pub mod pool;
pub mod queue;
pub mod whitelist;

pub use pool::{Effect, Event, Limits, Pool, RequestNo, SessionNo};
pub use whitelist::{Service, Whitelist};
