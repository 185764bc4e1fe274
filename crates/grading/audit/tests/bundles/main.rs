//! Bundles of evidence: their verdicts, all that is refused, and a second program that replays them.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

mod nonces;
mod refused;
mod support;
mod third_party;
mod verdicts;
