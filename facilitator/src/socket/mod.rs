//! `/ws/v0/`: the session of one validator, from its greeting to its end.

mod frames;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::Response as HttpResponse;
use muster_kit::error::Causes;
use muster_kit::store::StoreError;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{
    FromFacilitator, JobRequest, JobStatusUpdate, RejectionDetails, Response, StatusMetadata, ToFacilitator,
};
use muster_protocol::{JobRejectionReason, JobStatus, ParticipantType, Timestamp};
use muster_rpc::{Greeting, Limits, Session, SessionError, SocketError};

use self::frames::{Greeted, Validator};
use crate::delivery::Presence;
use crate::door::Door;
use crate::hub::Seat;

/// Close code: the facilitator is stopping.
const CLOSE_GOING_AWAY: u16 = 1001;
/// Close code: the peer broke a rule, here the one of heartbeats.
const CLOSE_POLICY: u16 = 1008;
/// Close code: our own failure. The validator comes back and sends again what was not answered.
const CLOSE_INTERNAL: u16 = 1011;

/// ComputeHorde's validators break the connection at a longer frame, and would again after every reconnection.
const COMPUTEHORDE_MAX_FRAME: usize = 1024 * 1024;

const LIMITS: Limits = Limits::facilitator_server();

/// Answers the upgrade request and hands the socket to a task of its own.
pub(crate) async fn upgrade(
    State(door): State<Arc<Door>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> HttpResponse {
    let tasks = door.tasks.clone();
    muster_rpc::server::upgrade(request, peer, &LIMITS, &tasks, move |socket| {
        serve(Greeting::new(socket), door)
    })
    .map(Body::new)
}

/// Why a session ends.
enum End {
    /// The validator left, or its connection broke.
    Gone,
    /// We close, with a code and a reason.
    Close(u16, &'static str),
}

impl From<StoreError> for End {
    /// An update must not be answered unless it is durable, so the session ends without an answer.
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %Causes(&error), "a validator's session failed in the store");
        Self::Close(CLOSE_INTERNAL, "the facilitator's store does not answer")
    }
}

impl From<SocketError> for End {
    fn from(error: SocketError) -> Self {
        tracing::info!(error = %Causes(&error), "a validator's connection broke");
        Self::Gone
    }
}

async fn serve(greeting: Greeting, door: Arc<Door>) {
    let stop = door.tasks.token();
    let greeted = tokio::select! {
        () = stop.cancelled() => return,
        greeted = tokio::time::timeout(LIMITS.handshake, greet(greeting, &door)) => greeted,
    };
    // Neither time nor silence is worth an answer here.
    let Ok(Some(session)) = greeted else { return };
    let validator = session.peer().0;
    tracing::info!(%validator, muster = session.is_muster(), "a validator connected");
    Conversation {
        seat: door.hub.sit(validator),
        heartbeat: door.clock.now(),
        session,
        door,
    }
    .run()
    .await;
    tracing::info!(%validator, "a validator disconnected");
}

/// Exchanges frames until the peer has shown a key that is served; `None` if it did not.
async fn greet(mut greeting: Greeting, door: &Door) -> Option<Session<Validator>> {
    loop {
        let frame = match greeting.receive().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return None,
            Err(error) if error.is_fatal() => return None,
            Err(_) => continue,
        };
        let (answer, verdict) = match frames::greet(&frame, |key| door.roll.admits(key)) {
            Greeted::Accepted(key) => (Response::success(), Some(key)),
            Greeted::NotYet(response) => (response, None),
            Greeted::Refused(response, code) => {
                tracing::info!(reason = ?response.errors.first().map(|error| &error.msg), "a validator was refused");
                greeting.refuse(Some(encode(&response)), code).await;
                return None;
            }
        };
        greeting.send(encode(&answer)).await.ok()?;
        if let Some(key) = verdict {
            return Some(greeting.accept(Validator(key)));
        }
    }
}

/// A session with a validator that is served.
struct Conversation {
    session: Session<Validator>,
    seat: Seat,
    heartbeat: Timestamp,
    door: Arc<Door>,
}

// === impl Conversation ===

impl Conversation {
    async fn run(mut self) {
        match self.converse().await {
            End::Gone => {}
            End::Close(code, reason) => {
                // Its place is free before the peer agrees to the end.
                drop(self.seat);
                self.session.close(code, reason).await;
            }
        }
    }

