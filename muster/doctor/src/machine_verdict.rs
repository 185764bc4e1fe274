//! Whether a machine can do what it is meant for: facts, gathered elsewhere, and the verdicts over them. Pure.

mod class_hardware;
mod example_address;
mod machine_advice;
mod machine_facts;
mod miner;
mod verdict;

pub use example_address::is_example;
pub use machine_advice::judge;
pub use machine_facts::{
    ClockFacts, DialFacts, DiskFacts, EngineFacts, GpuFacts, HardwareFacts, LoginFacts, MachineFacts,
    MinerFacts, PoolFacts, PortFacts, PromisedExecutors, RemoteFacts,
};
pub use verdict::{Purpose, Severity, Verdict, worst_severity};
