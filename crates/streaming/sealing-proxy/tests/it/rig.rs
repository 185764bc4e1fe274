//! A session from end to end: an engine that a test writes byte by byte, the sealing proxy in front of it, and a
//! client.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use muster_identity::Keypair;
use muster_process::tls::TlsIdentity;
use muster_process::{SharedClock, SystemClock, Tasks, certificate};
use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{
    Attestation, ClockTolerance, Envelope, HashScheme, Price, ProofLedger, RequestNonce, ResponseProof,
    SessionId, StreamEnd, Text, seal,
};
use muster_sealed_client::{
    CheckedBody, ProofError, ReceivedResponse, SealedClient, SealedPeer, SentRequest,
};
use muster_sealing_proxy::socket::{JobSocket, SocketOwner};
use muster_sealing_proxy::{
    Endpoint, EngineAddress, GraderBackend, Limits, ProofSigner, SealingProxy, Upstream,
};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::oneshot;
use uuid::Uuid;

pub(crate) const BOUNDS: ClockTolerance = ClockTolerance {
    skew: Duration::from_secs(5),
};

/// Waits until a condition holds.
pub(crate) async fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    muster_testbed::until(what, async || condition()).await
}

/// An engine on a Unix socket that keeps the requests that it has read.
pub(crate) struct Engine {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) heard: Arc<Mutex<Vec<String>>>,
}

impl Engine {
    /// Reads each request whole and answers it by `talk`. The engine then closes the connection.
    pub(crate) fn new<F, Fut>(tasks: &Tasks, talk: F) -> Self
    where
        F: Fn(UnixStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::reading(tasks, true, talk)
    }

    /// The same, for an engine that answers before it has read anything unless `reads`.
    pub(crate) fn reading<F, Fut>(tasks: &Tasks, reads: bool, talk: F) -> Self
    where
        F: Fn(UnixStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("engine.sock")).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let talk = Arc::new(talk);
        let (kept, own) = (Arc::clone(&heard), tasks.clone());
        tasks.spawn("engine", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (kept, talk) = (Arc::clone(&kept), Arc::clone(&talk));
                own.spawn("engine connection", async move {
                    if reads {
                        let Some(request) = request(&mut stream).await else {
                            return;
                        };
                        kept.lock().unwrap().push(request);
                    }
                    talk(stream).await;
                });
            }
        });
        Self { folder, heard }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("engine.sock")
    }

    pub(crate) fn address(&self) -> EngineAddress {
        let socket = JobSocket::new(self.folder.path(), "engine.sock", SocketOwner::Trusted);
        EngineAddress::Socket(socket.unwrap())
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// Reads one request with its body.
pub(crate) async fn request(stream: &mut UnixStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let length = stream.read(&mut part).await.ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        if body.len() >= length {
            return Some(text);
        }
    }
}

/// A session with its client.
pub(crate) struct Rig {
    pub(crate) clock: SharedClock,
    pub(crate) proxy: Arc<SealingProxy>,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) address: SocketAddr,
    pub(crate) client: SealedClient,
    /// The certificate and the key of the client.
    pub(crate) identity: TlsIdentity,
    pub(crate) server: Digest,
}

/// The parameters of a session.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) limits: Limits,
    pub(crate) scheme: HashScheme,
    pub(crate) job: u128,
    /// The validity of the attestation in seconds from now.
    pub(crate) valid: i64,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            scheme: HashScheme::RawHttp,
            job: 2,
            valid: 3_600,
        }
    }
}

pub(crate) fn key() -> Keypair {
    Keypair::from_seed([7; 32])
}

pub(crate) fn attestation(
    key: &Keypair,
    now: Timestamp,
    kind: &Kind,
    server: Digest,
    client: Digest,
) -> Attestation {
    let text = |text: &str| Text::new(text).unwrap();
    Attestation {
        session: SessionId(Uuid::from_u128(1)),
        session_key: key.hotkey(),
        job: JobId::from_uuid(Uuid::from_u128(kind.job)),
        attempt: AttemptId::from_uuid(Uuid::from_u128(kind.job)),
        miner: MinerKey(Keypair::from_seed([8; 32]).hotkey()),
        audience: ValidatorKey(Keypair::from_seed([9; 32]).hotkey()),
        server_certificate: server,
        client_certificate: client,
        executor: text("executor"),
        address: text("127.0.0.1:1"),
        image: ImageId(Digest::of(b"image")),
        model: None,
        scheme: kind.scheme,
        price: Price::default(),
        not_before: Timestamp::from_secs(now.secs() - 1),
        not_after: Timestamp::from_secs(now.secs() + kind.valid),
    }
}

/// A response with its report.
pub(crate) struct ProvenAnswer {
    pub(crate) head: Parts,
    /// The body with the line that carries the proof.
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) received: ReceivedResponse,
    pub(crate) asked: SentRequest,
}

impl Rig {
    pub(crate) async fn new(tasks: Tasks, engine: EngineAddress, kind: Kind) -> Self {
        Self::with(tasks, engine, None, kind).await
    }

