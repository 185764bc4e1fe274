//! The session of a streaming job. The executor waits until the program answers, has the miner attest who serves
//! what, and serves the program's answers through a seal until the session is over and its close is signed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_containers::docker_engine::{ContainerEngine, RunningContainer};
use muster_identity::Keypair;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks, certificate};
use muster_protocol::job::Fault;
use muster_protocol::wire::executor::{SealSession, SessionSealed};
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::wire::miner::StreamingDetails;
use muster_protocol::{
    AttemptId, Digest, ErrorCode, HordeFailureReason, ImageId, JobStage, MinerKey, Timestamp, ValidatorKey,
};
use muster_response_proof::{Attestation, Envelope, HashScheme, Price, Sealable as _, SessionId, Text, seal};
use muster_sealing_proxy::netns::NetworkNamespace;
use muster_sealing_proxy::socket::{JobSocket, SocketOwner};
use muster_sealing_proxy::{
    Endpoint, EngineAddress, GraderBackend, Limits, ProofSigner, SealingProxy, Upstream,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::attempt_state::{AttemptFailure, CLOSE_LIMIT};
use crate::co_grader::CoGrader;
use crate::config::StreamingSettings;
use crate::images::engine_failed;
use crate::miner_link::MinerOutlet;
use crate::proof_reports::ProofReports;

/// The port and the path at which ComputeHorde's streaming jobs answer their health check.
const PORT: u16 = 8_000;
const HEALTH: &str = "/health";
/// The pauses between two looks whether the program is there and answers: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long a program may take over one health check.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// How long the miner may take to attest.
const ATTEST_LIMIT: Duration = Duration::from_secs(30);
/// How long answers under way may still be sent when a session ends.
const GRACE: Duration = Duration::from_secs(5);

/// Asks a Muster miner for its attestation, and receives it.
pub(crate) type Attester = (MinerOutlet, oneshot::Receiver<SessionSealed>);

/// The facts with which a session is opened.
pub(crate) struct SessionSetup {
    pub(crate) engine: ContainerEngine,
    /// The name of the job's container.
    pub(crate) container: String,
    /// The folder that the container shares for its socket.
    pub(crate) folder: PathBuf,
    pub(crate) attempt: AttemptId,
    pub(crate) details: StreamingDetails,
    pub(crate) image: ImageId,
    pub(crate) miner: MinerKey,
    pub(crate) validator: ValidatorKey,
    /// How long the session may serve.
    pub(crate) lifetime: Duration,
    pub(crate) settings: StreamingSettings,
    /// `None` for a miner that is not Muster: it attests nothing.
    pub(crate) attester: Option<Attester>,
    /// Answers the validator's challenges while the session serves; `None` if the validator will send none.
    pub(crate) co_grader: Option<CoGrader>,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
}

/// A session that is open.
#[derive(Debug)]
pub(crate) struct OpenSession {
    endpoint: Endpoint,
    /// The certificate that the session shows its client, PEM.
    pub(crate) certificate: String,
    /// Without a request for this long the session is over; `None` for no such limit.
    idle: Option<Duration>,
    co_grader: Option<CoGrader>,
}

impl OpenSession {
    pub(crate) fn port(&self) -> u16 {
        self.endpoint.address().port()
    }
}

/// Waits until the program answers, has the session attested, and opens it. Waits for ever for a program that never
/// answers.
///
/// # Errors
/// The program cannot be reached, the miner does not attest the session, or this machine cannot serve it.
pub(crate) async fn open(setup: SessionSetup) -> Result<OpenSession, AttemptFailure> {
    let limits = Limits {
        in_flight: setup.settings.max_requests,
        ..Limits::default()
    };
    let client = certificate::digest_of_pem(&setup.details.public_key).map_err(|error| {
        AttemptFailure::horde(
            HordeFailureReason::StreamingFailed,
            JobStage::StreamingStartup,
            format!("the client's certificate cannot be used: {error}"),
        )
        .blame(Fault::User)
    })?;
    let upstream = reach_program(&setup, &limits).await?;

    let listener = listen(&setup.settings).await?;
    let port = listener.local_addr().map_err(|error| unfit(&error))?.port();
    let names = ["localhost".to_owned()]
        .into_iter()
        .chain(setup.details.executor_ip.clone())
        .collect::<Vec<_>>();
    let made = certificate::make_self_signed(&names).map_err(|error| unfit(&error))?;
    let key = Keypair::generate();
    let statement = make_statement(&setup, &key, port, made.identity.fingerprint(), client)?;
    let idle = setup
        .details
        .muster
        .as_ref()
        .map(|_| Duration::from_secs(setup.settings.idle_s))
        .filter(|idle| !idle.is_zero());
    let SessionSetup {
        attester,
        co_grader,
        clock,
        tasks,
        ..
    } = setup;
    let attestation = match attester {
        Some((miner, answer)) => attest(&statement, miner, answer).await?,
        // The job answers its user directly, and the user needs no attestation: the session signs for itself.
        None => seal(&statement, &key),
    };
    let sealer = ProofSigner::new(key, attestation, Arc::clone(&clock)).map_err(|error| unfit(&error))?;
    let beside = co_grader
        .clone()
        .map(|grader| Arc::new(grader) as Arc<dyn GraderBackend>);
    let seal = SealingProxy::with_grader(sealer, upstream, beside, limits, tasks);
    let endpoint =
        Endpoint::open(listener, &made.identity, client, seal, clock).map_err(|error| unfit(&error))?;
    Ok(OpenSession {
        endpoint,
        certificate: made.pem,
        idle,
        co_grader,
    })
}

/// Waits until the program runs and answers its health check.
async fn reach_program(setup: &SessionSetup, limits: &Limits) -> Result<Upstream, AttemptFailure> {
    let running = wait_until_running(setup).await?;
    let upstream = Upstream::new(find_address(setup, &running).await?, limits, &setup.tasks);
    let terms = setup.details.muster.as_ref();
    let health = terms.map_or(HEALTH, |terms| terms.health.as_str());
    wait_until_healthy(&upstream, health, &setup.clock).await;
    Ok(upstream)
}

/// Waits until the container runs.
async fn wait_until_running(setup: &SessionSetup) -> Result<RunningContainer, AttemptFailure> {
    let mut pause = FIRST_PAUSE;
    loop {
        let running = setup.engine.find_running(&setup.container).await;
        if let Some(running) = running.map_err(|error| engine_failed(&error))? {
            return Ok(running);
        }
        setup.clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How the program is reached: at a socket in its folder, or at a port inside its network namespace.
async fn find_address(
    setup: &SessionSetup,
    running: &RunningContainer,
) -> Result<EngineAddress, AttemptFailure> {
    let terms = setup.details.muster.as_ref();
    if let Some(name) = terms.and_then(|terms| terms.socket.as_deref()) {
        let listener = SocketOwner::Container(running.id.clone());
        let socket = JobSocket::new(&setup.folder, name, listener).map_err(|error| unfit(&error))?;
        return Ok(EngineAddress::Socket(socket));
    }
    let port = terms.and_then(|terms| terms.port).unwrap_or(PORT);
    let namespace = NetworkNamespace::of_process(running.pid).map_err(|error| unfit(&error))?;
    // The process id may have been reused since it was looked up: the container must still have it.
    let now = setup.engine.find_running(&setup.container).await;
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
async fn wait_until_healthy(upstream: &Upstream, path: &str, clock: &SharedClock) {
    let mut pause = FIRST_PAUSE;
    let mut last = String::new();
    loop {
        let found = match upstream.probe(path, PROBE_LIMIT).await {
            Ok(status) if status.as_u16() == 200 => return,
            Ok(status) => format!("it answers {status}"),
            Err(error) => Causes(&error).to_string(),
        };
        if found != last {
            tracing::info!(path, found, "the streaming job is not ready");
            last = found;
        }
        clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens on the first free port of the configured range.
async fn listen(settings: &StreamingSettings) -> Result<TcpListener, AttemptFailure> {
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

/// The statement that the miner must sign: who serves what to whom, at which price and until when.
fn make_statement(
    setup: &SessionSetup,
    key: &Keypair,
    port: u16,
    server: Digest,
    client: Digest,
) -> Result<Attestation, AttemptFailure> {
    let now = setup.clock.now();
    let terms = setup.details.muster.as_ref();
    if let Some(terms) = terms.filter(|terms| terms.image != setup.image) {
        let message = format!(
            "the session must run the image {}, and the job runs {}",
            terms.image, setup.image
        );
        return Err(streaming_failed(message)
            .with_code(ErrorCode::SessionUnattested)
            .blame(Fault::Validator));
    }
    let scheme = match terms {
        None => HashScheme::RawHttp,
        Some(terms) => HashScheme::from_name(&terms.scheme).ok_or_else(|| {
            streaming_failed(format!(
                "this executor does not know the hash scheme {:?}",
                terms.scheme
            ))
            .with_code(ErrorCode::SessionUnattested)
        })?,
    };
    let host = setup.details.executor_ip.as_deref().unwrap_or("localhost");
    let text = |text: String| Text::new(text).map_err(|error| unfit(&error));
    Ok(Attestation {
        session: SessionId(Uuid::new_v4()),
        session_key: key.hotkey(),
        job: setup.details.job_of(setup.attempt),
        attempt: setup.attempt,
        miner: setup.miner,
        audience: setup.validator,
        server_certificate: server,
        client_certificate: client,
        executor: text(host.to_owned())?,
        address: text(join_host_port(host, port))?,
        image: setup.image,
        model: terms.and_then(|terms| terms.weights),
        scheme,
        price: terms.map_or_else(Price::default, |terms| Price {
            input: terms.input_price,
            output: terms.output_price,
        }),
        not_before: now,
        // Answers under way at the end of its time are signed while the session closes.
        not_after: now.plus(setup.lifetime).plus(CLOSE_LIMIT),
    })
}

/// `host:port`, with brackets around an IPv6 address.
fn join_host_port(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

/// Has the miner sign the statement, and checks its signature.
async fn attest(
    statement: &Attestation,
    mut miner: MinerOutlet,
    answer: oneshot::Receiver<SessionSealed>,
) -> Result<Envelope<Attestation>, AttemptFailure> {
    let unattested = |why: &str| {
        streaming_failed(format!("the miner does not attest the session: {why}"))
            .with_code(ErrorCode::SessionUnattested)
    };
    let ask = SealSession {
        job_uuid: statement.attempt,
        statement: STANDARD.encode(statement.signed_bytes()),
    };
    let ask = ExecutorToMiner::MusterSealSession(Box::new(ask));
    // A connection that is lost takes the question or its answer with it, so the question is asked on each anew.
    let asking = async { while miner.send(&ask).await.is_ok() && miner.changed().await.is_ok() {} };
    let answered = tokio::select! {
        answered = timeout(ATTEST_LIMIT, answer) => answered,
        () = asking => return Err(unattested("the attempt has ended")),
    };
    let Ok(Ok(sealed)) = answered else {
        return Err(unattested("it does not answer"));
    };
    let Some(text) = sealed.attestation else {
        return Err(unattested(&sealed.refusal.unwrap_or_default()));
    };
    let envelope: Envelope<Attestation> =
        Envelope::from_text(&text).map_err(|error| unattested(&error.to_string()))?;
    if envelope.signed_bytes() != statement.signed_bytes() {
        return Err(unattested("it signed something else"));
    }
    if !muster_identity::verify(&statement.miner.0, envelope.signed_bytes(), envelope.signature()) {
        return Err(unattested("the signature is not its hotkey's"));
    }
    Ok(envelope)
}

/// Serves a session until `end` or `called_off` is cancelled, its client closes it, or it had no request for too
/// long. A Muster miner receives the proofs that the session signs. Returns the signed close.
pub(crate) async fn serve(
    open: OpenSession,
    end: CancellationToken,
    called_off: CancellationToken,
    miner: Option<MinerOutlet>,
    clock: SharedClock,
) -> String {
    let sealer = Arc::clone(open.endpoint.proxy().signer());
    let mut reports = ProofReports::new(Arc::clone(&sealer), miner);
    tokio::select! {
        () = end.cancelled() => {}
        () = called_off.cancelled() => {}
        () = sealer.wait_closing() => {}
        () = wait_until_idle(&sealer, open.idle, &clock) => tracing::info!("the session had no request for too long"),
        () = remove_idle_grader(open.co_grader.as_ref()) => {}
        () = reports.run(&clock) => {}
    }
    open.endpoint.close(GRACE).await;
    if let Some(grader) = &open.co_grader {
        grader.close().await;
    }
    let close = sealer.close();
    reports.finish().await;
    tracing::info!(responses = sealer.signed(), "the session is closed");
    close.to_text()
}

/// Removes the co-grader whenever it is idle. Never ends.
async fn remove_idle_grader(co_grader: Option<&CoGrader>) {
    match co_grader {
        Some(grader) => grader.remove_when_idle().await,
        None => std::future::pending().await,
    }
}

/// Waits until the session has had no request for `limit`.
async fn wait_until_idle(sealer: &ProofSigner, limit: Option<Duration>, clock: &SharedClock) {
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

fn streaming_failed(message: impl Into<String>) -> AttemptFailure {
    AttemptFailure::horde(
        HordeFailureReason::StreamingFailed,
        JobStage::StreamingStartup,
        message,
    )
}

/// The failure of a machine that cannot serve a session, with no fault of the job.
fn unfit(error: &(dyn std::error::Error + 'static)) -> AttemptFailure {
    streaming_failed(Causes(error).to_string())
}
