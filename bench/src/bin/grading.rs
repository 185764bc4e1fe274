//! Grading: how far the first bytes of a thousand challenges lie apart, and a whole batch of ten thousand executors.
//!
//! `MUSTER_BENCH_MINERS` (default 256) miners of 40 executors are in the batch. Both ends run on this machine, so the
//! challenged share its cores with the validator.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request};
use muster_bench::streams::{answer_on_port, quantile};
use muster_bench::{Direction, Report, Row};
use muster_grading::ObservationKind;
use muster_grading::batch::{Batch, BatchAction, BatchEvent, BatchRules};
use muster_grading::batch_file::ProofEvidence;
use muster_grading::batch_plan::{Announcement, BatchBounds, BatchPlan, draw_batch};
use muster_grading::grade_spec::{GradeSpec, ProofShape, Trial};
use muster_grading::judgement::Judgement;
use muster_grading::trial_result::TrialResult;
use muster_grading_runner::conversation::TimedConversation;
use muster_grading_runner::transport::{Transport, TransportReply};
use muster_hardware_proof::InstructionSet;
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce};
use muster_hardware_proof::conversation::{
    ExecutorCommand, ExecutorConversation, ProverLimits, ValidatorConversation,
};
use muster_hardware_proof::grade::Components;
use muster_hardware_proof::prover::{CpuProver, NoObserver, perform_task};
use muster_identity::Keypair;
use muster_process::{SharedClock, SystemClock, Tasks, certificate};
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey,
};
use muster_response_proof::{Attestation, HashScheme, Price, SessionId, Text, seal};
use muster_sealed_client::{SealedClient, SealedPeer};
use muster_sealing_proxy::netns::NetworkNamespace;
use muster_sealing_proxy::{Endpoint, EngineAddress, Limits, ProofSigner, SealingProxy, Upstream};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use uuid::Uuid;

/// Executors at the barrier.
const WAITING: usize = 1_000;
/// How often the barrier opens.
const ROUNDS: usize = 9;
const OF_ONE: u32 = 40;
const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
const CAPS: ProverLimits = ProverLimits {
    log2_n: 10,
    memory_bytes: 1 << 22,
    work: 64,
    read_bytes: 1 << 34,
};

fn main() -> Result<()> {
    muster_process::tls::install_provider();
    let miners = std::env::var("MUSTER_BENCH_MINERS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(256);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows = runtime.block_on(barrier())?;
    let (more, notes) = runtime.block_on(batch(miners))?;
    rows.extend(more);
    Report { rows, notes }.print()
}

// === the barrier ===

/// Sealed lines to `WAITING` executors, all challenged at one word; what each socket reports of its first byte.
async fn barrier() -> Result<Vec<Row>> {
    let tasks = Tasks::new();
    let (address, server, made) = endpoint(&tasks).await?;
    let (told, mut stamps) = mpsc::unbounded_channel();
    let mut words = Vec::new();
    for _ in 0..WAITING {
        let peer = SealedPeer {
            address: address.clone(),
            certificate: server,
        };
        let client = SealedClient::new(peer, &made.identity, &Limits::default(), &tasks)?;
        let (word, mut heard) = mpsc::unbounded_channel::<()>();
        words.push(word);
        let told = told.clone();
        tasks.spawn("executor", async move {
            while heard.recv().await.is_some() {
                let _ = client.take_first_write();
                let mut request = Request::new(Full::new(Bytes::from_static(&[0; 188])));
                *request.method_mut() = Method::POST;
                *request.uri_mut() = "/v1/grade".parse().unwrap_or_default();
                let handed_over = Instant::now();
                let answer = client.send(request).await;
                let sent = client.take_first_write();
                let whole = match answer {
                    Ok(answer) => answer.into_body().collect().await.is_ok(),
                    Err(_) => false,
                };
                let _ = told.send((handed_over, sent.filter(|_| whole)));
            }
        });
    }
    let (mut p99, mut own) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        for word in &words {
            word.send(())?;
        }
        let (mut sent, mut late) = (Vec::new(), Vec::new());
        for _ in 0..WAITING {
            let (handed_over, at) = stamps.recv().await.context("nobody answers")?;
            let at = at.context("an executor was not reached")?;
            sent.push(at);
            late.push(at.duration_since(handed_over).as_secs_f64() * 1e3);
        }
        let first = sent.iter().min().copied().context("no stamps")?;
        let after: Vec<f64> = sent
            .iter()
            .map(|at| at.duration_since(first).as_secs_f64() * 1e3)
            .collect();
        // The first round makes the connections.
        if round > 0 {
            p99.extend(quantile(&after, 0.99));
            own.extend(quantile(&late, 0.99));
        }
    }
    tasks.shutdown();
    let row = |what: &str, samples| Row::alone(what, "ms", Direction::LowerIsBetter, samples);
    Ok(vec![
        row(
            "first bytes of 1,000 challenges over TLS after the first of them, P99",
            p99,
        )
        .target(1_000.0),
        row(
            "of it in a grade: from the request's handing over to its first byte, not measured as the executor's, P99",
            own,
        ),
    ])
}

