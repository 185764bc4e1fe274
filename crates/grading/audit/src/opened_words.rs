//! Opened words: what another reference needs to score an answer again, and how they follow from the session's proof.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::Digest;
use muster_response_proof::{ResponseProof, body_digest};
use sha2::{Digest as _, Sha256};

use crate::bundle::{AuditOutcome, OpenedWords, Origin};
use crate::checked_log::CheckedAnswer;
use crate::margin_cells::{MAX_TOKENS, TokenScore};
use crate::replay_error::ReplayError;

/// An answer of a bundle that any reference can score again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescorablePair {
    /// The digest of the session's proof, which names the answer.
    pub digest: Digest,
    /// The session's proof: the seed of the sampler follows from it.
    pub proof: ResponseProof,
    /// The body of the request, which has the parameters of the sampler.
    pub request: Vec<u8>,
    /// The ids of the prompt's tokens.
    pub prompt: Vec<u32>,
    /// The ids of the answer's tokens.
    pub output: Vec<u32>,
    /// The tokens as the bundle's first reference scored them.
    pub stated: Vec<TokenScore>,
    /// Whether these scores speak against the miner, under any tested alternative.
    pub speaks_against: bool,
}

impl RescorablePair {
    /// The pair of a tested answer; `None` if its words are not opened, or the first reference did not score it.
    pub(crate) fn of(answer: &CheckedAnswer<'_>, speaks_against: bool) -> Option<Self> {
        let words = answer.evidence.words.as_ref()?;
        let Some(AuditOutcome::Scored(by_reference)) = &answer.evidence.outcome else {
            return None;
        };
        let stated = by_reference.first()?.clone()?;
        Some(Self {
            digest: answer.digest,
            request: request_of(answer, words)?,
            proof: answer.proof.clone(),
            prompt: words.prompt.clone(),
            output: words.output.clone(),
            stated,
            speaks_against,
        })
    }
}

/// Checks that opened words are those of the answer's proof, and may be published.
pub(crate) fn check_words(answer: &CheckedAnswer<'_>) -> Result<(), ReplayError> {
    let Some(words) = &answer.evidence.words else {
        return Ok(());
    };
    let fits = are_bound(&answer.proof, words) && request_of(answer, words).is_some();
    if fits {
        Ok(())
    } else {
        Err(ReplayError::Words {
            session: answer.proof.session,
            sequence: answer.proof.sequence,
        })
    }
}

/// Whether the session signed these ids.
fn are_bound(proof: &ResponseProof, words: &OpenedWords) -> bool {
    let is_stated = |ids: &[u32], digest: &Digest, count: u32| {
        u32::try_from(ids.len()) == Ok(count) && digest_of_ids(ids) == *digest
    };
    words.output.len() <= MAX_TOKENS
        && proof.tokens.is_some_and(|facts| {
            is_stated(&words.prompt, &facts.prompt, facts.prompt_count)
                && is_stated(&words.output, &facts.output, facts.output_count)
        })
}

/// The body of the request; `None` if it is not the one that the proof names, or is a user's.
fn request_of(answer: &CheckedAnswer<'_>, words: &OpenedWords) -> Option<Vec<u8>> {
    match (&answer.evidence.origin, &words.request) {
        (Origin::User, _) | (Origin::Consenting, None) | (Origin::Canary(_), Some(_)) => None,
        (Origin::Canary(opened), None) => opened.request(),
        (Origin::Consenting, Some(request)) => {
            let request = STANDARD.decode(request).ok()?;
            let digest = body_digest::digest_input(answer.proof.scheme, &request);
            (digest == answer.proof.input).then_some(request)
        }
    }
}

/// SHA-256 over ids of tokens, each as four bytes, big-endian, as the proof names them.
pub fn digest_of_ids(ids: &[u32]) -> Digest {
    let mut hash = Sha256::new();
    for id in ids {
        hash.update(id.to_be_bytes());
    }
    Digest::from_bytes(hash.finalize().into())
}
