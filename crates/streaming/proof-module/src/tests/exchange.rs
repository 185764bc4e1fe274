//! An answer whose parties have fixed keys: its statements before they are signed, and the page's input afterwards.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::Keypair;
use muster_openai::BodyKind;
use muster_protocol::{AttemptId, Digest, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::answer_proof::AnswerProof;
use muster_response_proof::body_digest::digest_input;
use muster_response_proof::comment::{comment_line, proof_line};
use muster_response_proof::{
    Attestation, BodyHasher, Envelope, HashScheme, Price, RequestNonce, ResponseProof, SessionId, StreamEnd,
    Text, seal,
};
use muster_testbed::sign_as_other_programs_do;
use serde_json::json;

pub(super) const EVENTS: &str = "text/event-stream";
pub(super) const JSON: &str = "application/json";

/// The keys of the parties by their seeds.
pub(super) const MINER: u8 = 1;
pub(super) const SESSION: u8 = 2;
pub(super) const VALIDATOR: u8 = 3;
pub(super) const STRANGER: u8 = 9;

fn keys(seed: u8) -> Keypair {
    Keypair::from_seed([seed; 32])
}

pub(super) fn key(seed: u8) -> Hotkey {
    keys(seed).hotkey()
}

pub(super) fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

pub(super) fn text(words: &str) -> Text {
    Text::new(words).unwrap()
}

pub(super) fn uuid(last: u8) -> uuid::Uuid {
    uuid::Uuid::from_bytes([last; 16])
}

/// An answer before anything is signed.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) attestation: Attestation,
    pub(super) proof: ResponseProof,
    pub(super) request: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// The seeds of the keys that sign the attestation and the proof.
    pub(super) signers: [u8; 2],
}

/// The input of the module before it is written as bytes.
#[derive(Clone, Debug)]
pub(super) struct PageInput {
    pub(super) proof: AnswerProof,
    pub(super) id: String,
    pub(super) status: u16,
    pub(super) content_type: Option<String>,
    pub(super) request: Vec<u8>,
    pub(super) response: Vec<u8>,
}

impl Exchange {
    /// An answer to this request with this body, whose digests are those of the scheme.
    pub(super) fn new(scheme: HashScheme, content_type: Option<&str>, request: &[u8], body: &[u8]) -> Self {
        let mut hash = BodyHasher::new(scheme, BodyKind::of(content_type));
        hash.update(body);
        let hashed = hash.finish();
        let attestation = Attestation {
            session: SessionId(uuid(1)),
            session_key: key(SESSION),
            job: JobId::from_uuid(uuid(2)),
            attempt: AttemptId::from_uuid(uuid(3)),
            miner: MinerKey(key(MINER)),
            audience: ValidatorKey(key(VALIDATOR)),
            server_certificate: Digest::of(b"server"),
            client_certificate: Digest::of(b"client"),
            executor: text("executor"),
            address: text("127.0.0.1:1"),
            image: ImageId(Digest::of(b"image")),
            model: None,
            scheme,
            price: Price::default(),
            not_before: at(0),
            not_after: at(1_000),
        };
        let proof = ResponseProof {
            session: attestation.session,
            sequence: 9_000,
            previous: Digest::of(b"the proof before"),
            job: attestation.job,
            attempt: attestation.attempt,
            audience: attestation.audience,
            client: None,
            attestation: Digest::of(b""),
            client_nonce: None,
            gateway_nonce: Some(RequestNonce::from_bytes([7; 32])),
            method: text("POST"),
            path: text("/v1/chat/completions"),
            status: 200,
            content_type: content_type.map(text),
            scheme,
            input: digest_input(scheme, request),
            output: hashed.digest,
            output_bytes: hashed.bytes,
            chunks: hashed.chunks,
            from: at(100),
            first_byte: Some(at(101)),
            to: Timestamp::from_micros(102_000_345),
            tokens: None,
            engine: None,
            end: StreamEnd::Completed,
        };
        let mut exchange = Self {
            attestation,
            proof,
            request: request.to_vec(),
            body: body.to_vec(),
            signers: [MINER, SESSION],
        };
        exchange.proof.attestation = exchange.attested().digest();
        exchange
    }

    /// The attestation as it is signed.
    pub(super) fn attested(&self) -> Envelope<Attestation> {
        seal(&self.attestation, &keys(self.signers[0]))
    }

    /// The page's input: what the gateway keeps, and what the page has sent and got.
    pub(super) fn shown(&self) -> PageInput {
        let sealed = seal(&self.proof, &keys(self.signers[1])).to_text();
        let content_type = self.proof.content_type.as_ref().map(ToString::to_string);
        let response = match BodyKind::of(content_type.as_deref()) {
            BodyKind::Events => [&comment_line("wait"), self.body.as_slice(), &proof_line(&sealed)].concat(),
            BodyKind::Json | BodyKind::Other => self.body.clone(),
        };
        PageInput {
            proof: AnswerProof {
                id: "answer".to_owned(),
                nonce: Some(RequestNonce::from_bytes([7; 32]).hex()),
                verdict: "proven".to_owned(),
                model: "<b>model</b>".to_owned(),
                miner: self.attestation.miner,
                validator: self.attestation.audience,
                ended_at: at(103),
                cost: 5,
                proof: Some(sealed),
                attestation: self.attested().to_text(),
            },
            id: "answer".to_owned(),
            status: self.proof.status,
            content_type,
            request: self.request.clone(),
            response,
        }
    }
}

impl PageInput {
    /// The bytes that the page writes into the module's memory.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let head = json!({
            "proof": self.proof,
            "id": self.id,
            "status": self.status,
            "content_type": self.content_type,
            "request_bytes": self.request.len(),
        });
        let head = serde_json::to_vec(&head).unwrap();
        let length = u32::try_from(head.len()).unwrap().to_le_bytes();
        [length.as_slice(), &head, &self.request, &self.response].concat()
    }

    /// Changes the signed bytes of the proof; the session's key signs them again.
    pub(super) fn sign_other_bytes(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let sealed = self.proof.proof.take().unwrap();
        let mut bytes = STANDARD.decode(sealed).unwrap();
        bytes.truncate(bytes.len() - 64);
        change(&mut bytes);
        let signature = sign_as_other_programs_do(&format!("0x{}", hex::encode([SESSION; 32])), &bytes);
        bytes.extend_from_slice(&signature);
        self.proof.proof = Some(STANDARD.encode(bytes));
    }
}
