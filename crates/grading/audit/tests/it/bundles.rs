//! Bundles of evidence: their verdicts, all that is refused, and a second program that replays them.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod clients;
mod missing;
mod nonces;
mod referenced;
mod refused;
mod support;
mod third_party;
mod verdicts;
