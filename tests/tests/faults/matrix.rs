//! The fault matrix: everything that can be killed, cut or lost, in every state of a job, with real processes, a real
//! chain and a real Docker engine.
//!
//! A column is a fault; its cells are the states, generated from `JobStatus`. In each cell a job is brought into the
//! state and held there, the fault strikes, the hold ends. Then everybody must agree: the facilitator, the validator
//! and the miner on one end and on one set of receipts, the job's own mark outside at most once for each run, nothing
//! orphaned, and what the next job needs in working order. Where the fault leaves a running program alone, it ends in
//! the run that was struck. A test is one column or two on one subnet, as a day's faults share one; tests share
//! nothing.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

mod agreement;
mod cells;
mod column;
mod outside;

use cells::{Party, Strike, Wire};
use column::Column;

/// A test for each of these sets of columns, and the list of all columns.
macro_rules! columns {
    ($($name:ident => [$($strike:expr),+],)+) => {
        $(
            #[test]
            fn $name() {
                Column::run(&[$($strike),+]);
            }
        )+

        const COLUMNS: &[Strike] = &[$($($strike),+),+];
    };
}

columns! {
    the_facilitator_and_the_validator_are_killed => [Strike::Kill(Party::Facilitator), Strike::Kill(Party::Validator)],
    the_miner_and_the_executor_are_killed => [Strike::Kill(Party::Miner), Strike::Kill(Party::Executor)],
    the_engine_is_killed => [Strike::Kill(Party::Engine)],
    the_database_is_killed => [Strike::Kill(Party::Database)],
    sockets_are_cut_and_frames_come_twice => [Strike::Socket(Wire::Cut), Strike::Socket(Wire::Duplicated)],
    frames_pass_each_other => [Strike::Socket(Wire::Reordered)],
    frames_are_late_and_the_chain_is_gone => [Strike::Socket(Wire::Delayed), Strike::ChainGone],
}

#[test]
fn no_column_is_missing() {
    for strike in Strike::all() {
        let count = COLUMNS.iter().filter(|column| **column == strike).count();
        assert_eq!(count, 1, "{strike:?}");
    }
    assert_eq!(COLUMNS.len(), Strike::all().len());
}
