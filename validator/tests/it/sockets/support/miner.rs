//! A scripted miner.

mod memory;

use std::time::Duration;

use muster_identity::{
    FrameSignature, Keypair, countersign, verify_frame, verify_offered, verify_validator_auth,
};
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::encode;
use muster_protocol::wire::executor::{JobLog, JobProgress, LogBytes, LogStream, ProgressOf};
use muster_protocol::wire::miner::{
    AttemptNotice, DeclineJob, ExecutorManifest, ExecutorReady, FinishedReceiptRequest, HordeFailed,
    InitialJobRequest, JobFailed, JobFinished, JobRequest, MachineSpecs,
};
use muster_protocol::wire::muster::ReceiptCountersigned;
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{
    AttemptId, ExecutorClass, JobFailureReason, Manifest, MinerKey, Receipt, ReceiptPayload, Timestamp,
    ValidatorKey,
};
use muster_websocket::Socket;
use serde_json::json;

pub(crate) use memory::MinerMemory;

use super::server::TestServer;
use super::within;

/// A time after that of every clock in the tests.
const LATER: fn() -> Timestamp = || Timestamp::from_secs(4_000_000_000);

pub(crate) struct Miner {
    pub(crate) keypair: Keypair,
    pub(crate) server: TestServer,
    /// The executors that take private images, as the miner states it.
    pub(crate) private_images: Option<Manifest>,
}

/// A connection from the validator.
pub(crate) struct Session {
    pub(crate) keypair: Keypair,
    pub(crate) validator: ValidatorKey,
    socket: Socket,
}

/// Adds the miner's signature to a receipt that its validator has signed.
pub(crate) fn whole(
    miner: &Keypair,
    payload: ReceiptPayload,
    validator_signature: muster_protocol::Signature,
) -> Receipt {
    let offered = OfferedReceipt {
        payload,
        validator_signature,
    };
    let offered = verify_offered(offered, LATER()).unwrap();
    countersign(miner, offered).unwrap().into_inner()
}

impl Miner {
    pub(crate) async fn open(uri: &str) -> Self {
        Self::with_server(uri, TestServer::open().await)
    }

    /// A miner with this server.
    pub(crate) fn with_server(uri: &str, server: TestServer) -> Self {
        Self {
            keypair: Keypair::from_uri(uri).unwrap(),
            server,
            private_images: None,
        }
    }

    pub(crate) fn key(&self) -> MinerKey {
        MinerKey(self.keypair.hotkey())
    }

    /// Accepts a connection, checks the greeting and announces one executor.
    pub(crate) async fn accept(&mut self) -> Session {
        self.accept_with(1).await
    }

    /// Accepts a connection, checks the greeting and announces `executors` executors.
    pub(crate) async fn accept_with(&mut self, executors: u32) -> Session {
        let first = self.server.next().await;
        self.accept_from(first, executors).await
    }

    /// The same, however long it takes until a connection comes.
    pub(crate) async fn accept_whenever(&mut self, executors: u32) -> Session {
        let first = self.server.next_ever().await;
        self.accept_from(first, executors).await
    }

    async fn accept_from(&mut self, first: (String, Socket), executors: u32) -> Session {
        let mut next = Some(first);
        let (mut session, validator, auth) = loop {
            let (path, socket) = match next.take() {
                Some(first) => first,
                None => self.server.next().await,
            };
            let validator: ValidatorKey = path
                .strip_prefix("/v0.1/validator_interface/")
                .unwrap()
                .parse()
                .unwrap();
            let mut session = Session {
                keypair: self.keypair.clone(),
                validator,
                socket,
            };
            match session.next_message().await {
                Some(ValidatorToMiner::ValidatorAuthForMiner(auth)) => break (session, validator, auth),
                Some(other) => panic!("the first frame greets: {other:?}"),
                // The validator was killed, or gave up, between dialling and greeting.
                None => {}
            }
        };
        let now = Timestamp::from_secs(auth.timestamp);
        verify_validator_auth(auth, validator, self.key(), now, Duration::ZERO, Duration::ZERO).unwrap();
        let manifest = Manifest::new([(ExecutorClass::AlwaysOnTest, executors)]);
        session
            .send(MinerToValidator::V0ExecutorManifestRequest(ExecutorManifest {
                manifest,
                private_images: self.private_images.clone(),
            }))
            .await;
        session
    }
}

impl Session {
    pub(crate) async fn receive(&mut self) -> ValidatorToMiner {
        self.next_message().await.expect("not closed")
    }

    /// The next message however long it takes; `None` if the validator is gone.
    pub(crate) async fn listen(&mut self) -> Option<ValidatorToMiner> {
        let frame = self.socket.recv().await.ok()??;
        Some(decode_from_validator(&frame).unwrap().message)
    }

    /// The failure of an attempt whose executor is lost.
    pub(crate) fn horde_failure(job_uuid: AttemptId, message: &str) -> MinerToValidator {
        MinerToValidator::V0HordeFailedRequest(HordeFailed {
            job_uuid,
            reported_by: ParticipantType::Miner,
            message: message.to_owned(),
            reason: HordeFailureReason::GenericError,
            context: None,
        })
    }

