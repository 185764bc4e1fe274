//! A proof as its client keeps it: with what was asked and what came, checked without asking anybody.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use muster_process::SharedClock;
use muster_protocol::Timestamp;
use muster_response_proof::{
    Attestation, Bounds, Envelope, EnvelopeError, Forgery, LayoutError, Ledger, Nonce, ResponseProof,
};
use muster_sealing_proxy::{Asked, Checked, CheckedBody};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::http_door::ProofView;

/// How far the clocks of a client and of an executor may differ.
pub const SKEW: Duration = Duration::from_secs(30);

/// What a client asked and got, word for word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    /// `POST`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// What was sent, base64.
    pub request: String,
    /// As it came.
    pub status: u16,
    /// As it came.
    pub content_type: Option<String>,
    /// What came, base64, with the comment lines of ours.
    pub response: String,
    /// What the client drew, 64 hex digits.
    pub client_nonce: Option<String>,
    /// When it asked, by its own clock.
    pub asked_at: Timestamp,
    /// When the end came.
    pub ended_at: Timestamp,
}

/// One answer's proof, and the words if their holder kept them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What the gateway says.
    #[serde(flatten)]
    pub view: ProofView,
    /// What the client saw itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<Words>,
}

/// What a record proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// What the session signed.
    pub proof: ResponseProof,
    /// What the miner signed.
    pub attestation: Attestation,
    /// Whether the words themselves were there and are those that were signed.
    pub words: bool,
}

/// Why a record proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Worthless {
    /// The answer came without a proof.
    #[error("the answer came without a proof; its gateway says: {0}")]
    Absent(String),
    /// A statement cannot be read.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// Likewise.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The miner did not sign the attestation.
    #[error("the miner that the attestation names did not sign it")]
    Attestation,
    /// The record names somebody else than the statements do.
    #[error("the record names another {0} than the statements in it")]
    Names(&'static str),
    /// The proof is worth nothing.
    #[error(transparent)]
    Forged(#[from] Forgery),
    /// The words are not base64, or a nonce no nonce.
    #[error("the record's {0} cannot be read")]
    Words(&'static str),
}

impl Record {
    /// Checks everything that can be checked without asking anybody: both signatures, whom and what they bind, and the words
    /// if they are there.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub async fn check(&self, clock: SharedClock) -> Result<Proven, Worthless> {
        let attestation = Envelope::<Attestation>::from_text(&self.view.attestation)?;
        let stated = attestation.statement()?;
        let by = &stated.miner.0;
        if !muster_identity::verify(by, attestation.signed_bytes(), attestation.signature()) {
            return Err(Worthless::Attestation);
        }
        if stated.miner != self.view.miner {
            return Err(Worthless::Names("miner"));
        }
        if stated.audience != self.view.validator {
            return Err(Worthless::Names("validator"));
        }
        let text = self.view.proof.as_deref();
        let text = text.ok_or_else(|| Worthless::Absent(self.view.verdict.clone()))?;
        let envelope = Envelope::<ResponseProof>::from_text(text)?;
        let proof = envelope.statement()?;
        if proof.gateway_nonce.map(|nonce| nonce.hex()).as_deref() != Some(&self.view.id) {
            return Err(Worthless::Names("answer"));
        }
        // It is judged alone: that none before it is missing is the validator's to see.
        let mut ledger = Ledger::after(&attestation, proof.sequence, proof.previous)?;
        let (asked, checked) = match &self.words {
            Some(words) => words.seen(&proof, clock).await?,
            None => as_stated(&proof),
        };
        let bounds = Bounds { skew: SKEW };
        let proof = checked.judge(&envelope, &asked, &mut ledger, bounds)?;
        Ok(Proven {
            proof,
            attestation: stated,
            words: self.words.is_some(),
        })
    }
}

impl Words {
    /// What a checker sees who reads the words anew.
    async fn seen(&self, proof: &ResponseProof, clock: SharedClock) -> Result<(Asked, Checked), Worthless> {
        let read = |text: &str, what| STANDARD.decode(text).map_err(|_| Worthless::Words(what));
        let request = read(&self.request, "request")?;
        let response = read(&self.response, "response")?;
        let client_nonce = match &self.client_nonce {
            None => None,
            Some(text) => Some(Nonce::from_hex(text).ok_or(Worthless::Words("nonce"))?),
        };
        let asked = Asked {
            client_nonce,
            gateway_nonce: proof.gateway_nonce,
            method: self.method.clone(),
            path: self.path.clone(),
            input: Asked::input_of(proof.scheme, &request),
            at: self.asked_at,
        };
        let mut answer = Response::new(Full::new(Bytes::from(response)));
        *answer.status_mut() = self.status.try_into().map_err(|_| Worthless::Words("status"))?;
        if let Some(kind) = &self.content_type {
            let kind = HeaderValue::from_str(kind).map_err(|_| Worthless::Words("content type"))?;
            answer.headers_mut().insert(CONTENT_TYPE, kind);
        }
        let kept = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&kept);
        let report = move |checked: Checked| {
            *keep.lock() = Some(checked);
        };
        let passing = CheckedBody::over(answer, proof.scheme, clock, report);
        // A body in memory does not break off.
        let _ = passing.into_body().collect().await;
        let checked = kept.lock().take();
        let mut checked = checked.ok_or(Worthless::Words("response"))?;
        checked.ended = self.ended_at;
        Ok((asked, checked))
    }
}

