//! Errors that an operator can look up, and how a chain of causes is printed.

use std::error::Error;
use std::fmt;

use muster_protocol::ErrorCode;

/// An error that may have a page in `docs/errors/`.
pub trait Coded: Error {
    /// The code of its page; `None` where an operator can do nothing but report it.
    fn code(&self) -> Option<ErrorCode>;
}

/// Prints an error with all of its causes on one line, for logs: `cannot open the store: disk full`.
///
/// A cause whose text its parent already ends with is left out, since some libraries repeat theirs.
#[derive(Debug, Clone, Copy)]
pub struct Causes<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let (first, rest) = texts.split_first().unwrap();
        let source = (!rest.is_empty()).then(|| Box::new(layers(rest)));
        Layer { text: first, source }
    }

    #[test]
    fn every_cause_is_said_once() {
        let said = |texts: &[&'static str]| Causes(&layers(texts)).to_string();
        assert_eq!(said(&["open failed"]), "open failed");
        assert_eq!(
            said(&["open failed", "io", "disk full"]),
            "open failed: io: disk full"
        );
        assert_eq!(said(&["open: disk full", "disk full"]), "open: disk full");
    }
}
