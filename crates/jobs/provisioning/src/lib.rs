//! Who brings executors to life. One trait, so that a fleet elsewhere is one more implementation.
//!
//! [`LocalProcesses`] starts a process on this machine for each lease; [`Provisioner`] runs commands of the operator's
//! (Terraform, `SkyPilot`, kubectl, a script) that bring an executor up somewhere else and take it away again.

mod ending;
mod local;
mod provision;
mod records;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;

use muster_protocol::{ExecutorClass, ExecutorToken};
use tokio_util::sync::CancellationToken;

pub use local::LocalProcesses;
pub use provision::{Commands, Provisioner};

/// What an executor is started for.
#[derive(Clone, Debug)]
pub struct Order {
    /// What it must show when it dials in.
    pub token: ExecutorToken,
    /// Of which kind it must be.
    pub class: ExecutorClass,
    /// Where it dials.
    pub miner_address: String,
}

/// Why an executor could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The program does not start.
    #[error("cannot start the executor program {program:?}; check executor.command")]
    Start {
        /// Its name.
        program: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Its end cannot be learnt.
    #[error("cannot wait for the executor program")]
    Wait(#[source] io::Error),
    /// What is provisioned cannot be written down, so it is not provisioned.
    #[error("cannot write {path} down, by which a provisioned executor is found again")]
    Record {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The command that provisions does not start.
    #[error("cannot start {program:?}; check executor.provision and executor.release")]
    Command {
        /// Its name.
        program: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// It failed, or took too long.
    #[error("{program:?} {how}; its output is in this miner's log")]
    Failed {
        /// Its name.
        program: String,
        /// In words.
        how: String,
    },
}

/// The life of one executor: ends, with words for the log, when it is gone.
pub type Running = Pin<Box<dyn Future<Output = Result<String, ManagerError>> + Send>>;

/// Brings executors to life and ends them.
pub trait ExecutorManager: Send + Sync + 'static {
    /// Runs one executor to its end. Once `stop` is cancelled it is given a while to leave, then made to.
    fn run(&self, order: Order, stop: CancellationToken) -> Running;

    /// Takes away what an earlier process of this miner brought to life and did not end. Its leases are over.
    fn reclaim(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }
}
