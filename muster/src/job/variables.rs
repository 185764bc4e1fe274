//! The variables of a job's environment: options and files of them.

use std::fs;

use anyhow::Context as _;
use indexmap::IndexMap;

use crate::cli::user::JobRun;
use crate::failure::{Failure, Result};

/// Reads every variable of the command line. An option goes before a line of a file, and a later one before an earlier
/// one.
pub(super) fn read_variables(args: &JobRun) -> Result<IndexMap<String, String>> {
    let own = |name: &str| std::env::var(name).ok();
    let mut variables = IndexMap::new();
    for file in &args.env_files {
        let text = fs::read_to_string(file)
            .with_context(|| format!("{} cannot be read", file.display()))
            .map_err(|error| Failure::usage(format_args!("{error:#}")))?;
        for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let read = read_variable(line, own).map_err(|reason| {
                Failure::usage(format_args!("{}, line {number}: {reason}", file.display()))
            })?;
            variables.extend(read);
        }
    }
    for text in &args.env {
        variables.extend(read_variable(text, own).map_err(Failure::usage)?);
    }
    Ok(variables)
}

/// Reads `NAME=VALUE`, or `NAME` for the value that it has here; `None` where it has none.
fn read_variable(
    text: &str,
    own: impl Fn(&str) -> Option<String>,
) -> std::result::Result<Option<(String, String)>, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(format!(
            "a variable of the environment is NAME=VALUE or NAME, got {text:?}"
        ));
    }
    let value = value.or_else(|| own(name));
    Ok(value.map(|value| (name.to_owned(), value)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[command(flatten)]
        job: JobRun,
    }

    fn variables(file: &str, options: &[&str]) -> Result<Vec<(String, String)>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("variables");
        fs::write(&path, file).unwrap();
        let words = ["job", "alpine", "--env-file", path.to_str().unwrap()];
        let words = words.into_iter().chain(options.iter().copied());
        let read = read_variables(&Options::parse_from(words).job)?;
        Ok(read.into_iter().collect())
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn file_with_line_ends_of_windows_is_read_and_an_option_goes_before_it() {
        let file = "\u{feff}A=1\r\n\r\n  # of the model\r\nB=x y=z \r\nC=\r\n";
        let read = variables(file, &["-e", "A=2", "-e", "D=4"]).unwrap();
        let expected = [pair("A", "2"), pair("B", "x y=z "), pair("C", ""), pair("D", "4")];
        assert_eq!(read, expected);
    }

    #[test]
    fn name_alone_has_the_value_that_it_has_here() {
        let own = |name: &str| (name == "TOKEN").then(|| "secret".to_owned());
        assert_eq!(read_variable("TOKEN", own), Ok(Some(pair("TOKEN", "secret"))));
        assert_eq!(read_variable("ABSENT", own), Ok(None));
        assert_eq!(read_variable("TOKEN=", own), Ok(Some(pair("TOKEN", ""))));
    }

    #[test]
    fn line_that_is_no_variable_is_named() {
        let refused = variables("A=1\nB = 2\n", &[]).unwrap_err().to_string();
        assert!(
            refused.contains("line 2") && refused.contains("B = 2"),
            "{refused}"
        );
        assert!(variables("", &["-e", "=b"]).is_err());
    }
}
