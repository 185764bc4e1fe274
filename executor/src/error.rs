//! The errors with which an executor's process ends.
//!
//! A failed job is no error of its executor: it is reported to the miner, and the process ends with 0. So it does after
//! a job that was called off.

use muster_enrollment::CredentialsError;
use muster_process::Coded;
use muster_protocol::ErrorCode;
use muster_websocket::ConnectError;

use crate::attempt_state::{Abandonment, AttemptFailure};
use crate::own_engine::OwnEngineError;

/// Why an executor ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The miner that this executor was started for cannot be reached.
    #[error("executor: the miner cannot be reached; check --miner-address")]
    Connect(#[from] ConnectError),
    /// The attempt was called off by its validator or miner.
    #[error("executor: the job was cancelled: {0}")]
    Cancelled(String),
    /// The miner's socket closed or broke; the lease is lost with it.
    #[error("executor: the miner was lost: {0}")]
    MinerLost(String),
    /// The miner does not know the lease, or offers another attempt under it.
    #[error("executor: the miner refused the lease: {0}")]
    Refused(String),
    /// The membership file of a persistent executor cannot be used.
    #[error("executor: not enrolled")]
    Membership(#[from] CredentialsError),
    /// The miner revoked this executor, or never enrolled it.
    #[error("executor: the miner does not take this executor: {0}")]
    Revoked(String),
    /// The miner offered no job.
    #[error("executor: the miner offered no job within the startup limit")]
    NoOffer,
    /// This process was asked to stop while a job was open.
    #[error("executor: told to stop while a job was open; the job was removed")]
    ShutDown,
    /// The Docker engine of this executor's own cannot be used.
    #[error("executor: no Docker engine of its own")]
    OwnEngine(#[from] OwnEngineError),
    /// This machine is not fit to run jobs. The miner has the failure.
    #[error("executor: {message}")]
    Unfit {
        /// The description of the failure, as the miner got it.
        message: String,
        /// The code, whose page has the mend.
        code: ErrorCode,
    },
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Connect(_) | Self::MinerLost(_) => Some(ErrorCode::MinerLost),
            Self::Unfit { code, .. } => Some(*code),
            Self::Membership(error) => error.code(),
            Self::Revoked(_) => Some(ErrorCode::NotEnrolled),
            Self::OwnEngine(_) => Some(ErrorCode::EngineUnreachable),
            Self::Cancelled(_) | Self::Refused(_) | Self::NoOffer | Self::ShutDown => None,
        }
    }
}

impl From<Abandonment> for Error {
    fn from(reason: Abandonment) -> Self {
        match reason {
            Abandonment::Cancelled(reason) => Self::Cancelled(reason),
            Abandonment::MinerLost(reason) => Self::MinerLost(reason),
            Abandonment::Refused(reason) => Self::Refused(reason),
            Abandonment::NoOffer => Self::NoOffer,
            Abandonment::ShutDown => Self::ShutDown,
        }
    }
}

impl Error {
    /// The error for a reported failure that an operator must also see on this machine; `None` for every other failure.
    pub(crate) fn unfit(failure: &AttemptFailure) -> Option<Self> {
        let code = failure
            .code
            .filter(|code| *code == ErrorCode::EngineUnreachable)?;
        Some(Self::Unfit {
            message: failure.message.clone(),
            code,
        })
    }
}
