//! The grades that validators state about a miner. Nobody sends a miner its grade: a validator signs a statement of its
//! probes and serves it with the evidence. The miner reads and checks it there, as other validators do, so it shows
//! nothing that the validator could deny.

mod board;
mod reader;

pub(crate) use board::GradeBoard;
pub(crate) use reader::GradeReader;
