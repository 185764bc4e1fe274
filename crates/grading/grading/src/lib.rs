//! Grading: batches of known-answer proofs over the whole subnet, without a clock, a socket or randomness.
//!
//! Reading order: [`plan`] (who is challenged and when, from a block's hash), [`course`] (what a class has to prove) with [`floors`] (how much, as an operator keeps it),
//! [`batch`] (the machine: leases, the barrier, the rounds), [`verdict`] (what came of each executor, with a reason for every
//! zero), [`evidence`] (what is kept, and judged again by anyone) with [`seals`] (who signed it). What is proven, and the conversation in which it is, are
//! `muster-hardware-proof`'; who sends the bytes is whoever holds the sessions.

pub mod batch;
pub mod course;
pub mod evidence;
pub mod fingerprints;
pub mod floors;
pub mod judgement;
pub mod plan;
pub mod replay;
pub mod seals;
pub mod settlement;
pub mod trial_result;

pub use batch::{Action, Batch, Event, Rules};
pub use course::{Course, Trial};
pub use evidence::BatchFile;
pub use judgement::{Judgement, Why};
pub use plan::{Announced, Bounds, Plan, Seat};
pub use replay::replay;
