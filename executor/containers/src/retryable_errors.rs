//! Distinguishes temporary failures of an engine, which are worth a retry, from permanent ones.

use std::error::Error;
use std::io::ErrorKind;

use bollard::errors::Error as ApiError;
use muster_process::Backoff;
use muster_process::backoff::Retryable;

use crate::EngineError;
use crate::engine_answer::AnswerFault;
use crate::image_error::ImageError;
use crate::pull_error::PullError;

impl Retryable for EngineError {
    fn retries(&self) -> u32 {
        retries_if(self.is_recoverable())
    }
}

impl Retryable for PullError {
    fn retries(&self) -> u32 {
        retries_if(self.is_recoverable())
    }
}

impl Retryable for ImageError {
    fn retries(&self) -> u32 {
        retries_if(self.is_recoverable())
    }
}

const fn retries_if(recoverable: bool) -> u32 {
    if recoverable { Backoff::OUTAGE_RETRIES } else { 0 }
}

impl EngineError {
    /// Whether the same request may succeed later: the engine was not reachable, or had an internal failure. A refused
    /// request would be refused again, and so would one whose image is at fault, whatever the status says.
    pub fn is_recoverable(&self) -> bool {
        match self.answer().map(|answer| answer.fault) {
            Some(AnswerFault::Image | AnswerFault::User) => return false,
            Some(AnswerFault::Machine | AnswerFault::Unknown) | None => {}
        }
        match self {
            Self::Unreachable { source, .. } | Self::Failed { source, .. } => is_temporary(source),
            Self::HungUp(_) => true,
            Self::Archive { .. } | Self::Unlimited(_) | Self::Incomplete(_) => false,
        }
    }
}

fn is_temporary(error: &ApiError) -> bool {
    if let ApiError::DockerResponseServerError { status_code, .. } = error {
        return *status_code >= 500 && !is_full(error);
    }
    matches!(error, ApiError::RequestTimeoutError) || lost_connection(error)
}

/// Whether the disk is full, which a retry does not change.
fn is_full(error: &ApiError) -> bool {
    error.to_string().contains("no space left")
}

/// Whether a connection broke. A socket that does not exist does not count: no engine is expected to appear there.
fn lost_connection(error: &ApiError) -> bool {
    // This error is transparent: its `source` skips the error that it carries.
    let mut cause: Option<&(dyn Error + 'static)> = if let ApiError::IOError { err } = error {
        Some(err)
    } else {
        Some(error)
    };
    let mut broke = false;
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            if io.kind() == ErrorKind::NotFound {
                return false;
            }
            broke = true;
        }
        broke |= error.to_string().contains("connection closed");
        cause = error.source();
    }
    broke
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status_code: u16, message: &str) -> EngineError {
        EngineError::Failed {
            operation: "do it",
            source: ApiError::DockerResponseServerError {
                status_code,
                message: message.to_owned(),
            },
        }
    }

    #[test]
    fn broken_connections_are_temporary_and_refusals_are_permanent() {
        let broken = |kind| EngineError::Failed {
            operation: "do it",
            source: ApiError::IOError {
                err: std::io::Error::from(kind),
            },
        };
        assert!(refused(500, "shim reaped").is_recoverable());
        assert!(broken(ErrorKind::ConnectionRefused).is_recoverable());
        assert!(broken(ErrorKind::ConnectionReset).is_recoverable());
        for fatal in [
            refused(404, "no such image"),
            refused(409, "conflict"),
            refused(500, "write /x: no space left on device"),
            broken(ErrorKind::NotFound),
            EngineError::Incomplete("an id"),
        ] {
            assert!(!fatal.is_recoverable(), "{fatal:?}");
        }
    }

    #[test]
    fn a_broken_image_is_not_tried_again_whatever_the_status() {
        let answer = |operation, message: &str| EngineError::Failed {
            operation,
            source: ApiError::DockerResponseServerError {
                status_code: 500,
                message: message.to_owned(),
            },
        };
        let user = "unable to find user x: no matching entries in passwd file";
        for operation in ["create a container", "start a container"] {
            assert!(!answer(operation, user).is_recoverable());
            assert!(answer(operation, "shim reaped").is_recoverable());
        }
        assert!(
            answer("wait for a container", user).is_recoverable(),
            "no image is judged"
        );
    }
}
