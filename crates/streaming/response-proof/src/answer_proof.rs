//! The check of one streamed answer's proof. Pure: the facilitator's server runs it, and so does the module that a page
//! runs in the browser. The check of a signature is the caller's, because a page links less than a server.

mod received;
mod statements;

use std::time::Duration;

use muster_protocol::{Hotkey, MinerKey, Signature, Timestamp, ValidatorKey};
use serde::{Deserialize, Serialize};

pub use statements::{OpenedStatements, ShownStatements, StatementFault};

use crate::body_digest::digest_input;
use crate::{Attestation, ClockTolerance, HashScheme, ObservedExchange, ResponseProof};

/// By how much the clocks of two parties may differ.
pub const SKEW: Duration = Duration::from_secs(30);

/// `GET /v1/proofs/{id}`: what a validator's gateway keeps of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerProof {
    /// The answer's id.
    pub id: String,
    /// The nonce of the request; without it the id is the nonce, as in earlier releases.
    #[serde(default)]
    pub nonce: Option<String>,
    /// The gateway's own verdict in words.
    pub verdict: String,
    /// The model that was asked.
    pub model: String,
    /// The miner of the session.
    pub miner: MinerKey,
    /// The validator whose gateway passed the answer on.
    pub validator: ValidatorKey,
    /// The time at which the answer ended, by the gateway's clock.
    pub ended_at: Timestamp,
    /// The answer's price in rao.
    pub cost: u64,
    /// The signed statement about the answer; `None` if none came.
    pub proof: Option<String>,
    /// The miner's signed statement about the session.
    pub attestation: String,
}

/// The request that an answer's reader sent, and the response that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnTranscript<'a> {
    /// The request's body.
    pub request: &'a [u8],
    /// The response's status.
    pub status: u16,
    /// The value of the response's `Content-Type`.
    pub content_type: Option<&'a str>,
    /// The response's body.
    pub response: &'a [u8],
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedAnswer {
    /// The first defect that was found, in words; `None` if everything holds.
    pub defect: Option<String>,
    /// The signed statements, as names and values.
    pub statements: Vec<(String, String)>,
    /// The digest of the request that was signed, in hex, if the request's bytes were hashed as they are.
    pub input: Option<String>,
}

/// The check of a signature of these bytes by a key.
pub type VerifySignature = fn(&Hotkey, &[u8], &Signature) -> bool;

/// Checks both signatures, the parties and the answer `id` that they bind, and tells what was signed. With a transcript
/// it also checks that the request and the response are the signed ones, byte for byte.
pub fn check_answer(
    found: &AnswerProof,
    id: &str,
    own: Option<&OwnTranscript<'_>>,
    verify: VerifySignature,
) -> CheckedAnswer {
    let mut statements = vec![
        ("Model".to_owned(), found.model.clone()),
        ("Verdict of the gateway".to_owned(), found.verdict.clone()),
    ];
    match check_statements(found, id, own, verify) {
        Ok((proof, attestation)) => {
            statements.extend(describe(found, &proof, &attestation));
            CheckedAnswer {
                defect: None,
                statements,
                input: (proof.scheme == HashScheme::RawHttp).then(|| proof.input.hex()),
            }
        }
        Err(defect) => CheckedAnswer {
            defect: Some(defect),
            statements,
            input: None,
        },
    }
}

