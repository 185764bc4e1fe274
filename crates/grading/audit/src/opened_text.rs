//! Opened text of answers: what another reference needs to score an answer again, and how it follows from the
//! session's proof.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::Digest;
use muster_response_proof::{CHUNK, HashScheme, ResponseProof, body_digest, hash_chunk, root_of};
use sha2::{Digest as _, Sha256};

use crate::bundle::{AuditOutcome, OpenedText, Origin};
use crate::checked_answer::CheckedAnswer;
use crate::margin_cells::{MAX_TOKENS, Margin, TokenScore};
use crate::replay_error::ReplayError;

/// The tokens by which an answer with false ids is judged, whatever it has.
const FALSE_TOKENS: usize = 64;

/// An answer of a bundle that any reference can score again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescorablePair {
    /// The digest of the session's proof, which names the answer.
    pub digest: Digest,
    /// The number of its bucket.
    pub bucket: u64,
    /// The session's proof: the seed of the sampler follows from it.
    pub proof: ResponseProof,
    /// The body of the request, which has the parameters of the sampler.
    pub request: Vec<u8>,
    /// The ids of the prompt's tokens. Empty beside `response`.
    pub prompt: Vec<u32>,
    /// The ids of the answer's tokens. Empty beside `response`.
    pub output: Vec<u32>,
    /// The body of the response, if the bundle says that its ids are false, or if its session signed none.
    pub response: Option<Vec<u8>>,
    /// The finding of the bundle's first reference.
    pub stated: AnswerFinding,
}

/// The finding of one reference about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerFinding {
    /// It scored the tokens.
    Tokens(Vec<TokenScore>),
    /// The session signed false ids.
    FalseIds,
}

impl RescorablePair {
    /// The pair of a tested answer; `None` if its words are not opened, or the first reference did not score it.
    pub(crate) fn of(answer: &CheckedAnswer<'_>) -> Option<Self> {
        let words = answer.evidence.words.as_ref()?;
        let (stated, response) = match (answer.evidence.outcome.as_ref()?, &words.response) {
            (AuditOutcome::Scored(by_reference), response) => {
                let response = match response {
                    None => None,
                    Some(body) => Some(STANDARD.decode(body).ok()?),
                };
                (AnswerFinding::Tokens(by_reference.first()?.clone()?), response)
            }
            (AuditOutcome::FalseIds(by_reference), Some(response)) => {
                (*by_reference.first()?)?;
                (AnswerFinding::FalseIds, Some(STANDARD.decode(response).ok()?))
            }
            (AuditOutcome::Unseeded(_) | AuditOutcome::FalseIds(_) | AuditOutcome::Unusable(_), _) => {
                return None;
            }
        };
        Some(Self {
            response,
            digest: answer.digest,
            bucket: answer.evidence.bucket,
            request: request_of(answer, words)?,
            proof: answer.proof.clone(),
            prompt: words.prompt.clone(),
            output: words.output.clone(),
            stated,
        })
    }
}

/// The scores that stand for false ids where one answer is judged by itself: those of an answer that no reference can
/// have chosen.
pub fn false_scores() -> Vec<TokenScore> {
    let impossible = TokenScore {
        margin: Margin::Impossible,
        entropy: 0,
    };
    vec![impossible; FALSE_TOKENS]
}

/// Whether this is the body of the response that the session signed, without Muster's comment lines.
pub fn is_signed_response(proof: &ResponseProof, body: &[u8]) -> bool {
    let is_whole = u64::try_from(body.len()) == Ok(proof.output_bytes);
    let is_signed = match proof.scheme {
        HashScheme::RawHttp => Digest::of(body) == proof.output,
        // That digest is of the text alone, and ids stand beside it.
        HashScheme::Text => root_of(body.chunks(CHUNK).map(hash_chunk)) == proof.chunks,
    };
    is_whole && is_signed
}

/// Checks that opened text is that of the answer's proof, and may be published.
pub(crate) fn check_opened_text(answer: &CheckedAnswer<'_>) -> Result<(), ReplayError> {
    let Some(words) = &answer.evidence.words else {
        return Ok(());
    };
    let is_bound = match &words.response {
        None => are_bound(&answer.proof, words),
        Some(response) => opens_response(answer) && is_bound_response(&answer.proof, words, response),
    };
    let fits = is_bound && request_of(answer, words).is_some();
    if fits {
        Ok(())
    } else {
        Err(ReplayError::Words {
            session: answer.proof.session,
            sequence: answer.proof.sequence,
        })
    }
}

/// Whether a bundle may open the response of an answer: the session signed false ids, or it signed none and the tokens
/// of an own prompt's answer were found in the text.
fn opens_response(answer: &CheckedAnswer<'_>) -> bool {
    let is_own = matches!(answer.evidence.origin, Origin::Canary(_));
    match &answer.evidence.outcome {
        Some(AuditOutcome::FalseIds(_)) => answer.proof.tokens.is_some(),
        Some(AuditOutcome::Scored(_)) => answer.proof.tokens.is_none() && is_own,
        Some(AuditOutcome::Unseeded(_) | AuditOutcome::Unusable(_)) | None => false,
    }
}

fn is_bound_response(proof: &ResponseProof, words: &OpenedText, response: &str) -> bool {
    let has_no_ids = words.prompt.is_empty() && words.output.is_empty();
    let body = STANDARD.decode(response);
    has_no_ids && body.is_ok_and(|body| is_signed_response(proof, &body))
}

/// Whether the session signed these ids.
fn are_bound(proof: &ResponseProof, words: &OpenedText) -> bool {
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
fn request_of(answer: &CheckedAnswer<'_>, words: &OpenedText) -> Option<Vec<u8>> {
    match (&answer.evidence.origin, &words.request) {
        (Origin::User, _) | (Origin::Consenting, None) | (Origin::Canary(_), Some(_)) => None,
        (Origin::Canary(_), None) => answer.request.clone(),
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
