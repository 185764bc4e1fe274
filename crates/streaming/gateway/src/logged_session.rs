//! A session on the trusted miner whose answers stand in the log like those of users' sessions.
//!
//! The validator asks it on its own behalf, to test its spot checks with answers whose engine it knows. No user's
//! request reaches it, and its answers earn nothing that anybody pays.

use std::sync::Arc;

use bytes::Bytes;
use muster_protocol::Digest;
use muster_session_pool::Service;
use muster_store::StoreError;

use crate::fresh_session::{FreshQuestion, ask_session};
use crate::gateway::Gateway;
use crate::session::{keep_other_proofs, record_opening};
use crate::trusted_sessions::{SessionTimes, TrustedSession, TrustedSessions};

/// The reason with which the session is stored as closed.
const DONE: &str = "the validator's own test is over";

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
    /// The session does not answer.
    pub async fn ask(&self, body: Bytes, client: Digest) -> Result<String, LoggedSessionError> {
        let question = FreshQuestion { body, client };
        ask_session(self.gateway.state(), self.session.sealed(), question)
            .await
            .map_err(LoggedSessionError::Session)
    }

    /// Closes the session and ends its job.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close(self) -> Result<(), StoreError> {
        let state = self.gateway.state();
        let line = Arc::clone(self.session.sealed());
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
