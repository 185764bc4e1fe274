//! `muster forward`: a model as an HTTP service on this machine, for programs that know no keys and check no proofs.
//!
//! Requests go to the model's session by way of the facilitator, with the user's login. The proof of each answer is
//! checked and kept in a file. Other machines and web pages of other sites are refused.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN, UPGRADE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use muster_client::{Client, ClientError};
use muster_process::listen::{bind, local_address};
use muster_process::{Coded as _, SharedClock, shutdown};
use muster_protocol::{JobId, Timestamp};
use muster_terminal::print;
use serde_json::{Value, json};

use crate::cli::user::Forward;
use crate::facilitator_access;
use crate::failure::{Failure, Result};
use crate::proven_exchange::{MAX_ANSWER, ProvenExchange};
use crate::served_models::choose_model;

/// The longest request that is passed on, in bytes.
const MAX_REQUEST: usize = 16 * 1024 * 1024;
/// The name of this machine in addresses, without a port.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// Characters of an answer's id in the name of its file.
const ID_IN_NAME: usize = 16;

/// The model and the login behind the port.
#[derive(Debug)]
struct Forwarding {
    client: Client,
    clock: SharedClock,
    model: String,
    /// The folder of the proofs.
    folder: PathBuf,
    /// The session that gave the last answer.
    session: Mutex<Option<JobId>>,
}

/// An answer on its way to the program that asked.
struct PassedAnswer {
    forwarding: Arc<Forwarding>,
    exchange: Option<ProvenExchange>,
    response: reqwest::Response,
    /// The bytes that were passed on.
    whole: Vec<u8>,
    begun: Timestamp,
}

/// Runs the command until Ctrl-C.
pub(crate) async fn run(args: Forward, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let model = choose_model(&client, Some(&args.model)).await?;
    std::fs::create_dir_all(&args.save)
        .with_context(|| format!("cannot make the folder of the proofs {}", args.save.display()))?;
    let listener = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)))
        .map_err(|error| Failure::coded(error.code(), error))?;
    let address = local_address(listener.local_addr()?);
    print::line(format_args!("http://{address}/v1"));
    print::problem(format_args!(
        "forwards to {}; the proof of each answer goes into {}; Ctrl-C ends it",
        model,
        args.save.display()
    ));
    let forwarding = Arc::new(Forwarding {
        client,
        clock,
        model,
        folder: args.save,
        session: Mutex::new(None),
    });
    let stop = async {
        // A process that cannot hear signals is ended by them.
        let _ = shutdown::wait_for_signal().await;
    };
    tokio::select! {
        served = async { axum::serve(listener, router(forwarding)).await } => served?,
        () = stop => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn router(forwarding: Arc<Forwarding>) -> Router {
    Router::new()
        .fallback(pass)
        .layer(middleware::from_fn(refuse_strangers))
        .with_state(forwarding)
}

/// Lets only programs of this machine ask: a web page that somebody has open could spend the user's money otherwise.
async fn refuse_strangers(request: Request, next: Next) -> Response {
    match stranger(request.headers()) {
        Some(why) => failure(StatusCode::FORBIDDEN, why),
        None => next.run(request).await,
    }
}

/// The reason for which a request is not of a program on this machine.
fn stranger(headers: &HeaderMap) -> Option<&'static str> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if !text(HOST).is_some_and(is_own) {
        return Some("the request names another machine: ask http://127.0.0.1 or http://localhost");
    }
    let page = text(ORIGIN)?;
    let host = page.split_once("://").map_or("", |(_, host)| host);
    (!is_own(host)).then_some("a web page of another site may not ask through this port")
}

/// Whether a host with or without a port is this machine.
fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    OWN_NAMES.contains(&name)
}

