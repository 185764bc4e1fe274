//! The fault matrix: everything that can be killed, cut or lost, in every state of a job, with real processes, a real
//! chain and a real Docker engine.
//!
//! One test is one column, a fault; its cells are the states, generated from [`JobStatus`]. In each cell a job is
//! brought into the state and held there, the fault strikes, the hold ends. Then everybody must agree: the facilitator,
//! the validator and the miner on one end and on one set of receipts, the job's own mark outside at most once for each
//! run, nothing orphaned, and what the next job needs in working order. Columns share nothing; the cells of a column
//! share a subnet, as a day's faults do.

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

/// A test for each column, and the list of all of them.
macro_rules! columns {
    ($($name:ident => $strike:expr,)+) => {
        $(
            #[test]
            fn $name() {
                Column::run($strike);
            }
        )+

        const COLUMNS: &[Strike] = &[$($strike),+];
    };
}

columns! {
    the_facilitator_is_killed => Strike::Kill(Party::Facilitator),
    the_validator_is_killed => Strike::Kill(Party::Validator),
    the_miner_is_killed => Strike::Kill(Party::Miner),
    the_executor_is_killed => Strike::Kill(Party::Executor),
    the_engine_is_killed => Strike::Kill(Party::Engine),
    the_database_is_killed => Strike::Kill(Party::Database),
    sockets_are_cut => Strike::Socket(Wire::Cut),
    frames_come_twice => Strike::Socket(Wire::Duplicated),
    frames_pass_each_other => Strike::Socket(Wire::Reordered),
    frames_are_late => Strike::Socket(Wire::Delayed),
    the_chain_is_gone => Strike::ChainGone,
}

#[test]
fn no_column_is_missing() {
    for strike in Strike::all() {
        let count = COLUMNS.iter().filter(|column| **column == strike).count();
        assert_eq!(count, 1, "{strike:?}");
    }
    assert_eq!(COLUMNS.len(), Strike::all().len());
}
