//! What a machine needs for Muster: each verdict is a pure function of facts that somebody else gathered.
//!
//! Reading order: [`facts`] (what was found out), [`verdict`] (what it means, and what to do).

pub mod facts;
pub mod verdict;

pub use facts::Facts;
pub use verdict::{Purpose, State, Verdict, judge};
