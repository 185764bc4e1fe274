//! A scripted facilitator.

use muster_identity::{Keypair, sign_job, verify_challenge, verify_facilitator_auth};
use muster_protocol::wire::checks::{CheckState, JobCheck};
use muster_protocol::wire::facilitator::{JobStatusUpdate, Response, ToFacilitator, UserJobRequest};
use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::wire::muster::{
    CancelRequest, CapacityNotice, Challenge, ChallengeNonce, LiveQueuePlace,
};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{FeatureSet, JobId, JobStatus, Signature};
use muster_websocket::Socket;
use serde_json::json;
use uuid::Uuid;

use super::server::TestServer;
use super::within;

pub(crate) struct Facilitator {
    server: TestServer,
    socket: Option<Socket>,
}

/// A job as its user signed it.
pub(crate) fn job(user: &str, timestamp_ns: i64) -> UserJobRequest {
    signed(user, timestamp_ns, Uuid::new_v4())
}

/// A signed job with an id of the test's choice.
pub(crate) fn signed(user: &str, timestamp_ns: i64, uuid: Uuid) -> UserJobRequest {
    let user = Keypair::from_uri(user).unwrap();
    let mut request: UserJobRequest = serde_json::from_value(json!({
        "signature": {
            "signature_type": "bittensor", "signatory": user.hotkey(), "timestamp_ns": 0,
            "signature": Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
        },
        "uuid": uuid, "executor_class": "always_on.test", "docker_image": "hello@sha256:1",
        "args": ["--greet"], "env": {"B": "1", "A": "2"}, "use_gpu": false,
        "volume": {"volume_type": "multi_volume", "volumes": [
            {"volume_type": "inline", "contents": "UEsFBgAAAAAAAAAAAAAAAAAAAAAAAA==", "relative_path": null}]},
        "download_time_limit": 2, "execution_time_limit": 3, "upload_time_limit": 4, "streaming_start_time_limit": 1,
    }))
    .unwrap();
    request.signature = sign_job(&user, &request.signed_fields(), timestamp_ns);
    request
}

impl Facilitator {
    pub(crate) async fn open() -> Self {
        Self {
            server: TestServer::open().await,
            socket: None,
        }
    }

    /// Shows these features from here on, as an older facilitator does.
    pub(crate) fn show_features(&self, features: FeatureSet) {
        self.server.show_features(features);
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/ws/v0/", self.server.address)
    }

    /// Takes a connection and challenges its greeting, without accepting the validator.
    pub(crate) async fn connected(&mut self) {
        let auth = loop {
            let (path, socket) = self.server.next().await;
            assert_eq!(path, "/ws/v0/");
            self.socket = Some(socket);
            match self.next_message().await {
                Some(ToFacilitator::V0AuthenticationRequest(auth)) => break auth,
                Some(other) => panic!("the first frame is a greeting, not {other:?}"),
                // The validator was killed between dialling and greeting.
                None => {}
            }
        };
        let key = verify_facilitator_auth(&auth).unwrap().into_inner();
        let nonce = ChallengeNonce::from_bytes([7; 32]);
        self.send(encode(&Challenge::new(nonce))).await;
        let answer = self.receive().await;
        let ToFacilitator::MusterChallengeResponse(answer) = answer else {
            panic!("the answer to the challenge was due, not {answer:?}")
        };
        verify_challenge(key, &nonce, &answer.signature).unwrap();
    }

    /// Takes a connection and accepts the validator.
    pub(crate) async fn accept(&mut self) {
        self.connected().await;
        self.answer(&Response::success()).await;
    }

    /// Takes a connection as ComputeHorde's facilitator does, without showing that it is Muster.
    pub(crate) async fn accept_plainly(&mut self) {
        self.server.be_plain();
        self.socket = Some(self.server.next().await.1);
        let greeting = self.receive().await;
        assert!(
            matches!(greeting, ToFacilitator::V0AuthenticationRequest(_)),
            "{greeting:?}"
        );
        self.answer(&Response::success()).await;
    }

    pub(crate) async fn receive(&mut self) -> ToFacilitator {
        self.next_message().await.expect("not closed")
    }

    /// The next message; `None` if the validator is gone, politely or not.
    pub(crate) async fn next_message(&mut self) -> Option<ToFacilitator> {
        let socket = self.socket.as_mut().expect("connected");
        let frame = within("a frame for the facilitator", socket.recv())
            .await
            .ok()??;
        Some(decode(&frame).unwrap())
    }

