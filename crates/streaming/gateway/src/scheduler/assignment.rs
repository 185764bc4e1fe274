//! The scheduler's answer to a request.

use std::sync::Arc;

use muster_openai::OpenAiError;
use muster_sealed_client::SealedSession;
use muster_session_pool::SessionNumber;

/// The scheduler's answer to a request.
#[derive(Debug)]
pub(crate) enum SessionAssignment {
    /// This session serves the request.
    Assigned(SessionNumber, Arc<SealedSession>),
    /// No session will serve it.
    Refused(OpenAiError),
    /// The session that serves the request is presumed dead, and its answer has begun.
    SessionLost,
}
