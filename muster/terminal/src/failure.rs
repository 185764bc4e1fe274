//! Errors as a person reads them: what failed, whose fault, what to do, and a code to look up.

use std::fmt;
use std::process::ExitCode;

use muster_protocol::ErrorCode;

use crate::print;

/// Why a command ended badly.
#[derive(Debug)]
pub struct Failure {
    code: Option<ErrorCode>,
    error: anyhow::Error,
    exit: u8,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

/// The result of a command.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// The exit code of a usage error in `sysexits.h`: the configuration or the arguments are wrong.
const EXIT_USAGE: u8 = 64;

/// The exit code where a job's output is not whole: that of `docker run` where not the program failed.
const EXIT_INCOMPLETE: u8 = 125;

impl Failure {
    /// An error of a known kind.
    pub fn new(code: ErrorCode, error: impl Into<anyhow::Error>) -> Self {
        Self {
            code: Some(code),
            error: error.into(),
            exit: 1,
        }
    }

    /// An error of a library that may know its own code.
    pub fn coded(code: Option<ErrorCode>, error: impl Into<anyhow::Error>) -> Self {
        Self {
            code,
            error: error.into(),
            exit: if code == Some(ErrorCode::ConfigInvalid) {
                EXIT_USAGE
            } else {
                1
            },
        }
    }

    /// Arguments that cannot be used.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self {
            code: None,
            error: anyhow::anyhow!("{message}"),
            exit: EXIT_USAGE,
        }
    }

    /// The output of a job is not whole: no hole is passed over in silence.
    pub fn incomplete(code: ErrorCode, error: impl Into<anyhow::Error>) -> Self {
        Self {
            code: Some(code),
            error: error.into(),
            exit: EXIT_INCOMPLETE,
        }
    }

    /// Prints it to stderr; the process ends with the code returned.
    pub fn report(&self) -> ExitCode {
        let code = self.code.map(|code| format!(" {code}")).unwrap_or_default();
        print::problem(format_args!("error{code}: {:#}", self.error));
        if let Some(code) = self.code {
            print::problem(format_args!("  `muster explain {code}` says what to do"));
        }
        ExitCode::from(self.exit)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            code: None,
            error: error.into(),
            exit: 1,
        }
    }
}
