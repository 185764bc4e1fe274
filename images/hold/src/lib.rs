//! The description of a job's program, which a waiting container receives as one line of JSON on its standard input.
//!
//! `{"program": ["name", "argument"], "environment": ["NAME=value", "GONE"], "mark": "text"}`. The waiting process
//! replaces itself by the program, so the program becomes the container's first process. If that fails, one line on
//! stderr begins with the mark, which only the executor knows, and the exit code is the one that a shell uses.

use std::io::{self, BufRead, ErrorKind};

use serde_json::Value;

/// The longest description in bytes.
const MAX_DESCRIPTION_BYTES: u64 = 4 << 20;
/// The exit codes of a shell for a program that it does not find, or may not execute.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// A job's program, its arguments and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobProgram {
    /// The name of the program, which is looked up in the container's `PATH`.
    pub program: String,
    /// The arguments of the program.
    pub arguments: Vec<String>,
    /// Variables in addition to those of the image. `None` removes a variable.
    pub environment: Vec<(String, Option<String>)>,
    /// The beginning of the line on stderr that reports a failed start.
    pub mark: String,
}

impl JobProgram {
    /// Waits for a description.
    ///
    /// # Errors
    /// The executor closed the input, or the line is not a description.
    pub fn read(from: impl BufRead) -> io::Result<Self> {
        let mut line = String::new();
        from.take(MAX_DESCRIPTION_BYTES).read_line(&mut line)?;
        Self::parse(&line)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the line describes no program"))
    }

    fn parse(line: &str) -> Option<Self> {
        let orders: Value = serde_json::from_str(line.strip_suffix('\n')?).ok()?;
        let texts = |name: &str| -> Option<Vec<String>> {
            let texts = orders.get(name)?.as_array()?.iter();
            texts.map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let mut words = texts("program")?.into_iter();
        let environment = texts("environment")?.into_iter();
        Some(Self {
            program: words.next()?,
            arguments: words.collect(),
            environment: environment
                .map(|line| match line.split_once('=') {
                    Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                    None => (line, None),
                })
                .collect(),
            mark: orders.get("mark")?.as_str()?.to_owned(),
        })
    }
}

/// The exit code for a program that could not be started.
pub fn exit_code(error: &io::Error) -> u8 {
    if error.kind() == ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The executor writes exactly this (`executor/src/warm_containers.rs`).
    const GOLDEN: &str = "{\"program\":[\"/bin/sh\",\"-c\",\"echo \\\"hé\\\"\"],\"environment\":[\"A=b=c\",\"GONE\"],\"mark\":\"m\"}\n";

    #[test]
    fn orders_are_read_as_the_executor_writes_them() {
        let orders = JobProgram::read(GOLDEN.as_bytes()).unwrap();
        assert_eq!(orders.program, "/bin/sh");
        assert_eq!(orders.arguments, ["-c", "echo \"hé\""]);
        assert_eq!(
            orders.environment,
            [
                ("A".to_owned(), Some("b=c".to_owned())),
                ("GONE".to_owned(), None)
            ]
        );
        assert_eq!(orders.mark, "m");
    }

    #[test]
    fn a_program_cut_short_or_incomplete_is_refused() {
        for end in 0..GOLDEN.len() {
            assert!(JobProgram::read(&GOLDEN.as_bytes()[..end]).is_err(), "{end}");
        }
        for bad in [
            "{}\n",
            "{\"program\":[],\"environment\":[],\"mark\":\"\"}\n",
            "{\"program\":[1],\"environment\":[],\"mark\":\"\"}\n",
            "[]\n",
        ] {
            assert!(JobProgram::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