    /// The reason with which the validator closed the connection; `None` if it is gone without a word.
    pub(crate) fn close_reason(&self) -> Option<String> {
        let closed = self.socket.as_ref()?.closed()?;
        Some(closed.reason.clone())
    }

    pub(crate) async fn answer(&mut self, response: &Response) {
        self.send(encode(response)).await;
    }

    pub(crate) async fn send(&mut self, frame: String) {
        // Whether the validator is still there shows when its next message is due.
        let _ = self.socket.as_mut().expect("connected").send(frame).await;
    }

    pub(crate) async fn submit(&mut self, job: &UserJobRequest) {
        self.send(encode(job)).await;
    }

    /// Sends a user's cancellation of a job.
    pub(crate) async fn cancel(&mut self, job: JobId, reason: &str) {
        self.send(encode(&CancelRequest::new(job, reason))).await;
    }

    /// The next piece of live output or progress; status updates before it are answered and dropped.
    pub(crate) async fn live(&mut self) -> ToFacilitator {
        loop {
            match self.receive().await {
                live @ (ToFacilitator::MusterJobLog(_)
                | ToFacilitator::MusterJobProgress(_)
                | ToFacilitator::MusterJobMetrics(_)
                | ToFacilitator::MusterJobCheckpoints(_)) => return live,
                ToFacilitator::V0JobStatusUpdate(_) => self.answer(&Response::success()).await,
                ToFacilitator::V0Heartbeat(_)
                | ToFacilitator::MusterJobQueued(_)
                | ToFacilitator::MusterCapacity(_)
                | ToFacilitator::MusterMiner(_)
                | ToFacilitator::MusterJobCheck(_)
                | ToFacilitator::MusterRefund(_)
                | ToFacilitator::MusterGateway(_) => {}
                other @ (ToFacilitator::V0AuthenticationRequest(_)
                | ToFacilitator::V0MachineSpecsUpdate(_)
                | ToFacilitator::MusterChallengeResponse(_)) => panic!("live output was due, not {other:?}"),
            }
        }
    }

    /// The next message about a job that runs again; everything before it is dropped, and status updates are answered.
    pub(crate) async fn check_of(&mut self, job: JobId) -> JobCheck {
        loop {
            match self.receive().await {
                ToFacilitator::MusterJobCheck(notice) if notice.uuid == job => return *notice,
                ToFacilitator::V0JobStatusUpdate(_) => self.answer(&Response::success()).await,
                ToFacilitator::MusterJobCheck(_)
                | ToFacilitator::MusterRefund(_)
                | ToFacilitator::MusterJobQueued(_)
                | ToFacilitator::V0Heartbeat(_)
                | ToFacilitator::MusterJobLog(_)
                | ToFacilitator::MusterJobProgress(_)
                | ToFacilitator::MusterJobMetrics(_)
                | ToFacilitator::MusterJobCheckpoints(_)
                | ToFacilitator::MusterCapacity(_)
                | ToFacilitator::MusterMiner(_)
                | ToFacilitator::MusterGateway(_) => {}
                other @ (ToFacilitator::V0AuthenticationRequest(_)
                | ToFacilitator::V0MachineSpecsUpdate(_)
                | ToFacilitator::MusterChallengeResponse(_)) => panic!("a check was due, not {other:?}"),
            }
        }
    }

    /// The verdict about a job that runs again.
    pub(crate) async fn verdict_of(&mut self, job: JobId) -> JobCheck {
        loop {
            let notice = self.check_of(job).await;
            if notice.state != CheckState::Pending {
                return notice;
            }
        }
    }

    /// The next place of a waiting job; everything before it is dropped.
    pub(crate) async fn place_of(&mut self, job: JobId) -> LiveQueuePlace {
        loop {
            match self.receive().await {
                ToFacilitator::MusterJobQueued(place) if place.uuid == job => return *place,
                ToFacilitator::V0JobStatusUpdate(_) => self.answer(&Response::success()).await,
                ToFacilitator::MusterJobQueued(_)
                | ToFacilitator::V0Heartbeat(_)
                | ToFacilitator::MusterJobLog(_)
                | ToFacilitator::MusterJobProgress(_)
                | ToFacilitator::MusterJobMetrics(_)
                | ToFacilitator::MusterJobCheckpoints(_)
                | ToFacilitator::MusterCapacity(_)
                | ToFacilitator::MusterMiner(_)
                | ToFacilitator::MusterJobCheck(_)
                | ToFacilitator::MusterRefund(_)
                | ToFacilitator::MusterGateway(_) => {}
                other @ (ToFacilitator::V0AuthenticationRequest(_)
                | ToFacilitator::V0MachineSpecsUpdate(_)
                | ToFacilitator::MusterChallengeResponse(_)) => {
                    panic!("the place of a job was due, not {other:?}")
                }
            }
        }
    }

