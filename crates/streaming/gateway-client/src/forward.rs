//! Forwards the requests of a facilitator's clients to a validator's gateway.
//!
//! Each request carries a signed token that names the client by a pseudonym. The response's body is passed on as it
//! arrives.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use muster_http::Origin;
use muster_http::addresses::AddressRules;
use muster_http::event_stream::is_event_stream;
use muster_http::pinned::{
    LookupError, NameLookup, SystemLookup, client_builder, permitted_addresses, permitted_now,
};
use muster_identity::Keypair;
use muster_openai::{OpenAiError, TokenBounds, TokenMeter, TokenUsage};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_process::own_address::is_own_address;
use muster_protocol::{Digest, Hotkey, Timestamp, ValidatorKey};
use muster_response_proof::headers::{
    AUDIT_CONSENT, CLIENT_KEY, CLIENT_NONCE, keep_proof_trailer, keep_response_headers,
};
use muster_response_proof::{ClientKey, GatewayToken, seal};
use parking_lot::Mutex;

/// How long a token is valid. It is made for one request and must outlast its upload only.
const TOKEN_LIFETIME: Duration = Duration::from_secs(120);
/// Limit for connecting to a gateway.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a client may retry if the gateway was not reached.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Time after which a gateway's name is resolved again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(60);
/// The most gateways whose connections are kept.
const MAX_ORIGINS: usize = 256;
/// The request headers that are forwarded.
const FORWARDED_HEADERS: [HeaderName; 4] = [ACCEPT, CONTENT_TYPE, CLIENT_NONCE, AUDIT_CONSENT];

/// The gateway that serves a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayTarget {
    /// The validator that runs the gateway; the token is valid for it alone.
    pub validator: ValidatorKey,
    /// The gateway's scheme, host and port.
    pub origin: Origin,
}

/// A client's request, as the facilitator received it.
#[derive(Clone, Debug)]
pub struct ForwardRequest {
    /// The client's pseudonym, which only the facilitator can resolve.
    pub client: Digest,
    /// The client's key at the gateway's validator.
    pub client_key: ClientKey,
    /// The request's method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// All headers of the request; few are forwarded.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// How long the gateway may take to begin its response.
    pub head_limit: Duration,
}

/// The reason why a gateway did not answer. Another one may.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The gateway's name leads to no address that may be connected to.
    #[error("the gateway's address cannot be used")]
    Address(#[source] LookupError),
    /// No connection to the gateway can be made, or it broke before the response began.
    #[error("the gateway cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// The gateway did not begin its response in time.
    #[error("the gateway did not begin its response within {} s", .0.as_secs())]
    Late(Duration),
    /// The gateway answered with a redirect, which is never followed nor passed on.
    #[error("the gateway redirects ({0}), which a gateway must not")]
    Redirect(StatusCode),
}

impl ForwardError {
    /// The error as the client sees it.
    pub fn to_openai(&self) -> OpenAiError {
        OpenAiError::Unavailable {
            message: match self {
                Self::Late(_) => "the validator's gateway does not answer in time".to_owned(),
                Self::Address(_) | Self::Unreachable(_) | Self::Redirect(_) => {
                    "the validator's gateway cannot be reached".to_owned()
                }
            },
            retry_after: RETRY_AFTER,
        }
    }
}

/// The facilitator's own count of a response, once it has ended or its client has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardReport {
    /// The status that the gateway answered.
    pub status: StatusCode,
    /// Tokens that passed; zero unless `status` is a success.
    pub usage: TokenUsage,
    /// Bytes of the response's body that passed.
    pub bytes: u64,
}

/// The limits of a [`GatewayClient`].
#[derive(Clone, Debug)]
pub struct ForwardLimits {
    /// The addresses that gateways may have.
    pub rules: AddressRules,
    /// How long a gateway may send nothing in the middle of a response, and at most before it.
    pub silence: Duration,
}

