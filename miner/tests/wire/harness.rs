//! A miner under test, and the two parties that talk to it.

use std::net::SocketAddr;
use std::sync::Arc;

use muster_identity::{Keypair, offer_receipt, sign_validator_auth};
use muster_miner::manager::{ExecutorManager, Order, Running};
use muster_miner::{Config, Error, run_with};
use muster_process::{Clock as _, Tasks, TestClock, ready};
use muster_protocol::receipt::{
    AcceptedReceipt, AcceptedTag, FinishedReceipt, FinishedTag, StartedReceipt, StartedTag,
};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{
    AcceptedReceiptRequest, AttemptNotice, ExecutorReady, FinishedReceiptRequest, InitialJobRequest,
    JobFinished, JobRequest, MachineSpecs, OptionsPreset,
};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, ReceiptPayload, Timestamp, ValidatorKey};
use muster_websocket::{Limits, PeerClose, Socket, connect};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

pub(crate) fn validator_key() -> Keypair {
    Keypair::from_uri("//Validator").unwrap()
}

pub(crate) fn miner_key() -> Keypair {
    Keypair::from_uri("//Miner").unwrap()
}

pub(crate) fn new_attempt() -> AttemptId {
    AttemptId::from_uuid(Uuid::new_v4())
}

/// Waits for `future`, which must not take long.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    muster_testbed::within("the future of the test", future).await
}

/// An executor that the miner wants started.
pub(crate) struct Started {
    pub(crate) order: Order,
    pub(crate) stop: CancellationToken,
    exit: oneshot::Sender<String>,
}

impl Started {
    /// Its process ends.
    pub(crate) fn exit(self, how: &str) {
        self.exit.send(how.to_owned()).unwrap();
    }
}

/// Hands orders to the test instead of starting processes.
struct Scripted(mpsc::UnboundedSender<Started>);

impl ExecutorManager for Scripted {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        let (exit, exited) = oneshot::channel();
        self.0
            .send(Started {
                order,
                stop: stop.clone(),
                exit,
            })
            .unwrap();
        Box::pin(async move {
            tokio::select! {
                how = exited => match how {
                    Ok(how) => Ok(how),
                    Err(_) => { stop.cancelled().await; Ok("stopped".to_owned()) }
                },
                () = stop.cancelled() => Ok("stopped".to_owned()),
            }
        })
    }
}

/// A miner with a runtime of its own, so that it can be killed.
pub(crate) struct Miner {
    pub(crate) address: SocketAddr,
    pub(crate) clock: TestClock,
    pub(crate) folder: Arc<TempDir>,
    started: mpsc::UnboundedReceiver<Started>,
    tasks: Tasks,
    ended: oneshot::Receiver<Result<(), Error>>,
    process: Process,
}

/// A runtime that ends at once, as a process that is killed does.
struct Process(Option<Runtime>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Miner {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_in(
            Arc::new(tempfile::tempdir().unwrap()),
            TestClock::default(),
            change,
        )
        .await
    }

    async fn start_in(folder: Arc<TempDir>, clock: TestClock, change: impl FnOnce(&mut Config)) -> Self {
        let path = |name: &str| folder.path().join(name);
        let ready_file = path("ready.json");
        let mut config = Config {
            bind: "127.0.0.1:0".parse().unwrap(),
            store: format!("sqlite:{}", path("store.db").display()),
            receipts_dir: path("receipts"),
            ready_file: Some(ready_file.clone()),
            validators: vec![ValidatorKey(validator_key().hotkey())],
            ..Config::default()
        };
        config.chain.url = String::new();
        config.tls.certificate = path("tls/port.pem");
        // The validators of these tests are as old as the oldest that miners may choose to serve.
        config.require_validator_signature = false;
        // A lost connection loses its lease, unless a test is about leases that are kept.
        config.executor.reattach_s = 0;
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (orders, started) = mpsc::unbounded_channel();
        let (end, mut ended) = oneshot::channel();
        let tasks = Tasks::new();
        let (miner_tasks, miner_clock) = (tasks.clone(), Arc::new(clock.clone()));
        runtime.spawn(async move {
            let outcome = run_with(
                config,
                miner_key(),
                Arc::new(Scripted(orders)),
                miner_tasks,
                miner_clock,
            )
            .await;
            let _ = end.send(outcome);
        });
        let address = muster_testbed::until("the miner is ready", async || {
            assert!(ended.is_empty(), "the miner ended: {:?}", ended.try_recv());
            ready::read(&ready_file).unwrap()
        })
        .await;
        Self {
            address,
            clock,
            folder,
            started,
            tasks,
            ended,
            process: Process(Some(runtime)),
        }
    }

    /// The next executor the miner wants.
    pub(crate) async fn wanted(&mut self) -> Started {
        soon(self.started.recv()).await.unwrap()
    }

    /// Nothing was started that the test has not taken.
    pub(crate) fn wants_nothing_more(&mut self) -> bool {
        self.started.try_recv().is_err()
    }

    /// As kill -9 and a new start would.
    pub(crate) async fn killed_and_restarted(self) -> Self {
        self.killed_and_restarted_with(|_| {}).await
    }

    /// The same, with this configuration from then on.
    pub(crate) async fn killed_and_restarted_with(self, change: impl FnOnce(&mut Config)) -> Self {
        let Self {
            folder,
            clock,
            process,
            ..
        } = self;
        drop(process);
        std::fs::remove_file(folder.path().join("ready.json")).unwrap();
        Self::start_in(folder, clock, change).await
    }

    /// Asks it to stop and waits until it has.
    pub(crate) async fn stop(self) {
        self.tasks.shutdown();
        soon(self.ended).await.unwrap().unwrap();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!(
            "{}://{}/{path}",
            if path.starts_with("v0.1") { "ws" } else { "http" },
            self.address
        )
    }
}