/// A sealed endpoint that answers anything with a few bytes.
async fn endpoint(tasks: &Tasks) -> Result<(String, Digest, certificate::SelfSigned)> {
    let clock: SharedClock = Arc::new(SystemClock::new());
    let names = ["localhost".to_owned()];
    let (server, client) = (
        certificate::make_self_signed(&names)?,
        certificate::make_self_signed(&names)?,
    );
    let engine = TcpListener::bind("127.0.0.1:0").await?;
    let port = engine.local_addr()?.port();
    let serving = tasks.clone();
    tasks.spawn("engine", async move {
        let _ = answer_on_port(engine, serving).await;
    });
    let limits = Limits {
        in_flight: 2 * WAITING,
        connections: 2 * WAITING,
        ..Limits::default()
    };
    let key = Keypair::generate();
    let stated = attestation(&key, server.identity.fingerprint(), client.identity.fingerprint())?;
    let sealer = ProofSigner::new(key.clone(), seal(&stated, &key), Arc::clone(&clock))?;
    let own = i32::try_from(std::process::id())?;
    let upstream = EngineAddress::Namespace(NetworkNamespace::of_process(own)?, port);
    let upstream = Upstream::new(upstream, &limits, tasks);
    let seal = SealingProxy::new(sealer, upstream, limits, tasks.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let fingerprint = client.identity.fingerprint();
    let endpoint = Endpoint::open(listener, &server.identity, fingerprint, seal, clock)?;
    let address = endpoint.address().to_string();
    tasks.spawn("endpoint", async move {
        std::future::pending::<()>().await;
        drop(endpoint);
    });
    Ok((address, server.identity.fingerprint(), client))
}

fn attestation(key: &Keypair, server: Digest, client: Digest) -> Result<Attestation> {
    Ok(Attestation {
        session: SessionId(Uuid::from_u128(1)),
        session_key: key.hotkey(),
        job: JobId::from_uuid(Uuid::from_u128(2)),
        attempt: AttemptId::from_uuid(Uuid::from_u128(2)),
        miner: MinerKey(key.hotkey()),
        audience: ValidatorKey(key.hotkey()),
        server_certificate: server,
        client_certificate: client,
        executor: Text::new("localhost".to_owned())?,
        address: Text::new("localhost:1".to_owned())?,
        image: ImageId(Digest::of(b"image")),
        model: None,
        scheme: HashScheme::RawHttp,
        price: Price::default(),
        not_before: Timestamp::from_secs(0),
        not_after: Timestamp::from_secs(4_000_000_000),
    })
}

// === the batch ===

/// An executor that proves honestly, holding nothing between two messages: what it would hold is proven again.
struct Honest {
    said: Mutex<Vec<Vec<u8>>>,
    cores: Arc<Semaphore>,
}

impl Transport for Honest {
    fn send<'a>(
        &'a self,
        message: Bytes,
        begun: Box<dyn FnOnce(Instant) -> usize + Send + 'a>,
    ) -> BoxFuture<'a, TransportReply> {
        Box::pin(async move {
            begun(Instant::now());
            let history = {
                let mut said = self.said.lock();
                if message.get(1) == Some(&1) {
                    said.clear();
                }
                said.push(message.to_vec());
                said.clone()
            };
            let Ok(_core) = self.cores.acquire().await else {
                return TransportReply::Failed("over".to_owned());
            };
            let proving = tokio::task::spawn_blocking(move || prove(&history));
            match proving.await {
                Ok(Ok(bytes)) => TransportReply::Message(bytes, Instant::now(), None),
                Ok(Err(error)) => TransportReply::Failed(error.to_string()),
                Err(error) => TransportReply::Failed(error.to_string()),
            }
        })
    }
}

/// The answer to the last of these messages.
fn prove(messages: &[Vec<u8>]) -> Result<Vec<u8>> {
    let mut executor = ExecutorConversation::new(CAPS);
    let mut prover = CpuProver::new(InstructionSet::best(), NonZeroUsize::MIN);
    let mut answer = Vec::new();
    for message in messages {
        let ExecutorCommand::Run(task) = executor.receive(message)? else {
            bail!("no work")
        };
        let output = perform_task(&mut prover, &task, &NoObserver)?;
        let ExecutorCommand::Send(bytes) = executor.complete_task(&output)? else {
            bail!("no message")
        };
        answer = bytes;
    }
    Ok(answer)
}

