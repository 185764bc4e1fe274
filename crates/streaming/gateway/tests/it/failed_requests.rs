//! Sessions that give no answer to the first request: their seal refuses it, or they sign an answer and break off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use muster_process::Tasks;
use muster_sealing_proxy::SealingProxy;
use muster_session_pool::CloseReason;
use tokio::net::TcpListener;

use crate::hidden_proofs::{AnyBody, BrokenOff, serve_answers};
use crate::kept_texts::{open_trusted, own_question};
use crate::rig::{World, service, until};
use crate::subnet::JobFate;

/// The course of a session's first request for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstRequest {
    /// The seal refuses it, as one does that is full.
    Refused,
    /// The session signs an answer, and breaks off before its first byte.
    SignedAndBrokenOff,
    /// The same, and after the second request the session answers nothing at all.
    SignedAndBrokenOffThenSilence,
}

/// Serves the proxy's answers but the first.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    proxy: Arc<SealingProxy>,
    first: FirstRequest,
    tasks: Tasks,
) {
    let completions = Arc::new(AtomicUsize::new(0));
    serve_answers(listener, tls, tasks, move |request| {
        let (proxy, completions) = (Arc::clone(&proxy), Arc::clone(&completions));
        async move {
            let is_completion = request.uri().path() == "/v1/chat/completions";
            let before = completions.fetch_add(usize::from(is_completion), Ordering::SeqCst);
            if before > 1 && first == FirstRequest::SignedAndBrokenOffThenSilence {
                return Err(BrokenOff);
            }
            answer(&proxy, request, (is_completion && before == 0).then_some(first)).await
        }
    })
    .await;
}

async fn answer(
    proxy: &SealingProxy,
    request: Request<Incoming>,
    fails: Option<FirstRequest>,
) -> Result<Response<AnyBody>, BrokenOff> {
    if fails == Some(FirstRequest::Refused) {
        let mut refused = Response::new(Full::new(Bytes::new()).boxed_unsync());
        *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        return Ok(refused);
    }
    let (head, body) = proxy.answer(request).await.into_parts();
    let whole = body.collect().await.map_err(|_| BrokenOff)?;
    match fails {
        Some(_) => Err(BrokenOff),
        None => Ok(Response::from_parts(head, whole.boxed_unsync())),
    }
}

#[tokio::test]
async fn a_session_that_answers_nothing_is_unhealthy_and_withholds_no_proof() {
    let world = World::new(|_| ()).await;
    let fate = JobFate::FailsFirst(FirstRequest::SignedAndBrokenOffThenSilence);
    *world.subnet.fates.lock().unwrap() = vec![fate];
    // Its proof has a higher number than that of the answer that broke off.
    let answer = world.chat(2, false).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(answer.bytes().await.unwrap());
    let (_, why) = until("the end of the session", || async {
        world.subnet.ended.lock().unwrap().first().copied()
    })
    .await;
    assert_eq!(why, CloseReason::Unhealthy.text());
}

#[tokio::test]
async fn a_session_that_does_not_take_an_own_question_is_asked_again() {
    let world = World::new(|_| ()).await;
    *world.subnet.fates.lock().unwrap() = vec![JobFate::FailsFirst(FirstRequest::Refused)];
    let session = open_trusted(&world, &service()).await;
    let answer = session.ask(own_question()).await.unwrap();
    assert!(world.store().find_response(&answer).await.unwrap().is_some());
    session.close().await.unwrap();
}
