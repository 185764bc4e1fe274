//! The pages of operators. [`validator`] and [`miner`] turn a status into HTML, purely; [`token_check`] decides who may
//! look; [`sign_in`] puts it before a role's pages and hands out styles and script.
//!
//! Pages only read. A page asks the JSON calls of its own process, so it shows nothing that `muster top` cannot read.

mod charts;
mod frame;
pub mod miner;
pub mod sign_in;
pub mod token_check;
pub mod validator;
pub mod validator_router;

/// A part of a page: the answer of a call, or a text with the reason why there is none.
pub type CallAnswer<T> = Result<T, String>;