fn check_statements(
    found: &AnswerProof,
    id: &str,
    own: Option<&OwnTranscript<'_>>,
    verify: VerifySignature,
) -> Result<(ResponseProof, Attestation), String> {
    let shown = ShownStatements {
        miner: found.miner,
        validator: found.validator,
        nonce: found.nonce.as_ref().unwrap_or(&found.id),
        verdict: &found.verdict,
        attestation: &found.attestation,
        proof: found.proof.as_deref(),
    };
    let OpenedStatements {
        attestation,
        proof,
        sealed,
        mut ledger,
    } = shown.open(verify).map_err(in_words)?;
    if found.id != id {
        return Err(in_words(StatementFault::Mismatch("answer")));
    }
    let (method, path) = (proof.method.to_string(), proof.path.to_string());
    let content_type = proof.content_type.as_ref().map(ToString::to_string);
    let mut seen = ObservedExchange {
        client: proof.client,
        client_nonce: proof.client_nonce,
        gateway_nonce: proof.gateway_nonce,
        method: &method,
        path: &path,
        input: proof.input,
        status: proof.status,
        content_type: content_type.as_deref(),
        output: Some(proof.output),
        output_bytes: proof.output_bytes,
        asked: proof.from,
        ended: proof.to,
    };
    if let Some(own) = own {
        let body = received::hash_body(proof.scheme, own.content_type, own.response);
        seen.input = digest_input(proof.scheme, own.request);
        seen.status = own.status;
        seen.content_type = own.content_type;
        seen.output = Some(body.digest);
        seen.output_bytes = body.bytes;
    }
    let bounds = ClockTolerance { skew: SKEW };
    let checked = ledger.accept(&sealed, &seen, bounds, verify).map_err(in_words)?;
    Ok((checked, attestation))
}