async fn pass(
    State(forwarding): State<Arc<Forwarding>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if headers.contains_key(UPGRADE) {
        return failure(
            StatusCode::NOT_IMPLEMENTED,
            "a proof is about one request and its whole answer, which a WebSocket does not have: use HTTP",
        );
    }
    match (method, uri.path()) {
        (Method::GET, "/v1/models") => forwarding.models().await,
        (Method::POST, path) if path.starts_with("/v1/") => {
            match axum::body::to_bytes(body, MAX_REQUEST).await {
                Ok(bytes) => forwarding.ask(path, bytes).await,
                Err(_) => failure(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    &format!("the request broke off, or is longer than {MAX_REQUEST} bytes"),
                ),
            }
        }
        (method, path) => failure(
            StatusCode::NOT_FOUND,
            &format!(
                "{method} {path} is nothing that a model answers: POST /v1/chat/completions, for example"
            ),
        ),
    }
}

// === impl Forwarding ===

impl Forwarding {
    /// The list of models: the one that is forwarded.
    async fn models(&self) -> Response {
        match self.client.models().await {
            Ok(models) => {
                let own: Vec<&Value> = models
                    .iter()
                    .filter(|model| id_of(model) == Some(self.model.as_str()))
                    .collect();
                axum::Json(json!({ "object": "list", "data": own })).into_response()
            }
            Err(error) => refusal(&error),
        }
    }

    /// Asks the model, and passes its answer on as it comes.
    async fn ask(self: Arc<Self>, path: &str, body: Bytes) -> Response {
        if let Err(why) = names_model(&body, &self.model) {
            return failure(StatusCode::BAD_REQUEST, &why);
        }
        let begun = self.clock.now();
        let sent = ProvenExchange::send(&self.client, &self.clock, path, body.to_vec()).await;
        let (exchange, response) = match sent {
            Ok(Ok(sent)) => sent,
            Ok(Err(refused)) => {
                print::problem(format_args!("{path}: {refused}"));
                return refusal(&refused);
            }
            Err(error) => return failure(StatusCode::BAD_GATEWAY, &format!("{error:#}")),
        };
        let status = StatusCode::from_u16(exchange.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let kind = exchange.content_type.clone();
        let answer = PassedAnswer {
            forwarding: Arc::clone(&self),
            exchange: Some(exchange),
            response,
            whole: Vec::new(),
            begun,
        };
        let pieces = stream::unfold(answer, PassedAnswer::next);
        let mut passed = Response::new(Body::from_stream(pieces));
        *passed.status_mut() = status;
        if let Some(kind) = kind.and_then(|kind| kind.parse().ok()) {
            passed.headers_mut().insert(CONTENT_TYPE, kind);
        }
        passed
    }

    /// Checks the proof of an answer, keeps it in a file, and says so.
    async fn keep(&self, exchange: ProvenExchange, whole: &[u8], begun: Timestamp) {
        let name: String = exchange
            .id()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(ID_IN_NAME)
            .collect();
        let (status, took) = (exchange.status, self.clock.now().since(begun).as_secs_f64());
        let checked = match exchange.check(&self.client, &self.clock, whole).await {
            Ok(checked) => checked,
            Err(error) => {
                print::problem(format_args!("{status} in {took:.2} s, NOT PROVEN: {error}"));
                return;
            }
        };
        let file = self.folder.join(format!("{name}.json"));
        let written = serde_json::to_vec_pretty(&checked.record)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(std::fs::write(&file, text)?));
        let kept = match written {
            Ok(()) => file.display().to_string(),
            Err(error) => format!("the proof could not be kept in {}: {error}", file.display()),
        };
        if let Some(news) = self.news_of_session(checked.session) {
            print::problem(format_args!("{news}"));
        }
        print::problem(format_args!(
            "{status} in {took:.2} s, {}  {kept}",
            checked.verdict
        ));
    }

    /// The words for another session than that of the last answer.
    fn news_of_session(&self, session: Option<JobId>) -> Option<String> {
        let session = session?;
        let mut last = self
            .session
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = last.replace(session).filter(|before| *before != session);
        before.map(|before| format!("the session {before} answers no longer; {session} does now"))
    }
}

// === impl PassedAnswer ===

