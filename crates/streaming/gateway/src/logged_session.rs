//! A session of the validator's own whose answers are proven, stored and logged like those of users' sessions.
//!
//! The validator asks it on its own behalf: its own miner, to test its spot checks with answers whose engine it knows,
//! or a miner that appeals. No user's request reaches it, and its answers earn nothing that anybody pays.

use std::sync::Arc;

use muster_openai::OpenAiError;
use muster_protocol::MinerKey;
use muster_sealed_client::{SealedSession, draw_nonce};
use muster_session_pool::{Service, SessionNumber};
use muster_store::StoreError;
use tokio::sync::mpsc;

use crate::answer_parts::{AnswerId, AnswerPart};
use crate::gateway::Gateway;
use crate::miner_sessions::{MinerSession, MinerSessions, SessionTimes};
pub use crate::own_question::OwnQuestion;
use crate::request::{RelayedRequest, RequestOrigin};
use crate::request_client::RequestClient;
use crate::scheduler::StreamRequest;
use crate::session::{keep_other_proofs, record_opening};
use crate::session_relay;
use crate::store::TextConsent;

/// The reason with which the session is stored as closed.
const DONE: &str = "the validator's own questions are over";
/// How often a session is asked again that did not take a question.
const MOST_TRIES: u32 = 300;
/// Parts of an answer that may wait.
const PART_CAPACITY: usize = 4;
/// The session's number; it stands in no pool.
const NUMBER: SessionNumber = SessionNumber(0);

/// Why a session of the validator's own gave no answer, or does not exist.
#[derive(Debug, thiserror::Error)]
pub enum LoggedSessionError {
    /// The session cannot be used: the reason as text.
    #[error("{0}")]
    Session(String),
    /// The database failed.
    #[error("the store does not keep it")]
    Store(#[from] StoreError),
}

/// A session whose answers are logged. Its job ends when this is closed or dropped.
pub struct LoggedSession {
    gateway: Gateway,
    session: MinerSession,
    origin: RequestOrigin,
}

impl LoggedSession {
    /// Opens a session of a service, and stores it before it answers anything.
    ///
    /// # Errors
    /// The session does not come up, or the database fails.
    pub async fn open(
        gateway: &Gateway,
        sessions: &MinerSessions,
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
            origin: match sessions.is_trusted {
                true => RequestOrigin::TrustedTest,
                false => RequestOrigin::OwnPrompt,
            },
        })
    }

    /// The session as it is attested.
    pub fn sealed(&self) -> &SealedSession {
        self.session.sealed()
    }

    /// Asks a question in the way of every client's. Returns the answer's id once the answer is stored. A session that
    /// does not take it is asked again.
    ///
    /// # Errors
    /// The session does not answer.
    pub async fn ask(&self, question: OwnQuestion) -> Result<String, LoggedSessionError> {
        let mut tries = MOST_TRIES;
        loop {
            match self.ask_once(question.clone()).await? {
                Ok(id) => return Ok(id),
                Err(OpenAiError::QueueFull { retry_after, .. }) if tries > 0 => {
                    tries -= 1;
                    tokio::time::sleep(retry_after).await;
                }
                Err(refused) => return Err(LoggedSessionError::Session(refused.to_string())),
            }
        }
    }

    /// Asks a question once. The inner error is the refusal.
    async fn ask_once(
        &self,
        question: OwnQuestion,
    ) -> Result<Result<String, OpenAiError>, LoggedSessionError> {
        let state = self.gateway.state();
        let line = self.session.sealed();
        let no_randomness = |error: getrandom::Error| LoggedSessionError::Session(error.to_string());
        let id = AnswerId::draw().map_err(no_randomness)?;
        let client = question.client().map_err(no_randomness)?;
        let drawn = draw_nonce().map_err(no_randomness)?;
        let request = RelayedRequest {
            path: question.path(),
            body: question.body,
            client: RequestClient::new(client, question.client_nonce, drawn),
            client_nonce: question.client_nonce,
            fixed_nonce: Some(question.gateway_nonce),
            id,
            consent: TextConsent::Publish,
            origin: self.origin,
        };
        let (sender, mut parts) = mpsc::channel(PART_CAPACITY);
        let request_stream = StreamRequest::of_session(NUMBER, Arc::clone(line));
        let relaying = session_relay::run(Arc::clone(state), request_stream, request, sender);
        drop(state.tasks.spawn("own question", relaying));
        let mut refused = None;
        while let Some(part) = parts.recv().await {
            if let AnswerPart::Refused(error) = part {
                refused = Some(error);
            }
        }
        Ok(refused.map_or_else(|| Ok(id.hex()), Err))
    }

    /// Closes the session and ends its job.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close(self) -> Result<(), StoreError> {
        let state = self.gateway.state();
        let line = Arc::clone(self.session.sealed());
        line.mark_ending();
        let (statement, fault) = self.session.close().await;
        keep_other_proofs(state, &line).await;
        state.nonces.forget(line.id());
        let now = state.clock.now();
        state
            .store
            .close_session(line.id(), DONE, statement.as_deref(), fault.as_deref(), now)
            .await
    }
}

impl Gateway {
    /// Opens a session of the validator's own with a miner.
    ///
    /// # Errors
    /// The model is not whitelisted, the session does not come up, or the database fails.
    pub async fn open_session(
        &self,
        miner: MinerKey,
        model: &str,
    ) -> Result<LoggedSession, LoggedSessionError> {
        let state = self.state();
        let services = state.whitelist.services();
        let service = services.iter().find(|service| service.model == model);
        let unknown = || LoggedSessionError::Session("the whitelist has no such model".to_owned());
        let service = service.ok_or_else(unknown)?;
        let times = state.settings.session_times();
        LoggedSession::open(self, &state.sessions_with(miner), service, times).await
    }
}
