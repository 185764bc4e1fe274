//! The operator's view of the miner: what is remembered for it, and the pages that show it.

mod router;
mod status_board;

pub(crate) use router::{OperatorSources, open};
pub use status_board::OperatorBoard;
pub(crate) use status_board::failure_of;
