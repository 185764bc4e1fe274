//! The rules, the events and the actions of a batch.

use muster_scoring::ObservationKind;

use crate::judgement::Absence;
use crate::trial_result::TrialResult;

/// The time limits of a batch, set by the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRules {
    /// The kind of the batch. The executors of an announced one wait at the barrier until all are there, and may fail a
    /// trial once. Those of an unannounced one are challenged when the time to reach the barrier is over, neither
    /// earlier nor again: hardware that is rented after the lease has to come too late.
    pub kind: ObservationKind,
    /// Microseconds to reach the barrier, beyond the spin-up time of the slowest class in the batch.
    pub gather_us: u64,
}

/// An event of one executor.
#[derive(Clone, Debug)]
pub enum BatchEvent {
    /// It is leased and its session is up: it waits at the barrier.
    Ready,
    /// It will not reach the barrier.
    Absent(Absence),
    /// It waited at the barrier, and its session ended.
    Lost(String),
    /// The validator itself ended the session in which it is challenged.
    EndedByValidator(String),
    /// Its clock has stopped, because it has committed or its conversation is over.
    Committed,
    /// Its proof has been judged.
    Judged(Box<TrialResult>),
}

/// An action that the caller must carry out. Executors are named by their places in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAction {
    /// Lease these executors.
    Lease(Vec<usize>),
    /// Challenge these executors now, all at once.
    Challenge {
        /// The number of the trial in each executor's grade specification.
        trial: usize,
        /// 0 for the first time, 1 for the retry.
        attempt: u8,
        /// The executors, by place.
        participants: Vec<usize>,
    },
    /// Draw, take the openings, and judge these executors. No clock of the batch runs any longer, so verification
    /// disturbs no measurement. The openings may be fetched a few at a time, which bounds the memory.
    Judge(Vec<usize>),
    /// End the leases of these executors.
    Release(Vec<usize>),
    /// The batch is over.
    Finish,
}
