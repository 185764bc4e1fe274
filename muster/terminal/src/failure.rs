//! Errors as a person reads them: what failed, whose fault, what to do, and a code to look up.

use std::fmt;
use std::process::ExitCode;

use muster_protocol::ErrorCode;
use serde_json::{Value, json};

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

/// The exit code of a command line that cannot be read: that of clap.
const EXIT_UNREADABLE: u8 = 2;

/// The exit code of a command that waited for a job where not the program failed: that of `docker run`.
pub const EXIT_NOT_THE_PROGRAMS: u8 = 125;

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

    /// Arguments that cannot be used, with the causes that the message has.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self {
            code: None,
            error: anyhow::anyhow!("{message:#}"),
            exit: EXIT_USAGE,
        }
    }

    /// Arguments that cannot be read, with the text that a person gets.
    pub fn unreadable_arguments(text: &str) -> Self {
        // The usage and the way to the help are for people.
        let message = text.split("\n\nUsage:").next().unwrap_or(text);
        let message = message
            .split("\n\nFor more information")
            .next()
            .unwrap_or(message);
        let message = message.trim().trim_start_matches("error: ").to_owned();
        Self {
            code: None,
            error: anyhow::Error::msg(message),
            exit: EXIT_UNREADABLE,
        }
    }

    /// The output of a job is not whole: no hole is passed over in silence.
    pub fn incomplete(code: ErrorCode, error: impl Into<anyhow::Error>) -> Self {
        Self {
            code: Some(code),
            error: error.into(),
            exit: EXIT_NOT_THE_PROGRAMS,
        }
    }

    /// The same failure of a command whose exit code is that of a job's program.
    #[must_use]
    pub fn beside_a_program(self) -> Self {
        Self {
            exit: EXIT_NOT_THE_PROGRAMS,
            ..self
        }
    }

    /// The failure for programs: `{"error": {"code": "E0053", "message": "…", "exit_code": 1}}`.
    fn to_json(&self) -> Value {
        json!({"error": {
            "code": self.code.map(ErrorCode::code),
            "message": format!("{:#}", self.error),
            "exit_code": self.exit,
        }})
    }

    /// Prints it to stderr, for a command with `--json` as a line of JSON; the process ends with the code returned.
    pub fn report(&self, as_json: bool) -> ExitCode {
        if as_json {
            print::problem(format_args!("{}", self.to_json()));
            return ExitCode::from(self.exit);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_for_programs_has_the_code_the_reason_and_the_exit_code() {
        let failure = Failure::new(ErrorCode::JobUnknown, anyhow::anyhow!("cause").context("no job"));
        let expected = json!({"code": "E0053", "message": "no job: cause", "exit_code": 1});
        assert_eq!(failure.to_json(), json!({ "error": expected }));
        let unreadable =
            Failure::unreadable_arguments("error: no such option\n\n  tip: x\n\nUsage: muster\n");
        let expected = json!({"code": null, "message": "no such option\n\n  tip: x", "exit_code": 2});
        assert_eq!(unreadable.to_json(), json!({ "error": expected }));
        let beside = Failure::usage("wrong").beside_a_program();
        let expected = json!({"code": null, "message": "wrong", "exit_code": 125});
        assert_eq!(beside.to_json(), json!({ "error": expected }));
    }
}
