//! A model's tokenizer.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use muster_protocol::Digest;
use tokenizers::Tokenizer;

/// The largest file of a tokenizer that is read, in bytes.
pub const MAX_FILE: u64 = 64 * 1024 * 1024;
/// The longest text that is counted, in bytes. A text without blanks of this length takes a fraction of a second.
pub const MAX_TEXT: usize = 256 * 1024;

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("the tokenizer {0} cannot be read")]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is larger than a tokenizer's.
    #[error("the tokenizer {0} is larger than {MAX_FILE} bytes")]
    TooLarge(PathBuf),
    /// The file has another digest than the whitelist names.
    #[error("the tokenizer {path} has the digest {found}, and the whitelist names another one")]
    OtherFile {
        /// The path that the whitelist names.
        path: PathBuf,
        /// The digest of its bytes.
        found: Digest,
    },
    /// The file is no tokenizer.
    #[error("{path} is no tokenizer: {reason}")]
    Format {
        /// The path that the whitelist names.
        path: PathBuf,
        /// The reader's words.
        reason: String,
    },
}

/// The tokenizer of a model.
pub struct ModelTokenizer(Tokenizer);

impl fmt::Debug for ModelTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelTokenizer(…)")
    }
}

impl ModelTokenizer {
    /// Reads a `tokenizer.json` whose SHA-256 is this one.
    ///
    /// # Errors
    /// The file cannot be read, is another one, or is no tokenizer.
    pub fn open(path: &Path, sha256: &Digest) -> Result<Self, TokenizerError> {
        let read_error = |error| TokenizerError::Read(path.to_owned(), error);
        let file = std::fs::File::open(path).map_err(read_error)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(read_error)?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_FILE) {
            return Err(TokenizerError::TooLarge(path.to_owned()));
        }
        let found = Digest::of(&bytes);
        if found != *sha256 {
            let path = path.to_owned();
            return Err(TokenizerError::OtherFile { path, found });
        }
        let format = |error: tokenizers::Error| TokenizerError::Format {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let mut inner = Tokenizer::from_bytes(&bytes).map_err(format)?;
        // Files of published models often cut texts, or fill them up, for training: the counts are of whole texts.
        inner.with_truncation(None).map_err(format)?;
        inner.with_padding(None);
        Ok(Self(inner))
    }

    /// The number of tokens of a text; `None` if it is longer than [`MAX_TEXT`], or the tokenizer fails.
    pub fn count(&self, text: &str) -> Option<u64> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let encoding = self.0.encode_fast(text, false).ok()?;
        u64::try_from(encoding.get_ids().len()).ok()
    }
}
