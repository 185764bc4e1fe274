//! The keys under which the text of answers is stored until the draw.
//!
//! The keys are in the memory of this process only. Once a key is forgotten, nobody can read the text that it sealed,
//! wherever copies of the database are.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use parking_lot::Mutex;

use crate::store::{AnswerText, SealedText, TextChange};
use crate::text_budget::{AnswerParties, BYTES_OF_ANSWER, LetGoBy, TextBudget};

/// The length of a nonce in bytes; a sealed text begins with it.
const NONCE_BYTES: usize = 24;

/// Bytes of the texts of one bucket's answers: those that users asked for.
pub(crate) const MAX_SEALED: u64 = 1024 * 1024 * 1024;
/// Bytes of the texts of one bucket's own prompts, beside those of users.
const MAX_OWN: u64 = 16 * 1024 * 1024;
/// Bytes of own prompts' texts from which on an answer is stored by the fields that audits read, and not whole: a miner
/// that pads all of its answers would take the room of the other miners' prompts.
const MAX_WHOLE_OWN: u64 = MAX_OWN / 2;

/// The reason why the text of an answer is not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CannotSeal {
    /// The operating system gives no random numbers, or the text is too long.
    #[error("the text of an answer cannot be sealed")]
    Cipher,
    /// The bucket has as many texts of own prompts as are kept.
    #[error("the own prompts of this bucket have more than {MAX_OWN} bytes of text already")]
    Full,
}

/// The keys that can still be needed, and the texts that the newest one has sealed.
pub(crate) struct AnswerTextKeys {
    /// Bytes of users' texts that a bucket keeps.
    total: u64,
    ring: Mutex<KeyRing>,
}

struct KeyRing {
    keys: BTreeMap<u64, XChaCha20Poly1305>,
    newest: u64,
    /// The users' texts that the newest key has sealed; `None` before the first.
    users: Option<TextBudget>,
    /// Bytes of own prompts' texts that the newest key has sealed.
    own: u64,
    /// The answers whose texts are sealed and not stored yet; whether the text was let go meanwhile.
    unstored: HashMap<String, bool>,
}

impl Default for AnswerTextKeys {
    fn default() -> Self {
        Self::new(MAX_SEALED)
    }
}

impl AnswerTextKeys {
    /// Keys for buckets that keep so many bytes of users' texts.
    pub(crate) fn new(total: u64) -> Self {
        measure_held(0);
        Self {
            total,
            ring: Mutex::new(KeyRing {
                keys: BTreeMap::new(),
                newest: 0,
                users: None,
                own: 0,
                unstored: HashMap::new(),
            }),
        }
    }

    /// Seals the text of a user's answer by the newest key, and lets go those for which there is no room any more. The
    /// answer's own text may be among them. The caller calls [`Self::is_let_go`] once the change is stored.
    ///
    /// # Errors
    /// There is no randomness.
    pub(crate) fn seal(
        &self,
        id: &str,
        text: &AnswerText,
        parties: AnswerParties,
    ) -> Result<TextChange, CannotSeal> {
        let mut ring = self.ring.lock();
        let sealed = ring.seal(id, text)?;
        let budget = match &mut ring.users {
            Some(budget) => budget,
            none => none.insert(TextBudget::new(self.total, draw_key()?)),
        };
        let gone = budget.admit(id, parties, text.bytes());
        measure_held(budget.held());
        for gone in &gone {
            count_let_go(gone.by);
        }
        let mut let_go: Vec<String> = gone.into_iter().map(|gone| gone.id).collect();
        let is_kept = !let_go.iter().any(|gone| gone == id);
        let_go.retain(|gone| gone != id);
        for gone in &let_go {
            if let Some(is_let_go) = ring.unstored.get_mut(gone) {
                *is_let_go = true;
            }
        }
        if is_kept {
            ring.unstored.insert(id.to_owned(), false);
        }
        Ok(TextChange {
            kept: is_kept.then_some(sealed),
            let_go,
        })
    }