    async fn converse(&mut self) -> End {
        let stop = self.door.tasks.token();
        let clock = Arc::clone(&self.door.clock);
        if let Err(end) = self.greet_store().await {
            return end;
        }
        loop {
            let outcome = tokio::select! {
                () = stop.cancelled() => Err(End::Close(CLOSE_GOING_AWAY, "the facilitator is stopping")),
                () = clock.sleep_until(Presence::lost_at(self.heartbeat)) =>
                    Err(End::Close(CLOSE_POLICY, "no heartbeat for ten minutes")),
                () = self.seat.rung() => self.deliver().await,
                message = self.session.recv() => match message {
                    Ok(Some(message)) => self.take(message).await,
                    Ok(None) => Err(End::Gone),
                    Err(SessionError::Malformed(malformed)) => self.answer(malformed.answer()).await,
                    Err(SessionError::Socket(error)) if error.is_fatal() => Err(error.into()),
                    Err(SessionError::Socket(_)) => Ok(()),
                },
            };
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    /// The first sign of life, and whatever has waited for it.
    async fn greet_store(&mut self) -> Result<(), End> {
        self.beat().await?;
        self.deliver().await
    }

    async fn beat(&mut self) -> Result<(), End> {
        self.heartbeat = self.door.clock.now();
        Ok(self.door.store.saw(self.validator(), self.heartbeat).await?)
    }

    async fn take(&mut self, message: ToFacilitator) -> Result<(), End> {
        match message {
            ToFacilitator::V0AuthenticationRequest(_) => self.answer(frames::already_authenticated()).await,
            ToFacilitator::V0Heartbeat(_) => self.beat().await,
            ToFacilitator::V0JobStatusUpdate(update) => {
                let recorded = self
                    .door
                    .store
                    .record(self.validator(), &update, self.door.clock.now());
                let answer = frames::answer(&recorded.await?);
                let (job, status, taken) = (update.uuid, update.status, frames::is_success(&answer));
                tracing::info!(%job, %status, taken, "a validator reported");
                self.answer(answer).await
            }
            // Nothing shows it yet, and ComputeHorde answers nothing.
            ToFacilitator::V0MachineSpecsUpdate(_) => Ok(()),
        }
    }

    async fn answer(&self, response: Response) -> Result<(), End> {
        Ok(self.session.send(&FromFacilitator::Response(response)).await?)
    }

    /// Sends every job that is due over this connection.
    async fn deliver(&mut self) -> Result<(), End> {
        let unanswered = self.door.store.unanswered(self.validator()).await?;
        for job in self.seat.due(&unanswered) {
            let Some(stored) = self.door.store.job(job).await? else {
                continue;
            };
            let size = encode(&stored.request).len();
            let limit = self.max_frame();
            if size > limit {
                self.reject(&stored.request, size, limit).await?;
            } else {
                tracing::info!(%job, size, "delivering a job");
                let frame = FromFacilitator::Job(Box::new(stored.request));
                self.session.send(&frame).await?;
            }
        }
        Ok(())
    }

    fn max_frame(&self) -> usize {
        if self.session.is_muster() {
            LIMITS.max_frame
        } else {
            COMPUTEHORDE_MAX_FRAME
        }
    }

    /// Ends a job that this validator could never be given.
    async fn reject(&self, request: &JobRequest, size: usize, limit: usize) -> Result<(), End> {
        let message = format!(
            "the job is {size} bytes long, and its validator takes {limit}; give large inputs by URL instead of inline"
        );
        tracing::warn!(job = %request.uuid, size, limit, "a job is too long for its validator");
        let details = RejectionDetails {
            rejected_by: ParticipantType::Facilitator,
            reason: JobRejectionReason::Unknown,
            message,
            context: None,
        };
        let update = JobStatusUpdate {
            uuid: request.uuid,
            status: JobStatus::Rejected,
            metadata: Some(StatusMetadata {
                job_rejection_details: Some(details),
                ..StatusMetadata::default()
            }),
        };
        self.door
            .store
            .record(self.validator(), &update, self.door.clock.now())
            .await?;
        Ok(())
    }

    fn validator(&self) -> muster_protocol::ValidatorKey {
        self.session.peer().0
    }
}
