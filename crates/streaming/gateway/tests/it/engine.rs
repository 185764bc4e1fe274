//! An engine with OpenAI's interface whose pace the test controls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use muster_process::Tasks;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;

/// An engine on a Unix socket, controlled by the test.
pub(crate) struct Engine {
    folder: TempDir,
    pub(crate) pace: Arc<Pace>,
}

/// The model whose engine pads its answers: 32 KiB of text in each event, and 128 KiB that nobody reads.
pub(crate) const PADDING: &str = "padding";

/// How far the engine may proceed.
pub(crate) struct Pace {
    /// Words of a stream that it may send.
    pub(crate) words: watch::Sender<usize>,
    pub(crate) asked: AtomicUsize,
    /// Whether every request is answered by an error of the server's.
    pub(crate) is_broken: AtomicBool,
    /// Whether a stream breaks off in the place of its next event.
    pub(crate) breaks_off: AtomicBool,
    /// Bytes that nobody reads, in each event.
    pub(crate) unread: AtomicUsize,
}

impl Engine {
    pub(crate) fn new(tasks: &Tasks) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("http.sock")).unwrap();
        let pace = Arc::new(Pace {
            words: watch::Sender::new(usize::MAX),
            asked: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            breaks_off: AtomicBool::new(false),
            unread: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/health", get(health))
            .route("/v1/chat/completions", post(chat))
            .route("/v1/embeddings", post(embeddings))
            .with_state(Arc::clone(&pace));
        tasks.spawn(
            "engine",
            async move { axum::serve(listener, router).await.unwrap() },
        );
        Self { folder, pace }
    }

    /// The folder of its socket `http.sock`.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Headers by which an engine could speak for the server that its answer passes.
const HOSTILE: [(&str, &str); 4] = [
    ("set-cookie", "session=stolen"),
    ("alt-svc", "h3=\":443\""),
    ("location", "http://169.254.169.254/"),
    ("strict-transport-security", "max-age=31536000"),
];

async fn health(State(pace): State<Arc<Pace>>) -> Response {
    if pace.is_broken.load(Ordering::SeqCst) {
        return axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    "ok".into_response()
}

async fn chat(State(pace): State<Arc<Pace>>, body: Bytes) -> Response {
    pace.asked.fetch_add(1, Ordering::SeqCst);
    if pace.is_broken.load(Ordering::SeqCst) {
        return axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let asked: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let words = usize::try_from(asked["max_tokens"].as_u64().unwrap()).unwrap();
    let claimed = asked["user"]
        .as_str()
        .and_then(|claim| claim.parse::<usize>().ok());
    let usage = serde_json::json!({"prompt_tokens": claimed.unwrap_or(5), "completion_tokens": claimed.unwrap_or(words)});
    if asked["stream"] != true {
        let text = "word ".repeat(words);
        let token =
            serde_json::json!({"token": "word ", "logprob": -0.5, "bytes": [119], "top_logprobs": []});
        let sure = vec![token; words];
        let logprobs = (asked["logprobs"] == true).then(|| serde_json::json!({"content": sure}));
        let answer = serde_json::json!({
            "id": "c", "object": "chat.completion", "created": 0, "model": "tiny", "usage": usage,
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": logprobs, "message": {"role": "assistant", "content": text}}],
        });
        return (HOSTILE, axum::Json(answer)).into_response();
    }
    let pads = asked["model"] == PADDING;
    // Flow control: the engine produces only as fast as its client reads.
    let said = stream::unfold(0, move |said| {
        let (pace, usage) = (Arc::clone(&pace), usage.clone());
        async move {
            if said > words {
                return None;
            }
            pace.words
                .subscribe()
                .wait_for(|allowed| *allowed > said)
                .await
                .unwrap();
            if pace.breaks_off.load(Ordering::SeqCst) {
                return Some((Err(std::io::Error::other("the engine broke off")), words + 1));
            }
            let event = if said == words {
                let last = event(&serde_json::json!([]), Some(&usage));
                format!("{last}data: [DONE]\n\n")
            } else {
                let (text, unread) = match pads {
                    true => (32 * 1024, 64 * 1024),
                    false => (0, pace.unread.load(Ordering::SeqCst)),
                };
                let delta = serde_json::json!({"content": format!("word{said} {}", "x".repeat(text))});
                let choice = serde_json::json!({"index": 0, "delta": delta, "logprobs": "x".repeat(unread)});
                let comment = " ".repeat(unread);
                format!(": {comment}\n\n{}", event(&serde_json::json!([choice]), None))
            };
            Some((Ok(Bytes::from(event)), said + 1))
        }
    });
    let kind = [("content-type", "text/event-stream")];
    (HOSTILE, kind, Body::from_stream(said)).into_response()
}

fn event(choices: &serde_json::Value, usage: Option<&serde_json::Value>) -> String {
    let chunk = serde_json::json!({
        "id": "c", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": choices, "usage": usage,
    });
    format!("data: {chunk}\n\n")
}

async fn embeddings() -> Response {
    let answer = serde_json::json!({
        "object": "list", "model": "tiny", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    });
    axum::Json(answer).into_response()
}
