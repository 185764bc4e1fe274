//! The rows of the gateway's tables, and how they are read.

use muster_openai::TokenUsage;
use muster_protocol::{Digest, JobId, MinerKey, Timestamp};
use muster_response_proof::{ClientKey, SessionId};
use muster_store::StoreError;
use muster_store::columns::{parse_column, read_column, time_column, time_column_option, unsigned_column};
use serde::Serialize;
use sqlx::any::AnyRow;

type Result<T> = std::result::Result<T, StoreError>;

/// A row of the table `sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionRow {
    /// The id of the session.
    #[serde(serialize_with = "as_text")]
    pub session: SessionId,
    /// The streaming job that runs the session.
    pub job: JobId,
    /// The miner that runs the job.
    pub miner: MinerKey,
    /// The model that the session serves.
    pub model: String,
    /// Host and port of the session's endpoint.
    pub address: String,
    /// The miner's signed attestation of the session, in text form.
    pub attestation: String,
    /// When the session was checked and ready to serve.
    pub opened_at: Timestamp,
    /// When the session was closed, if it is.
    pub closed_at: Option<Timestamp>,
    /// Why the session was closed; one of the texts of `CloseReason`, or that the gateway was stopped.
    pub closed_because: Option<String>,
    /// The session's signed close statement, in text form.
    pub close: Option<String>,
    /// The defect of the close statement, or the gap in the proofs before it.
    pub fault: Option<String>,
}

/// A row of the table `responses`: one answer, as the gateway observed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResponseRow {
    /// The id of the answer, 64 hex digits.
    pub id: String,
    /// The session that answered.
    #[serde(serialize_with = "as_text")]
    pub session: SessionId,
    /// The name of the client. Only the party that admitted the client can resolve it.
    pub client: Digest,
    /// The client's key, which the leaf in the log follows from; `None` of an answer that an earlier release kept.
    #[serde(skip)]
    pub client_key: Option<ClientKey>,
    /// The nonce that the gateway drew for the request's pseudonym, 64 hex digits; `None` if the client named one.
    #[serde(skip)]
    pub pseudonym_nonce: Option<String>,
    /// The model that was asked.
    pub model: String,
    /// When the gateway sent the request, by its own clock.
    pub asked_at: Timestamp,
    /// When the first byte of the answer arrived.
    pub first_byte_at: Option<Timestamp>,
    /// When the answer ended.
    pub ended_at: Timestamp,
    /// The HTTP status of the answer.
    pub status: u16,
    /// How the answer ended: as the session signed it, or as the gateway observed it.
    pub end: String,
    /// Whether the connection ended before the answer did although the client was there.
    pub cut: bool,
    /// `proven`, or why the answer is not proven.
    pub verdict: String,
    /// The proof in text form, if one arrived.
    pub proof: Option<String>,
    /// The number of the proof in its session, if the answer is proven.
    pub sequence: Option<u64>,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// Tokens, by the gateway's own count.
    pub usage: TokenUsage,
    /// The miner's earnings from the answer, in rao; 0 without a proof.
    pub earned: u64,
}

/// How the body of an answer is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyForm {
    /// Byte for byte, so that it can be compared with what its session signed.
    #[default]
    Whole,
    /// The fields that audits read, as one event or document. The gateway compared the whole body with the proof when
    /// it arrived.
    Read,
}

impl BodyForm {
    /// The name in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Read => "read",
        }
    }

    /// The form of this name; `None` if there is none.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Whole, Self::Read]
            .into_iter()
            .find(|form| form.name() == name)
    }
}

/// A request, byte for byte, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerText {
    /// The body of the request.
    pub request: Vec<u8>,
    /// The body of the answer, in this form.
    pub response: Vec<u8>,
    /// The form of the body of the answer.
    pub form: BodyForm,
    /// The content type of the answer.
    pub content_type: Option<String>,
}

