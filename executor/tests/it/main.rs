//! The executor against a real Docker engine and a miner that speaks as ComputeHorde's does.
//!
//! One program, so that the support modules are compiled once. Without an engine each test fails.

// `cfg(test)` informs clippy that helpers may unwrap, too.
#[cfg(test)]
mod checkpoints;
#[cfg(test)]
mod differential;
#[cfg(test)]
mod direct;
#[cfg(test)]
mod early_ends;
#[cfg(test)]
mod engine;
#[cfg(test)]
mod images;
#[cfg(test)]
mod job_data;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod output;
#[cfg(test)]
mod own_engine;
#[cfg(test)]
mod persistent;
#[cfg(test)]
mod program_start;
#[cfg(test)]
mod python;
#[cfg(test)]
mod reap;
#[cfg(test)]
mod reattaching;
#[cfg(test)]
mod stream;
#[cfg(test)]
mod support;
#[cfg(test)]
mod trouble;
#[cfg(test)]
mod user_archives;
#[cfg(test)]
mod warm;
