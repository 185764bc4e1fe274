//! Scores of whole snapshots: nothing is lost, nothing is created, every receipt that does not count has its reason,
//! and bad input stops nobody.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

mod agreement;
mod capacity_statements;
mod cycles;
mod division;
mod receipts;
mod support;
mod third_party;
