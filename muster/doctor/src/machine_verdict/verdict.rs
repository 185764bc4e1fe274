//! The verdict of one check, and the purpose that it is judged for.

use std::fmt;

use muster_protocol::ErrorCode;
use serde::Serialize;

/// The purpose of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The whole subnet on one machine.
    Up,
    /// Jobs are submitted from it.
    User,
    /// A miner with executors.
    Miner,
    /// A validator's machine.
    Validator,
    /// A facilitator's machine.
    Facilitator,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Good to know; nothing is wrong.
    Note,
    /// It will do, but not for long, or not for everything.
    Warning,
    /// It will not do.
    Failure,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The name of the check.
    pub check: &'static str,
    /// How it is.
    pub state: Severity,
    /// The finding as text.
    pub says: String,
    /// The advice; empty where nothing needs doing.
    pub advice: String,
    /// The error that it would lead to, for `muster explain`.
    pub code: Option<&'static str>,
}

impl Purpose {
    /// Whether jobs run on the machine.
    pub const fn runs_jobs(self) -> bool {
        matches!(self, Self::Up | Self::Miner)
    }

    pub(super) const fn needs_chain(self) -> bool {
        matches!(self, Self::Miner | Self::Validator)
    }

    pub(super) const fn submits_jobs(self) -> bool {
        matches!(self, Self::User)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "FAILS",
        })
    }
}

impl Verdict {
    pub(crate) fn new(check: &'static str, state: Severity, says: impl Into<String>) -> Self {
        Self {
            check,
            state,
            says: says.into(),
            advice: String::new(),
            code: None,
        }
    }

    pub(crate) fn fine(check: &'static str, says: impl Into<String>) -> Self {
        Self::new(check, Severity::Fine, says)
    }

    pub(crate) fn advising(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    pub(super) fn coded(mut self, code: ErrorCode) -> Self {
        self.code = Some(code.code());
        self
    }
}

/// The worst_severity of them; fine if there are none.
pub fn worst_severity(verdicts: &[Verdict]) -> Severity {
    verdicts
        .iter()
        .map(|verdict| verdict.state)
        .max()
        .unwrap_or(Severity::Fine)
}
