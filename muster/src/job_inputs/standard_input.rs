//! Standard input as an input of a job.

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

/// The source that means standard input.
const STANDARD_INPUT: &str = "-";

/// Replaces `PATH=-` by `PATH=FILE`, where FILE has what `from` holds. The file lies there until it is dropped.
///
/// # Errors
/// Two inputs ask for it, an input has no path, or it cannot be read.
pub(crate) fn spool(
    inputs: &[String],
    from: impl Read,
) -> anyhow::Result<(Vec<String>, Option<NamedTempFile>)> {
    if inputs.iter().any(|input| input == STANDARD_INPUT) {
        bail!(
            "the standard input of a job's program is empty: `-i PATH=-` brings yours to the program as the file \
             /volume/PATH"
        );
    }
    let asks = |input: &&String| {
        input
            .split_once('=')
            .is_some_and(|(_, source)| source == STANDARD_INPUT)
    };
    match inputs.iter().filter(asks).count() {
        0 => return Ok((inputs.to_vec(), None)),
        1 => {}
        _ => bail!("standard input can be one input only"),
    }
    let file = copy(from)?;
    let named = |input: &String| match input.split_once('=') {
        Some((path, STANDARD_INPUT)) => format!("{path}={}", shown(file.path())),
        Some(_) | None => input.clone(),
    };
    let inputs = inputs.iter().map(named).collect();
    Ok((inputs, Some(file)))
}

fn copy(mut from: impl Read) -> anyhow::Result<NamedTempFile> {
    let mut file = NamedTempFile::new().context("cannot make a temporary file")?;
    io::copy(&mut from, &mut file).context("cannot read standard input")?;
    Ok(file)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(inputs: &[&str]) -> Vec<String> {
        inputs.iter().map(|input| (*input).to_owned()).collect()
    }

    #[test]
    fn standard_input_becomes_a_file() {
        let (inputs, file) = spool(&words(&["a=b", "words.txt=-"]), &b"one\n"[..]).unwrap();
        let file = file.unwrap();
        assert_eq!(
            inputs,
            ["a=b".to_owned(), format!("words.txt={}", shown(file.path()))]
        );
        assert_eq!(std::fs::read(file.path()).unwrap(), b"one\n");
        let (inputs, file) = spool(&words(&["a=b"]), io::empty()).unwrap();
        assert!(inputs == ["a=b"] && file.is_none());
    }

    #[test]
    fn standard_input_without_a_path_or_twice_is_refused() {
        let without = spool(&words(&["-"]), io::empty()).unwrap_err().to_string();
        assert!(without.contains("-i PATH=-"), "{without}");
        assert!(spool(&words(&["a=-", "b=-"]), io::empty()).is_err());
    }
}
