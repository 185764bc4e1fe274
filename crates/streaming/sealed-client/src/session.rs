//! One sealed session as its client holds it: the connections, the attestation, and the ledger of its proofs.

mod proofs;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use muster_http::http1::ResponseBody;
use muster_process::certificate::digest_of_pem;
use muster_process::error::Causes;
use muster_process::tls::TlsIdentity;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::{AttemptId, Digest, ExecutorClass, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::headers::{CLIENT, CLIENT_NONCE, GATEWAY_NONCE};
use muster_response_proof::well_known::GRADE_PATH;
use muster_response_proof::{ClockTolerance, HashScheme, Limits, ProofLedger, RequestNonce, SessionId};
use muster_session_pool::{OrderedSession, Service};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::lookup_host;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::checked_body::{CheckedBody, ReceivedResponse, SentRequest};
use crate::client::{ClientError, SealedClient, SealedPeer};
pub use proofs::AwaitedProof;
use proofs::SessionProofs;

/// The longest time in which a session's host is resolved.
const RESOLVE_LIMIT: Duration = Duration::from_secs(10);
/// The most addresses of a session's host that are looked at.
const MAX_ADDRESSES: usize = 16;
/// The longest answer to a health check, in bytes.
const MAX_HEALTH_ANSWER: usize = 64 * 1024;
/// The longest time in which a health check is answered.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to a session.
#[derive(Clone, Debug)]
pub struct SealedRequest {
    /// The HTTP method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The body; JSON, unless it is empty.
    pub body: Bytes,
    /// The client's pseudonym, which only the caller can resolve.
    pub client: Option<Digest>,
    /// The nonce that the client drew, if it sent one.
    pub client_nonce: Option<RequestNonce>,
    /// The caller's own nonce, from [`draw_nonce`].
    pub gateway_nonce: RequestNonce,
}

/// Receives the report of a response once it is over.
pub type ResponseReport = Box<dyn FnOnce(ReceivedResponse) + Send>;

/// A response whose body is arriving.
pub struct SealedResponse {
    /// The request that it answers.
    pub sent: SentRequest,
    /// The head, and the body as it arrives.
    pub response: Response<CheckedBody<ResponseBody, ResponseReport>>,
    /// The report of the response, once its body is over.
    pub received: oneshot::Receiver<ReceivedResponse>,
    /// To hold until the proof of the response is checked.
    pub awaited: AwaitedProof,
}

/// One sealed session.
#[derive(Debug)]
pub struct SealedSession {
    id: SessionId,
    job: JobId,
    miner: MinerKey,
    service: Service,
    attestation: String,
    not_after: Timestamp,
    client: SealedClient,
    scheme: HashScheme,
    tolerance: ClockTolerance,
    clock: SharedClock,
    proofs: Arc<Mutex<SessionProofs>>,
    /// Responses that are being passed on.
    under_way: TaskTracker,
    /// Answers that were proven and show that the service is healthy.
    healthy_answers: AtomicU64,
    /// Whether this side has ended the session, so that a failure to answer is not the session's fault.
    is_ending: AtomicBool,
}

/// Decides whether a session may be dialled at an address that its miner gave as this host.
#[derive(Clone, Copy)]
pub struct AddressPermit<'a>(pub &'a (dyn Fn(&str, SocketAddr) -> bool + Send + Sync));

impl fmt::Debug for AddressPermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressPermit(…)")
    }
}

/// The facts about a session that its client knows before the miner attests it.
#[derive(Debug)]
pub struct SessionParameters<'a> {
    /// The validator that opens the session.
    pub me: ValidatorKey,
    /// The job as which the session runs.
    pub job: JobId,
    /// The service that was ordered.
    pub service: &'a Service,
    /// The only client certificate that the endpoint accepts, and its key.
    pub identity: &'a TlsIdentity,
    /// The time at which the job ends in any case.
    pub until: Timestamp,
    /// The most by which this side's clock and the executor's may differ.
    pub skew: Duration,
    /// The addresses at which a session may be dialled: its miner chooses one.
    pub permits: AddressPermit<'a>,
    /// The clock of all times of this side.
    pub clock: &'a SharedClock,
    /// The tasks of the session's connections.
    pub tasks: &'a Tasks,
}

