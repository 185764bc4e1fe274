//! Questions of the validator's own to one miner, in a session that is opened for them. Its answers are proven, stored
//! and logged as all answers are. No client's request reaches it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use muster_protocol::{Digest, JobId, MinerKey};
use muster_sealed_client::SealedSession;
use muster_session_pool::{CloseReason, SessionNumber};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::answer_parts::{AnswerId, AnswerPart};
use crate::request::RelayedRequest;
use crate::scheduler::{SessionEnd, SessionStart, StreamRequest};
use crate::session;
use crate::session_relay;
use crate::state::GatewayState;
use crate::store::WordConsent;

/// News of the session's job that may wait to be received.
const NEWS_CAPACITY: usize = 8;
/// Parts of an answer that may wait.
const PART_CAPACITY: usize = 4;
/// Questions that are under way at once.
const AT_ONCE: usize = 4;
/// The session's number; it stands in no pool.
const NUMBER: SessionNumber = SessionNumber(0);

/// A question to the miner.
pub struct FreshQuestion {
    /// The body of a chat completion.
    pub body: Bytes,
    /// The pseudonym under which it is asked.
    pub client: Digest,
}

/// Called with the place of a question and the id of its answer once the answer is stored.
pub type OnAnswer<'a> = &'a (dyn Fn(usize, String) -> BoxFuture<'static, ()> + Send + Sync);

/// Opens a session of a model with a miner, asks the questions, and closes the session. Returns how many were answered.
///
/// # Errors
/// The model is not whitelisted, or the session does not come up; the reason in words.
pub(crate) async fn ask_all(
    state: &Arc<GatewayState>,
    miner: MinerKey,
    model: &str,
    questions: Vec<FreshQuestion>,
    answered: OnAnswer<'_>,
) -> Result<usize, String> {
    let services = state.whitelist.services();
    let service = services.iter().find(|service| service.model == model);
    let start = SessionStart {
        service: service.cloned().ok_or("the whitelist has no such model")?,
        pool: usize::MAX,
        session: NUMBER,
        job: JobId::from_uuid(Uuid::new_v4()),
    };
    let (sender, mut news) = mpsc::channel(NEWS_CAPACITY);
    let limit = Duration::from_secs(state.settings.start_s);
    let opening = session::bring_up(state, &start, Some(miner), sender, &mut news);
    let opened = tokio::select! {
        opened = opening => opened,
        () = state.clock.sleep(limit) => Err(format!("it did not come up within {} s", limit.as_secs())),
    };
    let line = match opened {
        Ok(line) => Arc::new(line),
        Err(reason) => {
            state
                .backend
                .end_job(start.job, CloseReason::JobOver.text(), false)
                .await;
            return Err(reason);
        }
    };
    if let Err(error) = session::record_opening(state, &line).await {
        let reason = error.to_string();
        state.fail(error);
        return Err(reason);
    }
    tracing::info!(session = %line.id(), model, %miner, questions = questions.len(), "a session for fresh answers serves");
    let mut asking: Vec<BoxFuture<'_, bool>> = Vec::new();
    for (place, question) in questions.into_iter().enumerate() {
        asking.push(Box::pin(ask_one(state, &line, place, question, answered)));
    }
    let ends: Vec<bool> = futures_util::stream::iter(asking)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let done = ends.into_iter().filter(|is_answered| *is_answered).count();
    line.mark_ending();
    let end = SessionEnd {
        job: start.job,
        line: Some(line),
        reason: CloseReason::Idle,
    };
    session::close(state, end).await;
    Ok(done)
}

async fn ask_one(
    state: &Arc<GatewayState>,
    line: &Arc<SealedSession>,
    place: usize,
    question: FreshQuestion,
    answered: OnAnswer<'_>,
) -> bool {
    match ask_session(state, line, question).await {
        Ok(id) => {
            answered(place, id).await;
            true
        }
        Err(error) => {
            tracing::info!(session = %line.id(), error, "a fresh question was not answered");
            false
        }
    }
}

/// Asks one session, in the way of every client's question. Returns the answer's id once the answer is stored.
///
/// # Errors
/// The session did not answer; the reason in words.
pub(crate) async fn ask_session(
    state: &Arc<GatewayState>,
    line: &Arc<SealedSession>,
    question: FreshQuestion,
) -> Result<String, String> {
    let id = AnswerId::draw().map_err(|error| error.to_string())?;
    let request = RelayedRequest {
        path: "/v1/chat/completions",
        body: question.body,
        client: question.client,
        client_nonce: None,
        id,
        consent: WordConsent::Publish,
    };
    let (sender, mut parts) = mpsc::channel(PART_CAPACITY);
    let stream = StreamRequest::of_session(NUMBER, Arc::clone(line));
    let relaying = session_relay::run(Arc::clone(state), stream, request, sender);
    drop(state.tasks.spawn("own question", relaying));
    let mut refused = None;
    while let Some(part) = parts.recv().await {
        if let AnswerPart::Refused(error) = part {
            refused = Some(error.to_string());
        }
    }
    refused.map_or_else(|| Ok(id.hex()), Err)
}
