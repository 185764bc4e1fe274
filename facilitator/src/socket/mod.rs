//! `/ws/v0/`: the session of one validator, from its greeting to its end.

mod frames;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response as HttpResponse;
use muster_kit::error::Causes;
use muster_kit::store::StoreError;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{
    FromFacilitator, JobRequest, JobStatusUpdate, RejectionDetails, Response, StatusMetadata, ToFacilitator,
};
use muster_protocol::wire::muster::{Challenge, ChallengeNonce};
use muster_protocol::{JobRejectionReason, JobStatus, ParticipantType, Timestamp, ValidatorKey};
use muster_rpc::{Greeting, Limits, Session, SessionError, SocketError};
use tokio::sync::OwnedSemaphorePermit;

use self::frames::{Greeted, Validator};
use crate::door::Door;
use crate::hub::Seat;
use muster_porter::delivery::{Presence, Trust};

/// Close code: the facilitator is stopping.
const CLOSE_GOING_AWAY: u16 = 1001;
/// Close code: the peer broke a rule, here the one of heartbeats.
const CLOSE_POLICY: u16 = 1008;
/// Close code: our own failure. The validator comes back and sends again what was not answered.
const CLOSE_INTERNAL: u16 = 1011;

/// ComputeHorde's validators break the connection at a longer frame, and would again after every reconnection.
const COMPUTEHORDE_MAX_FRAME: usize = 1024 * 1024;

const LIMITS: Limits = Limits::facilitator();

