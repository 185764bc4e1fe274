//! The conversation of a grading as two state machines without IO, one per side.
//!
//! CHAIN: challenge → commitment → draw → opening → verdict. WALK: challenge → filled → seed → commitment → draw →
//! opening → verdict. Time goes in as microseconds, randomness when it is asked for, messages as bytes.

mod executor;
mod validator;

pub use executor::{Caps, Command, Executor, Output, Refusal, Task};
pub use validator::{Action, Input, Validator};
