//! `/ws/v0/`: the session of one validator, from its greeting to its end.

mod frames;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response as HttpResponse;
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{
    FromFacilitator, JobRequest, JobStatusUpdate, RejectionDetails, Response, StatusMetadata, ToFacilitator,
};
use muster_protocol::wire::muster::{CancelRequest, Challenge, ChallengeNonce, GatewayNotice};
use muster_protocol::{JobId, JobRejectionReason, JobStatus, ParticipantType, Timestamp, ValidatorKey};
use muster_websocket::{Greeting, Limits, Session, SessionError, SocketError};
use tokio::sync::OwnedSemaphorePermit;

use self::frames::{Greeted, Validator};
use crate::door::Door;
use crate::hub::{Notice, Seat};
use crate::store::{Recorded, Said};
use muster_facilitator_core::delivery::{Presence, Trust, is_remembered};

/// Close code: the facilitator is stopping.
const CLOSE_GOING_AWAY: u16 = 1001;
/// Close code: the peer broke a rule, here the one of heartbeats.
const CLOSE_POLICY: u16 = 1008;
/// Close code: our own failure. The validator comes back and sends again what was not answered.
const CLOSE_INTERNAL: u16 = 1011;

/// ComputeHorde's validators break the connection at a longer frame, and would again after every reconnection.
const COMPUTEHORDE_MAX_FRAME: usize = 1024 * 1024;

/// Where facilitators share a store, a session looks this often by itself: what another one told may have been lost, and a
/// connection that another one held may have ended with it.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

/// What a validator is told of a job that its user no longer wants.
const CANCELLED: &str = "its user no longer wants it";

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
    muster_websocket::server::upgrade(request, peer, &LIMITS, &tasks, move |socket| {
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
    let conversation = Conversation {
        seat,
        trust,
        holds: false,
        heartbeat: now,
        stopping: BTreeSet::new(),
        session,
        door: Arc::clone(&door),
    };
    conversation.run().await;
    if !door.hub.has(validator) {
        match door.store.release(validator).await {
            Ok(()) => door.announce(Notice::Look(validator)),
            Err(error) => tracing::warn!(error = %Causes(&error), "a validator's place was not given up"),
        }
    }
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
    } else if demands_proof(door, key).await {
        refuse(greeting, &frames::proof_demanded(key), frames::CLOSE_SIGNATURE).await;
        return None;
    } else {
        Trust::Claimed
    };
    greeting.send(encode(&Response::success())).await.ok()?;
    Some((greeting.accept(Validator(key)), trust))
}

