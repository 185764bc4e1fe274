//! A scripted validator.

use muster_identity::{answer_challenge, sign_facilitator_auth};
use muster_protocol::wire::facilitator::{
    CheatReport, FromFacilitator, JobStatusUpdate, Response, ResponseStatus, StatusMetadata, ToFacilitator,
    UserJobRequest,
};
use muster_protocol::wire::muster::{Challenge, ChallengeResponse};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{JobId, JobStatus};
use muster_testbed::within;
use muster_websocket::{CloseCode, Limits, Socket};

use crate::facilitator::{Facilitator, key};

pub(crate) struct Validator {
    pub(crate) socket: Socket,
}

impl Validator {
    /// Connects without authenticating.
    pub(crate) async fn dial(facilitator: &Facilitator) -> Self {
        let limits = Limits::facilitator();
        let socket = muster_websocket::connect(&facilitator.socket_url(), &limits)
            .await
            .unwrap();
        Self { socket }
    }

    /// Connects as `//name`, which must be accepted.
    pub(crate) async fn connect(facilitator: &Facilitator, name: &str) -> Self {
        let mut validator = Self::dial(facilitator).await;
        let before = facilitator.validators().await;
        let answer = validator.authenticate(name).await;
        assert_eq!(answer.status, ResponseStatus::Success, "{answer:?}");
        // The heartbeat that makes the validator selectable is stored just after the response.
        validator.settle().await;
        assert!(facilitator.validators().await >= before.max(1));
        validator
    }

    pub(crate) async fn authenticate(&mut self, name: &str) -> Response {
        let auth = sign_facilitator_auth(&key(name));
        self.send_message(&ToFacilitator::V0AuthenticationRequest(auth))
            .await;
        match self.receive().await {
            FromFacilitator::Challenge(challenge) => self.prove(name, &challenge).await,
            FromFacilitator::Response(response) => response,
            other @ (FromFacilitator::Job(_) | FromFacilitator::Cheated(_) | FromFacilitator::Cancel(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// Answers a challenge as `//name`.
    pub(crate) async fn prove(&mut self, name: &str, challenge: &Challenge) -> Response {
        let signature = answer_challenge(&key(name), &challenge.nonce);
        let answer = ChallengeResponse { signature };
        self.send_message(&ToFacilitator::MusterChallengeResponse(answer))
            .await;
        self.response().await
    }

    /// Receives the challenge that answers a greeting.
    pub(crate) async fn challenge(&mut self) -> Challenge {
        match self.receive().await {
            FromFacilitator::Challenge(challenge) => challenge,
            other @ (FromFacilitator::Job(_)
            | FromFacilitator::Cheated(_)
            | FromFacilitator::Cancel(_)
            | FromFacilitator::Response(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// Waits until the session has handled every earlier message, by a second authentication, which is answered in
    /// turn.
    ///
    /// It must be called before any job can arrive.
    async fn settle(&mut self) {
        let auth = sign_facilitator_auth(&key("Nobody"));
        self.send_message(&ToFacilitator::V0AuthenticationRequest(auth))
            .await;
        let mut jobs = Vec::new();
        loop {
            match self.receive().await {
                FromFacilitator::Response(response) => {
                    assert_eq!(response.errors[0].r#type, "auth.already_authenticated");
                    break;
                }
                job @ (FromFacilitator::Job(_)
                | FromFacilitator::Cheated(_)
                | FromFacilitator::Cancel(_)
                | FromFacilitator::Challenge(_)) => jobs.push(job),
            }
        }
        assert!(jobs.is_empty(), "use `connect_to_jobs` where jobs are waiting");
    }

    /// Connects as `//name`, and receives the `count` jobs that wait for it.
    pub(crate) async fn connect_to_jobs(
        facilitator: &Facilitator,
        name: &str,
        count: usize,
    ) -> (Self, Vec<UserJobRequest>) {
        let mut validator = Self::dial(facilitator).await;
        let answer = validator.authenticate(name).await;
        assert_eq!(answer.status, ResponseStatus::Success, "{answer:?}");
        let mut jobs = Vec::new();
        for _ in 0..count {
            jobs.push(validator.job().await);
        }
        validator.settle().await;
        (validator, jobs)
    }

    pub(crate) async fn send_message(&mut self, message: &ToFacilitator) {
        self.socket.send(encode(message)).await.unwrap();
    }

    /// The next frame; `None` once the socket is closed.
    pub(crate) async fn frame(&mut self) -> Option<String> {
        within("a frame", self.socket.recv()).await.unwrap()
    }

    /// The next message, without a time limit; `None` once the socket is closed.
    pub(crate) async fn next(&mut self) -> Option<FromFacilitator> {
        let frame = self.socket.recv().await.unwrap()?;
        Some(decode(&frame).unwrap())
    }

    async fn receive(&mut self) -> FromFacilitator {
        decode(&self.frame().await.expect("the facilitator closed")).unwrap()
    }

    pub(crate) async fn response(&mut self) -> Response {
        match self.receive().await {
            FromFacilitator::Response(response) => response,
            other @ (FromFacilitator::Job(_)
            | FromFacilitator::Cheated(_)
            | FromFacilitator::Cancel(_)
            | FromFacilitator::Challenge(_)) => {
                panic!("{other:?}")
            }
        }
    }

    pub(crate) async fn job(&mut self) -> UserJobRequest {
        match self.receive().await {
            FromFacilitator::Job(job) => *job,
            other @ (FromFacilitator::Response(_)
            | FromFacilitator::Cheated(_)
            | FromFacilitator::Cancel(_)
            | FromFacilitator::Challenge(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// Receives the cancellation of a job.
    pub(crate) async fn cancelled(&mut self) -> JobId {
        match self.receive().await {
            FromFacilitator::Cancel(cancel) => cancel.uuid,
            other @ (FromFacilitator::Response(_)
            | FromFacilitator::Job(_)
            | FromFacilitator::Cheated(_)
            | FromFacilitator::Challenge(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// Receives a cheat report.
    pub(crate) async fn cheated(&mut self) -> CheatReport {
        match self.receive().await {
            FromFacilitator::Cheated(report) => *report,
            other @ (FromFacilitator::Response(_)
            | FromFacilitator::Job(_)
            | FromFacilitator::Cancel(_)
            | FromFacilitator::Challenge(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// Reports a status. The error is the type in the response.
    pub(crate) async fn report(&mut self, uuid: JobId, status: JobStatus) -> Result<(), String> {
        self.report_with(uuid, status, None).await
    }

    pub(crate) async fn report_with(
        &mut self,
        uuid: JobId,
        status: JobStatus,
        metadata: Option<StatusMetadata>,
    ) -> Result<(), String> {
        let update = JobStatusUpdate {
            uuid,
            status,
            metadata,
        };
        self.send_message(&ToFacilitator::V0JobStatusUpdate(Box::new(update)))
            .await;
        let response = self.response().await;
        match response.status {
            ResponseStatus::Success => Ok(()),
            ResponseStatus::Error => Err(response.errors[0].r#type.clone()),
        }
    }

    /// Checks that nothing was sent to the validator: the next frame answers a message sent now.
    pub(crate) async fn is_idle(&mut self) {
        self.settle().await;
    }

    /// Waits for the close frame and returns its code.
    pub(crate) async fn closed(&mut self) -> CloseCode {
        while self.frame().await.is_some() {}
        self.socket.closed().expect("closed without a close frame").code
    }
}
