//! APIs that are not well: the engine reports it in time, and takes nothing for done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use muster_process::{Tasks, TestClock};
use muster_provisioning::{EngineError, ExecutorEngine as _};
use tokio::net::TcpListener;

use crate::target::{Target, attempt, order};

/// An API that answers everything alike.
async fn serve(tasks: &Tasks, status: u16, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let spawner = tasks.clone();
    tasks.spawn("broken API", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = move |_: Request<hyper::body::Incoming>| async move {
                let answer = Response::builder().status(status);
                answer.body(Full::new(Bytes::from_static(body.as_bytes())))
            };
            spawner.spawn("broken API's connection", async move {
                // The engine hangs up when it likes.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await;
            });
        }
    });
    url
}

/// The outcome of each call.
async fn outcomes(url: &str, clock: &TestClock) -> [EngineError; 3] {
    let target = Target::empty();
    let engine = target.engine_with(url, "spec: {}", Arc::new(clock.clone())).await;
    let none = BTreeSet::new();
    [
        engine.create(&order(1), &none).await.unwrap_err(),
        engine.delete(attempt(1)).await.unwrap_err(),
        engine.survey(&none).await.unwrap_err(),
    ]
}

fn is_unreachable(error: &EngineError) -> bool {
    matches!(error, EngineError::Unreachable(_))
}

#[tokio::test]
async fn an_api_that_cannot_work_is_asked_again() {
    let tasks = Tasks::new();
    for status in [408, 429, 500, 502, 503, 504] {
        let url = serve(&tasks, status, "upstream is not well").await;
        for error in outcomes(&url, &TestClock::default()).await {
            assert!(is_unreachable(&error), "{status}: {error:?}");
            assert!(error.to_string().contains(&status.to_string()), "{error}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_says_nothing_is_not_taken_for_done() {
    let tasks = Tasks::new();
    for body in ["", "<html>", "{", "[]", "null"] {
        let url = serve(&tasks, 200, body).await;
        let target = Target::empty();
        let engine = target
            .engine_with(&url, "spec: {}", Arc::new(TestClock::default()))
            .await;
        let none = BTreeSet::new();
        let created = engine.create(&order(1), &none).await;
        assert!(is_unreachable(&created.unwrap_err()), "{body}");
        let surveyed = engine.survey(&none).await;
        assert!(is_unreachable(&surveyed.unwrap_err()), "{body}");
    }
}

#[tokio::test]
async fn an_api_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for error in outcomes(&url, &TestClock::default()).await {
        assert!(is_unreachable(&error), "{error:?}");
        assert!(error.to_string().contains("kubeconfig"), "{error}");
    }
}

#[tokio::test]
async fn an_api_that_never_answers_is_left_after_seconds() {
    // The operating system takes the connections, and nobody reads them.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let clock = TestClock::default();
    let time = async {
        loop {
            clock.wait_for_sleepers(1).await;
            clock.advance(Duration::from_secs(10));
            tokio::task::yield_now().await;
        }
    };
    let errors = tokio::select! {
        errors = outcomes(&url, &clock) => errors,
        () = time => panic!("time does not end"),
    };
    for error in errors {
        assert!(
            is_unreachable(&error) && error.to_string().contains("within 10 s"),
            "{error:?}"
        );
    }
}