/// Answers the upgrade request and hands the socket to a task of its own.
pub(crate) async fn upgrade(
    State(door): State<Arc<Door>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> HttpResponse {
    // What a stranger may cost us is bounded by how many there are at a time, what they may send and how long.
    let Ok(place) = Arc::clone(&door.strangers).try_acquire_owned() else {
        tracing::warn!("too many connections that have not authenticated; a new one is turned away");
        let mut response =
            HttpResponse::new(Body::from("too many connections are being greeted; try again\n"));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        return response;
    };
    let tasks = door.tasks.clone();
    muster_rpc::server::upgrade(request, peer, &LIMITS, &tasks, move |socket| {
        serve(Greeting::new(socket), door, place)
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

async fn serve(greeting: Greeting, door: Arc<Door>, place: OwnedSemaphorePermit) {
    let stop = door.tasks.token();
    let greeted = tokio::select! {
        () = stop.cancelled() => return,
        greeted = tokio::time::timeout(LIMITS.handshake, greet(greeting, &door)) => greeted,
    };
    // Neither time nor silence is worth an answer here.
    let Ok(Some((session, trust))) = greeted else {
        return;
    };
    drop(place);
    let validator = session.peer().0;
    let now = door.clock.now();
    let seat = door.hub.sit(validator, trust, now);
    tracing::info!(%validator, ?trust, "a validator connected");
    if !seat.holds(now) {
        tracing::warn!(%validator, "the validator has an older connection, which keeps its jobs while it beats");
    }
    Conversation {
        seat,
        heartbeat: now,
        session,
        door,
    }
    .run()
    .await;
    tracing::info!(%validator, "a validator disconnected");
}

/// Exchanges frames until the peer is known and served; `None` if it will not be.
async fn greet(greeting: Greeting, door: &Door) -> Option<(Session<Validator>, Trust)> {
    let (mut greeting, key) = ask(greeting, |frame| {
        frames::greet(frame, |key| door.roll.admits(key))
    })
    .await?;
    let trust = if greeting.is_muster() {
        let nonce = draw_nonce()?;
        let challenge = FromFacilitator::Challenge(Challenge::new(nonce));
        greeting.send(encode(&challenge)).await.ok()?;
        (greeting, _) = ask(greeting, |frame| frames::prove(frame, key, &nonce)).await?;
        Trust::Proven
    } else if door.hub.demands_proof(key, door.clock.now()) {
        refuse(greeting, &frames::proof_demanded(key), frames::CLOSE_SIGNATURE).await;
        return None;
    } else {
        Trust::Claimed
    };
    greeting.send(encode(&Response::success())).await.ok()?;
    Some((greeting.accept(Validator(key)), trust))
}

/// Takes frames until one of them is what it should be in the eyes of `judge`.
async fn ask(mut greeting: Greeting, judge: impl Fn(&str) -> Greeted) -> Option<(Greeting, ValidatorKey)> {
    loop {
        let greeted = match greeting.receive().await {
            Ok(Some(frame)) => judge(&frame),
            Ok(None) => return None,
            Err(error) if error.is_fatal() => return None,
            Err(_) => Greeted::NotYet(frames::binary()),
        };
        match greeted {
            Greeted::Accepted(key) => return Some((greeting, key)),
            Greeted::NotYet(response) => greeting.send(encode(&response)).await.ok()?,
            Greeted::Refused(response, code) => {
                refuse(greeting, &response, code).await;
                return None;
            }
        }
    }
}

async fn refuse(greeting: Greeting, response: &Response, code: u16) {
    tracing::info!(reason = ?response.errors.first().map(|error| &error.msg), "a validator was refused");
    greeting.refuse(Some(encode(response)), code).await;
}

fn draw_nonce() -> Option<ChallengeNonce> {
    let mut bytes = [0; 32];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Some(ChallengeNonce::from_bytes(bytes)),
        Err(error) => {
            tracing::error!(%error, "cannot draw a challenge, so no validator of Muster's can be greeted");
            None
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
        if let Err(end) = self.beat().await {
            return end;
        }
        loop {
            let outcome = tokio::select! {
                () = stop.cancelled() => Err(End::Close(CLOSE_GOING_AWAY, "the facilitator is stopping")),
                () = clock.sleep_until(Presence::lost_at(self.heartbeat)) =>
                    Err(End::Close(CLOSE_POLICY, "no heartbeat for ten minutes")),
                () = self.seat.rung() => self.deliver().await,
                message = self.session.recv() => {
                    self.seat.heard(clock.now());
                    match message {
                        Ok(Some(message)) => self.take(message).await,
                        Ok(None) => Err(End::Gone),
                        Err(SessionError::Malformed(malformed)) => self.answer(malformed.answer()).await,
                        Err(SessionError::Socket(error)) if error.is_fatal() => Err(error.into()),
                        Err(SessionError::Socket(_)) => self.answer(frames::binary()).await,
                    }
                }
            };
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    /// A sign of life, and whatever has waited for it.
    ///
    /// A connection that does not hold the validator's jobs does not make it selectable either.
    async fn beat(&mut self) -> Result<(), End> {
        self.heartbeat = self.door.clock.now();
        if self.seat.holds(self.heartbeat) {
            self.door.store.saw(self.validator(), self.heartbeat).await?;
            self.deliver().await?;
        }
        Ok(())
    }

    async fn take(&mut self, message: ToFacilitator) -> Result<(), End> {
        match message {
            ToFacilitator::V0AuthenticationRequest(_) | ToFacilitator::MusterChallengeResponse(_) => {
                self.answer(frames::already_authenticated()).await
            }
            ToFacilitator::V0Heartbeat(_) => self.beat().await,
            ToFacilitator::V0JobStatusUpdate(update) if !self.seat.holds(self.door.clock.now()) => {
                let (validator, job, status) = (self.validator(), update.uuid, update.status);
                tracing::warn!(%validator, %job, %status, "a report over a connection that does not hold the job");
                self.answer(frames::not_the_holder()).await
            }
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
            // Nothing shows them yet, and nothing is answered to them.
            ToFacilitator::V0MachineSpecsUpdate(_)
            | ToFacilitator::MusterJobLog(_)
            | ToFacilitator::MusterJobProgress(_) => Ok(()),
        }
    }

    async fn answer(&self, response: Response) -> Result<(), End> {
        Ok(self.session.send(&FromFacilitator::Response(response)).await?)
    }

    /// Sends every job that is due over this connection.
    async fn deliver(&mut self) -> Result<(), End> {
        let unanswered = self.door.store.unanswered(self.validator()).await?;
        for job in self.seat.due(&unanswered, self.door.clock.now()) {
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

    fn validator(&self) -> ValidatorKey {
        self.session.peer().0
    }
}
