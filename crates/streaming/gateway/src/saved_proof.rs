//! A proof as a client keeps it, with the request and the answer. It is checked without any connection.

use muster_process::SharedClock;
use muster_protocol::rest::ReportCheat;
use muster_response_proof::answer_proof::{OpenedStatements, SKEW, ShownStatements, StatementFault};
use muster_response_proof::{
    Attestation, ClockTolerance, Forgery, ReportedAnswer, ReportedWords, ResponseProof,
};
use muster_sealed_client::{ReceivedResponse, SentRequest};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::proof_view::ProofView;
pub use crate::transcript::{Transcript, UnreadableTranscript};

/// The proof of one answer, with the transcript if the client kept it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofRecord {
    /// The proof and the verdict, as the gateway returned them.
    #[serde(flatten)]
    pub view: ProofView,
    /// The request and the answer, as the client saw them.
    #[serde(rename = "words", default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Transcript>,
}

/// The result of checking a record that is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRecord {
    /// The statement that the session signed.
    pub proof: ResponseProof,
    /// The statement that the miner signed.
    pub attestation: Attestation,
    /// Whether the record has a transcript, whose request and answer are those that were signed.
    pub has_transcript: bool,
}

/// Why a record is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    /// The signed statements are of other parties or of another answer, or cannot be read.
    #[error(transparent)]
    Statements(#[from] StatementFault),
    /// The proof does not match the request, the answer or the attestation.
    #[error(transparent)]
    Forged(#[from] Forgery),
    /// The transcript cannot be decoded.
    #[error(transparent)]
    Transcript(#[from] UnreadableTranscript),
}

impl ProofRecord {
    /// Checks everything that can be checked without a connection: both signatures, the parties and the request that
    /// they bind, and the transcript if there is one.
    ///
    /// # Errors
    /// The first defect that is found.
    pub async fn check(&self, clock: SharedClock) -> Result<VerifiedRecord, InvalidRecord> {
        let shown = ShownStatements {
            miner: self.view.miner,
            validator: self.view.validator,
            nonce: self.view.nonce.as_ref().unwrap_or(&self.view.id),
            verdict: &self.view.verdict,
            attestation: &self.view.attestation,
            proof: self.view.proof.as_deref(),
        };
        let OpenedStatements {
            attestation,
            proof,
            sealed,
            mut ledger,
        } = shown.open(muster_identity::verify)?;
        let (asked, checked) = match &self.transcript {
            Some(transcript) => transcript.observe(&proof, clock).await?,
            None => assume_stated(&proof),
        };
        let bounds = ClockTolerance { skew: SKEW };
        let proof = checked.check_other_proof(&sealed, &asked, &mut ledger, bounds)?;
        Ok(VerifiedRecord {
            proof,
            attestation,
            has_transcript: self.transcript.is_some(),
        })
    }
}

impl ProofRecord {
    /// The report of this answer as not the model's, with its words if `with_words` is set and the record has them;
    /// `None` if the record has no proof that can be read.
    pub fn report(&self, with_words: bool, details: Option<String>) -> Option<ReportCheat> {
        let transcript = self.transcript.as_ref().filter(|_| with_words);
        let answer = ReportedAnswer {
            proof: self.view.proof.clone()?,
            pseudonym_nonce: self.view.pseudonym_nonce.clone(),
            words: transcript.map(|transcript| ReportedWords {
                request: transcript.request.clone(),
                response: transcript.response.clone(),
                content_type: transcript.content_type.clone(),
            }),
        };
        let job = answer.statement()?.job;
        Some(ReportCheat {
            job_uuid: job,
            trusted_job_uuid: job,
            details: Some(json!({ "answer": answer, "text": details })),
        })
    }
}

/// The observation that the proof itself states. Without a transcript it lets everything else be judged.
fn assume_stated(proof: &ResponseProof) -> (SentRequest, ReceivedResponse) {
    let asked = SentRequest {
        client: proof.client,
        client_nonce: proof.client_nonce,
        gateway_nonce: proof.gateway_nonce,
        method: proof.method.to_string(),
        path: proof.path.to_string(),
        input: proof.input,
        at: proof.from,
    };
    let checked = ReceivedResponse {
        proof: None,
        status: proof.status,
        content_type: proof.content_type.as_ref().map(ToString::to_string),
        body: muster_response_proof::BodyDigest {
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
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use muster_identity::Keypair;
    use muster_openai::TokenUsage;
    use muster_process::TestClock;
    use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
    use muster_response_proof::{
        ChunkTree, HashScheme, Price, RequestNonce, SessionId, StreamEnd, Text, seal,
    };
    use uuid::Uuid;

    use super::*;

    const BODY: &[u8] = b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
    const ASKED: &[u8] = b"{\"model\":\"m\"}";

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    struct Keys {
        miner: Keypair,
        session: Keypair,
        validator: Keypair,
    }

    fn keys() -> Keys {
        Keys {
            miner: Keypair::from_seed([1; 32]),
            session: Keypair::from_seed([2; 32]),
            validator: Keypair::from_seed([3; 32]),
        }
    }

    fn attestation(keys: &Keys) -> Attestation {
        Attestation {
            session: SessionId(Uuid::from_u128(1)),
            session_key: keys.session.hotkey(),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            miner: MinerKey(keys.miner.hotkey()),
            audience: ValidatorKey(keys.validator.hotkey()),
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

    fn proof(attestation: &Attestation, attested: Digest) -> ResponseProof {
        let mut chunks = ChunkTree::default();
        chunks.update(BODY);
        ResponseProof {
            session: attestation.session,
            sequence: 9_000,
            previous: Digest::of(b"the one before"),
            job: attestation.job,
            attempt: attestation.attempt,
            audience: attestation.audience,
            client: None,
            attestation: attested,
            client_nonce: None,
            gateway_nonce: Some(RequestNonce::from_bytes([7; 32])),
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
        }
    }

    fn transcript(proof: &str) -> Transcript {
        let mut response = b": muster-wait\n: muster-wait\n".to_vec();
        response.extend_from_slice(BODY);
        response.extend_from_slice(&muster_response_proof::comment::proof_line(proof));
        Transcript {
            method: "POST".to_owned(),
            path: "/v1/chat/completions".to_owned(),
            request: STANDARD.encode(ASKED),
            status: 200,
            content_type: Some("text/event-stream".to_owned()),
            response: STANDARD.encode(response),
            client_nonce: None,
            asked_at: at(100),
            ended_at: at(103),
        }
    }

    fn record() -> ProofRecord {
        let keys = keys();
        let attestation = attestation(&keys);
        let attested = seal(&attestation, &keys.miner);
        let proof = proof(&attestation, attested.digest());
        let sealed = seal(&proof, &keys.session).to_text();
        ProofRecord {
            view: ProofView {
                id: "ab".repeat(32),
                nonce: Some(RequestNonce::from_bytes([7; 32]).hex()),
                pseudonym_nonce: None,
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
                proof: Some(sealed.clone()),
                attestation: attested.to_text(),
            },
            transcript: Some(transcript(&sealed)),
        }
    }

    async fn check(change: impl FnOnce(&mut ProofRecord)) -> Result<VerifiedRecord, InvalidRecord> {
        let mut record = record();
        change(&mut record);
        let text = serde_json::to_string(&record).unwrap();
        let read: ProofRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(read, record);
        read.check(Arc::new(TestClock::default())).await
    }

    #[tokio::test]
    async fn a_record_is_valid_with_its_transcript_and_without() {
        assert!(check(|_| ()).await.unwrap().has_transcript);
        assert!(
            !check(|record| record.transcript = None)
                .await
                .unwrap()
                .has_transcript
        );
    }

    #[tokio::test]
    async fn a_record_of_an_earlier_release_has_its_nonce_as_its_id() {
        let old = |r: &mut ProofRecord| r.view.id = r.view.nonce.take().unwrap();
        assert!(check(old).await.unwrap().has_transcript);
    }

    #[tokio::test]
    async fn every_change_is_found_and_named() {
        fn words(record: &mut ProofRecord) -> &mut Transcript {
            record.transcript.as_mut().unwrap()
        }
        let other = |seed| Keypair::from_seed([seed; 32]).hotkey();
        type Change = Box<dyn FnOnce(&mut ProofRecord)>;
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
            (
                Box::new(|r| r.view.nonce = Some("00".repeat(32))),
                "another answer",
            ),
            (Box::new(|r| r.view.nonce = None), "another answer"),
            (Box::new(|r| r.view.proof = None), "without a proof"),
            (
                Box::new(|r| r.view.attestation = "AAAA".to_owned()),
                "not a signed statement",
            ),
        ];
        for (change, says) in table {
            let invalid = check(change).await.unwrap_err().to_string();
            assert!(invalid.contains(says), "{says}: {invalid}");
        }
    }
}
