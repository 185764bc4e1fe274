//! The tokens of a stream whose client did not ask for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Request;
use muster_openai::{TokenBounds, TokenMeter, TokenUsage};
use muster_process::Tasks;
use muster_protocol::Digest;
use muster_response_proof::HashScheme;
use muster_response_proof::comment::{PREFIX, strip_comments};
use tokio::io::AsyncWriteExt;

use crate::rig::{EVENTS, Engine, Kind, Rig, chunk};

const WORD: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const PLAIN: &str = r#"{"stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
const ASKING: &str = r#"{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}"#;

fn post() -> http::request::Builder {
    Request::post("/v1/chat/completions").header("content-type", "application/json")
}

/// An engine that reports its tokens if it is asked to, cut in the middle of the report.
fn engine(tasks: &Tasks) -> Engine {
    Engine::new(tasks, |mut stream| async move {
        let (half, rest) = USAGE.split_at(20);
        let mut answer = EVENTS.as_bytes().to_vec();
        for piece in [WORD, half, rest, DONE] {
            answer.extend(chunk(piece.as_bytes()));
        }
        answer.extend(b"0\r\n\r\n");
        stream.write_all(&answer).await.unwrap();
    })
}

fn tokens(request: &str, body: &[u8]) -> TokenUsage {
    let mut meter = TokenMeter::new(Some("text/event-stream"), TokenBounds::of(request.as_bytes()));
    meter.update(body);
    meter.usage()
}

#[tokio::test]
async fn the_seal_asks_for_the_usage_of_a_stream_and_its_client_sees_no_event_of_it() {
    for scheme in HashScheme::ALL {
        let tasks = Tasks::new();
        let engine = engine(&tasks);
        let kind = Kind {
            scheme,
            ..Kind::default()
        };
        let rig = Rig::new(tasks, engine.address(), kind).await;
        let mut ledger = rig.ledger();
        let plain = rig.ask(post(), PLAIN).await;
        // The proof covers the client's own bytes, of the request and of the answer.
        let proof = plain.proven(&mut ledger);
        assert_eq!(strip_comments(&plain.body), format!("{WORD}{DONE}").as_bytes());
        if scheme == HashScheme::RawHttp {
            assert_eq!(proof.input, Digest::of(PLAIN.as_bytes()));
            assert_eq!(proof.output, Digest::of(format!("{WORD}{DONE}").as_bytes()));
        }
        let heard = engine.heard().remove(0);
        assert!(
            heard.contains(r#""stream_options":{"include_usage":true}"#),
            "{heard}"
        );

        let asking = rig.ask(post(), ASKING).await;
        asking.proven(&mut ledger);
        assert_eq!(
            strip_comments(&asking.body),
            format!("{WORD}{USAGE}{DONE}").as_bytes()
        );
        let heard = engine.heard().remove(1);
        assert!(heard.ends_with(ASKING), "as the client sent it: {heard}");
        let reported = TokenUsage { input: 2, output: 2 };
        assert_eq!(tokens(PLAIN, &plain.body), reported);
        assert_eq!(tokens(ASKING, &asking.body), reported);
    }
    assert!(muster_openai::usage_report::USAGE_COMMENT.starts_with(PREFIX));
}

#[tokio::test]
async fn an_engine_that_refuses_to_be_asked_gets_the_clients_own_request() {
    let tasks = Tasks::new();
    let was_asked = Arc::new(AtomicBool::new(false));
    let engine = Engine::new(&tasks, move |mut stream| {
        let is_first = !was_asked.swap(true, Ordering::SeqCst);
        async move {
            let refusal = "HTTP/1.1 422 x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            let mut answer = EVENTS.as_bytes().to_vec();
            answer.extend(chunk(format!("{WORD}{DONE}").as_bytes()));
            answer.extend(b"0\r\n\r\n");
            let answer = if is_first {
                refusal.as_bytes().to_vec()
            } else {
                answer
            };
            stream.write_all(&answer).await.unwrap();
        }
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let answer = rig.ask(post(), PLAIN).await;
    assert_eq!(answer.head.status, 200);
    answer.proven(&mut rig.ledger());
    assert_eq!(strip_comments(&answer.body), format!("{WORD}{DONE}").as_bytes());
    let heard = engine.heard();
    assert!(heard.len() == 2 && heard[1].ends_with(PLAIN), "{heard:?}");
}

#[tokio::test]
async fn a_request_that_is_no_stream_of_a_completion_is_not_changed() {
    let tasks = Tasks::new();
    let engine = engine(&tasks);
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let mut ledger = rig.ledger();
    for (path, body) in [
        ("/v1/embeddings", PLAIN),
        ("/v1/chat/completions", r#"{"stream":false}"#),
        ("/v1/chat/completions", "{"),
    ] {
        rig.ask(Request::post(path), body).await.proven(&mut ledger);
        assert!(engine.heard().last().unwrap().ends_with(body), "{path}");
    }
    // A byte order mark is skipped for the engine; the proof covers it.
    let marked = "\u{feff}{\"stream\":false}";
    let proof = rig.ask(post(), marked).await.proven(&mut ledger);
    assert_eq!(proof.input, Digest::of(marked.as_bytes()));
    assert!(
        engine
            .heard()
            .last()
            .unwrap()
            .ends_with("\r\n\r\n{\"stream\":false}")
    );
}
