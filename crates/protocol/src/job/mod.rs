//! The life of a job: one attempt on one miner as a pure machine, and how it can end.

mod attempt;
mod outcome;

pub use attempt::{Attempt, Effect, Event, Illegal, JobState, Plan};
pub use outcome::{Fault, Outcome};
