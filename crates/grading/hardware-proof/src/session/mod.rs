//! The conversation about one challenge as two state machines without IO, one per side.
//!
//! MATMUL: challenge → commitment → draw → opening → verdict. WALK: challenge → filled → seed → commitment → draw →
//! opening → verdict. The caller passes in the time in microseconds, the messages as bytes, and randomness on request.

mod executor;
mod validator;

pub use executor::{Caps, Command, Executor, Output, Refusal, Task};
pub use validator::{Action, Input, Validator};