impl PassedAnswer {
    /// The next bytes of the answer. The file of its proof is there before the answer's end is.
    async fn next(mut self) -> Option<(anyhow::Result<Bytes>, Self)> {
        let exchange = self.exchange.take()?;
        match self.response.chunk().await {
            Ok(Some(piece)) if self.whole.len().saturating_add(piece.len()) <= MAX_ANSWER => {
                self.whole.extend_from_slice(&piece);
                self.exchange = Some(exchange);
                Some((Ok(piece), self))
            }
            Ok(Some(_)) => {
                let error = anyhow::anyhow!("the answer is longer than {MAX_ANSWER} bytes");
                print::problem(format_args!("{error}"));
                Some((Err(error), self))
            }
            Ok(None) => {
                self.forwarding.keep(exchange, &self.whole, self.begun).await;
                None
            }
            Err(error) => {
                print::problem(format_args!(
                    "the answer broke off: its session or the way to it ended ({error})"
                ));
                Some((Err(error.into()), self))
            }
        }
    }
}

impl Drop for PassedAnswer {
    fn drop(&mut self) {
        if self.exchange.is_some() {
            print::problem(format_args!(
                "the program that asked went away before the answer's end, so there is no proof of it"
            ));
        }
    }
}

fn id_of(model: &Value) -> Option<&str> {
    model.get("id")?.as_str()
}

/// Whether a request is a document for the model that is forwarded.
fn names_model(body: &[u8], model: &str) -> std::result::Result<(), String> {
    let document: Value =
        serde_json::from_slice(body).map_err(|error| format!("the request is no JSON: {error}"))?;
    match document.get("model").and_then(Value::as_str) {
        Some(named) if named == model => Ok(()),
        Some(named) => Err(format!(
            "this port forwards to the model {model:?}, and the request names {named:?}"
        )),
        None => Err(format!("the request names no model: give \"model\": {model:?}")),
    }
}

/// A refusal of the facilitator, with its own status where it gave one.
fn refusal(error: &ClientError) -> Response {
    let status = match error {
        ClientError::Unwell { status, .. } | ClientError::Refused { status, .. } => *status,
        ClientError::Address(_)
        | ClientError::Unreachable { .. }
        | ClientError::Unauthorised { .. }
        | ClientError::Lacks { .. }
        | ClientError::Older { .. }
        | ClientError::Unreadable { .. }
        | ClientError::NoNonce { .. }
        | ClientError::BadKey
        | ClientError::UnknownJob { .. }
        | ClientError::AmbiguousJob { .. }
        | ClientError::NeedsWholeId { .. }
        | ClientError::TooLate { .. }
        | ClientError::Io { .. }
        | ClientError::Damaged { .. }
        | ClientError::BrokeOff { .. } => StatusCode::BAD_GATEWAY,
    };
    failure(status, &error.to_string())
}

/// An error in the form of OpenAI's API.
fn failure(status: StatusCode, message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": "muster_forward", "code": status.as_u16() } });
    (status, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_programs_of_this_machine_may_ask() {
        let headers = |host: &'static str, origin: Option<&'static str>| {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            headers.extend(origin.map(|origin| (ORIGIN, HeaderValue::from_static(origin))));
            headers
        };
        for (host, origin) in [
            ("127.0.0.1:8888", None),
            ("localhost", None),
            ("[::1]:8888", None),
            ("127.0.0.1:8888", Some("http://localhost:3000")),
        ] {
            assert_eq!(stranger(&headers(host, origin)), None, "{host} {origin:?}");
        }
        for (host, origin) in [
            ("evil.example:8888", None),
            ("127.0.0.1.evil.example", None),
            ("127.0.0.1:8888", Some("https://evil.example")),
            ("127.0.0.1:8888", Some("null")),
            ("127.0.0.1:8888", Some("http://localhost.evil.example")),
        ] {
            assert!(stranger(&headers(host, origin)).is_some(), "{host} {origin:?}");
        }
        assert!(stranger(&HeaderMap::new()).is_some(), "no host");
    }

    #[test]
    fn a_request_names_the_model_of_the_port() {
        assert_eq!(names_model(br#"{"model":"tiny"}"#, "tiny"), Ok(()));
        for (body, words) in [
            (&br#"{"model":"gpt"}"#[..], "names \"gpt\""),
            (br#"{"messages":[]}"#, "names no model"),
            (b"tiny", "no JSON"),
        ] {
            assert!(names_model(body, "tiny").unwrap_err().contains(words), "{words}");
        }
    }
}
