//! Starting and ending executors. One trait, so that a fleet elsewhere is one more implementation.
//!
//! [`LocalProcesses`] starts a process on this machine for each lease; [`Provisioner`] runs commands of the operator's
//! (Terraform, `SkyPilot`, a script) that bring an executor up somewhere else and take it away again;
//! [`EngineExecutors`] has an [`ExecutorEngine`] start it, a batch system or an orchestrator.

mod child_process;
mod daily_spend;
mod engine;
mod engine_executors;
mod local_executors;
mod provision_command;
mod provision_records;
mod spend_ledger;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use daily_spend::SpendExceeded;
pub use engine::{EngineError, EngineExecutor, ExecutorEngine, Survey};
pub use engine_executors::EngineExecutors;
pub use local_executors::LocalProcesses;
pub use provision_command::{Commands, Provisioner};

/// The order to start an executor for one lease.
#[derive(Clone, Debug)]
pub struct Order {
    /// The token that it shows when it dials the miner.
    pub token: ExecutorToken,
    /// The class that the executor must have.
    pub class: ExecutorClass,
    /// Whether the executor must take an image from an archive or with a login.
    pub private_image: bool,
    /// The address of the miner that it dials.
    pub miner_address: String,
    /// The most that its lease may take, every wait included.
    pub lasts: Duration,
    /// Where the manager states what the executor waits for.
    pub notice: Notice,
}

/// The reason for which an executor is not there yet, as its manager last stated it; empty before the first. Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub struct Notice(Arc<watch::Sender<String>>);

impl Order {
    /// Reports what the executor waits for.
    pub fn tell(&self, reason: String) {
        self.notice.0.send_if_modified(|told| {
            let is_new = *told != reason;
            *told = reason;
            is_new
        });
    }
}

impl Notice {
    /// Follows the reason.
    pub fn follow(&self) -> watch::Receiver<String> {
        self.0.subscribe()
    }
}

/// The executors and the machines of a manager, as its engine last showed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// The executors that the machines hold at one time, busy ones included; `None` before the first answer.
    pub places: Option<u32>,
    /// The executors that are started and do not run yet, each with the engine's reason.
    pub waiting: BTreeMap<AttemptId, String>,
    /// The engine's fault, if it did not answer the last question.
    pub fault: Option<String>,
}

/// Why an executor could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The program does not start.
    #[error("cannot start the executor program {program:?}; check executor.command")]
    Start {
        /// The program's name.
        program: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The end of the process cannot be learnt.
    #[error("cannot wait for the executor program")]
    Wait(#[source] io::Error),
    /// The record of the executor cannot be written, so nothing is provisioned.
    #[error("cannot write {path}, the record by which a provisioned executor is found again")]
    Record {
        /// The record's file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The command that provisions does not start.
    #[error("cannot start {program:?}; check executor.provision and executor.release")]
    Command {
        /// The program's name.
        program: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The engine refused to start the executor.
    #[error(transparent)]
    Engine(EngineError),
    /// The operator's limit on machine time is reached, so nothing is provisioned.
    #[error(transparent)]
    Spent(#[from] SpendExceeded),
    /// A command failed, or took too long.
    #[error("{program:?} {how}; its output is in this miner's log")]
    Failed {
        /// The program's name.
        program: String,
        /// The end of the command, as text.
        how: String,
    },
}

/// The life of one executor: ends when the executor is gone, with a text for the log.
pub type Running = Pin<Box<dyn Future<Output = Result<String, ManagerError>> + Send>>;

/// Starts executors and ends them.
pub trait ExecutorManager: Send + Sync + 'static {
    /// Runs one executor to its end. Once `stop` is cancelled it has a while to end by itself, then it is ended.
    fn run(&self, order: Order, stop: CancellationToken) -> Running;

    /// Checks that an executor may be started for a lease that may take `lasts`, by what is known now.
    ///
    /// # Errors
    /// The operator's limit on machine time is reached.
    fn check_spend(&self, lasts: Duration) -> Result<(), SpendExceeded> {
        let _ = lasts;
        Ok(())
    }

    /// Goes on with an executor that an earlier process of this miner started, to its end; ends at once if the executor
    /// is not there any more. `apart` states whether it was started on this machine for its lease alone. `None` if this
    /// manager has not started it.
    fn resume(&self, order: Order, apart: bool, stop: CancellationToken) -> Option<Running> {
        let _ = (order, apart, stop);
        None
    }

    /// Ends the executors that an earlier process of this miner started and did not end, but for those whose leases go
    /// on.
    fn reclaim(&self, kept: BTreeSet<AttemptId>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        drop(kept);
        Box::pin(std::future::ready(()))
    }

    /// The executors and the machines; `None` from a manager that always has what its configuration states.
    fn view(&self) -> Option<PoolView> {
        None
    }

    /// Waits until [`ExecutorManager::view`] shows what is there, or that the engine does not answer.
    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }

    /// Starts no executor on these hosts from now on.
    fn exclude_hosts(&self, hosts: BTreeSet<String>) {
        drop(hosts);
    }

    /// The attempts whose executors run on these hosts.
    fn attempts_on(&self, hosts: &BTreeSet<String>) -> BTreeSet<AttemptId> {
        let _ = hosts;
        BTreeSet::new()
    }
}
