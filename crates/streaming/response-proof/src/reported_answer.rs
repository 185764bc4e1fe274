//! A client's report that an answer is not the model's, as a report of cheating carries it in its details.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_openai::BodyKind;
use muster_protocol::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body_digest::{self, BodyHasher};
use crate::client_key::ClientKey;
use crate::comment::strip_comments;
use crate::envelope::Envelope;
use crate::nonce::RequestNonce;
use crate::proof::ResponseProof;

/// The most bytes of request and response together that a report may carry, before base64.
pub const MAX_REPORTED_WORDS: usize = 512 * 1024;

/// An answer that its client reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedAnswer {
    /// The signed proof of the answer, in text form.
    pub proof: String,
    /// The nonce that the gateway drew for the request's pseudonym, 64 hex digits, as `GET /v1/proofs/{id}` states it;
    /// absent if the client named a nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pseudonym_nonce: Option<String>,
    /// The words of the exchange, which the client shows for the audit; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<ReportedWords>,
}

/// The words of a reported exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedWords {
    /// The body of the request, base64.
    pub request: String,
    /// The body of the response as the client saw it, base64.
    pub response: String,
    /// The content type of the response.
    #[serde(default)]
    pub content_type: Option<String>,
}

/// The words of a reported exchange, whose digests are those of its proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedWords {
    /// The body of the request.
    pub request: Vec<u8>,
    /// The body of the response.
    pub response: Vec<u8>,
    /// The content type of the response.
    pub content_type: Option<String>,
}

/// Why the words of a report are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WordsRejection {
    /// They are no base64.
    #[error("the words of the report are no base64")]
    Encoding,
    /// They are too long.
    #[error("the words of the report are longer than {MAX_REPORTED_WORDS} bytes")]
    TooLong,
    /// They are of another exchange than the proof.
    #[error("the words of the report are not those that the proof names")]
    Other,
}

impl ReportedAnswer {
    /// The answer in the details of a report of cheating; `None` if they are about no answer.
    pub fn from_details(details: Option<&Value>) -> Option<Self> {
        serde_json::from_value(details?.get("answer")?.clone()).ok()
    }

    /// The proof, whoever signed it; `None` if it cannot be read.
    pub fn statement(&self) -> Option<ResponseProof> {
        Envelope::<ResponseProof>::from_text(&self.proof)
            .ok()?
            .statement()
            .ok()
    }
}

impl ReportedAnswer {
    /// Whether this client's key opens the pseudonym of the request that the proof names. `None` if the report lacks
    /// the nonce that is needed for it.
    pub fn is_of(&self, proof: &ResponseProof, key: &ClientKey) -> Option<bool> {
        let drawn = self.pseudonym_nonce.as_deref().and_then(RequestNonce::from_hex);
        let nonce = proof.client_nonce.or(drawn)?;
        Some(proof.client == Some(key.pseudonym(&proof.input, &nonce)))
    }
}

impl ReportedWords {
    /// The words, if they are those of this proof.
    ///
    /// # Errors
    /// They cannot be read, are too long, or are of another exchange.
    pub fn check(&self, proof: &ResponseProof) -> Result<CheckedWords, WordsRejection> {
        // Four characters of base64 are three bytes, so much longer texts are not decoded.
        if self.request.len().saturating_add(self.response.len()) > MAX_REPORTED_WORDS * 4 / 3 + 8 {
            return Err(WordsRejection::TooLong);
        }
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| WordsRejection::Encoding);
        let (request, response) = (decode(&self.request)?, decode(&self.response)?);
        if request.len().saturating_add(response.len()) > MAX_REPORTED_WORDS {
            return Err(WordsRejection::TooLong);
        }
        let content_type = self.content_type.as_deref();
        let is_same = body_digest::digest_input(proof.scheme, &request) == proof.input
            && digest_output(proof, &response, content_type) == proof.output;
        match is_same {
            true => Ok(CheckedWords {
                request,
                response,
                content_type: self.content_type.clone(),
            }),
            false => Err(WordsRejection::Other),
        }
    }
}

/// The digest of a response body without Muster's comment lines, as its session computed it.
fn digest_output(proof: &ResponseProof, body: &[u8], content_type: Option<&str>) -> Digest {
    let kind = BodyKind::of(content_type);
    let mut hasher = BodyHasher::new(proof.scheme, kind);
    match kind {
        BodyKind::Events => hasher.update(&strip_comments(body)),
        BodyKind::Json | BodyKind::Other => hasher.update(body),
    }
    hasher.finish().digest
}

#[cfg(test)]
mod tests {
    use muster_protocol::{AttemptId, JobId, Timestamp, ValidatorKey};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::comment::{comment_line, proof_line};
    use crate::hash_scheme::HashScheme;
    use crate::stream_end::StreamEnd;
    use crate::{SessionId, Text, hash_chunk, root_of};