    /// The next notice of what the subnet offers; status updates before it are answered and dropped.
    pub(crate) async fn capacity(&mut self) -> CapacityNotice {
        loop {
            match self.receive().await {
                ToFacilitator::MusterCapacity(notice) => return *notice,
                ToFacilitator::V0JobStatusUpdate(_) => self.answer(&Response::success()).await,
                ToFacilitator::V0Heartbeat(_)
                | ToFacilitator::MusterJobLog(_)
                | ToFacilitator::MusterJobProgress(_)
                | ToFacilitator::MusterJobMetrics(_)
                | ToFacilitator::MusterJobCheckpoints(_)
                | ToFacilitator::MusterJobQueued(_)
                | ToFacilitator::MusterMiner(_)
                | ToFacilitator::MusterJobCheck(_)
                | ToFacilitator::MusterRefund(_)
                | ToFacilitator::MusterGateway(_) => {}
                other @ (ToFacilitator::V0AuthenticationRequest(_)
                | ToFacilitator::V0MachineSpecsUpdate(_)
                | ToFacilitator::MusterChallengeResponse(_)) => {
                    panic!("a capacity was due, not {other:?}")
                }
            }
        }
    }

    /// The next notice about a miner; status updates before it are answered and dropped.
    pub(crate) async fn miner(&mut self) -> MinerNotice {
        loop {
            match self.receive().await {
                ToFacilitator::MusterMiner(notice) => return *notice,
                ToFacilitator::V0JobStatusUpdate(_) => self.answer(&Response::success()).await,
                ToFacilitator::V0Heartbeat(_)
                | ToFacilitator::MusterJobLog(_)
                | ToFacilitator::MusterJobProgress(_)
                | ToFacilitator::MusterJobMetrics(_)
                | ToFacilitator::MusterJobCheckpoints(_)
                | ToFacilitator::MusterJobQueued(_)
                | ToFacilitator::MusterCapacity(_)
                | ToFacilitator::MusterJobCheck(_)
                | ToFacilitator::MusterRefund(_)
                | ToFacilitator::MusterGateway(_) => {}
                other @ (ToFacilitator::V0AuthenticationRequest(_)
                | ToFacilitator::V0MachineSpecsUpdate(_)
                | ToFacilitator::MusterChallengeResponse(_)) => {
                    panic!("a notice about a miner was due, not {other:?}")
                }
            }
        }
    }

    /// The next status update, not yet answered.
    pub(crate) async fn update(&mut self) -> JobStatusUpdate {
        loop {
            match self.receive().await {
                ToFacilitator::V0JobStatusUpdate(update) => return *update,
                ToFacilitator::V0Heartbeat(_)
                | ToFacilitator::MusterJobLog(_)
                | ToFacilitator::MusterJobProgress(_)
                | ToFacilitator::MusterJobMetrics(_)
                | ToFacilitator::MusterJobCheckpoints(_)
                | ToFacilitator::MusterJobQueued(_)
                | ToFacilitator::MusterCapacity(_)
                | ToFacilitator::MusterMiner(_)
                | ToFacilitator::MusterJobCheck(_)
                | ToFacilitator::MusterRefund(_)
                | ToFacilitator::MusterGateway(_) => {}
                other @ (ToFacilitator::V0AuthenticationRequest(_)
                | ToFacilitator::V0MachineSpecsUpdate(_)
                | ToFacilitator::MusterChallengeResponse(_)) => {
                    panic!("a status update was due, not {other:?}")
                }
            }
        }
    }

    /// The next status update, answered with success.
    pub(crate) async fn take(&mut self) -> JobStatusUpdate {
        let update = self.update().await;
        self.answer(&Response::success()).await;
        update
    }

    /// Takes an update and checks its status.
    pub(crate) async fn expect(&mut self, status: JobStatus) -> JobStatusUpdate {
        let update = self.take().await;
        assert_eq!(update.status, status, "{update:?}");
        update
    }

    /// Takes updates up to the end of a job.
    pub(crate) async fn updates_to_the_end(&mut self) -> (Vec<JobStatus>, JobStatusUpdate) {
        let mut statuses = Vec::new();
        loop {
            let update = self.take().await;
            statuses.push(update.status);
            if update.status.is_terminal() {
                return (statuses, update);
            }
        }
    }

    /// Drops the connection without a close frame.
    pub(crate) fn hang_up(&mut self) {
        self.socket = None;
    }
}
