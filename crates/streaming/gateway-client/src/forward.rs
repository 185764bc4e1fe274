//! The way from a facilitator to a validator's gateway: its clients' requests with its word for them, and the answers back as
//! they arrive.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use muster_identity::Keypair;
use muster_openai::{OpenAiError, TokenMeter, TokenUsage};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{Envelope, GatewayToken};
use muster_sealing_proxy::headers::{CLIENT_NONCE, PROOF, end_to_end};

/// How long a token holds. It is made for each request, and must outlast that one's upload only.
const TOKEN: Duration = Duration::from_secs(120);
/// To reach a gateway.
const CONNECT: Duration = Duration::from_secs(5);
/// Headers of a request that go on.
const PASSED: [http::HeaderName; 3] = [ACCEPT, CONTENT_TYPE, CLIENT_NONCE];

/// Connections cannot be made at all.
pub type WayError = reqwest::Error;

/// A validator's gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whose.
    pub validator: ValidatorKey,
    /// `http://` or `https://`, host and port.
    pub url: String,
}

/// A request of one client.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its name, which only the facilitator can resolve.
    pub client: Digest,
    /// As it came.
    pub method: Method,
    /// Path and query, as they came.
    pub path: String,
    /// As they came.
    pub headers: HeaderMap,
    /// As it came.
    pub body: Bytes,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The status that the gateway answered.
    pub status: StatusCode,
    /// Tokens that passed, by the facilitator's own count; none if it was refused.
    pub usage: TokenUsage,
    /// Bytes of the answer.
    pub bytes: u64,
}

/// Connections to gateways, and the key that vouches.
#[derive(Clone)]
pub struct Way {
    http: reqwest::Client,
    keypair: Keypair,
    clock: SharedClock,
}

impl Way {
    /// For a facilitator with this key.
    ///
    /// # Errors
    /// No TLS.
    pub fn new(keypair: Keypair, clock: SharedClock) -> Result<Self, WayError> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .no_proxy()
            .build()?;
        Ok(Self { http, keypair, clock })
    }

    /// Passes a request on. The answer's body comes as it arrives; `report` is called once, when it is over or its client
    /// has gone.
    ///
    /// # Errors
    /// The gateway cannot be reached. `report` is then not called.
    pub async fn pass(
        &self,
        target: &Target,
        ask: Ask,
        report: impl FnOnce(Passed) + Send + 'static,
    ) -> Result<Response<Body>, OpenAiError> {
        let url = format!("{}{}", target.url.trim_end_matches('/'), ask.path);
        let size = ask.body.len();
        let mut request = self
            .http
            .request(ask.method, &url)
            .header(AUTHORIZATION, self.token(target.validator, ask.client));
        for name in PASSED {
            if let Some(value) = ask.headers.get(&name) {
                request = request.header(name, value);
            }
        }
        if size > 0 {
            request = request.body(ask.body);
        }
        let answered = request.send().await.map_err(|error| {
            tracing::warn!(validator = %target.validator, url = target.url, error = %Causes(&error), "a gateway is not reached");
            OpenAiError::Unavailable {
                message: "the validator's gateway cannot be reached".to_owned(),
                retry_after: Duration::from_secs(5),
            }
        })?;
        let (mut head, body) = Response::<reqwest::Body>::from(answered).into_parts();
        let proof = head.headers.remove(PROOF);
        end_to_end(&mut head.headers);
        if let Some(proof) = proof {
            head.headers.insert(PROOF, proof);
        }
        head.headers.remove(HOST);
        head.extensions.clear();
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let metered = Metered {
            status: head.status,
            meter: TokenMeter::new(kind, size),
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
            not_after: now.plus(TOKEN),
        };
        let signed = Envelope::new(&token, |bytes| self.keypair.sign(bytes));
        let mut value = HeaderValue::try_from(format!("Bearer {}", signed.to_text()))
            // Base64 is a header's value.
            .unwrap_or_else(|_| HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Way({})", self.keypair.hotkey())
    }
}

/// A body that is counted while it passes, and reports once how it ended.
struct Metered {
    status: StatusCode,
    meter: TokenMeter,
    inner: reqwest::Body,
    report: Option<Box<dyn FnOnce(Passed) + Send>>,
}

impl Metered {
    fn end(&mut self) {
        if let Some(report) = self.report.take() {
            let usage = if self.status.is_success() {
                self.meter.usage()
            } else {
                TokenUsage::default()
            };
            report(Passed {
                status: self.status,
                usage,
                bytes: self.meter.bytes(),
            });
        }
    }
}

impl http_body::Body for Metered {
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
            Poll::Ready(None | Some(Err(_))) => this.end(),
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

impl Drop for Metered {
    fn drop(&mut self) {
        self.end();
    }
}
