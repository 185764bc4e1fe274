//! The ids of the tokens that a response states, as far as its session signed them. Pure, over bytes of strangers.

use muster_audit::{MAX_TOKENS, UnusableReason, digest_of_ids};
use muster_gateway::store::{AnswerText, BodyForm};
use muster_response_proof::{ResponseProof, TokenFacts};

use super::read_fields;

/// The ids of an answer's tokens, as far as its session signed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundIds {
    /// The response has the ids that the session signed.
    Signed(AnswerIds),
    /// The session signed none, so only the text is known: ids that the response states nevertheless bind nobody.
    Unsigned,
    /// The session signed ids that the response does not have.
    Missing,
}

/// The ids of an answer's tokens.
///
/// # Errors
/// The reason why nobody can score the answer: a part of its body was not kept, or the engine gave no token.
pub(crate) fn find_ids(proof: &ResponseProof, words: &AnswerText) -> Result<FoundIds, UnusableReason> {
    let is_shorter =
        |response: &[u8]| u64::try_from(response.len()).is_ok_and(|bytes| bytes < proof.output_bytes);
    // The fields that audits read are shorter than the body that they were taken out of.
    if words.form == BodyForm::Whole && is_shorter(&words.response) {
        return Err(UnusableReason::TruncatedBody);
    }
    let Some(facts) = &proof.tokens else {
        return Ok(FoundIds::Unsigned);
    };
    match answer_ids(words) {
        Some(ids) if !ids.are_of(facts) => Ok(FoundIds::Missing),
        // An engine that failed before the first token.
        Some(ids) if ids.output.is_empty() => Err(UnusableReason::NoTokenIds),
        Some(ids) => Ok(FoundIds::Signed(ids)),
        None => Ok(FoundIds::Missing),
    }
}

/// The ids of an answer's tokens and of its prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnswerIds {
    /// The ids of the prompt.
    pub prompt: Vec<u32>,
    /// The ids of the answer.
    pub output: Vec<u32>,
}

impl AnswerIds {
    /// Whether these are the ids whose digests and numbers a session signed.
    fn are_of(&self, facts: &TokenFacts) -> bool {
        let is_stated = |ids: &[u32], digest, count: u32| {
            u32::try_from(ids.len()) == Ok(count) && digest_of_ids(ids) == digest
        };
        is_stated(&self.prompt, facts.prompt, facts.prompt_count)
            && is_stated(&self.output, facts.output, facts.output_count)
    }
}

/// The ids that a response states; `None` if it states none of a prompt, or too many.
fn answer_ids(words: &AnswerText) -> Option<AnswerIds> {
    // Ids are read in the same way on every path.
    let read = read_fields(words, true)?;
    let ids = AnswerIds {
        prompt: read.prompt_ids?,
        output: read.output_ids,
    };
    (ids.output.len() <= MAX_TOKENS).then_some(ids)
}
