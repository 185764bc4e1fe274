//! An API server that passes requests on to a real one and keeps what it answered, or that answers from what was kept.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use muster_process::Tasks;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;

/// One request and the answer to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Exchange {
    /// `POST /api/v1/namespaces/muster/pods`.
    pub(crate) request: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// The body of the answer, without the fields that [`shorten`] leaves out.
    pub(crate) answer: Value,
    /// Whether the recording has been asked for it.
    #[serde(skip)]
    pub(crate) is_used: bool,
}

/// The file of a scenario.
pub(crate) fn file_of(scenario: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recorded/{scenario}.json"))
}

/// The exchanges of a scenario.
pub(crate) fn read(scenario: &str) -> Vec<Exchange> {
    let file = file_of(scenario);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).unwrap()
}

/// The way in which requests are answered.
#[derive(Clone)]
pub(crate) enum Answers {
    /// By this cluster; exchanges are kept in the list.
    Of(Client, Arc<Mutex<Vec<Exchange>>>),
    /// By the first exchange of the list with the same request, which is used up. The last answer of a question stays:
    /// how often a scenario asks depends on its pace.
    Kept(Arc<Mutex<Vec<Exchange>>>),
}

/// Serves an API on a free port; its URL.
pub(crate) async fn serve(tasks: &Tasks, answers: Answers) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let spawner = tasks.clone();
    tasks.spawn("test API", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answers = answers.clone();
            spawner.spawn("test API's connection", async move {
                let service = service_fn(move |request| {
                    let answers = answers.clone();
                    async move { Ok::<_, Infallible>(answer(answers, request).await) }
                });
                // The engine hangs up when it likes.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    url
}

async fn answer(answers: Answers, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path_and_query().unwrap().to_string();
    let line = format!("{} {path}", request.method());
    let exchange = match answers {
        Answers::Kept(list) => {
            let mut list = list.lock();
            let mut places = (0..list.len()).filter(|index| list[*index].request == line);
            match (places.next(), places.next()) {
                (Some(place), None) if line.starts_with("GET ") => {
                    list[place].is_used = true;
                    list[place].clone()
                }
                (Some(place), _) => list.remove(place),
                (None, _) => Exchange {
                    status: 599,
                    answer: Value::String(format!("no answer to {line} was recorded")),
                    request: line,
                    is_used: false,
                },
            }
        }
        Answers::Of(client, list) => {
            let exchange = pass_on(&client, line, &path, request).await;
            let mut list = list.lock();
            let last = list.iter().rfind(|before| before.request == exchange.request);
            let is_news = !exchange.request.starts_with("GET ")
                || last.is_none_or(|last| last.answer != exchange.answer || last.status != exchange.status);
            if is_news {
                list.push(exchange.clone());
            }
            exchange
        }
    };
    Response::builder()
        .status(StatusCode::from_u16(exchange.status).unwrap())
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(exchange.answer.to_string())))
        .unwrap()
}

async fn pass_on(client: &Client, line: String, path: &str, request: Request<Incoming>) -> Exchange {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut passed = http::Request::builder().method(head.method).uri(path);
    if let Some(kind) = head.headers.get("content-type") {
        passed = passed.header("content-type", kind);
    }
    let passed = passed.body(kube::client::Body::from(body)).unwrap();
    let answer = client.send(passed).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let mut answer = serde_json::from_slice(&body).unwrap();
    shorten(&mut answer);
    Exchange {
        request: line,
        status,
        answer,
        is_used: false,
    }
}

/// Leaves out the fields of which most of an object consists, and those that change all the time.
fn shorten(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for field in [
                "managedFields",
                "images",
                "lastHeartbeatTime",
                "resourceVersion",
                "nodeInfo",
            ] {
                fields.shift_remove(field);
            }
            fields.values_mut().for_each(shorten);
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
