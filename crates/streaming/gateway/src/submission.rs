//! Hands an admitted question to a session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_openai::OpenAiError;
use muster_response_proof::{RequestNonce, SessionId};
use muster_sealed_client::draw_nonce;
use tokio::sync::mpsc;

use crate::answer_parts::{AnswerId, AnswerPart};
use crate::request::{RelayedRequest, RequestOrigin, read_parameters};
use crate::request_client::{AdmittedClient, RequestClient};
use crate::scheduler::RequestPlace;
use crate::session_relay;
use crate::state::GatewayState;
use crate::store::TextConsent;

/// Parts of an answer that may wait for a client that reads slowly. It holds up its own session's connection and no
/// other.
const PART_CAPACITY: usize = 4;
/// Characters of a model id or path that are repeated in an error.
const MAX_SHOWN: usize = 200;

/// A question of an admitted client.
pub(crate) struct Question {
    pub(crate) client: AdmittedClient,
    pub(crate) path: &'static str,
    pub(crate) client_nonce: Option<RequestNonce>,
    /// The session that has to answer and the gateway's nonce, of an own prompt.
    pub(crate) bound: Option<BoundQuestion>,
    pub(crate) consent: TextConsent,
    pub(crate) origin: RequestOrigin,
    pub(crate) body: Bytes,
}

/// The facts that an own prompt's place in its list fixes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundQuestion {
    pub(crate) session: SessionId,
    pub(crate) nonce: RequestNonce,
}

/// A question on its way.
pub(crate) struct Submitted {
    /// The parts of the answer as they come; the channel closes once the answer is settled.
    pub(crate) parts: mpsc::Receiver<AnswerPart>,
    /// The place of the question while it waits, if the client wants an event stream and can be told.
    pub(crate) place: Option<RequestPlace>,
    /// The id of the answer.
    pub(crate) id: AnswerId,
}

/// Queues a question for a session of its model, and relays the answer.
///
/// # Errors
/// The gateway serves its maximum, the body is no question, or nobody whitelisted the model.
pub(crate) fn submit(state: &Arc<GatewayState>, question: Question) -> Result<Submitted, OpenAiError> {
    let Ok(permit) = Arc::clone(&state.permits).try_acquire_owned() else {
        return Err(OpenAiError::QueueFull {
            message: "the gateway is serving its maximum number of requests".to_owned(),
            retry_after: Duration::from_secs(1),
        });
    };
    let (model, streams) = read_parameters(&question.body)?;
    let services = state.whitelist.services();
    let pool = services
        .iter()
        .position(|service| service.model == model)
        .ok_or_else(|| OpenAiError::UnknownModel(shorten(&model)))?;
    let internal = |error: getrandom::Error| OpenAiError::Internal(error.to_string());
    let id = AnswerId::draw().map_err(internal)?;
    let drawn = draw_nonce().map_err(internal)?;
    let only = question.bound.map(|bound| bound.session);
    let patience = state.settings.patience(streams);
    let stream = state
        .scheduler
        .enqueue(pool, (question.client.name, patience), only);
    let place = stream.place();
    let request = RelayedRequest {
        path: question.path,
        body: question.body,
        client: RequestClient::new(question.client, question.client_nonce, drawn),
        client_nonce: question.client_nonce,
        fixed_nonce: question.bound.map(|bound| bound.nonce),
        id,
        consent: question.consent,
        origin: question.origin,
    };
    let (sender, parts) = mpsc::channel(PART_CAPACITY);
    let relaying = session_relay::run(Arc::clone(state), stream, request, sender);
    drop(state.tasks.spawn("request", async move {
        relaying.await;
        drop(permit);
    }));
    Ok(Submitted {
        parts,
        place: streams.then_some(place),
        id,
    })
}

/// The beginning of a text that an error repeats.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