/// Where the words are not at hand: what the proof states, so that everything else of it is judged.
fn as_stated(proof: &ResponseProof) -> (Asked, Checked) {
    let asked = Asked {
        client_nonce: proof.client_nonce,
        gateway_nonce: proof.gateway_nonce,
        method: proof.method.to_string(),
        path: proof.path.to_string(),
        input: proof.input,
        at: proof.from,
    };
    let checked = Checked {
        proof: None,
        status: proof.status,
        content_type: proof.content_type.as_ref().map(ToString::to_string),
        body: muster_sealing_proxy::digest::BodyDigest {
            digest: proof.output,
            chunks: proof.chunks,
            bytes: proof.output_bytes,
        },
        whole: true,
        ended: proof.to,
    };
    (asked, checked)
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_openai::TokenUsage;
    use muster_process::TestClock;
    use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, ValidatorKey};
    use muster_response_proof::{ChunkTree, HashScheme, Price, SessionId, StreamEnd, Text};
    use uuid::Uuid;

    use super::*;

    const BODY: &[u8] = b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
    const ASKED: &[u8] = b"{\"model\":\"m\"}";

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn record() -> Record {
        let (miner, session, validator) = ([1; 32], [2; 32], [3; 32]);
        let [miner, session, validator] = [miner, session, validator].map(Keypair::from_seed);
        let attestation = Attestation {
            session: SessionId(Uuid::from_u128(1)),
            session_key: session.hotkey(),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            miner: MinerKey(miner.hotkey()),
            audience: ValidatorKey(validator.hotkey()),
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
        };
        let attested = Envelope::new(&attestation, |bytes| miner.sign(bytes));
        let mut chunks = ChunkTree::default();
        chunks.update(BODY);
        let nonce = Nonce::from_bytes([7; 32]);
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
            gateway_nonce: Some(nonce),
            method: Text::new("POST").unwrap(),
            path: Text::new("/v1/chat/completions").unwrap(),
            status: 200,
            content_type: Some(Text::new("text/event-stream").unwrap()),
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
        let sealed = Envelope::new(&proof, |bytes| session.sign(bytes));
        let mut response = b": muster-wait\n: muster-wait\n".to_vec();
        response.extend_from_slice(BODY);
        response.extend_from_slice(&muster_sealing_proxy::comment::proof_line(&sealed.to_text()));
        Record {
            view: ProofView {
                id: nonce.hex(),
                verdict: "proven".to_owned(),
                model: "m".to_owned(),
                miner: attestation.miner,
                validator: attestation.audience,
                end: "completed".to_owned(),
                asked_at: at(100),
                first_byte_at: Some(at(101)),
                ended_at: at(102),
                bytes: BODY.len() as u64,
                usage: TokenUsage::default(),
                cost: 0,
                proof: Some(sealed.to_text()),
                attestation: attested.to_text(),
            },
            words: Some(Words {
                method: "POST".to_owned(),
                path: "/v1/chat/completions".to_owned(),
                request: STANDARD.encode(ASKED),
                status: 200,
                content_type: Some("text/event-stream".to_owned()),
                response: STANDARD.encode(response),
                client_nonce: None,
                asked_at: at(100),
                ended_at: at(103),
            }),
        }
    }

    async fn check(change: impl FnOnce(&mut Record)) -> Result<Proven, Worthless> {
        let mut record = record();
        change(&mut record);
        let text = serde_json::to_string(&record).unwrap();
        let read: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(read, record);
        read.check(Arc::new(TestClock::default())).await
    }

    #[tokio::test]
    async fn a_record_proves_itself_with_its_words_and_without() {
        assert!(check(|_| ()).await.unwrap().words);
        assert!(!check(|record| record.words = None).await.unwrap().words);
    }

    #[tokio::test]
    async fn whatever_is_changed_has_its_reason() {
        fn words(record: &mut Record) -> &mut Words {
            record.words.as_mut().unwrap()
        }
        let other = |seed| Keypair::from_seed([seed; 32]).hotkey();
        type Change = Box<dyn FnOnce(&mut Record)>;
        let table: Vec<(Change, &str)> = vec![
            (
                Box::new(|r| words(r).request = STANDARD.encode("{}")),
                "another request: the body's digest",
            ),
            (
                Box::new(|r| words(r).path = "/v1/completions".to_owned()),
                "another request: the path",
            ),
            (
                Box::new(|r| words(r).status = 201),
                "another response: the status",
            ),
            (
                Box::new(|r| words(r).response = STANDARD.encode("data: 1\n\n")),
                "another response",
            ),
            (
                Box::new(|r| words(r).client_nonce = Some("07".repeat(32))),
                "another request's nonce",
            ),
            (
                Box::new(|r| words(r).asked_at = Timestamp::from_secs(500)),
                "off the time",
            ),
            (
                Box::new(|r| words(r).request = "?".to_owned()),
                "request cannot be read",
            ),
            (
                Box::new(move |r| r.view.miner = MinerKey(other(8))),
                "another miner",
            ),
            (
                Box::new(move |r| r.view.validator = ValidatorKey(other(8))),
                "another validator",
            ),
            (Box::new(|r| r.view.id = "00".repeat(32)), "another answer"),
            (Box::new(|r| r.view.proof = None), "without a proof"),
            (
                Box::new(|r| r.view.attestation = "AAAA".to_owned()),
                "not a signed statement",
            ),
        ];
        for (change, says) in table {
            let worthless = check(change).await.unwrap_err().to_string();
            assert!(worthless.contains(says), "{says}: {worthless}");
        }
    }
}
