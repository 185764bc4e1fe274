//! `muster explain`: the page of an error code, or the words for a reason and the page of its usual code.

use std::process::ExitCode;

use muster_protocol::ErrorCode;
use muster_terminal::print;

use crate::failure::{Failure, Result};

/// The reasons of jobs' ends, a row each: reason, event, fault, code.
const REASONS: &str = include_str!("../../docs/errors/reasons.md");

/// A reason of a job's end, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reason<'a> {
    /// The word on the wire.
    word: &'a str,
    /// A sentence about the event.
    happened: &'a str,
    /// The party at fault.
    fault: &'a str,
    /// The code whose page says what to do, if the reason is always the same event.
    code: Option<ErrorCode>,
}

/// Runs `muster explain`.
pub(crate) fn run(text: &str) -> Result<ExitCode> {
    if let Some(code) = code_of(text) {
        print::raw(code.page());
        return Ok(ExitCode::SUCCESS);
    }
    // A reason stands in brackets where it is printed.
    let word = text.trim_matches(['(', ')']);
    let Some(reason) = reasons().find(|reason| reason.word.eq_ignore_ascii_case(word)) else {
        return Err(Failure::usage(unknown(text)));
    };
    print::line(format_args!("{}: {}", reason.word, reason.happened));
    print::line(format_args!("at fault: {}", reason.fault));
    if let Some(code) = reason.code {
        print::raw(&format!("\n{}", code.page()));
    }
    Ok(ExitCode::SUCCESS)
}

fn code_of(text: &str) -> Option<ErrorCode> {
    let mut all = ErrorCode::ALL.iter().copied();
    all.find(|code| code.code().eq_ignore_ascii_case(text))
}

/// The rows of the page's table, below its head.
fn reasons() -> impl Iterator<Item = Reason<'static>> {
    REASONS.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", word, happened, fault, code, ""] = cells[..] else {
            return None;
        };
        Some(Reason {
            word: word.strip_prefix('`')?.strip_suffix('`')?,
            happened,
            fault,
            code: code_of(code),
        })
    })
}

fn unknown(text: &str) -> String {
    let codes = ErrorCode::ALL.iter();
    let codes: Vec<_> = codes
        .map(|code| format!("{}  {}", code.code(), code.title()))
        .collect();
    let words: Vec<_> = reasons().map(|reason| reason.word).collect();
    format!(
        "no code and no reason {text:?}; codes are:\n  {}\nreasons of jobs' ends are:\n  {}",
        codes.join("\n  "),
        words.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_protocol::{HordeFailureReason, JobFailureReason, JobRejectionReason};

    use super::*;

    #[test]
    fn every_reason_of_the_wire_has_one_row_and_no_row_is_of_another() {
        let mut rows: Vec<&str> = reasons().map(|reason| reason.word).collect();
        let wire: BTreeSet<&str> = (HordeFailureReason::ALL.iter().map(|reason| reason.as_str()))
            .chain(JobFailureReason::ALL.iter().map(|reason| reason.as_str()))
            .chain(JobRejectionReason::ALL.iter().map(|reason| reason.as_str()))
            .collect();
        rows.sort_unstable();
        assert_eq!(rows, Vec::from_iter(wire));
    }

    #[test]
    fn a_reason_is_read_with_the_brackets_around_it() {
        run("(no_miner_for_job)").unwrap();
        run("e0012").unwrap();
        assert!(run("no_miner").is_err());
        let reason = reasons()
            .find(|reason| reason.word == "no_miner_for_job")
            .unwrap();
        assert_eq!(reason.code, Some(ErrorCode::NoMiner));
    }
}