    /// Seals the text of an own prompt's answer by the newest key: the whole answer if there is one and room for it,
    /// and else the fields that audits read.
    ///
    /// # Errors
    /// There is no randomness, or the bucket has enough texts of own prompts.
    pub(crate) fn seal_own(
        &self,
        id: &str,
        whole: Option<&AnswerText>,
        read: &AnswerText,
    ) -> Result<TextChange, CannotSeal> {
        let mut ring = self.ring.lock();
        let after = |text: &AnswerText| {
            let bytes = text.bytes().saturating_add(BYTES_OF_ANSWER);
            ring.own.saturating_add(bytes)
        };
        let whole = whole.filter(|whole| after(whole) <= MAX_WHOLE_OWN);
        let text = whole.unwrap_or(read);
        let own = after(text);
        if own > MAX_OWN {
            count_let_go(LetGoBy::Own);
            return Err(CannotSeal::Full);
        }
        let kept = Some(ring.seal(id, text)?);
        ring.own = own;
        Ok(TextChange {
            kept,
            let_go: Vec::new(),
        })
    }

    /// Whether the text of this answer, which is stored now, was let go before it was.
    pub(crate) fn is_let_go(&self, id: &str) -> bool {
        self.ring.lock().unstored.remove(id).unwrap_or(false)
    }

    /// Opens the text of the answer with this id. `None` if its key is gone, or if it is another answer's.
    pub(crate) fn open(&self, id: &str, sealed: &SealedText) -> Option<AnswerText> {
        let ring = self.ring.lock();
        let cipher = ring.keys.get(&sealed.key)?;
        Some(AnswerText {
            request: open(cipher, id, "request", &sealed.request)?,
            response: open(cipher, id, "response", &sealed.response)?,
            form: sealed.form,
            content_type: sealed.content_type.clone(),
        })
    }

    /// Begins a new key and returns its number. Text that is being sealed now may still have the key before it.
    pub(crate) fn begin_next(&self) -> u64 {
        let mut ring = self.ring.lock();
        ring.newest = ring.newest.saturating_add(1);
        // The next bucket's draw has another key.
        ring.users = None;
        ring.own = 0;
        measure_held(0);
        ring.newest
    }

    /// Forgets the keys that nothing needs any more: all that are older than `oldest`, the oldest one that stored text
    /// has, and than the newest.
    pub(crate) fn forget_unneeded(&self, oldest: Option<u64>) {
        let mut ring = self.ring.lock();
        let first = oldest.unwrap_or(ring.newest).min(ring.newest);
        ring.keys.retain(|number, _| *number >= first);
    }
}

impl KeyRing {
    /// Seals a text by the newest key, which the first text draws.
    fn seal(&mut self, id: &str, text: &AnswerText) -> Result<SealedText, CannotSeal> {
        let key = self.newest;
        let cipher = match self.keys.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(none) => none.insert(XChaCha20Poly1305::new(&draw_key()?.into())),
        };
        Ok(SealedText {
            key,
            request: seal(cipher, id, "request", &text.request)?,
            response: seal(cipher, id, "response", &text.response)?,
            form: text.form,
            content_type: text.content_type.clone(),
        })
    }
}

fn draw_key() -> Result<[u8; 32], CannotSeal> {
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(|_| CannotSeal::Cipher)?;
    Ok(drawn)
}

fn measure_held(bytes: u64) {
    // A gauge is a floating-point number; a bucket has far fewer bytes than it tells apart.
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    metrics::gauge!("muster_gateway_kept_text_bytes").set(f64::from(bytes));
}

