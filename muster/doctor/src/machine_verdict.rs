//! Whether a machine can do what it is meant for: facts, gathered elsewhere, and the verdicts over them. Pure.

mod machine_advice;
mod machine_facts;
mod miner;
mod verdict;

pub use machine_advice::judge;
pub use machine_facts::{
    ClockFacts, DiskFacts, EngineFacts, GpuFacts, LoginFacts, MachineFacts, MinerFacts, PoolFacts, PortFacts,
    RemoteFacts,
};
pub use verdict::{Purpose, Severity, Verdict, worst_severity};