impl AnswerText {
    /// The bytes of request and answer.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.request.len().saturating_add(self.response.len());
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The text of an answer as it is stored until the draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedText {
    /// The number of the key that sealed it.
    pub key: u64,
    /// The sealed body of the request.
    pub request: Vec<u8>,
    /// The sealed body of the answer.
    pub response: Vec<u8>,
    /// The form of the body of the answer.
    pub form: BodyForm,
    /// The content type of the answer.
    pub content_type: Option<String>,
}

/// The change that an answer makes to the stored texts once it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextChange {
    /// The sealed text of the answer, if it is kept.
    pub kept: Option<SealedText>,
    /// The ids of the answers whose sealed texts are let go for it.
    pub let_go: Vec<String>,
}

/// The answers of a miner's sessions of one model, summed up over a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MinerEarnings {
    /// The miner that ran the sessions.
    pub miner: MinerKey,
    /// The model that the sessions served.
    pub model: String,
    /// Number of proven answers.
    pub proven: u64,
    /// Number of answers that are not proven.
    pub unproven: u64,
    /// Tokens of the proven answers.
    pub usage: TokenUsage,
    /// Earnings in rao.
    pub earned: u64,
}

fn as_text<S: serde::Serializer>(id: &SessionId, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

pub(super) fn session_from(row: &AnyRow) -> Result<SessionRow> {
    Ok(SessionRow {
        session: session_id(row)?,
        job: parse_column(row, "job_id")?,
        miner: parse_column(row, "miner")?,
        model: read_column(row, "model")?,
        address: read_column(row, "address")?,
        attestation: read_column(row, "attestation")?,
        opened_at: time_column(row, "opened_at")?,
        closed_at: time_column_option(row, "closed_at")?,
        closed_because: read_column(row, "closed_because")?,
        close: read_column(row, "close_proof")?,
        fault: read_column(row, "fault")?,
    })
}

pub(super) fn response_from(row: &AnyRow) -> Result<ResponseRow> {
    let status: i64 = read_column(row, "status")?;
    let sequence: Option<i64> = read_column(row, "sequence")?;
    Ok(ResponseRow {
        id: read_column(row, "response_id")?,
        session: session_id(row)?,
        client: parse_column(row, "client")?,
        client_key: client_key(row)?,
        pseudonym_nonce: read_column(row, "pseudonym_nonce")?,
        model: read_column(row, "model")?,
        asked_at: time_column(row, "asked_at")?,
        first_byte_at: time_column_option(row, "first_byte_at")?,
        ended_at: time_column(row, "ended_at")?,
        status: u16::try_from(status).map_err(|error| StoreError::corrupt("status", error.to_string()))?,
        end: read_column(row, "how_ended")?,
        cut: unsigned_column(row, "cut")? == 1,
        verdict: read_column(row, "verdict")?,
        proof: read_column(row, "proof")?,
        sequence: sequence.map(|number| u64::try_from(number).unwrap_or(0)),
        bytes: unsigned_column(row, "bytes")?,
        usage: TokenUsage {
            input: unsigned_column(row, "input_tokens")?,
            output: unsigned_column(row, "output_tokens")?,
        },
        earned: unsigned_column(row, "earned")?,
    })
}

/// The key of the client, if the answer was kept with one.
pub(super) fn client_key(row: &AnyRow) -> Result<Option<ClientKey>> {
    let text: Option<String> = read_column(row, "client_key")?;
    let read = |text: String| {
        ClientKey::from_hex(&text).ok_or_else(|| StoreError::corrupt("client_key", "not a key".to_owned()))
    };
    text.map(read).transpose()
}

pub(super) fn session_id(row: &AnyRow) -> Result<SessionId> {
    let text: String = read_column(row, "session_id")?;
    let id = text
        .parse()
        .map_err(|_| StoreError::corrupt("session_id", "not an id".to_owned()))?;
    Ok(SessionId(id))
}