    /// The next message; `None` if the validator is gone, politely or not.
    pub(crate) async fn next_message(&mut self) -> Option<ValidatorToMiner> {
        let frame = within("a frame for the miner", self.socket.recv()).await.ok()??;
        let signed = decode_from_validator(&frame).unwrap();
        let message = signed.message.clone();
        let verified = verify_frame(&signed, self.validator).unwrap();
        let must = matches!(
            message,
            ValidatorToMiner::V0InitialJobRequest(_) | ValidatorToMiner::V0JobRequest(_)
        );
        assert_eq!(
            verified == FrameSignature::Valid,
            must,
            "job requests are signed as a whole: {message:?}"
        );
        Some(message)
    }

    pub(crate) async fn send(&mut self, message: MinerToValidator) {
        // Whether the validator is still there shows when the next message is due.
        let _ = self.socket.send(encode(&message)).await;
    }

    pub(crate) async fn send_text(&mut self, frame: &str) {
        self.socket.send(frame.to_owned()).await.unwrap();
    }

    /// Sends as much of a text as the validator takes.
    pub(crate) async fn try_text(&mut self, frame: String) {
        let _ = self.socket.send(frame).await;
    }

    /// Waits until the validator has closed the connection.
    pub(crate) async fn closed(&mut self) {
        while let Ok(Some(_)) = within("the end of the session", self.socket.recv()).await {}
    }

    pub(crate) async fn countersign(
        &mut self,
        payload: ReceiptPayload,
        validator_signature: muster_protocol::Signature,
    ) {
        let receipt = whole(&self.keypair, payload, validator_signature);
        self.send(MinerToValidator::MusterReceiptCountersigned(Box::new(
            ReceiptCountersigned { receipt },
        )))
        .await;
    }

    /// Takes the offer and countersigns its receipt.
    pub(crate) async fn offer(&mut self) -> InitialJobRequest {
        let ValidatorToMiner::V0InitialJobRequest(offer) = self.receive().await else {
            panic!("an offer was due")
        };
        self.take_up(&offer).await;
        *offer
    }

    /// Countersigns the started receipt of an offer.
    pub(crate) async fn take_up(&mut self, offer: &InitialJobRequest) {
        let payload = ReceiptPayload::Started(offer.job_started_receipt_payload.clone());
        self.countersign(payload, offer.job_started_receipt_signature)
            .await;
    }

    pub(crate) async fn accept_job(&mut self, job_uuid: AttemptId) {
        self.send(MinerToValidator::V0AcceptJobRequest(AttemptNotice { job_uuid }))
            .await;
    }

    /// Takes the accepted receipt and countersigns it.
    pub(crate) async fn accepted_receipt(&mut self) {
        let ValidatorToMiner::V0JobAcceptedReceiptRequest(request) = self.receive().await else {
            panic!("an accepted receipt was due")
        };
        self.countersign(ReceiptPayload::Accepted(request.payload), request.signature)
            .await;
    }

    /// Takes the accepted receipt and countersigns it. Messages about earlier attempts may come before it.
    pub(crate) async fn accepted_receipt_at_last(&mut self) {
        let request = loop {
            if let ValidatorToMiner::V0JobAcceptedReceiptRequest(request) = self.receive().await {
                break request;
            }
        };
        self.countersign(ReceiptPayload::Accepted(request.payload), request.signature)
            .await;
    }

    pub(crate) async fn executor_ready(&mut self, job_uuid: AttemptId) {
        self.send(MinerToValidator::V0ExecutorReadyRequest(ExecutorReady {
            job_uuid,
            executor_token: None,
        }))
        .await;
    }

    /// The next message that is no accepted receipt. After a reconnection an accepted receipt may come again, and is
    /// signed again.
    async fn past_receipts(&mut self) -> ValidatorToMiner {
        loop {
            let message = self.receive().await;
            let ValidatorToMiner::V0JobAcceptedReceiptRequest(request) = message else {
                return message;
            };
            self.countersign(ReceiptPayload::Accepted(request.payload), request.signature)
                .await;
        }
    }

    pub(crate) async fn job(&mut self) -> JobRequest {
        let ValidatorToMiner::V0JobRequest(job) = self.past_receipts().await else {
            panic!("the job was due")
        };
        *job
    }

    pub(crate) async fn volumes_ready(&mut self, job_uuid: AttemptId) {
        self.send(MinerToValidator::V0VolumesReadyRequest(AttemptNotice {
            job_uuid,
        }))
        .await;
    }

    pub(crate) async fn execution_done(&mut self, job_uuid: AttemptId) {
        self.send(MinerToValidator::V0ExecutionDoneRequest(AttemptNotice {
            job_uuid,
        }))
        .await;
    }

