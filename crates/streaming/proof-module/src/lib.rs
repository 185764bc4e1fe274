//! The check of an answer's proof as a module of WebAssembly that the page of a conversation runs: the same pure code
//! as the facilitator's server has, with a check of signatures that links nothing else.
//!
//! The page asks for [`room`], writes its input there, calls [`check`], and reads the result at [`result`]. The input
//! is the length of a head as four bytes, the least significant first, the head as JSON ([`CheckHead`]), the body of
//! the request, and the body of the response. The result is JSON: the fields of [`CheckedAnswer`]. The module imports
//! nothing, so it has no clock, no randomness and no way out.

use std::cell::RefCell;

use muster_protocol::{Hotkey, Signature};
use muster_response_proof::answer_proof::{AnswerProof, CheckedAnswer, OwnTranscript, check_answer};
use serde::Deserialize;

/// The head of an input.
#[derive(Debug, Deserialize)]
pub struct CheckHead {
    /// The gateway's record of the answer.
    pub proof: AnswerProof,
    /// The id of the answer that the page got.
    pub id: String,
    /// The status of the response.
    pub status: u16,
    /// The value of the response's `Content-Type`.
    pub content_type: Option<String>,
    /// The bytes of the request's body, which follow the head; the rest is the response's body.
    pub request_bytes: usize,
}

/// The context under which Substrate signs.
const CONTEXT: &[u8] = b"substrate";

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static RESULT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Makes room for an input of so many bytes. Returns its address.
#[expect(unsafe_code, reason = "a page finds the functions of a module by name")]
#[unsafe(no_mangle)]
pub extern "C" fn room(bytes: usize) -> *const u8 {
    INPUT.with_borrow_mut(|input| {
        input.clear();
        input.resize(bytes, 0);
        input.as_ptr()
    })
}

/// Checks the input. Returns the length of the result.
#[expect(unsafe_code, reason = "a page finds the functions of a module by name")]
#[unsafe(no_mangle)]
pub extern "C" fn check() -> usize {
    let input = INPUT.take();
    let checked = check_input(&input);
    let text = serde_json::to_vec(&checked).unwrap_or_default();
    let length = text.len();
    RESULT.set(text);
    length
}

/// The address of the result.
#[expect(unsafe_code, reason = "a page finds the functions of a module by name")]
#[unsafe(no_mangle)]
pub extern "C" fn result() -> *const u8 {
    RESULT.with_borrow(|result| result.as_ptr())
}

/// Checks an input of [`check`].
pub fn check_input(input: &[u8]) -> CheckedAnswer {
    read(input).unwrap_or_else(|| CheckedAnswer {
        defect: Some("The page gave the module an input that it cannot read.".to_owned()),
        statements: Vec::new(),
        input: None,
    })
}

fn read(input: &[u8]) -> Option<CheckedAnswer> {
    let (length, rest) = input.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (head, bodies) = rest.split_at_checked(length)?;
    let head: CheckHead = serde_json::from_slice(head).ok()?;
    let (request, response) = bodies.split_at_checked(head.request_bytes)?;
    let own = OwnTranscript {
        request,
        status: head.status,
        content_type: head.content_type.as_deref(),
        response,
    };
    Some(check_answer(&head.proof, &head.id, Some(&own), is_signed))
}

/// Whether a key signed these bytes: sr25519, as `muster-identity` checks it.
fn is_signed(by: &Hotkey, bytes: &[u8], signature: &Signature) -> bool {
    let key = schnorrkel::PublicKey::from_bytes(by.as_bytes());
    let signature = schnorrkel::Signature::from_bytes(signature.as_bytes());
    match (key, signature) {
        (Ok(key), Ok(signature)) => key.verify_simple(CONTEXT, bytes, &signature).is_ok(),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

#[cfg(test)]
mod tests;
