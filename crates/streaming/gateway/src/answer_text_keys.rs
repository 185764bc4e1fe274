//! The keys under which the text of answers is stored until the draw.
//!
//! The keys are in the memory of this process only. Once a key is forgotten, nobody can read the text that it sealed,
//! wherever copies of the database are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use parking_lot::Mutex;

use crate::store::{AnswerText, SealedText};

/// The length of a nonce in bytes; a sealed text begins with it.
const NONCE_BYTES: usize = 24;

/// Bytes of text that one key seals, which are those of one bucket. The text of further answers is not kept.
const MAX_SEALED: usize = 1024 * 1024 * 1024;

/// The reason why the text of an answer is not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CannotSeal {
    /// The operating system gives no random numbers, or the text is too long.
    #[error("the words of an answer cannot be sealed")]
    Cipher,
    /// The bucket has as much text as is kept.
    #[error("the answers of this bucket have more than {MAX_SEALED} bytes of words already")]
    Full,
}

/// The keys that can still be needed.
#[derive(Default)]
pub(crate) struct AnswerTextKeys(Mutex<KeyRing>);

#[derive(Default)]
struct KeyRing {
    keys: BTreeMap<u64, XChaCha20Poly1305>,
    newest: u64,
    /// Bytes of text that the newest key has sealed.
    sealed: usize,
}

impl AnswerTextKeys {
    /// Seals the text of the answer with this id by the newest key.
    ///
    /// # Errors
    /// There is no randomness, or the bucket has enough text.
    pub(crate) fn seal(&self, id: &str, words: &AnswerText) -> Result<SealedText, CannotSeal> {
        let mut ring = self.0.lock();
        let bytes = words.request.len().saturating_add(words.response.len());
        let sealed = ring.sealed.saturating_add(bytes);
        if sealed > MAX_SEALED {
            return Err(CannotSeal::Full);
        }
        ring.sealed = sealed;
        let key = ring.newest;
        let cipher = match ring.keys.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(none) => {
                let mut drawn = [0; 32];
                getrandom::fill(&mut drawn).map_err(|_| CannotSeal::Cipher)?;
                none.insert(XChaCha20Poly1305::new(&drawn.into()))
            }
        };
        Ok(SealedText {
            key,
            request: seal(cipher, id, "request", &words.request)?,
            response: seal(cipher, id, "response", &words.response)?,
            content_type: words.content_type.clone(),
        })
    }

    /// Opens the text of the answer with this id. `None` if its key is gone, or if it is another answer's.
    pub(crate) fn open(&self, id: &str, sealed: &SealedText) -> Option<AnswerText> {
        let ring = self.0.lock();
        let cipher = ring.keys.get(&sealed.key)?;
        Some(AnswerText {
            request: open(cipher, id, "request", &sealed.request)?,
            response: open(cipher, id, "response", &sealed.response)?,
            content_type: sealed.content_type.clone(),
        })
    }

    /// Begins a new key and returns its number. Text that is being sealed now may still have the key before it.
    pub(crate) fn begin_next(&self) -> u64 {
        let mut ring = self.0.lock();
        ring.newest = ring.newest.saturating_add(1);
        ring.sealed = 0;
        ring.newest
    }

    /// Forgets the keys that nothing needs any more: all that are older than `oldest`, the oldest one that stored text
    /// has, and than the newest.
    pub(crate) fn forget_unneeded(&self, oldest: Option<u64>) {
        let mut ring = self.0.lock();
        let first = oldest.unwrap_or(ring.newest).min(ring.newest);
        ring.keys.retain(|number, _| *number >= first);
    }
}

fn associated(id: &str, part: &str) -> String {
    format!("muster/answer-words/1 {id} {part}")
}

fn seal(cipher: &XChaCha20Poly1305, id: &str, part: &str, text: &[u8]) -> Result<Vec<u8>, CannotSeal> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| CannotSeal::Cipher)?;
    let associated = associated(id, part);
    let payload = Payload {
        msg: text,
        aad: associated.as_bytes(),
    };
    let sealed = cipher
        .encrypt(&nonce.into(), payload)
        .map_err(|_| CannotSeal::Cipher)?;
    Ok([nonce.as_slice(), &sealed].concat())
}

fn open(cipher: &XChaCha20Poly1305, id: &str, part: &str, sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
    let associated = associated(id, part);
    let payload = Payload {
        msg: sealed,
        aad: associated.as_bytes(),
    };
    cipher.decrypt(&(*nonce).into(), payload).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(request: &str, response: &str) -> AnswerText {
        AnswerText {
            request: request.into(),
            response: response.into(),
            content_type: Some("text/plain".to_owned()),
        }
    }

    #[test]
    fn words_open_by_their_own_key_and_for_their_own_answer_only() {
        let keys = AnswerTextKeys::default();
        let spoken = words("asked", "answered");
        let sealed = keys.seal("a", &spoken).unwrap();
        assert!(!sealed.request.windows(5).any(|window| window == b"asked"));
        assert_eq!(keys.open("a", &sealed), Some(spoken));
        assert_eq!(keys.open("b", &sealed), None);
        let swapped = SealedText {
            request: sealed.response.clone(),
            response: sealed.request.clone(),
            ..sealed.clone()
        };
        assert_eq!(keys.open("a", &swapped), None);
        for length in [0, 5, NONCE_BYTES, sealed.request.len() - 1] {
            let cut = SealedText {
                request: sealed.request[..length].to_vec(),
                ..sealed.clone()
            };
            assert_eq!(keys.open("a", &cut), None);
        }
    }

    #[test]
    fn the_words_of_a_bucket_are_bounded_and_the_next_bucket_has_room_again() {
        let keys = AnswerTextKeys::default();
        keys.0.lock().sealed = MAX_SEALED - 10;
        assert_eq!(keys.seal("a", &words("long", "answers")), Err(CannotSeal::Full));
        assert!(keys.seal("b", &words("ask", "answer")).is_ok(), "nine bytes");
        assert_eq!(keys.seal("c", &words("ask", "answer")), Err(CannotSeal::Full));
        keys.begin_next();
        assert!(keys.seal("c", &words("ask", "answer")).is_ok());
    }

    #[test]
    fn a_key_that_is_forgotten_opens_nothing_and_the_next_one_goes_on() {
        let keys = AnswerTextKeys::default();
        let (one, two) = (words("1", "2"), words("3", "4"));
        let first = keys.seal("a", &one).unwrap();
        let next = keys.begin_next();
        let second = keys.seal("b", &two).unwrap();
        assert_eq!((first.key, second.key), (0, next));
        assert_eq!(keys.open("a", &first), Some(one));
        keys.forget_unneeded(Some(first.key));
        assert_eq!(keys.open("a", &first), Some(words("1", "2")));
        keys.forget_unneeded(None);
        assert_eq!(keys.open("a", &first), None);
        assert_eq!(keys.open("b", &second), Some(two));
        assert_eq!(
            AnswerTextKeys::default().open("b", &second),
            None,
            "the keys end with the process"
        );
    }
}
