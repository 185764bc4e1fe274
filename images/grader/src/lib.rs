//! The prover as a program inside a job's container.
//!
//! A validator's messages arrive as the bodies of `POST /v1/grade`, the prover's answers are the bodies of the responses: each pair
//! passes the seal like any other request, so what was said is signed. Reading order: [`Grader`] (one conversation at a time, and
//! what ends it), [`serve`] (HTTP), [`machine`] (what this container may be asked for), [`program`] (all of it, around any prover:
//! `images/grader-cuda` is another program around another prover).

mod grader;
pub mod machine;
pub mod program;
pub mod serve;

pub use grader::{Answer, Grader, Refused};