impl SealedSession {
    /// Connects to the address that a miner reports for its job, and opens a session if everything that the miner
    /// attests is what was ordered and the service is healthy.
    ///
    /// # Errors
    /// The reason why there is no session, as a text for logs and for clients that wait.
    pub async fn open(
        parameters: &SessionParameters<'_>,
        miner: MinerKey,
        ready: StreamingJobReady,
    ) -> Result<Self, String> {
        let ready = muster_identity::verify_streaming_ready(ready, miner)
            .map_err(|error| format!("the miner did not sign where its job answers: {error}"))?
            .into_inner();
        let attempt = ready.job_uuid;
        let peer = find_peer(ready, parameters.permits).await?;
        let server_certificate = peer.certificate;
        let client = SealedClient::new(peer, parameters.identity, &Limits::default(), parameters.tasks)
            .map_err(|error| format!("this gateway's own certificate cannot be used: {error}"))?;
        let envelope = client
            .fetch_attestation()
            .await
            .map_err(|error| explain_no_attestation(&error))?;
        let stated = envelope.statement().map_err(|error| error.to_string())?;
        if !muster_identity::verify(&stated.miner.0, envelope.signed_bytes(), envelope.signature()) {
            return Err("the miner named in the attestation did not sign it".to_owned());
        }
        let ordered = OrderedSession {
            miner,
            audience: parameters.me,
            job: parameters.job,
            attempt,
            client_certificate: parameters.identity.fingerprint(),
            server_certificate,
            service: parameters.service,
        };
        ordered
            .check_attestation(&stated, parameters.clock.now(), parameters.skew)
            .map_err(|mismatch| mismatch.to_string())?;
        let session = Self {
            id: stated.session,
            job: parameters.job,
            miner,
            service: parameters.service.clone(),
            attestation: envelope.to_text(),
            not_after: stated.not_after.min(parameters.until),
            client,
            scheme: stated.scheme,
            tolerance: ClockTolerance {
                skew: parameters.skew,
            },
            clock: SharedClock::clone(parameters.clock),
            proofs: Arc::new(Mutex::new(SessionProofs::open(
                ProofLedger::open(&envelope).map_err(|error| error.to_string())?,
            ))),
            under_way: TaskTracker::new(),
            healthy_answers: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
        };
        // A failing service and a wrong clock show here, before the session serves a client.
        session.check_health().await?;
        Ok(session)
    }

    /// The session's id.
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// The job as which the session runs.
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// The miner that attested the session.
    pub const fn miner(&self) -> MinerKey {
        self.miner
    }

    /// The service that the session's container runs.
    pub const fn service(&self) -> &Service {
        &self.service
    }

    /// The kind of executor on which the session runs.
    pub const fn class(&self) -> ExecutorClass {
        self.service.class
    }

    /// The miner's attestation: the text form of the envelope.
    pub fn attestation(&self) -> &str {
        &self.attestation
    }

    /// The last instant at which the session may serve.
    pub const fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// The endpoint's address: `host:port`.
    pub fn address(&self) -> &str {
        &self.client.peer().address
    }

    /// The attempt that runs the job.
    pub fn attempt(&self) -> AttemptId {
        self.proofs().ledger.attestation().attempt
    }

