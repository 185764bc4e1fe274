//! A miner with executors whose sealed endpoints are real and whose provers are scripted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::future::{BoxFuture, ready};
use muster_hardware_proof::InstructionSet;
use muster_hardware_proof::challenge_message::MessageKind;
use muster_hardware_proof::conversation::{ExecutorCommand, ExecutorConversation, ProverLimits};
use muster_hardware_proof::prover::cheat::Smaller;
use muster_hardware_proof::prover::{CpuProver, NoObserver, Prover, perform_task};
use muster_identity::{Keypair, sign_streaming_ready};
use muster_process::{SharedClock, SystemClock, Tasks, certificate};
use muster_protocol::wire::audits::SessionProofs;
use muster_protocol::wire::miner::{InitialJobRequest, StreamingJobReady};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, JobId, MinerKey, Receipt, ReceiptPayload, ValidatorKey};
use muster_response_proof::{Attestation, HashScheme, Price, SessionId, Text, seal};
use muster_sealing_proxy::{
    Endpoint, EngineAddress, GraderBackend, Limits, ProofSigner, SealingProxy, Upstream,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::audit_check::{TestAuditCheck, session_proofs};
use super::miner::{Miner, Session};

const CAPS: ProverLimits = ProverLimits {
    log2_n: 10,
    memory_bytes: 1 << 22,
    work: 64,
    read_bytes: 1 << 34,
};

/// The behaviour of an executor, in a batch or in a session that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Honest,
    /// Honest, and reaches the barrier only after the executors that leave it have left.
    Last,
    /// Cheats by multiplying matrices of half the side.
    Smaller,
    /// Fails while it waits at the barrier, and its miner reports that.
    LeavesBarrier,
    /// Fails when the challenge comes, and nobody reports it.
    LeavesChallenged,
    /// Fails after its commitment, and nobody reports it.
    LeavesCommitted,
    /// Is at work: its miner declines with the fleet's receipts.
    AtWork,
}

/// A miner's executors. Clones are the same ones.
#[derive(Clone)]
pub(crate) struct Fleet(Arc<FleetState>);

struct FleetState {
    miner: Keypair,
    tasks: Tasks,
    clock: SharedClock,
    /// The behaviour of the executors that are leased next.
    behaviours: Mutex<VecDeque<Behaviour>>,
    /// The receipts of the executors at work.
    work: Mutex<Vec<Receipt>>,
    /// The leased executors by job.
    leased: Mutex<BTreeMap<JobId, Behaviour>>,
    endpoints: Mutex<BTreeMap<JobId, Endpoint>>,
    /// Whether the executors that leave the barrier have left.
    left: watch::Sender<bool>,
    /// The programs in sessions that are started with this argument, in place of a prover; `None` stands for all other
    /// sessions.
    programs: Vec<(Option<&'static str>, Router)>,
    /// Receives what the validator sends about spot checks.
    audit_check: Mutex<Option<Arc<TestAuditCheck>>>,
    machines: Mutex<MachineCount>,
}

/// The machines of a fleet: one for each attempt that it takes up.
#[derive(Debug, Default)]
struct MachineCount {
    /// Machines that were ever brought up.
    provisioned: usize,
    /// The attempts whose machines are up: they were not called off, and did not end.
    up: BTreeSet<AttemptId>,
}

impl Fleet {
    pub(crate) fn new(miner: &Keypair) -> Self {
        Self::running(miner, Vec::new())
    }

    /// Executors whose sessions all run this program.
    pub(crate) fn of_program(miner: &Keypair, program: Router) -> Self {
        Self::running(miner, vec![(None, program)])
    }