/// Whether a mere claim to be this validator is not enough, as far as this facilitator or its store remembers.
async fn demands_proof(door: &Door, key: ValidatorKey) -> bool {
    let now = door.clock.now();
    if door.hub.demands_proof(key, now) {
        return true;
    }
    match door.store.known(key).await {
        Ok(known) => known
            .and_then(|known| known.proven)
            .is_some_and(|proven| is_remembered(proven, now)),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "whether a validator can prove itself is not known; it must");
            true
        }
    }
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
    trust: Trust,
    /// Whether this facilitator holds the validator's jobs, as the store last said.
    holds: bool,
    heartbeat: Timestamp,
    /// Jobs that it has been told to stop over this connection, as long as they run.
    stopping: BTreeSet<JobId>,
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
        if let Err(end) = self.beat(true).await {
            return end;
        }
        let shared = self.door.store.is_shared();
        loop {
            let outcome = tokio::select! {
                () = stop.cancelled() => Err(End::Close(CLOSE_GOING_AWAY, "the facilitator is stopping")),
                () = clock.sleep_until(Presence::lost_at(self.heartbeat)) =>
                    Err(End::Close(CLOSE_POLICY, "no heartbeat for ten minutes")),
                () = self.seat.rung() => self.run_errands().await,
                () = clock.sleep(LOOK_ANYWAY), if shared => self.look_anyway().await,
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
    async fn beat(&mut self, arrives: bool) -> Result<(), End> {
        self.heartbeat = self.door.clock.now();
        self.hold(arrives).await?;
        self.look().await
    }

    /// Takes the validator's jobs over for this facilitator, if this connection is the one for them.
    async fn hold(&mut self, arrives: bool) -> Result<(), End> {
        let (held, now) = (self.holds, self.door.clock.now());
        self.holds = self.seat.holds(now)
            && self
                .door
                .store
                .hold(self.validator(), self.trust, arrives, now)
                .await?;
        if arrives && self.holds {
            // Whoever held them elsewhere is to see that it no longer does.
            self.door.announce(Notice::Look(self.validator()));
        }
        if held && !self.holds {
            tracing::info!(validator = %self.validator(), "another connection holds the validator's jobs now");
        }
        Ok(())
    }

    async fn look_anyway(&mut self) -> Result<(), End> {
        if !self.holds {
            self.hold(false).await?;
        }
        self.look().await
    }

    /// Whether this connection still holds the jobs: in this process, and among the facilitators that share the store.
    async fn still_holds(&mut self) -> Result<bool, End> {
        if !self.holds && self.seat.holds(self.door.clock.now()) {
            // The connection that held them has just ended.
            self.hold(false).await?;
        }
        if self.holds {
            self.holds = self.seat.holds(self.door.clock.now())
                && !(self.door.store.is_shared() && self.door.store.held_elsewhere(self.validator()).await?);
        }
        Ok(self.holds)
    }

    async fn run_errands(&mut self) -> Result<(), End> {
        let errands = self.seat.errands();
        if !self.still_holds().await? {
            return Ok(());
        }
        if errands.look {
            self.look_now().await?;
        }
        for job in errands.deliver {
            if self.seat.is_due(job, self.door.clock.now()) {
                self.deliver(job).await?;
            }
        }
        for job in errands.cancel {
            self.stopping.insert(job);
            self.cancel(job).await?;
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<(), End> {
        if self.still_holds().await? {
            self.look_now().await?;
        }
        Ok(())
    }

    /// Sends everything that is stored for the validator and due over this connection.
    async fn look_now(&mut self) -> Result<(), End> {
        let unanswered = self.door.store.unanswered(self.validator()).await?;
        for job in self.seat.due(&unanswered, self.door.clock.now()) {
            self.deliver(job).await?;
        }
        for (job, report) in self.door.store.reports_due(self.validator()).await? {
            self.session
                .send(&FromFacilitator::Cheated(Box::new(report)))
                .await?;
            self.door
                .store
                .report_delivered(job, self.door.clock.now())
                .await?;
        }
        let running = self.door.store.to_cancel(self.validator()).await?;
        self.stopping.retain(|job| running.contains(job));
        for job in running {
            if self.stopping.insert(job) {
                self.cancel(job).await?;
            }
        }
        Ok(())
    }

    /// Tells a validator that knows what it means; nothing of ours is sent to another.
    async fn cancel(&self, job: JobId) -> Result<(), End> {
        if self.session.is_muster() {
            let cancel = CancelRequest::new(job, CANCELLED);
            self.session.send(&FromFacilitator::Cancel(cancel)).await?;
        }
        Ok(())
    }

    async fn take(&mut self, message: ToFacilitator) -> Result<(), End> {
        match message {
            ToFacilitator::V0AuthenticationRequest(_) | ToFacilitator::MusterChallengeResponse(_) => {
                self.answer(frames::already_authenticated()).await
            }
            ToFacilitator::V0Heartbeat(_) => self.beat(false).await,
            ToFacilitator::V0JobStatusUpdate(update) => {
                if self.still_holds().await? {
                    return self.record(&update).await;
                }
                let (validator, job, status) = (self.validator(), update.uuid, update.status);
                tracing::warn!(%validator, %job, %status, "a report over a connection that does not hold the job");
                self.answer(frames::not_the_holder()).await
            }
            ToFacilitator::MusterJobLog(log) => {
                self.door.background.keep(self.validator(), Said::Log(log));
                Ok(())
            }
            ToFacilitator::MusterJobProgress(progress) => {
                self.door
                    .background
                    .keep(self.validator(), Said::Progress(progress));
                Ok(())
            }
            ToFacilitator::MusterGateway(notice) => self.announce(*notice).await,
            // Nothing shows it yet, and ComputeHorde answers nothing.
            ToFacilitator::V0MachineSpecsUpdate(_) => Ok(()),
        }
    }

    async fn record(&mut self, update: &JobStatusUpdate) -> Result<(), End> {
        if update.status.is_terminal() && self.session.is_muster() {
            // Its last words come before its end.
            self.door.background.flush().await;
        }
        let now = self.door.clock.now();
        let recorded = self.door.store.record(self.validator(), update, now).await?;
        let answer = frames::answer(&recorded);
        let (job, status, taken) = (update.uuid, update.status, frames::is_success(&answer));
        tracing::info!(%job, %status, taken, "a validator reported");
        let over = match recorded {
            Recorded::Yes => {
                self.door.announce(Notice::Changed(job));
                false
            }
            // It works on a job that has ended for its user: cancelled, or given up because nobody took it in time.
            Recorded::Refused(_) => !status.is_terminal() && self.door.store.is_cancelled(job).await?,
            Recorded::NoSuchJob | Recorded::HeldElsewhere => false,
        };
        self.answer(answer).await?;
        if over {
            self.cancel(job).await?;
        }
        Ok(())
    }

    /// Where the validator's gateway answers. Only a connection that holds the validator may say: users' prompts go there.
    async fn announce(&mut self, notice: GatewayNotice) -> Result<(), End> {
        let proven = match self.trust {
            Trust::Proven => self.still_holds().await?,
            Trust::Claimed => false,
        };
        if !proven {
            tracing::warn!(validator = %self.validator(), "a gateway over a connection that does not hold the validator");
            return Ok(());
        }
        tracing::info!(validator = %self.validator(), url = notice.url, models = notice.models.len(), "a validator's gateway");
        let kept = self.door.store.announce_gateway(self.validator(), &notice).await;
        Ok(kept?)
    }

    async fn answer(&self, response: Response) -> Result<(), End> {
        Ok(self.session.send(&FromFacilitator::Response(response)).await?)
    }

    /// Sends one job.
    async fn deliver(&mut self, job: JobId) -> Result<(), End> {
        let Some(stored) = self.door.store.job(job).await? else {
            return Ok(());
        };
        // It may have ended since it was announced.
        if stored.validator != self.validator() || stored.history.len() > 1 {
            return Ok(());
        }
        let size = encode(&stored.request).len();
        let limit = self.max_frame();
        if size > limit {
            return self.reject(&stored.request, size, limit).await;
        }
        tracing::info!(%job, size, "delivering a job");
        let frame = FromFacilitator::Job(Box::new(stored.request));
        Ok(self.session.send(&frame).await?)
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
        self.door.announce(Notice::Changed(request.uuid));
        Ok(())
    }

    fn validator(&self) -> ValidatorKey {
        self.session.peer().0
    }
}
