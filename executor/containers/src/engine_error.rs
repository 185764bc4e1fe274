//! Failures of the engine's API: the operation that failed, and the engine's own words about it.

use bollard::errors::Error as ApiError;
use muster_process::Coded;
use muster_protocol::ErrorCode;

use crate::engine_answer::EngineAnswer;
use crate::image_archive::ArchiveError;

/// The operations whose answers are about the image and its job.
pub(crate) const CREATE: &str = "create a container";
pub(crate) const START: &str = "start a container";
/// Commands that install an engine, the same as on the page of E0001.
const HOW_TO_GET_ONE: &str = "sudo apt-get install -y docker.io containerd runc iptables; \
    sudo systemctl start docker (without systemd: sudo dockerd &); sudo usermod -aG docker \"$USER\", then log in again";

/// A failed operation of the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine does not answer.
    #[error("no docker engine answers at {address}; to get one: {HOW_TO_GET_ONE}")]
    Unreachable {
        /// The address that was tried.
        address: String,
        /// The client library's error.
        source: ApiError,
    },
    /// The engine refused the request or failed at it.
    #[error("the docker engine could not {operation}")]
    Failed {
        /// The operation, to complete the sentence "the docker engine could not …".
        operation: &'static str,
        /// The engine's answer, or the client library's error.
        source: ApiError,
    },
    /// An image archive cannot be read.
    #[error("image archive {path} cannot be loaded")]
    Archive {
        /// Path of the archive, as configured.
        path: String,
        /// The failure of reading the file or of parsing its documents.
        source: ArchiveError,
    },
    /// The engine closed the connection in the middle of an answer.
    #[error("the docker engine hung up when asked to {0}")]
    HungUp(&'static str),
    /// The engine has no root and the machine's control groups are of version 1, which give such an engine no limits.
    #[error(
        "the engine at {0} runs without root on control groups of version 1, where it cannot bound the memory and the \
         processors of jobs; start it as root, or give the machine control groups of version 2"
    )]
    Unlimited(String),
    /// The answer lacks something that the API promises.
    #[error("the docker engine answered without {0}")]
    Incomplete(&'static str),
}

impl EngineError {
    /// The engine's message if it refused the request itself (4xx).
    pub(crate) fn refusal(&self) -> Option<&str> {
        match self {
            Self::Failed {
                source: ApiError::DockerResponseServerError { status_code, message },
                ..
            } if (400..500).contains(status_code) => Some(message),
            Self::Failed { .. }
            | Self::Unreachable { .. }
            | Self::Archive { .. }
            | Self::HungUp(_)
            | Self::Unlimited(_)
            | Self::Incomplete(_) => None,
        }
    }

    /// The engine's answer to the creation or the start of a container, judged; `None` for every other failure.
    pub fn answer(&self) -> Option<EngineAnswer> {
        match self {
            Self::Failed {
                operation: CREATE | START,
                source: ApiError::DockerResponseServerError { message, .. },
            } => Some(EngineAnswer::judge(message)),
            Self::Failed { .. }
            | Self::Unreachable { .. }
            | Self::Archive { .. }
            | Self::HungUp(_)
            | Self::Unlimited(_)
            | Self::Incomplete(_) => None,
        }
    }
}

impl Coded for EngineError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Unreachable { .. } | Self::Unlimited(_) => Some(ErrorCode::EngineUnreachable),
            Self::Failed { .. } | Self::Archive { .. } | Self::HungUp(_) | Self::Incomplete(_) => None,
        }
    }
}