fn in_words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn describe(found: &AnswerProof, proof: &ResponseProof, attestation: &Attestation) -> Vec<(String, String)> {
    let weights = attestation
        .model
        .map_or_else(|| "not stated".to_owned(), |digest| digest.to_string());
    let rows = [
        (
            "Answer",
            format!(
                "{} of session {}, {}",
                proof.sequence,
                proof.session,
                proof.end.name()
            ),
        ),
        ("Image", attestation.image.to_string()),
        ("Weights", weights),
        ("Miner", attestation.miner.to_string()),
        ("Validator", attestation.audience.to_string()),
        (
            "Request",
            format!("{} {}, {}", proof.method, proof.path, proof.input),
        ),
        (
            "Response",
            format!("{}, {} bytes, {}", proof.status, proof.output_bytes, proof.output),
        ),
        ("Digests by", proof.scheme.name().to_owned()),
        ("Time", format!("{} to {}", proof.from, proof.to)),
        ("Seen by the gateway", found.ended_at.to_string()),
        ("Price", format!("{} rao", found.cost)),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_protocol::{AttemptId, Digest, ImageId, JobId};

    use super::*;
    use crate::comment::{comment_line, proof_line};
    use crate::{ChunkTree, Price, RequestNonce, SessionId, StreamEnd, Text, seal};

    const ID: &str = "answer";
    const ASKED: &[u8] = b"{\"model\":\"m\"}";
    const BODY: &[u8] = b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
    const EVENTS: &str = "text/event-stream";

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn keys(seed: u8) -> Keypair {
        Keypair::from_seed([seed; 32])
    }

    fn attestation() -> Attestation {
        Attestation {
            session: SessionId("11111111-2222-4333-8444-555555555555".parse().unwrap()),
            session_key: keys(2).hotkey(),
            job: "11111111-2222-4333-8444-555555555551".parse::<JobId>().unwrap(),
            attempt: "11111111-2222-4333-8444-555555555552"
                .parse::<AttemptId>()
                .unwrap(),
            miner: MinerKey(keys(1).hotkey()),
            audience: ValidatorKey(keys(3).hotkey()),
            server_certificate: Digest::of(b"s"),
            client_certificate: Digest::of(b"c"),
            executor: Text::new("e").unwrap(),
            address: Text::new("127.0.0.1:1").unwrap(),
            image: ImageId(Digest::of(b"i")),
            model: None,
            scheme: HashScheme::RawHttp,
            price: Price::default(),
            not_before: at(0),
            not_after: at(1_000),
        }
    }

    /// The proof of an answer to `ASKED` with the body `BODY`, and the whole response of its gateway.
    fn answer() -> (AnswerProof, Vec<u8>) {
        let attestation = attestation();
        let attested = seal(&attestation, &keys(1));
        let mut chunks = ChunkTree::default();
        chunks.update(BODY);
        let proof = ResponseProof {
            session: attestation.session,
            sequence: 9_000,
            previous: Digest::of(b"the one before"),
            job: attestation.job,
            attempt: attestation.attempt,
            audience: attestation.audience,
            client: None,
            attestation: attested.digest(),
            client_nonce: None,
            gateway_nonce: Some(RequestNonce::from_bytes([7; 32])),
            method: Text::new("POST").unwrap(),
            path: Text::new("/v1/chat/completions").unwrap(),
            status: 200,
            content_type: Some(Text::new(EVENTS).unwrap()),
            scheme: HashScheme::RawHttp,
            input: Digest::of(ASKED),
            output: Digest::of(BODY),
            output_bytes: BODY.len() as u64,
            chunks: chunks.finish(),
            from: at(100),
            first_byte: Some(at(101)),
            to: at(102),
            tokens: None,
            engine: None,
            end: StreamEnd::Completed,
        };
        let sealed = seal(&proof, &keys(2)).to_text();
        let mut response = comment_line("wait").to_vec();
        response.extend_from_slice(BODY);
        response.extend_from_slice(&proof_line(&sealed));
        let found = AnswerProof {
            id: ID.to_owned(),
            nonce: Some(RequestNonce::from_bytes([7; 32]).hex()),
            verdict: "proven".to_owned(),
            model: "<b>m</b>".to_owned(),
            miner: attestation.miner,
            validator: attestation.audience,
            ended_at: at(102),
            cost: 5,
            proof: Some(sealed),
            attestation: attested.to_text(),
        };
        (found, response)
    }

    fn own<'a>(request: &'a [u8], response: &'a [u8]) -> OwnTranscript<'a> {
        OwnTranscript {
            request,
            status: 200,
            content_type: Some(EVENTS),
            response,
        }
    }

    #[test]
    fn a_proof_holds_by_its_statements_alone_and_with_what_its_reader_saw() {
        let (found, response) = answer();
        let alone = check_answer(&found, ID, None, muster_identity::verify);
        assert_eq!(alone.defect, None);
        assert_eq!(alone.input, Some(Digest::of(ASKED).hex()));
        let own = own(ASKED, &response);
        assert_eq!(
            check_answer(&found, ID, Some(&own), muster_identity::verify),
            alone
        );
        let names: Vec<_> = alone.statements.iter().map(|(name, _)| name.as_str()).collect();
        assert!(
            names.starts_with(&["Model", "Verdict of the gateway", "Answer"]),
            "{names:?}"
        );
    }

    #[test]
    fn every_change_is_found() {
        type Change = fn(&mut AnswerProof);
        let changes: [(Change, &str); 7] = [
            (|found| found.id = "other".to_owned(), "another answer"),
            (|found| found.nonce = Some("00".repeat(32)), "another answer"),
            (|found| found.proof = None, "without a proof"),
            (|found| found.miner = MinerKey(keys(8).hotkey()), "another miner"),
            (
                |found| found.validator = ValidatorKey(keys(8).hotkey()),
                "another validator",
            ),
            (
                |found| {
                    let mut forged = attestation();
                    forged.model = Some(Digest::of(b"better"));
                    found.attestation = seal(&forged, &keys(8)).to_text();
                },
                "did not sign it",
            ),
            (|found| found.attestation = "?".to_owned(), ""),
        ];
        for (change, words) in changes {
            let (mut found, response) = answer();
            change(&mut found);
            let own = own(ASKED, &response);
            let checked = check_answer(&found, ID, Some(&own), muster_identity::verify);
            let defect = checked.defect.unwrap();
            assert!(defect.contains(words), "{words}: {defect}");
        }
        let (found, response) = answer();
        let mut altered = response.clone();
        altered[40] ^= 1;
        for (own, words) in [
            (own(b"{}", &response), "another request"),
            (own(ASKED, &altered), "another response"),
            (
                OwnTranscript {
                    status: 201,
                    ..own(ASKED, &response)
                },
                "another response",
            ),
        ] {
            let checked = check_answer(&found, ID, Some(&own), muster_identity::verify);
            let defect = checked.defect.unwrap();
            assert!(defect.contains(words), "{words}: {defect}");
        }
        let refused = check_answer(&found, ID, None, |_, _, _| false);
        assert!(refused.defect.is_some(), "a signature that does not hold");
    }
}
