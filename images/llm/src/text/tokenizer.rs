//! Text to tokens and back, by bytes: a token may end in the middle of a letter.

use std::path::Path;

use tokenizers::DecoderWrapper;

use super::TextError;
use crate::model::sha256;

/// A tokenizer of a vocabulary.
pub struct Tokenizer {
    inner: Option<tokenizers::Tokenizer>,
    bytes: Vec<Option<Vec<u8>>>,
    digest: [u8; 32],
}

impl Tokenizer {
    /// Reads tokenizer.json; without a file, tokens are the 256 bytes.
    ///
    /// # Errors
    /// A file that is broken, or has tokens outside `vocabulary`.
    pub fn load(file: &Path, vocabulary: usize) -> Result<Self, TextError> {
        let broken = |what: String| TextError::Tokenizer(what);
        if !file.exists() {
            if vocabulary < 256 {
                return Err(broken(
                    "it is missing, and the vocabulary is too small for bytes".into(),
                ));
            }
            return Ok(Self {
                inner: None,
                bytes: (0..=255).map(|byte| Some(vec![byte])).collect(),
                digest: sha256(b"bytes"),
            });
        }
        let content = std::fs::read(file).map_err(|error| broken(error.to_string()))?;
        let inner = tokenizers::Tokenizer::from_bytes(&content).map_err(|error| broken(error.to_string()))?;
        if inner
            .get_vocab(true)
            .values()
            .any(|id| *id as usize >= vocabulary)
        {
            return Err(broken("it has tokens that the model does not".into()));
        }
        let spelling = Spelling::of(&inner)?;
        let special = inner.get_added_tokens_decoder();
        let bytes = (0..vocabulary as u32)
            .map(|id| {
                let token = inner.id_to_token(id)?;
                // A special token has no text of its own.
                match special.get(&id) {
                    Some(added) if added.special => Some(Vec::new()),
                    Some(_) => Some(token.into_bytes()),
                    None => Some(spelling.bytes(&token)),
                }
            })
            .collect();
        Ok(Self {
            inner: Some(inner),
            bytes,
            digest: sha256(&content),
        })
    }

    /// sha256 of the file.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// The tokenizer's own failure.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        match &self.inner {
            None => Ok(text.bytes().map(u32::from).collect()),
            Some(inner) => inner
                .encode(text, false)
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|error| TextError::Tokenizer(error.to_string())),
        }
    }

    /// The bytes that a token stands for; none for special and unknown ones.
    #[must_use]
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.bytes
            .get(id as usize)
            .and_then(Option::as_deref)
            .unwrap_or_default()
    }

    /// A token as a person reads it: special ones by name.
    #[must_use]
    pub fn name(&self, id: u32) -> String {
        let bytes = self.bytes(id);
        if bytes.is_empty()
            && let Some(name) = self.inner.as_ref().and_then(|inner| inner.id_to_token(id))
        {
            return name;
        }
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// How a vocabulary spells bytes.
#[derive(Clone, Copy)]
enum Spelling {
    /// GPT-2's: every byte is a letter.
    Letters,
    /// SentencePiece's: `▁` is a blank, `<0x0A>` a byte.
    Pieces,
}

impl Spelling {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, TextError> {
        fn within(decoder: &DecoderWrapper) -> Option<Spelling> {
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "a foreign list of decoders; we know how these spell"
            )]
            match decoder {
                DecoderWrapper::ByteLevel(_) => Some(Spelling::Letters),
                DecoderWrapper::ByteFallback(_) | DecoderWrapper::Metaspace(_) => Some(Spelling::Pieces),
                DecoderWrapper::Sequence(all) => all.get_decoders().iter().find_map(within),
                _ => None,
            }
        }
        tokenizer.get_decoder().and_then(within).ok_or_else(|| {
            TextError::Tokenizer("its decoder is neither ByteLevel nor ByteFallback or Metaspace".into())
        })
    }

    fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::Letters => token.chars().flat_map(letter).collect(),
            Self::Pieces => {
                let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => token.replace('▁', " ").into_bytes(),
                }
            }
        }
    }
}

/// GPT-2's letters: printable Latin-1 stands for itself, the rest of the bytes follow from U+0100 on.
fn letter(c: char) -> Vec<u8> {
    let plain = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(c) {
        code @ 0..=0xFF if plain(code as u8) => vec![code as u8],
        code @ 0x100..=0x143 => {
            let moved = (0..=255_u8).filter(|byte| !plain(*byte));
            moved.skip(code as usize - 0x100).take(1).collect()
        }
        // No letter of that alphabet: an added token, spelt as it is.
        _ => c.to_string().into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_the_bytes_they_stand_for() {
        assert_eq!(Spelling::Letters.bytes("Ġa"), b" a");
        assert_eq!(Spelling::Letters.bytes("Ċ"), b"\n");
        assert_eq!(Spelling::Letters.bytes("Ã©"), "é".as_bytes());
        assert_eq!(Spelling::Pieces.bytes("▁a"), b" a");
        assert_eq!(Spelling::Pieces.bytes("<0x0A>"), b"\n");
    }

    #[test]
    fn without_a_file_tokens_are_bytes() {
        let tokenizer = Tokenizer::load(Path::new("/nowhere"), 256).unwrap();
        assert_eq!(tokenizer.encode("é").unwrap(), [0xC3, 0xA9]);
        assert_eq!(tokenizer.bytes(0xC3), [0xC3]);
        assert!(Tokenizer::load(Path::new("/nowhere"), 255).is_err());
    }
}
