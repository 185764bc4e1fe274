//! One request to a model with the check of its answer's proof, for `muster chat` and `muster forward`.

use std::time::Duration;

use anyhow::anyhow;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_client::{Client, ClientError};
use muster_gateway::ProofView;
use muster_gateway::saved_proof::{ProofRecord, Transcript};
use muster_process::SharedClock;
use muster_protocol::{JobId, Timestamp};
use reqwest::Response;

use crate::proof::PROVEN;

/// The most of one answer that is kept to be checked, in bytes.
pub(crate) const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// How often a proof is looked for that is not there yet, and the pause between.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// A request that was sent, until its answer is whole.
#[derive(Debug)]
pub(crate) struct ProvenExchange {
    path: String,
    body: Vec<u8>,
    nonce: String,
    asked_at: Timestamp,
    /// The status of the answer.
    pub(crate) status: u16,
    /// The kind of the answer's body.
    pub(crate) content_type: Option<String>,
    /// The answer's id, by which its proof is found.
    id: String,
}

/// An answer whose proof was looked at.
#[derive(Debug)]
pub(crate) struct ProvenAnswer {
    /// The record with which it can be checked again.
    pub(crate) record: ProofRecord,
    /// [`PROVEN`], or the reason for which it is not.
    pub(crate) verdict: String,
    /// The session that answered, if its proof holds.
    pub(crate) session: Option<JobId>,
}

impl ProvenExchange {
    /// Sends the request with a nonce of its own.
    ///
    /// # Errors
    ///
    /// The facilitator or the model's gateway refuses, or its answer has no id.
    pub(crate) async fn send(
        client: &Client,
        clock: &SharedClock,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<Result<(Self, Response), ClientError>> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce)
            .map_err(|error| anyhow!("this machine supplies no randomness: {error}"))?;
        let nonce = hex::encode(nonce);
        let asked_at = clock.now();
        let response = match client.ask_model(path, body.clone(), &nonce).await {
            Ok(response) => response,
            Err(refused) => return Ok(Err(refused)),
        };
        let header = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let id = header("x-request-id")
            .ok_or_else(|| anyhow!("the answer has no id, so no proof can be asked for"))?;
        let exchange = Self {
            path: path.to_owned(),
            body,
            nonce,
            asked_at,
            status: response.status().as_u16(),
            content_type: header("content-type"),
            id,
        };
        Ok(Ok((exchange, response)))
    }

    /// The answer's id, 64 hex digits.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Checks the proof of the whole answer.
    ///
    /// # Errors
    ///
    /// The gateway keeps no proof of it.
    pub(crate) async fn check(
        self,
        client: &Client,
        clock: &SharedClock,
        answer: &[u8],
    ) -> Result<ProvenAnswer, ClientError> {
        let ended_at = clock.now();
        let view = proof_of(client, clock, &self.id).await?;
        let record = ProofRecord {
            view,
            transcript: Some(Transcript {
                method: "POST".to_owned(),
                path: self.path,
                request: STANDARD.encode(&self.body),
                status: self.status,
                content_type: self.content_type,
                response: STANDARD.encode(answer),
                client_nonce: Some(self.nonce),
                asked_at: self.asked_at,
                ended_at,
            }),
        };
        let (verdict, session) = match record.check(clock.clone()).await {
            Ok(verified) => (PROVEN.to_owned(), Some(verified.proof.job)),
            Err(worthless) => (format!("NOT PROVEN: {worthless}"), None),
        };
        Ok(ProvenAnswer {
            record,
            verdict,
            session,
        })
    }
}

/// The gateway keeps a proof before its client sees the answer's end; a client that stops at the last event is faster.
async fn proof_of(client: &Client, clock: &SharedClock, id: &str) -> Result<ProofView, ClientError> {
    let mut looks = LOOKS;
    loop {
        match client.proof(id).await {
            Ok(view) => return Ok(view),
            Err(error) if looks == 0 => return Err(error),
            Err(_) => {
                looks -= 1;
                clock.sleep(PAUSE).await;
            }
        }
    }
}
