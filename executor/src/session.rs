//! A streaming job's session: the program is reached in its container, its miner attests what it is, and what it answers goes
//! out through a seal, until the session is over and that is signed.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::Keypair;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks, certificate};
use muster_protocol::job::Fault;
use muster_protocol::wire::executor::{SealSession, SessionSealed};
use muster_protocol::wire::miner::{FromMiner, StreamingDetails};
use muster_protocol::{
    AttemptId, Digest, ErrorCode, HordeFailureReason, ImageId, JobStage, MinerKey, Timestamp, ValidatorKey,
};
use muster_response_proof::{Attestation, Envelope, HashScheme, Price, Sealable as _, SessionId, Text};
use muster_sealing_proxy::netns::Namespace;
use muster_sealing_proxy::socket::{JobSocket, Listener};
use muster_sealing_proxy::{Beside, Endpoint, EngineAddress, Limits, Seal, Sealer, Upstream};
use muster_websocket::session::Sender;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::attempt_state::{CLOSE_LIMIT, Failure};
use crate::co_grader::Grader;
use crate::config::StreamingSettings;
use crate::engine::{Engine, Running};
use crate::images::engine_failed;
use crate::lease_connection::Miner;
use crate::steps::Done;

/// Where ComputeHorde's streaming jobs answer, and what they answer there when they are ready.
const PORT: u16 = 8_000;
const HEALTH: &str = "/health";
/// Between two looks whether the program is there and answers, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long a program may take over one health check.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// How long the miner may take to attest.
const ATTEST_LIMIT: Duration = Duration::from_secs(30);
/// What is under way when a session ends has this long to be sent.
const GRACE: Duration = Duration::from_secs(5);

/// Everything that a session is opened with.
pub(crate) struct Opening {
    pub(crate) engine: Engine,
    /// The name of the container.
    pub(crate) container: String,
    /// The folder that it shares for its socket.
    pub(crate) folder: PathBuf,
    pub(crate) attempt: AttemptId,
    pub(crate) details: StreamingDetails,
    pub(crate) image: ImageId,
    pub(crate) miner: MinerKey,
    pub(crate) validator: ValidatorKey,
    /// How long it may serve.
    pub(crate) lifetime: Duration,
    pub(crate) settings: StreamingSettings,
    /// To ask a Muster miner, and to hear what it answers. Another miner attests nothing.
    pub(crate) attester: Option<(Sender<Miner>, oneshot::Receiver<SessionSealed>)>,
    /// What challenges the executor meanwhile, if it is to be challenged.
    pub(crate) beside: Option<Grader>,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
}

/// A session that is open.
#[derive(Debug)]
pub(crate) struct Open {
    endpoint: Endpoint,
    /// The certificate that it shows, PEM.
    pub(crate) certificate: String,
    /// How long it waits for requests; `None` for as long as it lives.
    idle: Option<Duration>,
    beside: Option<Grader>,
}

impl Open {
    pub(crate) fn port(&self) -> u16 {
        self.endpoint.address().port()
    }
}

/// Waits until the program answers, has the session attested, and opens it. Ends by itself only with a session or a failure.
pub(crate) async fn open(opening: Opening) -> Done {
    match opened(opening).await {
        Ok(open) => Done::Answers(Box::new(open)),
        Err(failure) => Done::Failed(failure),
    }
}

async fn opened(opening: Opening) -> Result<Open, Failure> {
    let limits = Limits {
        in_flight: opening.settings.max_requests,
        ..Limits::default()
    };
    let client = certificate::digest_of_pem(&opening.details.public_key).map_err(|error| {
        Failure::horde(
            HordeFailureReason::StreamingFailed,
            JobStage::StreamingStartup,
            format!("the client's certificate cannot be used: {error}"),
        )
        .blame(Fault::User)
    })?;
    let running = started(&opening).await?;
    let upstream = Upstream::new(address(&opening, &running).await?, &limits, &opening.tasks);
    let health = opening
        .details
        .muster
        .as_ref()
        .map_or(HEALTH, |terms| terms.health.as_str());
    answers(&upstream, health, &opening.clock).await;

    let listener = listen(&opening.settings).await?;
    let port = listener.local_addr().map_err(|error| unfit(&error))?.port();
    let names = ["localhost".to_owned()]
        .into_iter()
        .chain(opening.details.executor_ip.clone())
        .collect::<Vec<_>>();
    let made = certificate::make_self_signed(&names).map_err(|error| unfit(&error))?;
    let key = Keypair::generate();
    let stated = statement(&opening, &key, port, made.identity.fingerprint(), client)?;
    let idle = opening
        .details
        .muster
        .as_ref()
        .map(|_| Duration::from_secs(opening.settings.idle_s))
        .filter(|idle| !idle.is_zero());
    let Opening {
        attester,
        beside,
        clock,
        tasks,
        ..
    } = opening;
    let attestation = match attester {
        Some((mouth, answer)) => attest(&stated, mouth, answer).await?,
        // Nobody believes it, and nobody who would need to is there: the job answers its user directly.
        None => Envelope::new(&stated, |bytes| key.sign(bytes)),
    };
    let sealer = Sealer::new(key, attestation, Arc::clone(&clock)).map_err(|error| unfit(&error))?;
    let asked = beside.clone().map(|grader| Arc::new(grader) as Arc<dyn Beside>);
    let seal = Seal::with(sealer, upstream, asked, limits, tasks);
    let endpoint =
        Endpoint::open(listener, &made.identity, client, seal, clock).map_err(|error| unfit(&error))?;
    Ok(Open {
        endpoint,
        certificate: made.pem,
        idle,
        beside,
    })
}

