//! The executor against a real Docker engine and a miner that speaks as ComputeHorde's does.
//!
//! One program, so that the support modules are compiled once. Without an engine each test says that it was skipped.

mod engine;
mod jobs;
mod support;
