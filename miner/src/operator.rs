//! The operator's view of the miner: what is remembered for it, and the pages that show it.

mod board;
mod router;

pub use board::OperatorBoard;
pub(crate) use board::failure_of;
pub(crate) use router::{OperatorSources, open};
