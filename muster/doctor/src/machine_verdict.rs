//! Whether a machine can do what it is meant for: facts, gathered elsewhere, and the verdicts over them. Pure.

mod facts;
mod machine;
mod miner;
mod verdict;

pub use facts::{
    ClockFacts, DiskFacts, EngineFacts, GpuFacts, LoginFacts, MachineFacts, MinerFacts, PoolFacts, PortFacts,
    RemoteFacts,
};
pub use machine::judge;
pub use verdict::{Purpose, Severity, Verdict, worst_severity};
