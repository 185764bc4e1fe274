//! Problems of a configuration, as texts for the person who wrote it.

use std::fmt;

use muster_protocol::ErrorCode;

use crate::error::Coded;

/// One problem of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, with dots: `chain.url`. Empty for a problem of the whole file.
    pub path: String,
    /// The line, from 1, where it is known.
    pub line: Option<usize>,
    /// The problem, and what would be right.
    pub message: String,
}

impl Problem {
    /// A problem of one key.
    pub fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line: None,
            message: message.into(),
        }
    }

    /// A problem of the file as a whole.
    pub fn whole(message: impl Into<String>) -> Self {
        Self::at("", message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "`{}`: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    file: String,
    problems: Vec<Problem>,
}

impl ConfigErrors {
    /// Orders the problems as the file does; those without a line come last.
    pub(super) fn new(file: String, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        Self { file, problems }
    }

    pub(super) fn of_file(file: String, problem: Problem) -> Self {
        Self {
            file,
            problems: vec![problem],
        }
    }

    /// The problems, in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "configuration {}: {count} problem{plural}", self.file)?;
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl Coded for ConfigErrors {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::ConfigInvalid)
    }
}
