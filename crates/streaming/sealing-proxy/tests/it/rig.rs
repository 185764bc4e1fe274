//! A session from end to end: an engine that a test writes byte by byte, the seal in front of it, a pinned client.

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
    Attestation, Bounds, Envelope, HashScheme, Ledger, Nonce, Price, ResponseProof, SessionId, StreamEnd,
    Text,
};
use muster_sealing_proxy::socket::{JobSocket, Listener};
use muster_sealing_proxy::{
    Asked, Beside, Checked, CheckedBody, Endpoint, EngineAddress, Limits, Peer, Seal, SealedClient, Sealer,
    Unproven, Upstream,
};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

pub(crate) const BOUNDS: Bounds = Bounds {
    skew: Duration::from_secs(5),
};
/// No test waits longer for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for a condition that something else brings about.
pub(crate) async fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(met) = condition() {
                return met;
            }
            tokio::time::sleep(Duration::from_millis(2)).await; // polls until the condition holds
        }
    };
    timeout(DEADLINE, waiting)
        .await
        .unwrap_or_else(|_| panic!("never came: {what}"))
}

/// An engine on a Unix socket. What it has read of each request is kept.
pub(crate) struct Engine {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) heard: Arc<Mutex<Vec<String>>>,
}

impl Engine {
    /// Each request is read whole, then answered by `talk`; when that returns, the engine hangs up.
    pub(crate) fn new<F, Fut>(tasks: &Tasks, talk: F) -> Self
    where
        F: Fn(UnixStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::reading(tasks, true, talk)
    }

    /// The same, but for one that may answer before it has read anything.
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
        let socket = JobSocket::new(self.folder.path(), "engine.sock", Listener::Trusted);
        EngineAddress::Socket(socket.unwrap())
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// One request with its body.
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

/// The session.
pub(crate) struct Rig {
    pub(crate) clock: SharedClock,
    pub(crate) seal: Arc<Seal>,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) address: SocketAddr,
    pub(crate) client: SealedClient,
    /// The client's.
    pub(crate) identity: TlsIdentity,
    pub(crate) server: Digest,
}

/// What is special about a session.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) limits: Limits,
    pub(crate) scheme: HashScheme,
    pub(crate) job: u128,
    /// Seconds from now.
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

/// An answer, with what its checker saw.
pub(crate) struct Told {
    pub(crate) head: Parts,
    /// Our line included.
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) checked: Checked,
    pub(crate) asked: Asked,
}

impl Rig {
    pub(crate) async fn new(tasks: Tasks, engine: EngineAddress, kind: Kind) -> Self {
        Self::with(tasks, engine, None, kind).await
    }

    /// Likewise, with somebody beside the engine.
    pub(crate) async fn with(
        tasks: Tasks,
        engine: EngineAddress,
        beside: Option<Arc<dyn Beside>>,
        kind: Kind,
    ) -> Self {
        let clock: SharedClock = Arc::new(SystemClock::new());
        let server = certificate::make_self_signed(&["localhost".to_owned()]).unwrap();
        let own = certificate::make_self_signed(&["client".to_owned()]).unwrap();
        let (server_digest, client_digest) = (server.identity.fingerprint(), own.identity.fingerprint());
        let stated = attestation(&key(), clock.now(), &kind, server_digest, client_digest);
        let envelope = Envelope::new(&stated, |bytes| Keypair::from_seed([8; 32]).sign(bytes));
        let sealer = Sealer::new(key(), envelope, Arc::clone(&clock)).unwrap();
        let upstream = Upstream::new(engine, &kind.limits, &tasks);
        let seal = Seal::with(sealer, upstream, beside, kind.limits, tasks.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::open(
            listener,
            &server.identity,
            client_digest,
            Arc::clone(&seal),
            Arc::clone(&clock),
        )
        .unwrap();
        let address = endpoint.address();
        let peer = Peer {
            address: address.to_string(),
            certificate: server_digest,
        };
        let client = SealedClient::new(peer, &own.identity, &kind.limits, &tasks).unwrap();
        Self {
            clock,
            seal,
            endpoint: Some(endpoint),
            address,
            client,
            identity: own.identity,
            server: server_digest,
        }
    }

    pub(crate) fn scheme(&self) -> HashScheme {
        self.seal.sealer().scheme()
    }

    pub(crate) fn ledger(&self) -> Ledger {
        Ledger::open(self.seal.sealer().attestation()).unwrap()
    }

    /// What will be compared with the proof of this request.
    pub(crate) fn asked(&self, request: &Request<Full<Bytes>>, body: &[u8]) -> Asked {
        let nonce = |name: &str| {
            let value = request.headers().get(name)?.to_str().ok()?;
            Nonce::from_hex(value)
        };
        Asked {
            client_nonce: nonce("muster-client-nonce"),
            gateway_nonce: nonce("muster-gateway-nonce"),
            method: request.method().to_string(),
            path: request.uri().to_string(),
            input: Asked::input_of(self.scheme(), body),
            at: self.clock.now(),
        }
    }

    pub(crate) async fn ask(&self, request: http::request::Builder, body: &'static str) -> Told {
        timeout(DEADLINE, self.ask_at_length(request, body))
            .await
            .unwrap()
    }

    async fn ask_at_length(&self, request: http::request::Builder, body: &'static str) -> Told {
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let asked = self.asked(&request, body.as_bytes());
        let response = self.client.send(request).await.unwrap();
        let (report, reported) = oneshot::channel();
        let (head, body) = self.checked(response, report).into_parts();
        let collected = body.collect().await.unwrap();
        Told {
            head,
            trailers: collected.trailers().cloned(),
            body: collected.to_bytes(),
            checked: reported.await.unwrap(),
            asked,
        }
    }

    pub(crate) fn checked<B>(
        &self,
        response: http::Response<B>,
        report: oneshot::Sender<Checked>,
    ) -> http::Response<CheckedBody<B, impl FnOnce(Checked) + use<B>>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        CheckedBody::over(response, self.scheme(), Arc::clone(&self.clock), move |checked| {
            let _ = report.send(checked);
        })
    }

    /// Proofs that the session keeps, as it signed them.
    pub(crate) fn signed(&self) -> Vec<ResponseProof> {
        let kept = self.seal.sealer().proofs(0, 1_000).proofs;
        let read = |(_, text): &(u64, Arc<str>)| Envelope::from_text(text).unwrap().statement().unwrap();
        kept.iter().map(read).collect()
    }

    pub(crate) fn ends(&self) -> Vec<StreamEnd> {
        self.signed().iter().map(|proof| proof.end).collect()
    }
}

impl Told {
    /// The proof, which must be good.
    pub(crate) fn proven(&self, ledger: &mut Ledger) -> ResponseProof {
        self.verdict(ledger)
            .unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn verdict(&self, ledger: &mut Ledger) -> Result<ResponseProof, Unproven> {
        let (proof, _) = self.checked.verdict(&self.asked, ledger, BOUNDS)?;
        Ok(proof)
    }

    /// The body without our line.
    pub(crate) fn engines(&self) -> &[u8] {
        let line = b"\n: muster-proof ";
        let at = self.body.windows(line.len()).position(|window| window == line);
        at.map_or(&self.body, |at| &self.body[..at])
    }
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?}", self.head, self.checked)
    }
}

/// The head of a stream of events in chunks.
pub(crate) const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A chunk.
pub(crate) fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}
