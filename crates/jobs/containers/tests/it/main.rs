//! The crate against real engines, real registries and a program that tries to break out.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "what these helpers cannot do is the test's failure, on its line; what a machine lacks is said beside the skipped test"
)]

mod cache;
mod compatibility;
mod dockerd;
mod engine;
mod llm;
mod probes;
mod registry;
mod support;