/// A party on a websocket to the miner.
pub(crate) struct Party {
    pub(crate) socket: Socket,
}

impl Party {
    pub(crate) async fn dial(url: &str) -> Self {
        Self {
            socket: connect(url, &Limits::miner()).await.unwrap(),
        }
    }

    pub(crate) async fn send(&mut self, frame: String) {
        self.socket.send(frame).await.unwrap();
    }

    pub(crate) async fn recv<M: serde::de::DeserializeOwned>(&mut self) -> M {
        let frame = soon(self.socket.recv())
            .await
            .unwrap()
            .expect("the miner closed the connection");
        decode(&frame).unwrap()
    }

    /// How the miner closed; frames before it are a failure.
    pub(crate) async fn closed(&mut self) -> PeerClose {
        let frame = soon(self.socket.recv()).await.unwrap();
        assert_eq!(frame, None);
        self.socket.closed().unwrap().clone()
    }
}

/// A scripted validator.
pub(crate) struct Validator {
    pub(crate) party: Party,
    pub(crate) now: Timestamp,
}

impl Validator {
    /// Opens a connection without greeting.
    pub(crate) async fn dial(miner: &Miner) -> Self {
        let key = validator_key().hotkey();
        let party = Party::dial(&miner.url(&format!("v0.1/validator_interface/{key}"))).await;
        Self {
            party,
            now: miner.clock.now(),
        }
    }

    /// Greets and takes the manifest.
    pub(crate) async fn connect(miner: &Miner) -> Self {
        let mut validator = Self::dial(miner).await;
        validator.greet().await;
        let MinerToValidator::V0ExecutorManifestRequest(manifest) = validator.receive().await else {
            panic!("the manifest comes first")
        };
        assert_eq!(manifest.manifest.count(CLASS), 1);
        validator
    }

    pub(crate) async fn greet(&mut self) {
        let auth = sign_validator_auth(&validator_key(), MinerKey(miner_key().hotkey()), self.now);
        self.send_message(&ValidatorToMiner::ValidatorAuthForMiner(auth))
            .await;
    }

    pub(crate) async fn send_message(&mut self, message: &ValidatorToMiner) {
        self.party.send(encode(message)).await;
    }

    pub(crate) async fn receive(&mut self) -> MinerToValidator {
        self.party.recv().await
    }

    /// The type of the next message.
    pub(crate) async fn receive_kind(&mut self) -> String {
        let message = self.receive().await;
        serde_json::to_value(message).unwrap()["message_type"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    pub(crate) async fn receive_error(&mut self) -> String {
        let message = self.receive().await;
        let MinerToValidator::GenericError(error) = message else {
            panic!("not an error: {message:?}")
        };
        error.details.unwrap()
    }

    /// Offers an attempt and takes the acceptance and the started receipt.
    pub(crate) async fn offer(&mut self, attempt: AttemptId) {
        self.send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(initial(
            attempt, self.now,
        ))))
        .await;
        assert_eq!(self.receive_kind().await, "V0AcceptJobRequest");
        assert_eq!(self.receive_kind().await, "MusterReceiptCountersigned");
    }

    pub(crate) async fn accepted(&mut self, attempt: AttemptId) {
        let payload = AcceptedReceipt {
            job_uuid: attempt,
            miner_hotkey: MinerKey(miner_key().hotkey()),
            validator_hotkey: ValidatorKey(validator_key().hotkey()),
            timestamp: self.now,
            receipt_type: AcceptedTag,
            time_accepted: self.now,
            ttl: 60,
        };
        let signature = sign(ReceiptPayload::Accepted(payload.clone()));
        self.send_message(&ValidatorToMiner::V0JobAcceptedReceiptRequest(
            AcceptedReceiptRequest { payload, signature },
        ))
        .await;
    }