/// Connections to gateways, and the key that signs tokens for them. Clones share the connections.
#[derive(Clone)]
pub struct GatewayClient {
    limits: Arc<ForwardLimits>,
    lookup: Arc<dyn NameLookup>,
    connections: Arc<Mutex<BTreeMap<Origin, PinnedOrigin>>>,
    keypair: Keypair,
    clock: SharedClock,
}

/// The connections to one gateway, at the addresses that its name had.
struct PinnedOrigin {
    addresses: Vec<SocketAddr>,
    resolved_at: Timestamp,
    http: reqwest::Client,
}

impl GatewayClient {
    /// A client for the facilitator with this key.
    pub fn new(keypair: Keypair, limits: ForwardLimits, clock: SharedClock) -> Self {
        Self::with_lookup(keypair, limits, clock, Arc::new(SystemLookup))
    }

    /// Uses another resolver than the system's.
    pub fn with_lookup(
        keypair: Keypair,
        limits: ForwardLimits,
        clock: SharedClock,
        lookup: Arc<dyn NameLookup>,
    ) -> Self {
        Self {
            limits: Arc::new(limits),
            lookup,
            connections: Arc::default(),
            keypair,
            clock,
        }
    }

    /// Forwards a request. The response's body passes as it arrives; `report` is called once, when the body has ended
    /// or its client has gone.
    ///
    /// # Errors
    /// The gateway gave no response that may be passed on. `report` is then not called.
    pub async fn forward(
        &self,
        target: &GatewayTarget,
        request: ForwardRequest,
        report: impl FnOnce(ForwardReport) + Send + 'static,
    ) -> Result<Response<Body>, ForwardError> {
        let bounds = TokenBounds::of(&request.body);
        let limit = request.head_limit;
        let answered = tokio::time::timeout(limit, self.send(target, request)).await;
        let response = answered
            .unwrap_or(Err(ForwardError::Late(limit)))
            .inspect_err(|error| {
                tracing::warn!(validator = %target.validator, origin = %target.origin, error = %Causes(error),
                    "a gateway did not answer");
            })?;
        let (mut head, body) = Response::<reqwest::Body>::from(response).into_parts();
        keep_response_headers(&mut head.headers);
        head.extensions.clear();
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let metered = MeteredBody {
            status: head.status,
            is_event_stream: is_event_stream(kind),
            meter: TokenMeter::new(kind, bounds),
            inner: Some(body),
            report: Some(Box::new(report)),
        };
        Ok(Response::from_parts(head, Body::new(metered)))
    }

    async fn send(
        &self,
        target: &GatewayTarget,
        request: ForwardRequest,
    ) -> Result<reqwest::Response, ForwardError> {
        let client = self.client(&target.origin).await?;
        let mut forwarded = client
            .request(request.method, target.origin.url_of(&request.path))
            .header(AUTHORIZATION, self.token(target.validator, request.client))
            .header(CLIENT_KEY, secret_value(&request.client_key.hex()));
        for name in FORWARDED_HEADERS {
            if let Some(value) = request.headers.get(&name) {
                forwarded = forwarded.header(name, value);
            }
        }
        if !request.body.is_empty() {
            forwarded = forwarded.body(request.body);
        }
        let response = forwarded.send().await.map_err(ForwardError::Unreachable)?;
        if response.status().is_redirection() {
            return Err(ForwardError::Redirect(response.status()));
        }
        Ok(response)
    }

