//! The conversation about one challenge as two state machines without IO, one per side.
//!
//! MATMUL: challenge → commitment → draw → opening → verdict. WALK: challenge → filled → seed → commitment → draw →
//! opening → verdict. The caller passes in the time in microseconds, the messages as bytes, and randomness on request.

mod executor;
mod validator;

pub use executor::{
    ChallengeRejection, ExecutorCommand, ExecutorConversation, ProverLimits, ProverOutput, ProverTask,
};
pub use validator::{ValidatorAction, ValidatorConversation, ValidatorInput};