    pub(crate) async fn finished(&mut self, attempt: AttemptId) {
        self.send_message(&ValidatorToMiner::V0JobFinishedReceiptRequest(finished(
            attempt, self.now,
        )))
        .await;
    }
}

fn sign(payload: ReceiptPayload) -> muster_protocol::Signature {
    offer_receipt(&validator_key(), payload)
        .unwrap()
        .validator_signature
}

pub(crate) fn finished(attempt: AttemptId, now: Timestamp) -> FinishedReceiptRequest {
    let payload = FinishedReceipt {
        job_uuid: attempt,
        miner_hotkey: MinerKey(miner_key().hotkey()),
        validator_hotkey: ValidatorKey(validator_key().hotkey()),
        timestamp: now,
        receipt_type: FinishedTag,
        time_started: now,
        time_took_us: 1_500_000,
        score_str: "20.000000".to_owned(),
        block_numbers: vec![],
    };
    let signature = sign(ReceiptPayload::Finished(payload.clone()));
    FinishedReceiptRequest { payload, signature }
}

pub(crate) fn initial(attempt: AttemptId, now: Timestamp) -> InitialJobRequest {
    let payload = StartedReceipt {
        job_uuid: attempt,
        miner_hotkey: MinerKey(miner_key().hotkey()),
        validator_hotkey: ValidatorKey(validator_key().hotkey()),
        timestamp: now,
        receipt_type: StartedTag,
        executor_class: CLASS,
        is_organic: true,
        ttl: 7,
    };
    let signature = sign(ReceiptPayload::Started(payload.clone()));
    InitialJobRequest {
        job_uuid: attempt,
        executor_class: CLASS,
        docker_image: Some("hello:latest".to_owned()),
        timeout_seconds: Some(300),
        volume: None,
        job_started_receipt_payload: payload,
        job_started_receipt_signature: signature,
        streaming_details: None,
        executor_timing: None,
        muster: None,
    }
}

pub(crate) fn job(attempt: AttemptId) -> JobRequest {
    JobRequest {
        job_uuid: attempt,
        executor_class: CLASS,
        docker_image: "hello:latest".to_owned(),
        raw_script: None,
        docker_run_options_preset: OptionsPreset::None,
        docker_run_cmd: vec!["count".to_owned()],
        env: Default::default(),
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        muster: None,
    }
}

/// A scripted executor.
pub(crate) struct Executor {
    pub(crate) party: Party,
    pub(crate) attempt: AttemptId,
}

impl Executor {
    /// Dials as it was ordered to and takes the offer.
    pub(crate) async fn dial(started: &Started) -> Self {
        let Order {
            token, miner_address, ..
        } = &started.order;
        let party = Party::dial(&format!("{miner_address}/v0.1/executor_interface/{token}")).await;
        let mut executor = Self {
            party,
            attempt: token.attempt(),
        };
        let MinerToExecutor::V0InitialJobRequest(offer) = executor.receive().await else {
            panic!("the offer comes first")
        };
        assert_eq!(offer.job_uuid, executor.attempt);
        executor
    }

    pub(crate) async fn send_message(&mut self, message: &ExecutorToMiner) {
        self.party.send(encode(message)).await;
    }

    pub(crate) async fn receive(&mut self) -> MinerToExecutor {
        self.party.recv().await
    }

    pub(crate) async fn receive_error(&mut self) -> String {
        let message = self.receive().await;
        let MinerToExecutor::GenericError(error) = message else {
            panic!("not an error: {message:?}")
        };
        error.details.unwrap()
    }

    pub(crate) async fn ready(&mut self) {
        let ready = ExecutorReady {
            job_uuid: self.attempt,
            executor_token: None,
        };
        self.send_message(&ExecutorToMiner::V0ExecutorReadyRequest(ready))
            .await;
    }

    /// Runs the job that comes next to its end.
    pub(crate) async fn run(&mut self) {
        let MinerToExecutor::V0JobRequest(_) = self.receive().await else {
            panic!("the job comes next")
        };
        let notice = AttemptNotice {
            job_uuid: self.attempt,
        };
        self.send_message(&ExecutorToMiner::V0VolumesReadyRequest(notice))
            .await;
        self.send_message(&ExecutorToMiner::V0ExecutionDoneRequest(notice))
            .await;
        let specs = serde_json::json!({"specs": {"os": "test"}});
        self.send_message(&ExecutorToMiner::V0MachineSpecsRequest(MachineSpecs {
            job_uuid: self.attempt,
            specs,
        }))
        .await;
        let result = JobFinished {
            job_uuid: self.attempt,
            docker_process_stdout: "42\n".to_owned(),
            docker_process_stderr: String::new(),
            artifacts: None,
            upload_results: None,
            image: None,
            trace: None,
            completion: None,
        };
        self.send_message(&ExecutorToMiner::V0JobFinishedRequest(result))
            .await;
    }
}
