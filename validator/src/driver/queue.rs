//! The jobs that wait for an executor. A waiting job has no task: its place lies in memory and in a row of the store.
//!
//! A new job begins at once if no other waits for its class and a miner may be asked ([`QueueKeeper::prepare`]).
//! Otherwise it waits, and so does a job whose attempt failed through no fault of its user's while no other miner may
//! be asked. [`keeper`] lets jobs in, [`ends`] closes those that leave without an attempt, [`restore`] reads the queue
//! of an earlier process, [`summary`] shows it to users and operators. The dispatcher starts waiting jobs.

mod ends;
mod keeper;
mod restore;
mod summary;

pub(super) use keeper::ReturningJob;
pub(crate) use keeper::{FirstAttempt, FirstStep, QueueKeeper};