/// Small enough to be proven ten thousand times here, with as many draws as a real class has.
fn course() -> Result<GradeSpec> {
    let hour = 3_600_000_000;
    let trial = |shape| Trial {
        shape,
        fill_us: hour,
        commit_us: hour,
        open_us: hour,
    };
    let mut course = GradeSpec::for_class(CLASS).context("a course")?;
    // All prove at once on few cores: what is shown is that everything opened is right, not how fast it was made.
    course.thresholds.least = Components::default();
    let chain = ProofShape::Int8 {
        log2_n: 8,
        rounds: 2,
        entries: 256,
        blocks_per_row: 0,
    };
    let walk = ProofShape::Walk {
        blocks: 1_024,
        work: 16,
        log2_walks: 4,
        log2_leaves: 1,
        draws: 128,
    };
    course.trials = vec![trial(chain), trial(walk)];
    Ok(course)
}

/// The outcome of one executor's conversation.
enum ConversationOutcome {
    Committed(usize, Box<TimedConversation>),
    Judged(usize, TrialResult),
}

/// This many miners with `OF_ONE` executors each.
fn announce(miners: u32) -> Vec<Announcement> {
    let announcement = |number: u32| {
        let mut key = [0; 32];
        let (head, _) = key.split_at_mut(4);
        head.copy_from_slice(&number.to_le_bytes());
        Announcement {
            miner: MinerKey(Hotkey::from_bytes(key)),
            class: CLASS,
            count: OF_ONE,
        }
    };
    (0..miners).map(announcement).collect()
}

/// The tasks of one batch and the channel on which they report.
struct BatchTasks {
    tasks: Tasks,
    executors: Vec<Arc<Honest>>,
    judging: Arc<Semaphore>,
    outcomes: mpsc::UnboundedSender<ConversationOutcome>,
    /// Microseconds of verification, over all threads.
    verifying: Arc<AtomicU64>,
    /// Bytes of evidence.
    stored: Arc<AtomicU64>,
}

impl BatchTasks {
    /// Runs one conversation to its commitment.
    fn spawn_conversation(&self, place: usize, mut conversation: TimedConversation) -> Result<()> {
        let (executor, outcomes) = (line(&self.executors, place)?, self.outcomes.clone());
        self.tasks.spawn("conversation", async move {
            conversation.run_to_commitment(&*executor).await;
            let _ = outcomes.send(ConversationOutcome::Committed(place, Box::new(conversation)));
        });
        Ok(())
    }

    /// Takes one opening and judges its evidence.
    fn spawn_judge(&self, place: usize, trial: usize, conversation: TimedConversation) -> Result<()> {
        let (executor, outcomes) = (line(&self.executors, place)?, self.outcomes.clone());
        let judging = Arc::clone(&self.judging);
        let (verifying, stored) = (Arc::clone(&self.verifying), Arc::clone(&self.stored));
        self.tasks.spawn("judge", async move {
            let Ok(_permit) = judging.acquire().await else {
                return;
            };
            let (evidence, _) = conversation.take_opening(&*executor, None).await;
            let judged = tokio::task::spawn_blocking(move || {
                let (result, took) = muster_bench::timed(|| {
                    TrialResult::from_evidence(trial, &evidence, None, InstructionSet::best())
                });
                let file = ProofEvidence::new(trial, 0, &evidence);
                stored.fetch_add(file.evidence.len() as u64, Ordering::Relaxed);
                (result, took)
            });
            if let Ok((result, took)) = judged.await {
                let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                verifying.fetch_add(took, Ordering::Relaxed);
                let _ = outcomes.send(ConversationOutcome::Judged(place, result));
            }
        });
        Ok(())
    }
}

/// Carries a batch through all of its trials.
async fn run_batch(
    batch: &mut Batch,
    plan: &BatchPlan,
    spec: &GradeSpec,
    tasks: &BatchTasks,
    mut reported: mpsc::UnboundedReceiver<ConversationOutcome>,
) -> Result<()> {
    let begun = Instant::now();
    let at = || u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut conversations: BTreeMap<usize, (usize, TimedConversation)> = BTreeMap::new();
    let mut trial = 0;
    let mut actions = batch.tick(0);
    loop {
        let mut next = Vec::new();
        for action in actions {
            match action {
                BatchAction::Lease(places) => {
                    for place in places {
                        next.extend(batch.apply(place, BatchEvent::Ready, at()));
                    }
                }
                BatchAction::Challenge {
                    trial: current,
                    participants,
                    ..
                } => {
                    trial = current;
                    for place in participants {
                        let participant = plan.participants.get(place).context("a participant")?;
                        let asked = spec.trials.get(trial).context("a trial")?;
                        let conversation = TimedConversation::new(machine(plan.id, participant, asked)?);
                        tasks.spawn_conversation(place, conversation)?;
                    }
                }
                BatchAction::Judge(places) => {
                    for place in places {
                        let (trial, conversation) = conversations.remove(&place).context("a conversation")?;
                        tasks.spawn_judge(place, trial, conversation)?;
                    }
                }
                BatchAction::Release(_) => {}
                BatchAction::Finish => return Ok(()),
            }
        }
        if next.is_empty() {
            next = match reported.recv().await.context("no task is left")? {
                ConversationOutcome::Committed(place, conversation) => {
                    conversations.insert(place, (trial, *conversation));
                    batch.apply(place, BatchEvent::Committed, at())
                }
                ConversationOutcome::Judged(place, result) => {
                    batch.apply(place, BatchEvent::Judged(Box::new(result)), at())
                }
            };
        }
        actions = next;
    }
}