fn count_let_go(by: LetGoBy) {
    metrics::counter!("muster_gateway_text_let_go_total", "by" => by.label()).increment(1);
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
    use muster_protocol::{Digest, Hotkey};
    use muster_response_proof::SessionId;
    use uuid::Uuid;

    use super::*;
    use crate::store::BodyForm;

    fn text(request: &str, response: &str) -> AnswerText {
        AnswerText {
            request: request.into(),
            response: response.into(),
            form: BodyForm::Read,
            content_type: Some("text/plain".to_owned()),
        }
    }

    fn parties(of: u8) -> AnswerParties {
        AnswerParties {
            session: SessionId(Uuid::from_u128(u128::from(of))),
            client: Digest::of(&[of]),
            coldkey: Hotkey::from_bytes([of; 32]),
        }
    }

    fn sealed(keys: &AnswerTextKeys, id: &str, text: &AnswerText) -> SealedText {
        keys.seal(id, text, parties(1)).unwrap().kept.unwrap()
    }

    #[test]
    fn texts_open_by_their_own_key_and_for_their_own_answer_only() {
        let keys = AnswerTextKeys::default();
        let spoken = text("asked", "answered");
        let sealed = sealed(&keys, "a", &spoken);
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
    fn a_full_bucket_lets_texts_go_and_the_next_bucket_has_room_again() {
        let room = 16 * (BYTES_OF_ANSWER + 9);
        let keys = AnswerTextKeys::new(room);
        let padded = text("ask", &"x".repeat(8 * 1024));
        assert!(keys.seal("padded", &padded, parties(1)).unwrap().kept.is_some());
        assert!(!keys.is_let_go("padded"), "it is stored");
        let mut let_go = Vec::new();
        for of in 10..26 {
            let id = of.to_string();
            let change = keys.seal(&id, &text("ask", "answer"), parties(of)).unwrap();
            assert!(change.kept.is_some());
            let_go.extend(change.let_go);
        }
        assert_eq!(let_go, ["padded"], "its parties hold the most");
        let late = keys.seal("late", &padded, parties(1)).unwrap();
        assert_eq!(late, TextChange::default(), "its own text has no room");
        keys.begin_next();
        assert!(keys.seal("next", &padded, parties(1)).unwrap().kept.is_some());
    }

    #[test]
    fn a_text_that_is_let_go_before_it_is_stored_is_known() {
        let keys = AnswerTextKeys::new(12 * 1024);
        let change = |id: &str, of: u8, bytes: usize| {
            let text = text("", &"x".repeat(bytes));
            keys.seal(id, &text, parties(of)).unwrap()
        };
        assert!(change("slow", 1, 6 * 1024).kept.is_some());
        assert_eq!(change("quick", 2, 5 * 1024).let_go, ["slow"]);
        assert!(keys.is_let_go("slow") && !keys.is_let_go("slow"));
        assert!(!keys.is_let_go("quick"));
    }

    #[test]
    fn own_prompts_have_room_of_their_own_and_padded_answers_leave_some_to_the_others() {
        let keys = AnswerTextKeys::new(0);
        let whole = AnswerText {
            form: BodyForm::Whole,
            ..text("ask", &"x".repeat(10_000))
        };
        let read = text("ask", "answer");
        let form = |own: u64| {
            keys.ring.lock().own = own;
            let change = keys.seal_own("a", Some(&whole), &read)?;
            Ok(change.kept.map(|kept| kept.form))
        };
        assert_eq!(form(0), Ok(Some(BodyForm::Whole)));
        assert_eq!(form(MAX_WHOLE_OWN - 12_000), Ok(Some(BodyForm::Whole)));
        assert_eq!(form(MAX_WHOLE_OWN - 10_000), Ok(Some(BodyForm::Read)));
        assert_eq!(form(MAX_OWN - 2_000), Ok(Some(BodyForm::Read)));
        assert_eq!(form(MAX_OWN - 1_000), Err(CannotSeal::Full));
        keys.begin_next();
        assert!(keys.seal_own("b", Some(&whole), &read).is_ok());
    }

    #[test]
    fn a_key_that_is_forgotten_opens_nothing_and_the_next_one_goes_on() {
        let keys = AnswerTextKeys::default();
        let (one, two) = (text("1", "2"), text("3", "4"));
        let first = sealed(&keys, "a", &one);
        let next = keys.begin_next();
        let second = sealed(&keys, "b", &two);
        assert_eq!((first.key, second.key), (0, next));
        assert_eq!(keys.open("a", &first), Some(one));
        keys.forget_unneeded(Some(first.key));
        assert_eq!(keys.open("a", &first), Some(text("1", "2")));
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