    fn proof(request: &[u8], response: &[u8]) -> ResponseProof {
        ResponseProof {
            session: SessionId(Uuid::from_u128(1)),
            sequence: 0,
            previous: Digest::of(b""),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            audience: ValidatorKey(muster_protocol::Hotkey::from_bytes([4; 32])),
            client: Some(Digest::of(b"client")),
            attestation: Digest::of(b"attested"),
            client_nonce: None,
            gateway_nonce: Some(RequestNonce::from_bytes([7; 32])),
            method: Text::new("POST").unwrap(),
            path: Text::new("/v1/chat/completions").unwrap(),
            status: 200,
            content_type: None,
            scheme: HashScheme::RawHttp,
            input: Digest::of(request),
            output: Digest::of(response),
            output_bytes: 8,
            chunks: root_of([hash_chunk(response)]),
            from: Timestamp::from_secs(1),
            first_byte: None,
            to: Timestamp::from_secs(2),
            tokens: None,
            engine: None,
            end: StreamEnd::Completed,
        }
    }

    fn words(request: &[u8], response: &[u8], content_type: Option<&str>) -> ReportedWords {
        ReportedWords {
            request: STANDARD.encode(request),
            response: STANDARD.encode(response),
            content_type: content_type.map(str::to_owned),
        }
    }

    #[test]
    fn words_are_those_that_the_proof_names_with_the_line_of_the_proof_or_without() {
        let stated = proof(b"asked", b"data: 1\n\n");
        let events = Some("text/event-stream");
        let whole = [b"data: 1\n\n", proof_line("abc").as_ref()].concat();
        let waited = [comment_line("wait").as_ref(), &whole].concat();
        for seen in [b"data: 1\n\n".as_slice(), &whole, &waited] {
            let checked = words(b"asked", seen, events).check(&stated).unwrap();
            assert_eq!(
                (checked.request.as_slice(), checked.response.as_slice()),
                (b"asked".as_slice(), seen)
            );
        }
        let other = words(b"other", b"data: 1\n\n", events).check(&stated);
        assert_eq!(other, Err(WordsRejection::Other));
        let other = words(b"asked", b"data: 2\n\n", events).check(&stated);
        assert_eq!(other, Err(WordsRejection::Other));
        let mut broken = words(b"asked", b"", None);
        broken.response = "*".to_owned();
        assert_eq!(broken.check(&stated), Err(WordsRejection::Encoding));
        for over in [1, 9] {
            let long = vec![0; MAX_REPORTED_WORDS - b"asked".len() + over];
            let long = words(b"asked", &long, None).check(&proof(b"asked", &long));
            assert_eq!(long, Err(WordsRejection::TooLong), "{over}");
        }
        let longest = vec![0; MAX_REPORTED_WORDS - b"asked".len()];
        let longest = words(b"asked", &longest, None).check(&proof(b"asked", &longest));
        assert!(longest.is_ok());
    }

    #[test]
    fn a_pseudonym_is_opened_by_its_clients_key_and_nonce_alone() {
        let (key, drawn) = (ClientKey::from_bytes([7; 32]), RequestNonce::from_bytes([9; 32]));
        let reported = |nonce: Option<String>| ReportedAnswer {
            proof: String::new(),
            pseudonym_nonce: nonce,
            words: None,
        };
        let mut stated = proof(b"asked", b"answered");
        stated.client = Some(key.pseudonym(&stated.input, &drawn));
        assert_eq!(reported(Some(drawn.hex())).is_of(&stated, &key), Some(true));
        assert_eq!(
            reported(None).is_of(&stated, &key),
            None,
            "nobody knows the nonce"
        );
        assert_eq!(reported(Some("no nonce".to_owned())).is_of(&stated, &key), None);
        let other = RequestNonce::from_bytes([8; 32]);
        assert_eq!(reported(Some(other.hex())).is_of(&stated, &key), Some(false));
        let somebody = ClientKey::from_bytes([6; 32]);
        assert_eq!(reported(Some(drawn.hex())).is_of(&stated, &somebody), Some(false));
        // The nonce that the client named stands in the proof.
        stated.client_nonce = Some(drawn);
        assert_eq!(reported(None).is_of(&stated, &key), Some(true));
        stated.client_nonce = Some(other);
        assert_eq!(reported(Some(drawn.hex())).is_of(&stated, &key), Some(false));
    }

    #[test]
    fn details_about_something_else_name_no_answer() {
        let reported = ReportedAnswer {
            proof: "text".to_owned(),
            pseudonym_nonce: None,
            words: None,
        };
        let details = json!({ "answer": reported, "text": "wrong" });
        assert_eq!(ReportedAnswer::from_details(Some(&details)), Some(reported));
        for details in [json!("wrong"), json!({ "answer": 1 }), json!(null)] {
            assert_eq!(ReportedAnswer::from_details(Some(&details)), None);
        }
        assert_eq!(ReportedAnswer::from_details(None), None);
    }
}
