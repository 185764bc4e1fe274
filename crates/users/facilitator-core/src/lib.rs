//! The porter at the users' door: who is let in with what, what may be asked and how often, who holds a validator's jobs,
//! and what a user is shown. Pure: no sockets, no store, time is an argument. `muster-facilitator` is the shell around it.
//!
//! Reading order: [`auth`] and [`account`] (who someone is), [`signature`] and [`intake`] (what they ask), [`rate`] (how
//! often), [`delivery`] (which connection gets it), [`jobs`], [`live`] and [`page`] (what is shown).

pub mod account;
pub mod auth;
pub mod delivery;
pub mod intake;
pub mod jobs;
pub mod live;
pub mod page;
pub mod rate;
pub mod signature;
