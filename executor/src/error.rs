//! Why an executor's process ends otherwise than well.
//!
//! A job that fails is no error of its executor: it is reported, and the process ends with 0.

use muster_enrollment::MembershipError;
use muster_process::Coded;
use muster_protocol::ErrorCode;
use muster_websocket::ConnectError;

use crate::attempt_state::{Failure, Parting};

/// Why it ends.
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
    /// The membership of a standing executor cannot be used.
    #[error("executor: not enrolled")]
    Membership(#[from] MembershipError),
    /// The miner took this executor off its roll, or never had it there.
    #[error("executor: the miner does not take this executor: {0}")]
    StruckOff(String),
    /// The miner offered no job.
    #[error("executor: the miner offered no job within the startup limit")]
    NoOffer,
    /// This process was told to stop while a job was open.
    #[error("executor: told to stop while a job was open; the job was removed")]
    ShutDown,
    /// This machine is not fit to run jobs. The miner has been told.
    #[error("executor: {message}")]
    Unfit {
        /// What is wrong.
        message: String,
        /// Its page.
        code: ErrorCode,
    },
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Connect(_) | Self::MinerLost(_) => Some(ErrorCode::MinerLost),
            Self::Unfit { code, .. } => Some(*code),
            Self::Membership(error) => error.code(),
            Self::StruckOff(_) => Some(ErrorCode::NotEnrolled),
            Self::Cancelled(_) | Self::Refused(_) | Self::NoOffer | Self::ShutDown => None,
        }
    }
}

impl From<Parting> for Error {
    fn from(parting: Parting) -> Self {
        match parting {
            Parting::Cancelled(reason) => Self::Cancelled(reason),
            Parting::MinerLost(reason) => Self::MinerLost(reason),
            Parting::Refused(reason) => Self::Refused(reason),
            Parting::NoOffer => Self::NoOffer,
            Parting::ShutDown => Self::ShutDown,
        }
    }
}

impl Error {
    /// A reported failure that an operator must also see on this machine.
    pub(crate) fn unfit(failure: &Failure) -> Option<Self> {
        let code = failure
            .code
            .filter(|code| *code == ErrorCode::EngineUnreachable)?;
        Some(Self::Unfit {
            message: failure.message.clone(),
            code,
        })
    }
}
