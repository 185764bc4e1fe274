//! A session on the trusted miner whose answers stand in the log like those of users' sessions.
//!
//! The validator asks it on its own behalf, to test its spot checks with answers whose engine it knows. No user's
//! request reaches it, and its answers earn nothing that anybody pays.

use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt as _;
use muster_process::error::Causes;
use muster_protocol::Digest;
use muster_response_proof::StreamEnd;
use muster_sealed_client::{SealedRequest, SealedResponse, SealedSession, draw_nonce};
use muster_session_pool::Service;
use muster_store::StoreError;

use crate::gateway::Gateway;
use crate::request::RelayedRequest;
use crate::session::{keep_other_proofs, record_opening};
use crate::settlement::{AnswerObservation, ObservedEnd};
use crate::store::WordConsent;
use crate::trusted_sessions::{SessionTimes, TrustedSession, TrustedSessions};

/// The reason with which the session is stored as closed.
const DONE: &str = "the validator's own test is over";
const PATH: &str = "/v1/chat/completions";

/// Why a session of the validator's own gave no answer, or does not exist.
#[derive(Debug, thiserror::Error)]
pub enum LoggedSessionError {
    /// The session cannot be used: the reason in words.
    #[error("{0}")]
    Session(String),
    /// The database failed.
    #[error("the store does not keep it")]
    Store(#[from] StoreError),
}

/// A session on the trusted miner whose answers are logged. Its job ends when this is closed or dropped.
pub struct LoggedSession {
    gateway: Gateway,
    session: TrustedSession,
}

impl LoggedSession {
    /// Opens a session of a service on the trusted miner, and stores it before it answers anything.
    ///
    /// # Errors
    /// The session does not come up, or the database fails.
    pub async fn open(
        gateway: &Gateway,
        sessions: &TrustedSessions,
        service: &Service,
        times: SessionTimes,
    ) -> Result<Self, LoggedSessionError> {
        let session = sessions
            .open(service, times)
            .await
            .map_err(LoggedSessionError::Session)?;
        record_opening(gateway.state(), session.sealed()).await?;
        Ok(Self {
            gateway: gateway.clone(),
            session,
        })
    }

    /// Asks for a chat completion under this pseudonym. Returns the answer's id once the answer is stored.
    ///
    /// # Errors
    /// The session does not answer. An answer that broke off is stored, and has an id.
    pub async fn ask(&self, body: Bytes, client: Digest) -> Result<String, LoggedSessionError> {
        let failed = |error: &dyn std::error::Error| LoggedSessionError::Session(Causes(error).to_string());
        let state = self.gateway.state();
        let line: &SealedSession = self.session.sealed();
        let request = RelayedRequest {
            path: PATH,
            body,
            client,
            client_nonce: None,
            nonce: draw_nonce().map_err(|error| LoggedSessionError::Session(error.to_string()))?,
            consent: WordConsent::Publish,
        };
        let _passing = line.track_response();
        let asked_at = state.clock.now();
        let question = SealedRequest {
            method: Method::POST,
            path: request.path.to_owned(),
            body: request.body.clone(),
            client: Some(request.client),
            client_nonce: None,
            gateway_nonce: request.nonce,
        };
        let SealedResponse {
            sent,
            response,
            received,
        } = line.send(&question).await.map_err(|error| failed(&error))?;
        let (head, mut body) = response.into_parts();
        let content_type = head.headers.get(CONTENT_TYPE);
        let content_type = content_type
            .and_then(|kind| kind.to_str().ok())
            .map(str::to_owned);
        let mut observation = AnswerObservation::new(&request, content_type.as_deref());
        let mut end = None;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                end = Some(StreamEnd::EngineFailed);
                break;
            };
            if let Ok(data) = frame.into_data() {
                if observation.first_byte_at.is_none() {
                    observation.first_byte_at = Some(state.clock.now());
                }
                observation.update(&data);
            }
        }
        // The body reports what was seen of it once it is dropped.
        drop(body);
        let observed = ObservedEnd {
            asked_at,
            status: head.status,
            content_type,
            end,
        };
        observation
            .settle(state, line, &request, &sent, received, observed)
            .await;
        Ok(request.nonce.hex())
    }

    /// Closes the session and ends its job.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close(self) -> Result<(), StoreError> {
        let state = self.gateway.state();
        let line = std::sync::Arc::clone(self.session.sealed());
        let (statement, fault) = self.session.close().await;
        keep_other_proofs(state, &line).await;
        let now = state.clock.now();
        state
            .store
            .close_session(line.id(), DONE, statement.as_deref(), fault.as_deref(), now)
            .await
    }
}
