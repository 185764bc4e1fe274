//! Forwards the requests of a facilitator's clients to a validator's gateway.
//!
//! Each request carries a signed token that names the client by a pseudonym. The response's body is passed on as it
//! arrives.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use muster_identity::Keypair;
use muster_openai::{OpenAiError, TokenMeter, TokenUsage};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::headers::{CLIENT_NONCE, PROOF, remove_hop_by_hop};
use muster_response_proof::{Envelope, GatewayToken};

/// How long a token is valid. It is made for one request and must outlast its upload only.
const TOKEN_LIFETIME: Duration = Duration::from_secs(120);
/// Limit for connecting to a gateway.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a client may retry if the gateway was not reached.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The request headers that are forwarded.
const FORWARDED_HEADERS: [HeaderName; 3] = [ACCEPT, CONTENT_TYPE, CLIENT_NONCE];

/// TLS cannot be set up on this machine.
pub type ClientSetupError = reqwest::Error;

/// The gateway that serves a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayTarget {
    /// The validator that runs the gateway; the token is valid for it alone.
    pub validator: ValidatorKey,
    /// `http://` or `https://`, host and port.
    pub url: String,
}

/// A client's request, as the facilitator received it.
#[derive(Clone, Debug)]
pub struct ForwardRequest {
    /// The client's pseudonym, which only the facilitator can resolve.
    pub client: Digest,
    /// The request's method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// All headers of the request; few are forwarded.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
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

/// Connections to gateways, and the key that signs tokens for them.
#[derive(Clone)]
pub struct GatewayClient {
    http: reqwest::Client,
    keypair: Keypair,
    clock: SharedClock,
}

impl GatewayClient {
    /// A client for the facilitator with this key.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(keypair: Keypair, clock: SharedClock) -> Result<Self, ClientSetupError> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .no_proxy()
            .build()?;
        Ok(Self { http, keypair, clock })
    }

    /// Forwards a request. The response's body passes as it arrives; `report` is called once, when the body has ended
    /// or its client has gone.
    ///
    /// # Errors
    /// [`OpenAiError::Unavailable`] if the gateway cannot be reached. `report` is then not called.
    pub async fn forward(
        &self,
        target: &GatewayTarget,
        request: ForwardRequest,
        report: impl FnOnce(ForwardReport) + Send + 'static,
    ) -> Result<Response<Body>, OpenAiError> {
        let url = format!("{}{}", target.url.trim_end_matches('/'), request.path);
        let request_bytes = request.body.len();
        let mut forwarded = self
            .http
            .request(request.method, &url)
            .header(AUTHORIZATION, self.token(target.validator, request.client));
        for name in FORWARDED_HEADERS {
            if let Some(value) = request.headers.get(&name) {
                forwarded = forwarded.header(name, value);
            }
        }
        if request_bytes > 0 {
            forwarded = forwarded.body(request.body);
        }
        let response = forwarded.send().await.map_err(|error| {
            tracing::warn!(validator = %target.validator, url = target.url, error = %Causes(&error),
                "a gateway cannot be reached");
            OpenAiError::Unavailable {
                message: "the validator's gateway cannot be reached".to_owned(),
                retry_after: RETRY_AFTER,
            }
        })?;
        let (mut head, body) = Response::<reqwest::Body>::from(response).into_parts();
        let proof = head.headers.remove(PROOF);
        remove_hop_by_hop(&mut head.headers);
        if let Some(proof) = proof {
            head.headers.insert(PROOF, proof);
        }
        head.headers.remove(HOST);
        head.extensions.clear();
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let metered = MeteredBody {
            status: head.status,
            meter: TokenMeter::new(kind, request_bytes),
            inner: body,
            report: Some(Box::new(report)),
        };
        Ok(Response::from_parts(head, Body::new(metered)))
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
        let signed = Envelope::new(&token, |bytes| self.keypair.sign(bytes));
        let mut value = HeaderValue::try_from(format!("Bearer {}", signed.to_text()))
            // Base64 is always a valid header value.
            .unwrap_or_else(|_| HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for GatewayClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GatewayClient({})", self.keypair.hotkey())
    }
}

/// A body whose tokens are counted while it passes. It reports exactly once, when it ends or is dropped.
struct MeteredBody {
    status: StatusCode,
    meter: TokenMeter,
    inner: reqwest::Body,
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
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.meter.update(data);
                }
            }
            Poll::Ready(None | Some(Err(_))) => this.report_end(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for MeteredBody {
    fn drop(&mut self) {
        self.report_end();
    }
}