/// Waits until the container runs.
async fn started(opening: &Opening) -> Result<Running, Failure> {
    let mut pause = FIRST_PAUSE;
    loop {
        let running = opening.engine.running(&opening.container).await;
        if let Some(running) = running.map_err(|error| engine_failed(&error))? {
            return Ok(running);
        }
        opening.clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How its program is reached.
async fn address(opening: &Opening, running: &Running) -> Result<EngineAddress, Failure> {
    let terms = opening.details.muster.as_ref();
    if let Some(path) = &opening.settings.impostor
        && let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
    {
        let socket = JobSocket::new(folder, name, Listener::Trusted).map_err(|error| unfit(&error))?;
        return Ok(EngineAddress::Socket(socket));
    }
    if let Some(name) = terms.and_then(|terms| terms.socket.as_deref()) {
        let listener = Listener::Container(running.id.clone());
        let socket = JobSocket::new(&opening.folder, name, listener).map_err(|error| unfit(&error))?;
        return Ok(EngineAddress::Socket(socket));
    }
    let port = terms.and_then(|terms| terms.port).unwrap_or(PORT);
    let namespace = Namespace::of_process(running.pid).map_err(|error| unfit(&error))?;
    // The process was there when it was looked up; is it still the container's?
    let now = opening.engine.running(&opening.container).await;
    if now.map_err(|error| engine_failed(&error))?.as_ref() != Some(running) {
        return Err(streaming_failed("the container ended before it answered"));
    }
    match namespace.connect(port, PROBE_LIMIT).await {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(streaming_failed(
            "the executor may not enter the job's network namespace: it needs CAP_SYS_ADMIN, or an image with a socket",
        )),
        Ok(_) | Err(_) => Ok(EngineAddress::Namespace(namespace, port)),
    }
}

/// Waits until the program answers its health check with 200.
async fn answers(upstream: &Upstream, path: &str, clock: &SharedClock) {
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    loop {
        let seen = match upstream.probe(path, PROBE_LIMIT).await {
            Ok(status) if status.as_u16() == 200 => return,
            Ok(status) => format!("it answers {status}"),
            Err(error) => Causes(&error).to_string(),
        };
        if seen != said {
            tracing::info!(path, seen, "the streaming job is not ready");
            said = seen;
        }
        clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn listen(settings: &StreamingSettings) -> Result<TcpListener, Failure> {
    let mut last = None;
    for port in settings.first_port..=settings.last_port.max(settings.first_port) {
        match TcpListener::bind(SocketAddr::new(settings.address, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(String::new, |error| format!(": {error}"));
    Err(streaming_failed(format!("no port of [streaming] is free{why}")))
}

fn statement(
    opening: &Opening,
    key: &Keypair,
    port: u16,
    server: Digest,
    client: Digest,
) -> Result<Attestation, Failure> {
    let now = opening.clock.now();
    let terms = opening.details.muster.as_ref();
    if let Some(terms) = terms.filter(|terms| terms.image != opening.image) {
        let message = format!(
            "the session is to be of the image {}, and {} runs",
            terms.image, opening.image
        );
        return Err(streaming_failed(message)
            .coded(ErrorCode::SessionUnattested)
            .blame(Fault::Validator));
    }
    let scheme = match terms {
        None => HashScheme::RawHttp,
        Some(terms) => HashScheme::from_name(&terms.scheme).ok_or_else(|| {
            streaming_failed(format!(
                "this executor does not know the hash scheme {:?}",
                terms.scheme
            ))
            .coded(ErrorCode::SessionUnattested)
        })?,
    };
    let host = opening.details.executor_ip.as_deref().unwrap_or("localhost");
    let text = |text: String| Text::new(text).map_err(|error| unfit(&error));
    Ok(Attestation {
        session: SessionId(Uuid::new_v4()),
        session_key: key.hotkey(),
        job: opening.details.job_of(opening.attempt),
        attempt: opening.attempt,
        miner: opening.miner,
        audience: opening.validator,
        server_certificate: server,
        client_certificate: client,
        executor: text(host.to_owned())?,
        address: text(at(host, port))?,
        image: opening.image,
        model: terms.and_then(|terms| terms.weights),
        scheme,
        price: terms.map_or_else(Price::default, |terms| Price {
            input: terms.input_price,
            output: terms.output_price,
        }),
        not_before: now,
        // What is under way when its time is over is signed while it closes.
        not_after: now.plus(opening.lifetime).plus(CLOSE_LIMIT),
    })
}

fn at(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

/// The miner's signature over the statement.
async fn attest(
    stated: &Attestation,
    mouth: Sender<Miner>,
    answer: oneshot::Receiver<SessionSealed>,
) -> Result<Envelope<Attestation>, Failure> {
    let unattested = |why: &str| {
        streaming_failed(format!("the miner does not attest the session: {why}"))
            .coded(ErrorCode::SessionUnattested)
    };
    let ask = SealSession {
        job_uuid: stated.attempt,
        statement: STANDARD.encode(stated.signed_bytes()),
    };
    let asked = mouth.send(&FromMiner::MusterSealSession(Box::new(ask))).await;
    asked.map_err(|error| unattested(&Causes(&error).to_string()))?;
    let answered = timeout(ATTEST_LIMIT, answer).await;
    let Ok(Ok(sealed)) = answered else {
        return Err(unattested("it does not answer"));
    };
    let Some(text) = sealed.attestation else {
        return Err(unattested(&sealed.refusal.unwrap_or_default()));
    };
    let envelope: Envelope<Attestation> =
        Envelope::from_text(&text).map_err(|error| unattested(&error.to_string()))?;
    if envelope.signed_bytes() != stated.signed_bytes() {
        return Err(unattested("it signed something else"));
    }
    if !muster_identity::verify(&stated.miner.0, envelope.signed_bytes(), envelope.signature()) {
        return Err(unattested("the signature is not its hotkey's"));
    }
    Ok(envelope)
}

/// Serves until the session is over: by `end`, by its client's word, or for want of requests. What it signed last is handed
/// on.
pub(crate) async fn serve(
    open: Open,
    end: CancellationToken,
    called_off: CancellationToken,
    clock: SharedClock,
) -> Done {
    let sealer = Arc::clone(open.endpoint.seal().sealer());
    tokio::select! {
        () = end.cancelled() => {}
        () = called_off.cancelled() => {}
        () = sealer.close_begun() => {}
        () = idle(&sealer, open.idle, &clock) => tracing::info!("nobody asks the session anything"),
        () = rest(open.beside.as_ref()) => {}
    }
    open.endpoint.close(GRACE).await;
    if let Some(grader) = &open.beside {
        grader.close().await;
    }
    let close = sealer.close();
    tracing::info!(responses = sealer.signed(), "the session is closed");
    Done::SessionOver(close.to_text())
}

/// Never ends.
async fn rest(beside: Option<&Grader>) {
    match beside {
        Some(grader) => grader.rest().await,
        None => std::future::pending().await,
    }
}

/// Ends once nothing has been asked for so long.
async fn idle(sealer: &Sealer, limit: Option<Duration>, clock: &SharedClock) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    let mut quiet_since: Timestamp = clock.now();
    let mut signed = sealer.signed();
    loop {
        clock.sleep(limit / 8).await;
        if sealer.under_way() > 0 || sealer.signed() != signed {
            signed = sealer.signed();
            quiet_since = clock.now();
        } else if clock.now().since(quiet_since) >= limit {
            return;
        }
    }
}

fn streaming_failed(message: impl Into<String>) -> Failure {
    Failure::horde(
        HordeFailureReason::StreamingFailed,
        JobStage::StreamingStartup,
        message,
    )
}

/// This machine cannot do it, for no fault of the job.
fn unfit(error: &(dyn std::error::Error + 'static)) -> Failure {
    streaming_failed(Causes(error).to_string())
}