    pub(crate) async fn finished(&mut self, job_uuid: AttemptId) {
        self.finished_with(job_uuid, "hello\n", "aGk=").await;
    }

    /// Sends the result of an attempt: its standard output, and its one artifact in base64.
    pub(crate) async fn finished_with(&mut self, job_uuid: AttemptId, stdout: &str, artifact: &str) {
        let specs = json!({ "specs": { "cpu": { "count": 8 } } });
        self.send(MinerToValidator::V0MachineSpecsRequest(MachineSpecs {
            job_uuid,
            specs,
        }))
        .await;
        self.send(MinerToValidator::V0JobFinishedRequest(JobFinished {
            job_uuid,
            docker_process_stdout: stdout.to_owned(),
            docker_process_stderr: String::new(),
            artifacts: Some(
                [("/artifacts/a".to_owned(), artifact.to_owned())]
                    .into_iter()
                    .collect(),
            ),
            upload_results: None,
            image: None,
            trace: None,
            completion: None,
        }))
        .await;
    }

    /// Takes the finished receipt without signing it.
    pub(crate) async fn finished_receipt(&mut self) -> FinishedReceiptRequest {
        let ValidatorToMiner::V0JobFinishedReceiptRequest(request) = self.past_receipts().await else {
            panic!("a finished receipt was due")
        };
        request
    }

    /// Takes the finished receipt and countersigns it.
    pub(crate) async fn paid(&mut self) -> String {
        let request = self.finished_receipt().await;
        let score = request.payload.score_str.clone();
        self.countersign(ReceiptPayload::Finished(request.payload), request.signature)
            .await;
        score
    }

    pub(crate) async fn decline(&mut self, job_uuid: AttemptId) {
        self.decline_with(job_uuid, vec![]).await;
    }

    /// Refuses as busy, with receipts of the work that the miner is busy with.
    pub(crate) async fn decline_with(&mut self, job_uuid: AttemptId, receipts: Vec<Receipt>) {
        self.send(MinerToValidator::V0DeclineJobRequest(DeclineJob {
            job_uuid,
            message: "all executors are at work".to_owned(),
            reason: JobRejectionReason::Busy,
            receipts,
            context: None,
        }))
        .await;
    }

    /// Sends a piece of the job's output.
    pub(crate) async fn prints(&mut self, job_uuid: AttemptId, offset: u64, text: &[u8]) {
        let data = LogBytes::new(text.to_vec()).unwrap();
        let stream = LogStream::Stdout;
        self.send(MinerToValidator::MusterJobLog(Box::new(JobLog {
            job_uuid,
            stream,
            offset,
            data,
        })))
        .await;
    }

    /// Sends the program's progress.
    pub(crate) async fn runs_for(&mut self, job_uuid: AttemptId, done: u64) {
        let of = ProgressOf::Execution;
        self.send(MinerToValidator::MusterJobProgress(JobProgress {
            job_uuid,
            of,
            done,
            total: None,
            layers: None,
        }))
        .await;
    }

    /// Takes a cancellation; returns its reason.
    pub(crate) async fn cancelled(&mut self, job_uuid: AttemptId) -> String {
        let ValidatorToMiner::MusterCancelJob(cancel) = self.past_receipts().await else {
            panic!("a cancellation was due")
        };
        assert_eq!(cancel.job_uuid, job_uuid);
        cancel.reason
    }

    pub(crate) async fn job_failed(&mut self, job_uuid: AttemptId) {
        self.send(MinerToValidator::V0JobFailedRequest(JobFailed {
            job_uuid,
            message: "exit code 3".to_owned(),
            reason: JobFailureReason::NonzeroReturnCode,
            stage: JobStage::Execution,
            docker_process_exit_status: Some(3),
            docker_process_stdout: Some("o".to_owned()),
            docker_process_stderr: Some("e".to_owned()),
            context: None,
        }))
        .await;
    }

    pub(crate) async fn horde_failed(&mut self, job_uuid: AttemptId) {
        self.horde_failed_by(job_uuid, HordeFailureReason::GenericError, None)
            .await;
    }

    /// Fails the attempt with a reason and a context.
    pub(crate) async fn horde_failed_by(
        &mut self,
        job_uuid: AttemptId,
        reason: HordeFailureReason,
        context: Option<serde_json::Value>,
    ) {
        self.send(MinerToValidator::V0HordeFailedRequest(HordeFailed {
            job_uuid,
            reported_by: ParticipantType::Executor,
            message: "the engine died".to_owned(),
            reason,
            context,
        }))
        .await;
    }

    /// From the offer to the running job.
    pub(crate) async fn begin(&mut self) -> AttemptId {
        let id = self.offer().await.job_uuid;
        self.accept_job(id).await;
        self.accepted_receipt().await;
        self.executor_ready(id).await;
        self.job().await;
        id
    }

    /// From the running job to its result.
    pub(crate) async fn complete(&mut self, id: AttemptId) {
        self.volumes_ready(id).await;
        self.execution_done(id).await;
        self.finished(id).await;
    }
}