    /// A client whose connections can only reach the permitted addresses of this gateway.
    async fn client(&self, origin: &Origin) -> Result<reqwest::Client, ForwardError> {
        let now = self.clock.now();
        if let Some(pinned) = self.connections.lock().get(origin)
            && now.since(pinned.resolved_at) < RESOLVE_AGAIN
        {
            return Ok(pinned.http.clone());
        }
        let mut addresses = match origin.address() {
            // The address was checked when the notice came, as far as its text shows.
            Some(address) => {
                let found = vec![SocketAddr::new(address, origin.port())];
                permitted_now(&self.limits.rules, is_own_address, origin.host(), found)
            }
            None => {
                let (rules, lookup) = (&self.limits.rules, &*self.lookup);
                permitted_addresses(rules, lookup, is_own_address, origin.host(), origin.port()).await
            }
        }
        .map_err(ForwardError::Address)?;
        addresses.sort_unstable();
        let mut connections = self.connections.lock();
        if let Some(pinned) = connections.get_mut(origin)
            && pinned.addresses == addresses
        {
            pinned.resolved_at = now;
            return Ok(pinned.http.clone());
        }
        let http = client_builder(origin.host(), &addresses)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(self.limits.silence)
            .tcp_nodelay(true)
            .build()
            .map_err(ForwardError::Unreachable)?;
        if connections.len() >= MAX_ORIGINS {
            connections.clear();
        }
        let pinned = PinnedOrigin {
            addresses,
            resolved_at: now,
            http: http.clone(),
        };
        connections.insert(origin.clone(), pinned);
        Ok(http)
    }

    /// The key that signs the tokens.
    pub fn key(&self) -> Hotkey {
        self.keypair.hotkey()
    }

    fn token(&self, audience: ValidatorKey, client: Digest) -> HeaderValue {
        let now = self.clock.now();
        let token = GatewayToken {
            facilitator: self.keypair.hotkey(),
            audience,
            client,
            not_before: now,
            not_after: now.plus(TOKEN_LIFETIME),
        };
        let signed = seal(&token, &self.keypair);
        secret_value(&format!("Bearer {}", signed.to_text()))
    }
}

/// The value of a header that no log shows.
fn secret_value(text: &str) -> HeaderValue {
    // Base64 and hex digits are always a valid header value.
    let mut value = HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

impl fmt::Debug for GatewayClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GatewayClient({})", self.keypair.hotkey())
    }
}

/// A body whose tokens are counted while it passes. It reports exactly once, when it ends or is dropped. An event
/// stream that breaks off ends with an event that says so.
struct MeteredBody {
    status: StatusCode,
    is_event_stream: bool,
    meter: TokenMeter,
    /// The gateway's body; `None` once it has broken off and its client was told.
    inner: Option<reqwest::Body>,
    report: Option<Box<dyn FnOnce(ForwardReport) + Send>>,
}

