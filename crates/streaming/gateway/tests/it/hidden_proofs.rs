//! A session that is sealed, keeps the proofs of its answers to itself, and answers the search for them without an end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use muster_process::{Clock as _, SharedClock, Tasks, TestClock};
use muster_response_proof::headers::PROOF;
use muster_sealing_proxy::SealingProxy;
use muster_session_pool::CloseReason;
use tokio::net::TcpListener;

use crate::rig::{World, until};
use crate::subnet::JobFate;

pub(crate) type AnyBody = UnsyncBoxBody<Bytes, Infallible>;

/// Serves the proxy's answers without their proofs.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    proxy: Arc<SealingProxy>,
    clock: SharedClock,
    tasks: Tasks,
) {
    serve_answers(listener, tls, tasks, move |request| {
        let (proxy, clock) = (Arc::clone(&proxy), Arc::clone(&clock));
        async move { answer(&proxy, &clock, request).await }
    })
    .await;
}

/// Serves an endpoint that answers as a test prescribes. An error breaks the connection.
pub(crate) async fn serve_answers<A, F>(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    tasks: Tasks,
    answer: A,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<AnyBody>, BrokenOff>> + Send + 'static,
{
    let acceptor = tokio_rustls::TlsAcceptor::from(tls);
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, answer) = (acceptor.clone(), answer.clone());
        tasks.spawn("dishonest connection", async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            // The gateway hangs up when it likes.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .await;
        });
    }
}

/// An endpoint broke the connection in place of an answer.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint broke off")]
pub(crate) struct BrokenOff;

async fn answer(
    proxy: &SealingProxy,
    clock: &SharedClock,
    request: Request<Incoming>,
) -> Result<Response<AnyBody>, BrokenOff> {
    let path = request.uri().path().to_owned();
    if path.ends_with("/proofs") {
        return Ok(Response::new(endless(Arc::clone(clock))));
    }
    let (mut head, body) = proxy.answer(request).await.into_parts();
    let whole = body.collect().await.ok().unwrap_or_default().to_bytes();
    if path == "/v1/chat/completions" {
        head.headers.remove(PROOF);
    }
    Ok(Response::from_parts(head, Full::new(whole).boxed_unsync()))
}

/// A space every tenth of a second, for ever.
fn endless(clock: SharedClock) -> AnyBody {
    let spaces = stream::unfold(clock, |clock| async move {
        clock.sleep(Duration::from_millis(100)).await;
        Some((Ok(Frame::data(Bytes::from_static(b" "))), clock))
    });
    StreamBody::new(spaces).boxed_unsync()
}

#[tokio::test]
async fn a_session_that_hides_its_proof_keeps_no_place_and_is_not_paid() {
    let clock = TestClock::default();
    // The gateway has one place for requests.
    let world = World::at(Arc::new(clock.clone()), |settings| settings.requests = 1).await;
    *world.subnet.fates.lock().unwrap() = vec![JobFate::HidesProofs];
    for _ in 0..2 {
        let answer = until("a place at the gateway", || async {
            clock.advance(Duration::from_millis(50));
            let answer = world.chat(2, false).send().await.unwrap();
            (answer.status() == 200).then_some(answer)
        })
        .await;
        let (begun, headers) = (clock.now(), answer.headers().clone());
        assert!(!headers.contains_key("muster-proof"));
        assert!(answer.text().await.unwrap().contains("word word"));
        let id = headers["x-request-id"].to_str().unwrap();
        let view = until("the end of the search", || async {
            clock.advance(Duration::from_millis(200));
            let (status, view) = world.get(&format!("/v1/proofs/{id}")).await;
            (status == 200).then_some(view)
        })
        .await;
        // The search has an end, whatever the session sends.
        let took = clock.now().since(begun);
        assert!(took < Duration::from_secs(30), "{took:?}");
        assert_eq!(view["cost"], 0, "{view}");
        assert_ne!(view["verdict"], "proven", "{view}");
    }
}

#[tokio::test]
async fn a_session_that_withholds_a_proof_takes_no_more_requests() {
    let clock = TestClock::default();
    let world = World::at(Arc::new(clock.clone()), |_| ()).await;
    *world.subnet.fates.lock().unwrap() = vec![JobFate::HidesProofs];
    let answer = until("an answer", || async {
        clock.advance(Duration::from_millis(50));
        let answer = world.chat(2, false).send().await.unwrap();
        (answer.status() == 200).then_some(answer)
    })
    .await;
    drop(answer.bytes().await.unwrap());
    // The health checks that follow are proven, with higher numbers.
    let (_, why) = until("the end of the session", || async {
        clock.advance(Duration::from_millis(200));
        world.subnet.ended.lock().unwrap().first().copied()
    })
    .await;
    assert_eq!(why, CloseReason::Drained.text());
}
