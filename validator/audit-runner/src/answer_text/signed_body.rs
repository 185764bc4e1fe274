//! The body of a stored answer as its session signed it: without Muster's comment lines. Pure.

use muster_audit::is_signed_response;
use muster_gateway::store::{AnswerText, BodyForm};
use muster_openai::BodyKind;
use muster_response_proof::ResponseProof;
use muster_response_proof::comment::strip_comments;

/// The body that the session signed; `None` if the stored one is another, or if only its fields are stored.
pub(crate) fn signed_body(proof: &ResponseProof, words: &AnswerText) -> Option<Vec<u8>> {
    if words.form == BodyForm::Read {
        return None;
    }
    let body = match BodyKind::of(words.content_type.as_deref()) {
        BodyKind::Events => strip_comments(&words.response),
        BodyKind::Json | BodyKind::Other => words.response.clone(),
    };
    is_signed_response(proof, &body).then_some(body)
}

#[cfg(test)]
mod tests {
    use muster_protocol::{AttemptId, Digest, Hotkey, JobId, Timestamp, ValidatorKey};
    use muster_response_proof::{CHUNK, HashScheme, SessionId, StreamEnd, Text, hash_chunk, root_of};
    use uuid::Uuid;

    use super::*;

    const BODY: &str = "data: {}\n\n: mustard\n\ndata: [DONE]\n\n";

    fn proof(body: &str) -> ResponseProof {
        ResponseProof {
            session: SessionId(Uuid::from_u128(1)),
            sequence: 0,
            previous: Digest::of(b""),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            audience: ValidatorKey(Hotkey::from_bytes([4; 32])),
            client: None,
            attestation: Digest::of(b"attested"),
            client_nonce: None,
            gateway_nonce: None,
            method: Text::new("POST").unwrap(),
            path: Text::new("/v1/chat/completions").unwrap(),
            status: 200,
            content_type: None,
            scheme: HashScheme::RawHttp,
            input: Digest::of(b"asked"),
            output: Digest::of(body.as_bytes()),
            output_bytes: body.len() as u64,
            chunks: root_of(body.as_bytes().chunks(CHUNK).map(hash_chunk)),
            from: Timestamp::from_secs(1),
            first_byte: None,
            to: Timestamp::from_secs(2),
            tokens: None,
            engine: None,
            end: StreamEnd::Completed,
        }
    }

    fn words(response: &str, kind: &str) -> AnswerText {
        AnswerText {
            request: Vec::new(),
            response: response.into(),
            form: BodyForm::Whole,
            content_type: Some(kind.to_owned()),
        }
    }

    #[test]
    fn the_lines_that_the_seal_added_are_no_part_of_the_body() {
        let stored = format!(": muster-waiting\n{BODY}\n: muster-proof abc\n");
        let words = words(&stored, "text/event-stream");
        assert_eq!(
            signed_body(&proof(BODY), &words).as_deref(),
            Some(BODY.as_bytes())
        );
        let unfinished = stored.trim_end().to_owned();
        let cut = super::tests::words(&unfinished, "text/event-stream");
        assert_eq!(signed_body(&proof(BODY), &cut).as_deref(), Some(BODY.as_bytes()));
    }

    #[test]
    fn another_body_than_the_signed_one_is_none() {
        assert_eq!(
            signed_body(&proof(BODY), &words("data: {}\n\n", "text/event-stream")),
            None
        );
        let read = AnswerText {
            form: BodyForm::Read,
            ..words(BODY, "text/event-stream")
        };
        assert_eq!(
            signed_body(&proof(BODY), &read),
            None,
            "its fields alone are no body"
        );
        let document = "{\"a\":1}";
        assert!(signed_body(&proof(document), &words(document, "application/json")).is_some());
        // The digest of a text proves nothing about ids: the root over the bytes does.
        let mut of_text = proof(document);
        of_text.scheme = HashScheme::Text;
        of_text.output = Digest::of(b"the text");
        assert!(signed_body(&of_text, &words(document, "application/json")).is_some());
        assert_eq!(
            signed_body(&of_text, &words("{\"a\":2}", "application/json")),
            None
        );
    }
}