async fn batch(miners: u32) -> Result<(Vec<Row>, Vec<String>)> {
    let me = ValidatorKey(Hotkey::from_bytes([9; 32]));
    let announced = announce(miners);
    let (plan, drawing) = muster_bench::timed(|| {
        draw_batch(
            ObservationKind::Announced,
            &[7; 32],
            me,
            &announced,
            BatchBounds::default(),
        )
    });
    let spec = course()?;
    let all = plan.participants.len();
    let rules = BatchRules {
        kind: ObservationKind::Announced,
        gather_us: 1,
    };
    let mut batch = Batch::new(plan.participants.clone(), [spec.clone()], rules, 0);
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let proving = Arc::new(Semaphore::new(cores));
    let honest = |_| {
        Arc::new(Honest {
            said: Mutex::default(),
            cores: Arc::clone(&proving),
        })
    };
    let (outcomes, reported) = mpsc::unbounded_channel();
    let tasks = BatchTasks {
        tasks: Tasks::new(),
        executors: (0..all).map(honest).collect(),
        judging: Arc::new(Semaphore::new(cores * 2)),
        outcomes,
        verifying: Arc::default(),
        stored: Arc::default(),
    };
    let begun = Instant::now();
    run_batch(&mut batch, &plan, &spec, &tasks, reported).await?;
    let wall = begun.elapsed();
    let (judged, settling) = muster_bench::timed(|| batch.judgements(&BTreeMap::new()));
    let (judgements, _) = judged.context("not over")?;
    let is_proven = |judged: &&Judgement| matches!(judged, Judgement::Proven { .. });
    if judgements.iter().filter(is_proven).count() != all {
        bail!("an honest executor did not pass");
    }
    let verified = Duration::from_micros(tasks.verifying.load(Ordering::Relaxed));
    let rows = batch_rows(wall, verified, drawing + settling, all)?;
    let stored = tasks.stored.load(Ordering::Relaxed) as f64 / 1e6;
    let notes = vec![
        format!(
            "the barrier: {WAITING} sealed clients with a connection each, one endpoint, all in this process; {ROUNDS} rounds"
        ),
        format!(
            "the batch: {miners} miners of {OF_ONE} executors, {all} in all, two proofs each; MATMUL with n = 256 and two rounds, WALK over 1 MiB"
        ),
        format!("evidence of the batch: {stored:.0} MB of text"),
    ];
    Ok((rows, notes))
}

/// The rows of a batch of `all` executors; `planning` is the time of its plan and its judgements.
fn batch_rows(wall: Duration, verified: Duration, planning: Duration, all: usize) -> Result<Vec<Row>> {
    let row =
        |what: &str, unit: &str, sample: f64| Row::alone(what, unit, Direction::LowerIsBetter, vec![sample]);
    let (wall, verified, planning) = (
        wall.as_secs_f64(),
        verified.as_secs_f64(),
        planning.as_secs_f64() * 1e3,
    );
    let each = verified * 1e3 / all as f64;
    Ok(vec![
        row("a batch, its executors proving on the same cores", "s", wall),
        row("its verification, of all threads together", "s", verified),
        row(
            "verification of one executor: 256 entries and 128 steps",
            "ms",
            each,
        ),
        row("its plan and its judgements", "ms", planning),
        row("memory at its peak, provers included", "MiB", peak_mib()?),
    ])
}

fn line(executors: &[Arc<Honest>], place: usize) -> Result<Arc<Honest>> {
    executors.get(place).cloned().context("an executor")
}

fn machine(
    batch: BatchId,
    seat: &muster_grading::Participant,
    trial: &Trial,
) -> Result<ValidatorConversation> {
    let identity = ChallengeIdentity {
        batch,
        executor: seat.executor_name(),
        nonce: ChallengeNonce([3; 32]),
    };
    Ok(ValidatorConversation::new(
        trial.shape.challenge_spec(identity, None)?,
        trial.limits(),
    ))
}

/// The most memory that this process has taken.
fn peak_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = line
        .context("no VmHWM")?
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()?;
    Ok(kib / 1024.0)
}