    /// The same, with a grader beside the engine.
    pub(crate) async fn with(
        tasks: Tasks,
        engine: EngineAddress,
        co_grader: Option<Arc<dyn GraderBackend>>,
        kind: Kind,
    ) -> Self {
        let clock: SharedClock = Arc::new(SystemClock::new());
        let server = certificate::make_self_signed(&["localhost".to_owned()]).unwrap();
        let own = certificate::make_self_signed(&["client".to_owned()]).unwrap();
        let (server_digest, client_digest) = (server.identity.fingerprint(), own.identity.fingerprint());
        let stated = attestation(&key(), clock.now(), &kind, server_digest, client_digest);
        let envelope = seal(&stated, &Keypair::from_seed([8; 32]));
        let signer = ProofSigner::new(key(), envelope, Arc::clone(&clock)).unwrap();
        let upstream = Upstream::new(engine, &kind.limits, &tasks);
        let proxy = SealingProxy::with_grader(signer, upstream, co_grader, kind.limits, tasks.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::open(
            listener,
            &server.identity,
            client_digest,
            Arc::clone(&proxy),
            Arc::clone(&clock),
        )
        .unwrap();
        let address = endpoint.address();
        let peer = SealedPeer {
            address: address.to_string(),
            certificate: server_digest,
        };
        let client = SealedClient::new(peer, &own.identity, &kind.limits, &tasks).unwrap();
        Self {
            clock,
            proxy,
            endpoint: Some(endpoint),
            address,
            client,
            identity: own.identity,
            server: server_digest,
        }
    }

    pub(crate) fn scheme(&self) -> HashScheme {
        self.proxy.signer().scheme()
    }

    pub(crate) fn ledger(&self) -> ProofLedger {
        ProofLedger::open(self.proxy.signer().attestation()).unwrap()
    }

    /// The request as it will be compared with its proof.
    pub(crate) fn asked(&self, request: &Request<Full<Bytes>>, body: &[u8]) -> SentRequest {
        let nonce = |name: &str| {
            let value = request.headers().get(name)?.to_str().ok()?;
            RequestNonce::from_hex(value)
        };
        SentRequest {
            client: nonce("muster-client").map(|nonce| Digest::from_bytes(*nonce.as_bytes())),
            client_nonce: nonce("muster-client-nonce"),
            gateway_nonce: nonce("muster-gateway-nonce"),
            method: request.method().to_string(),
            path: request.uri().to_string(),
            input: SentRequest::digest_body(self.scheme(), body),
            at: self.clock.now(),
        }
    }

    pub(crate) async fn ask(&self, request: http::request::Builder, body: &'static str) -> ProvenAnswer {
        muster_testbed::within("an answer", self.ask_at_length(request, body)).await
    }

    async fn ask_at_length(&self, request: http::request::Builder, body: &'static str) -> ProvenAnswer {
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let asked = self.asked(&request, body.as_bytes());
        let response = self.client.send(request).await.unwrap();
        let (report, reported) = oneshot::channel();
        let (head, body) = self.checked(response, report).into_parts();
        let collected = body.collect().await.unwrap();
        ProvenAnswer {
            head,
            trailers: collected.trailers().cloned(),
            body: collected.to_bytes(),
            received: reported.await.unwrap(),
            asked,
        }
    }

    pub(crate) fn checked<B>(
        &self,
        response: http::Response<B>,
        report: oneshot::Sender<ReceivedResponse>,
    ) -> http::Response<CheckedBody<B, impl FnOnce(ReceivedResponse) + use<B>>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        CheckedBody::wrap(response, self.scheme(), Arc::clone(&self.clock), move |checked| {
            let _ = report.send(checked);
        })
    }

    /// The proofs that the session keeps.
    pub(crate) fn signed(&self) -> Vec<ResponseProof> {
        let kept = self.proxy.signer().proofs(0, 1_000).proofs;
        let read = |(_, text): &(u64, Arc<str>)| Envelope::from_text(text).unwrap().statement().unwrap();
        kept.iter().map(read).collect()
    }

    pub(crate) fn ends(&self) -> Vec<StreamEnd> {
        self.signed().iter().map(|proof| proof.end).collect()
    }
}

impl ProvenAnswer {
    /// The proof, which must be valid.
    pub(crate) fn proven(&self, ledger: &mut ProofLedger) -> ResponseProof {
        self.verdict(ledger)
            .unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn verdict(&self, ledger: &mut ProofLedger) -> Result<ResponseProof, ProofError> {
        let (proof, _) = self.received.check_proof(&self.asked, ledger, BOUNDS)?;
        Ok(proof)
    }

    /// The body without the line that carries the proof.
    pub(crate) fn engines(&self) -> &[u8] {
        let line = b"\n: muster-proof ";
        let at = self.body.windows(line.len()).position(|window| window == line);
        at.map_or(&self.body, |at| &self.body[..at])
    }
}

impl std::fmt::Debug for ProvenAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?}", self.head, self.received)
    }
}

/// The head of a chunked event stream.
pub(crate) const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// One chunk with its framing.
pub(crate) fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}