    /// Executors whose sessions run this program, and another one if they are started with that argument.
    pub(crate) fn of_programs(miner: &Keypair, program: Router, other: (&'static str, Router)) -> Self {
        let (argument, of_argument) = other;
        Self::running(miner, vec![(Some(argument), of_argument), (None, program)])
    }

    fn running(miner: &Keypair, programs: Vec<(Option<&'static str>, Router)>) -> Self {
        Self(Arc::new(FleetState {
            miner: miner.clone(),
            tasks: Tasks::new(),
            clock: Arc::new(SystemClock::new()),
            behaviours: Mutex::default(),
            work: Mutex::default(),
            leased: Mutex::default(),
            endpoints: Mutex::default(),
            left: watch::Sender::new(false),
            programs,
            audit_check: Mutex::default(),
            machines: Mutex::default(),
        }))
    }

    /// The number of machines that were ever brought up, and of those that are up now.
    pub(crate) fn count_machines(&self) -> (usize, usize) {
        let machines = self.0.machines.lock().unwrap();
        (machines.provisioned, machines.up.len())
    }

    fn release(&self, attempt: AttemptId) {
        self.0.machines.lock().unwrap().up.remove(&attempt);
    }

    /// Lets this audit check receive what the validator sends about spot checks.
    pub(crate) fn set_audit_check(&self, audit_check: Arc<TestAuditCheck>) {
        *self.0.audit_check.lock().unwrap() = Some(audit_check);
    }

    /// The proofs that the executors have signed, as executors report them.
    fn signed_proofs(&self) -> Vec<SessionProofs> {
        let endpoints = self.0.endpoints.lock().unwrap();
        let signers = endpoints.values().map(|endpoint| endpoint.proxy().signer());
        signers.map(|signer| session_proofs(signer)).collect()
    }

    /// Sets the behaviour of the executors that are leased next, one after the other; those after them are honest.
    pub(crate) fn expect(&self, behaviours: &[Behaviour]) {
        *self.0.behaviours.lock().unwrap() = behaviours.iter().copied().collect();
    }

    /// The behaviour of a job's executor.
    pub(crate) fn behaviour(&self, job: &str) -> Option<Behaviour> {
        let leased = self.0.leased.lock().unwrap();
        leased.get(&job.parse::<JobId>().unwrap()).copied()
    }

    /// The executors that leave the barrier have left, and the validator knows it: the last executor may come.
    pub(crate) fn let_the_last_one_come(&self) {
        self.0.left.send_replace(true);
    }

    /// The receipts that the miner shows when it declines.
    pub(crate) fn show(&self, work: Vec<Receipt>) {
        *self.0.work.lock().unwrap() = work;
    }

    /// The receipts of an executor at work, if the next executor is.
    fn next_at_work(&self) -> Option<Vec<Receipt>> {
        let mut behaviours = self.0.behaviours.lock().unwrap();
        behaviours.pop_front_if(|next| *next == Behaviour::AtWork)?;
        Some(self.0.work.lock().unwrap().clone())
    }

    /// Answers every connection of the validator until the test ends.
    pub(crate) async fn stand(&self, miner: &mut Miner, executors: u32) {
        loop {
            let session = miner.accept_whenever(executors).await;
            let fleet = self.clone();
            drop(
                self.0
                    .tasks
                    .spawn("session", async move { fleet.serve(session).await }),
            );
        }
    }

    async fn serve(self, mut session: Session) {
        let (mouth, mut said) = mpsc::unbounded_channel();
        let mut offers = BTreeMap::<AttemptId, InitialJobRequest>::new();
        let audit_check = self.0.audit_check.lock().unwrap().clone();
        let mut audits = audit_check
            .as_ref()
            .map(|audit_check| audit_check.converse(session.validator));
        loop {
            let message = tokio::select! {
                heard = session.listen() => heard,
                Some(message) = said.recv() => {
                    session.send(message).await;
                    continue;
                }
            };
            match message {
                None => return,
                Some(ValidatorToMiner::V0InitialJobRequest(offer)) => {
                    session.take_up(&offer).await;
                    if let Some(work) = self.next_at_work() {
                        session.decline_with(offer.job_uuid, work).await;
                        continue;
                    }
                    {
                        let mut machines = self.0.machines.lock().unwrap();
                        machines.provisioned += usize::from(machines.up.insert(offer.job_uuid));
                    }
                    session.accept_job(offer.job_uuid).await;
                    session.executor_ready(offer.job_uuid).await;
                    offers.insert(offer.job_uuid, *offer);
                }
                Some(ValidatorToMiner::V0JobRequest(job)) => {
                    session.volumes_ready(job.job_uuid).await;
                    let offer = offers.remove(&job.job_uuid).expect("an offered job");
                    let (fleet, mouth, validator) = (self.clone(), mouth.clone(), session.validator);
                    drop(self.0.tasks.spawn("executor", async move {
                        fleet.lease(&offer, &job.docker_run_cmd, validator, &mouth).await;
                    }));
                }
                Some(ValidatorToMiner::MusterCancelJob(cancelled)) => self.release(cancelled.job_uuid),
                Some(ValidatorToMiner::V0JobFinishedReceiptRequest(request)) => {
                    self.release(request.payload.job_uuid);
                    let payload = ReceiptPayload::Finished(request.payload);
                    session.countersign(payload, request.signature).await;
                }
                Some(ValidatorToMiner::MusterAudit(message)) => {
                    let (Some(audit_check), Some(audits)) = (&audit_check, &mut audits) else {
                        continue;
                    };
                    for reply in audit_check
                        .take_message(audits, *message, self.signed_proofs())
                        .await
                    {
                        session.send(MinerToValidator::MusterAuditReply(reply)).await;
                    }
                }
                Some(_) => {}
            }
        }
    }

    async fn lease(
        &self,
        offer: &InitialJobRequest,
        arguments: &[String],
        validator: ValidatorKey,
        mouth: &mpsc::UnboundedSender<MinerToValidator>,
    ) {
        let fleet_state = &self.0;
        let behaviour = fleet_state
            .behaviours
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Behaviour::Honest);
        let terms = offer.streaming_details.as_ref().unwrap().muster.as_ref().unwrap();
        let job = terms.job.unwrap();
        fleet_state.leased.lock().unwrap().insert(job, behaviour);
        let (seen, mut looked_at) = watch::channel(false);
        let ready = self.open(offer, arguments, validator, job, behaviour, seen).await;
        if behaviour == Behaviour::Last {
            let mut left = fleet_state.left.subscribe();
            left.wait_for(|left| *left).await.unwrap();
        }
        let attempt = offer.job_uuid;
        let _ = mouth.send(MinerToValidator::V0StreamingJobReadyRequest(ready));
        if behaviour == Behaviour::LeavesBarrier {
            looked_at.wait_for(|looked| *looked).await.unwrap();
            let _ = mouth.send(Session::horde_failure(attempt, "its machine is gone"));
        }
    }

    /// A sealed endpoint with a prover behind it, or an engine with a prover beside it.
    async fn open(
        &self,
        offer: &InitialJobRequest,
        arguments: &[String],
        validator: ValidatorKey,
        job: JobId,
        behaviour: Behaviour,
        seen: watch::Sender<bool>,
    ) -> StreamingJobReady {
        let fleet_state = &self.0;
        let details = offer.streaming_details.as_ref().unwrap();
        let terms = details.muster.as_ref().unwrap();
        let server = certificate::make_self_signed(&["localhost".to_owned()]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = certificate::digest_of_pem(&details.public_key).unwrap();
        let (key, now) = (Keypair::generate(), fleet_state.clock.now());
        let stated = Attestation {
            session: SessionId(Uuid::new_v4()),
            session_key: key.hotkey(),
            job,
            attempt: offer.job_uuid,
            miner: MinerKey(fleet_state.miner.hotkey()),
            audience: validator,
            server_certificate: server.identity.fingerprint(),
            client_certificate: client,
            // No two leases are of the same executor.
            executor: Text::new(format!("executor of {}", offer.job_uuid)).unwrap(),
            address: Text::new(address.to_string()).unwrap(),
            image: terms.image,
            model: None,
            scheme: HashScheme::from_name(&terms.scheme).unwrap(),
            price: Price {
                input: terms.input_price,
                output: terms.output_price,
            },
            not_before: now,
            not_after: now.plus(std::time::Duration::from_secs(3_600)),
        };
        let envelope = seal(&stated, &fleet_state.miner);
        let sealer = ProofSigner::new(key, envelope, Arc::clone(&fleet_state.clock)).unwrap();
        let limits = Limits::default();
        let prover = self.prover(job, behaviour, seen).await;
        let mut programs = fleet_state.programs.iter();
        let program = programs.find(|(argument, _)| {
            argument.is_none_or(|argument| arguments.iter().any(|given| given == argument))
        });
        // Terms with a grader mean a session that serves a model.
        let (upstream, beside) = match (program, &terms.grader) {
            (Some((_, program)), _) => (self.upstream(program.clone()).await, None),
            (None, None) => (prover, None),
            (None, Some(_)) => (
                self.engine().await,
                Some(Arc::new(ProverBeside(prover)) as Arc<dyn GraderBackend>),
            ),
        };
        let seal = SealingProxy::with_grader(sealer, upstream, beside, limits, fleet_state.tasks.clone());
        let endpoint = Endpoint::open(
            listener,
            &server.identity,
            client,
            seal,
            Arc::clone(&fleet_state.clock),
        )
        .unwrap();
        fleet_state.endpoints.lock().unwrap().insert(job, endpoint);
        let ip = address.ip().to_string();
        let signature = sign_streaming_ready(
            &fleet_state.miner,
            offer.job_uuid,
            &ip,
            address.port(),
            &server.pem,
        );
        StreamingJobReady {
            job_uuid: offer.job_uuid,
            executor_token: None,
            public_key: server.pem,
            ip: Some(ip),
            port: address.port(),
            miner_signature: Some(signature),
        }
    }

    async fn prover(&self, job: JobId, behaviour: Behaviour, seen: watch::Sender<bool>) -> Upstream {
        let prover = CpuProver::new(InstructionSet::best(), NonZeroUsize::MIN);
        let prover: Box<dyn Prover + Send> = match behaviour {
            Behaviour::Smaller => Box::new(Smaller::new(prover)),
            Behaviour::Honest
            | Behaviour::Last
            | Behaviour::LeavesBarrier
            | Behaviour::LeavesChallenged
            | Behaviour::LeavesCommitted
            // It is never leased.
            | Behaviour::AtWork => Box::new(prover),
        };
        let state = ProverState {
            fleet: self.clone(),
            job,
            behaviour,
            seen,
            prover: Arc::new(Mutex::new((ExecutorConversation::new(CAPS), prover))),
        };
        let router = Router::new()
            .route("/health", get(health))
            .route("/v1/grade", post(grade))
            .with_state(Arc::new(state));
        self.upstream(router).await
    }

    /// An engine that gives every request the same answer.
    async fn engine(&self) -> Upstream {
        let answer = r#"{"choices":[{"message":{"role":"assistant","content":"yes"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
        let json = [("content-type", "application/json")];
        let router = Router::new()
            .route("/health", get(|| ready("well")))
            .route("/v1/chat/completions", post(move || ready((json, answer))));
        self.upstream(router).await
    }

    async fn upstream(&self, router: Router) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = async move { axum::serve(listener, router).await };
        drop(self.0.tasks.spawn("engine", serving));
        Upstream::new(EngineAddress::Address(address), &Limits::default(), &self.0.tasks)
    }

    /// Ends the executor without a message.
    fn burn(&self, job: JobId) {
        drop(self.0.endpoints.lock().unwrap().remove(&job));
    }
}

struct ProverState {
    fleet: Fleet,
    job: JobId,
    behaviour: Behaviour,
    seen: watch::Sender<bool>,
    prover: Arc<Mutex<(ExecutorConversation, Box<dyn Prover + Send>)>>,
}

async fn health(State(prover_state): State<Arc<ProverState>>) -> &'static str {
    prover_state.seen.send_replace(true);
    "well"
}

async fn grade(State(prover_state): State<Arc<ProverState>>, message: Bytes) -> Response {
    let kind = message[1];
    let leaves = match prover_state.behaviour {
        Behaviour::LeavesChallenged => kind == MessageKind::Challenge as u8,
        Behaviour::LeavesCommitted => kind == MessageKind::Draw as u8,
        Behaviour::Honest
        | Behaviour::Last
        | Behaviour::Smaller
        | Behaviour::LeavesBarrier
        | Behaviour::AtWork => false,
    };
    if leaves {
        prover_state.fleet.burn(prover_state.job);
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let prover = Arc::clone(&prover_state.prover);
    let answering = tokio::task::spawn_blocking(move || {
        let mut state = prover.lock().unwrap();
        let (executor, prover) = &mut *state;
        if message[1] == MessageKind::Challenge as u8 {
            *executor = ExecutorConversation::new(CAPS);
        }
        let ExecutorCommand::Run(task) = executor.receive(&message).unwrap() else {
            panic!("no work")
        };
        let output = perform_task(&mut **prover, &task, &NoObserver).unwrap();
        let ExecutorCommand::Send(bytes) = executor.complete_task(&output).unwrap() else {
            panic!("no message")
        };
        bytes
    });
    let bytes = answering.await.unwrap();
    ([("content-type", "application/octet-stream")], bytes).into_response()
}

/// A prover beside an engine.
struct ProverBeside(Upstream);

impl GraderBackend for ProverBeside {
    fn start(&self) -> BoxFuture<'_, Result<Upstream, String>> {
        Box::pin(ready(Ok(self.0.clone())))
    }

    fn path_for(&self, method: &axum::http::Method) -> axum::http::uri::PathAndQuery {
        let path = if method == axum::http::Method::GET {
            "/health"
        } else {
            "/v1/grade"
        };
        axum::http::uri::PathAndQuery::from_static(path)
    }
}