impl MeteredBody {
    fn report_end(&mut self) {
        if let Some(report) = self.report.take() {
            let usage = if self.status.is_success() {
                self.meter.usage()
            } else {
                TokenUsage::default()
            };
            report(ForwardReport {
                status: self.status,
                usage,
                bytes: self.meter.bytes(),
            });
        }
    }
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let mut polled = Pin::new(inner).poll_frame(cx);
        match &mut polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.meter.update(data);
                }
                if let Some(trailers) = frame.trailers_mut() {
                    keep_proof_trailer(trailers);
                }
            }
            Poll::Ready(None) => this.report_end(),
            Poll::Ready(Some(Err(error))) => {
                this.report_end();
                // A body of a stated length ends where that says, so nothing can follow.
                if this.is_event_stream && this.size_hint().exact().is_none() {
                    tracing::info!(%error, "a gateway broke off an answer");
                    this.inner = None;
                    return Poll::Ready(Some(Ok(Frame::data(broken_off().into()))));
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

/// The last event of a stream whose gateway is gone. The stream may have ended within a line.
fn broken_off() -> String {
    let error = OpenAiError::UpstreamFailed(
        "the answer broke off: the connection to the model's gateway was lost; ask again".to_owned(),
    );
    format!("\n\n{}", error.event())
}

impl Drop for MeteredBody {
    fn drop(&mut self) {
        self.report_end();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::future::BoxFuture;
    use muster_process::{SystemClock, Tasks};
    use muster_protocol::Hotkey;
    use muster_testbed::patience;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A resolver for which every name is at this address.
    struct Everywhere(SocketAddr);

    impl NameLookup for Everywhere {
        fn lookup(&self, _: String, _: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            let address = self.0;
            Box::pin(async move { Ok(vec![address]) })
        }
    }

    /// A gateway that gives each request this answer, or none.
    async fn gateway(tasks: &Tasks, answer: Option<&'static str>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks.spawn("gateway", async move {
            let mut kept = Vec::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut head = [0; 1024];
                let _ = socket.read(&mut head).await;
                if let Some(answer) = answer {
                    let _ = socket.write_all(answer.as_bytes()).await;
                }
                kept.push(socket);
            }
        });
        address
    }

    async fn forward(
        address: SocketAddr,
        host: &str,
        allow: &[&str],
        head_limit: Duration,
    ) -> Result<Response<Body>, ForwardError> {
        let allow: Vec<_> = allow.iter().map(ToString::to_string).collect();
        let limits = ForwardLimits {
            rules: AddressRules::parse(&allow).unwrap(),
            silence: Duration::from_secs(60),
        };
        let url = format!("http://{host}:{}", address.port());
        let target = GatewayTarget {
            validator: ValidatorKey(Hotkey::from_bytes([1; 32])),
            origin: Origin::parse(&url, &limits.rules).unwrap(),
        };
        let lookup = Arc::new(Everywhere(address));
        let clock = Arc::new(SystemClock::new());
        let client = GatewayClient::with_lookup(Keypair::from_seed([5; 32]), limits, clock, lookup);
        let request = ForwardRequest {
            client: Digest::of(b"client"),
            client_key: ClientKey::from_bytes([7; 32]),
            method: Method::GET,
            path: "/v1/proofs/0".to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            head_limit,
        };
        client.forward(&target, request, |_| ()).await
    }

    #[tokio::test]
    async fn a_name_that_leads_inside_is_not_connected_to_unless_the_operator_permits_it() {
        let tasks = Tasks::new();
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nset-cookie: a=b\r\n\r\n";
        let address = gateway(&tasks, Some(answer)).await;
        let refused = forward(address, "gateway.example", &[], patience())
            .await
            .unwrap_err();
        assert!(
            matches!(refused, ForwardError::Address(LookupError::NotPublic)),
            "{refused}"
        );
        let answer = forward(address, "gateway.example", &["127.0.0.1"], patience())
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        assert!(!answer.headers().contains_key("set-cookie"));
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_says_so_and_a_document_breaks_off_too() {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: ";
        for (kind, is_told) in [("text/event-stream", true), ("application/json", false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let tasks = Tasks::new();
            tasks.spawn("a gateway that ends", async move {
                let (mut socket, _) = listener.accept().await.unwrap();
                let _ = socket.read(&mut [0; 1024]).await;
                let answer = format!("{head}{kind}\r\n\r\n8\r\ndata: 1\n\r\n");
                socket.write_all(answer.as_bytes()).await.unwrap();
            });
            let answer = forward(address, "127.0.0.1", &["127.0.0.1"], patience())
                .await
                .unwrap();
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
            assert_eq!(body.is_ok(), is_told, "{kind}");
            let text = body
                .map(|body| String::from_utf8(body.to_vec()).unwrap())
                .unwrap_or_default();
            let (said, told) = text.split_once("\n\n\ndata: ").unwrap_or_default();
            assert_eq!(
                (said, told.contains("upstream_failed")),
                if is_told { ("data: 1", true) } else { ("", false) }
            );
        }
    }

    #[tokio::test]
    async fn a_redirect_is_refused_and_a_gateway_that_says_nothing_is_left() {
        let tasks = Tasks::new();
        let redirect = "HTTP/1.1 307 x\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n";
        let address = gateway(&tasks, Some(redirect)).await;
        let refused = forward(address, "127.0.0.1", &["127.0.0.1"], patience())
            .await
            .unwrap_err();
        assert!(matches!(refused, ForwardError::Redirect(_)), "{refused}");
        let address = gateway(&tasks, None).await;
        let limit = Duration::from_millis(300); // bounds: nothing comes before it passes
        let refused = forward(address, "127.0.0.1", &["127.0.0.1"], limit)
            .await
            .unwrap_err();
        assert!(matches!(refused, ForwardError::Late(_)), "{refused}");
        assert_eq!(refused.to_openai().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
