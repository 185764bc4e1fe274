//! Engines that start executors on machines of their own: a batch system, an orchestrator. [`ExecutorEngine`] is what a
//! miner needs of one; [`EngineExecutors`](crate::EngineExecutors) makes a manager of it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use muster_protocol::AttemptId;

use crate::Order;

/// The way in which an engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The engine answered that it will not: a quota, a GPU that no machine has, a policy on images, a missing right.
    /// Asking again changes nothing. The text names the engine, what it refused and what the operator can do.
    #[error("{0}")]
    Refused(String),
    /// The engine did not answer, or not in a way that proves anything. The call may have been carried out.
    #[error("{0}")]
    Unreachable(String),
}

/// One executor as its engine shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineExecutor {
    /// It waits for a machine, or for its image.
    Pending {
        /// The engine's reason, as the engine wrote it.
        reason: String,
    },
    /// Its program runs.
    Running {
        /// The machine's name at the engine, where the engine states it.
        host: Option<String>,
    },
    /// Its program has ended, or never began.
    Ended {
        /// The end as text, with the engine's reason.
        how: String,
    },
}

/// The executors and machines that an engine shows at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Every executor that bears this pool's label, ended ones included for as long as the engine shows them.
    pub executors: BTreeMap<AttemptId, EngineExecutor>,
    /// The executors that the engine's machines can hold at one time, busy ones included: machines that are down,
    /// drained or named in `excluded_hosts` do not count.
    pub places: u32,
}

/// An engine as a miner uses it. Every executor is named `muster-ATTEMPT` and bears the label of its pool, so the
/// engine itself is the record of what was started.
pub trait ExecutorEngine: Send + Sync + 'static {
    /// The kind of engine, as the configuration names it: `slurm`, `kubernetes`.
    fn kind(&self) -> &'static str;

    /// Starts the executor of an order, on no machine of `excluded_hosts`. An executor of that name that is there
    /// already is no error, and stays the only one.
    ///
    /// # Errors
    /// The engine refuses, or cannot be asked.
    fn create(
        &self,
        order: &Order,
        excluded_hosts: &BTreeSet<String>,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Takes an executor away, whatever state it is in. Ends well only if none of that name is left, or will be without
    /// a further call.
    ///
    /// # Errors
    /// The engine refuses, or cannot be asked.
    fn delete(&self, attempt: AttemptId) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Looks at all executors of this pool and at the machines.
    ///
    /// # Errors
    /// The engine refuses, or cannot be asked.
    fn survey(
        &self,
        excluded_hosts: &BTreeSet<String>,
    ) -> impl Future<Output = Result<Survey, EngineError>> + Send;
}
