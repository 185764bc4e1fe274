//! The prover as a program inside a job's container.
//!
//! A validator's messages are the bodies of `POST /v1/grade`, the prover's answers are the bodies of the responses. The
//! sealing proxy signs each pair like any other request. Reading order: [`GraderService`] (one conversation at a time),
//! [`serve`] (HTTP), [`challenge_limits`] (the limits of this container), [`program`] (the whole program around any
//! prover; `images/grader-cuda` uses it with another one).

pub mod challenge_limits;
mod grader;
pub mod program;
pub mod serve;

pub use grader::{GraderRejection, GraderReply, GraderService};
