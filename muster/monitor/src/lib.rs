//! `muster top`. [`panels`] turn a status into tables of text, [`view`] keeps the choices of the keys, and [`screen`]
//! paints both into a buffer of any size: all three are pure. [`sources`] read the status, `terminal` owns the
//! terminal, and [`run`] puts them together. [`curve`] draws the metrics of a job, for `muster job curve`.
//!
//! Every text of a peer or a user passes through [`text::sanitize`] before it reaches the terminal.

mod board;
pub mod curve;
pub mod panels;
pub mod run;
pub mod screen;
pub mod sources;
mod terminal;
pub mod text;
pub mod view;

pub use board::{Board, ClassOffer, UserJob, UserStatus, ValidatorBoard};
