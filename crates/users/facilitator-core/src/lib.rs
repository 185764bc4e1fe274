//! The porter at the users' door: who is let in with what, what may be asked and how often, who holds a validator's jobs,
//! and what a user is shown. Pure: no sockets, no store, time is an argument. `muster-facilitator` is the shell around it.
//!
//! Reading order: [`auth`] and [`account`] (who someone is), [`signature`] and [`intake`] (what they ask), [`rate_limit`] (how
//! often), [`connections`] (which connection gets it), [`history`], [`job_events`] and [`page`] (what is shown).

pub mod account;
pub mod auth;
pub mod connections;
pub mod history;
pub mod intake;
pub mod job_events;
pub mod page;
pub mod rate_limit;
pub mod signature;
