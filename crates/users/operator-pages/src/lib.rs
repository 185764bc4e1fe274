//! The pages of operators. [`validator`] and [`miner`] turn a status into HTML, purely; [`gate`] decides who may look;
//! [`guard`] puts it before a role's pages and hands out styles and script.
//!
//! Pages only read. A page asks the JSON calls of its own process, so it shows nothing that `muster top` cannot read.

mod charts;
mod frame;
pub mod gate;
pub mod guard;
pub mod miner;
pub mod validator;
pub mod validator_router;

/// A part of a page: the answer of a call, or a text with the reason why there is none.
pub type CallAnswer<T> = Result<T, String>;