    /// Notes an answer that was proven and shows that the service is healthy: its status is no server error.
    pub fn note_healthy_answer(&self) {
        self.healthy_answers.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of answers that have shown that the service is healthy.
    pub fn healthy_answers(&self) -> u64 {
        self.healthy_answers.load(Ordering::Acquire)
    }

    /// Notes that this side ends the session, for no fault of the session's.
    pub fn mark_ending(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Whether this side ends the session, for no fault of the session's.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Sends a request and waits for the head of its response.
    ///
    /// # Errors
    /// No connection can be made, or it breaks.
    pub async fn send(&self, request: &SealedRequest) -> Result<SealedResponse, ClientError> {
        let sent = SentRequest {
            client: request.client,
            client_nonce: request.client_nonce,
            gateway_nonce: Some(request.gateway_nonce),
            method: request.method.as_str().to_owned(),
            path: request.path.clone(),
            input: SentRequest::digest_body(self.scheme, &request.body),
            at: self.clock.now(),
        };
        let awaited = self.await_proof(request.gateway_nonce);
        let response = self.client.send(to_http(request)).await?;
        let (report, received) = oneshot::channel();
        let report: ResponseReport = Box::new(move |response| {
            // A receiver that has gone does not need the report.
            let _ = report.send(response);
        });
        let clock = SharedClock::clone(&self.clock);
        Ok(SealedResponse {
            sent,
            response: CheckedBody::wrap(response, self.scheme, clock, report),
            received,
            awaited,
        })
    }

    /// A token to hold while a response is passed on and until its proof is checked. The session is not closed before.
    pub fn track_response(&self) -> TaskTrackerToken {
        self.under_way.token()
    }

    /// Waits until no response is being passed on.
    pub async fn wait_idle(&self) {
        self.under_way.close();
        self.under_way.wait().await;
    }

    /// The time at which the first byte since the last call left for the session.
    pub fn take_first_write(&self) -> Option<Instant> {
        self.client.take_first_write()
    }

    /// Sends the service's health check through the sealed endpoint.
    ///
    /// # Errors
    /// The service is not healthy, or its answer is not proven.
    pub async fn check_health(&self) -> Result<(), String> {
        self.check_path(&self.service.health, HEALTH_TIMEOUT).await
    }

    /// Starts the grader beside the engine and waits until it is healthy. Sessions on executors of a class that is
    /// graded have one.
    ///
    /// # Errors
    /// The grader does not start within `limit`, or its answer is not proven.
    pub async fn start_grader(&self, limit: Duration) -> Result<(), String> {
        self.check_path(GRADE_PATH, limit).await
    }

    /// Sends a GET of `path` and checks that the answer is successful and proven, all within `limit`.
    async fn check_path(&self, path: &str, limit: Duration) -> Result<(), String> {
        let request = SealedRequest {
            method: Method::GET,
            path: path.to_owned(),
            body: Bytes::new(),
            client: None,
            client_nonce: None,
            gateway_nonce: draw_nonce().map_err(|error| error.to_string())?,
        };
        let checking = async {
            let answer = self
                .send(&request)
                .await
                .map_err(|error| Causes(&error).to_string())?;
            let status = answer.response.status();
            let body = Limited::new(answer.response.into_body(), MAX_HEALTH_ANSWER)
                .collect()
                .await;
            drop(body.map_err(|error| format!("its health check broke off: {error}"))?);
            let received = answer
                .received
                .await
                .map_err(|_| "its health check was not seen to end".to_owned())?;
            self.check_proof(&received, &answer.sent)
                .await
                .map_err(|error| format!("its health check is not proven: {error}"))?;
            if status.is_success() {
                Ok(())
            } else {
                Err(format!("its health check answers {status}"))
            }
        };
        timeout(limit, checking)
            .await
            .unwrap_or_else(|_| Err("its health check does not answer".to_owned()))
    }

    fn await_proof(&self, nonce: RequestNonce) -> AwaitedProof {
        *self.proofs().awaited.entry(nonce).or_default() += 1;
        AwaitedProof {
            proofs: Arc::clone(&self.proofs),
            nonce,
        }
    }

    fn proofs(&self) -> MutexGuard<'_, SessionProofs> {
        self.proofs.lock()
    }
}

/// Draws 32 random bytes.
///
/// # Errors
/// The operating system has no randomness.
pub fn draw_nonce() -> Result<RequestNonce, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(RequestNonce::from_bytes(bytes))
}

/// The endpoint that a miner reports for its job. A name is resolved here, once: the address that is permitted is the
/// one that is dialled.
async fn find_peer(ready: StreamingJobReady, permits: AddressPermit<'_>) -> Result<SealedPeer, String> {
    let certificate = digest_of_pem(&ready.public_key).map_err(|error| error.to_string())?;
    let host = ready.ip.unwrap_or_default();
    let found = timeout(RESOLVE_LIMIT, lookup_host((host.as_str(), ready.port))).await;
    let found = found
        .map_err(|_| format!("the session's host {host} did not resolve in time"))?
        .map_err(|error| format!("the session's host {host} does not resolve: {error}"))?;
    let address = found
        .take(MAX_ADDRESSES)
        .find(|address| (permits.0)(&host, *address))
        .ok_or_else(|| {
            format!(
                "the session's host {host} is not on the public Internet, and dial.allow does not list it"
            )
        })?;
    Ok(SealedPeer {
        address: address.to_string(),
        certificate,
    })
}

/// Explains why there is no attestation, as a text for logs and for clients that wait.
fn explain_no_attestation(error: &ClientError) -> String {
    match error {
        ClientError::Connect(_) => {
            format!(
                "its endpoint cannot be reached as it was attested: {}",
                Causes(error)
            )
        }
        ClientError::Broken(_)
        | ClientError::NoDocument(_)
        | ClientError::Status(_)
        | ClientError::Statement(_) => {
            format!(
                "the miner cannot seal, so no user is served there: {}",
                Causes(error)
            )
        }
    }
}

fn to_http(request: &SealedRequest) -> Request<Full<Bytes>> {
    let mut http = Request::new(Full::new(request.body.clone()));
    *http.method_mut() = request.method.clone();
    *http.uri_mut() = request.path.parse().unwrap_or_default();
    let headers = http.headers_mut();
    if !request.body.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(GATEWAY_NONCE, hex_value(&request.gateway_nonce.hex()));
    if let Some(nonce) = &request.client_nonce {
        headers.insert(CLIENT_NONCE, hex_value(&nonce.hex()));
    }
    if let Some(client) = &request.client {
        headers.insert(CLIENT, hex_value(&client.hex()));
    }
    http
}

/// A header value of hex digits, which are always valid in one.
fn hex_value(digits: &str) -> HeaderValue {
    HeaderValue::from_str(digits).unwrap_or_else(|_| HeaderValue::from_static(""))
}
