//! The session of one authenticated validator: its messages, its heartbeats, and whether it holds the validator's jobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_facilitator_core::bounds::{bound_capacity, bound_check, bound_refund};
use muster_facilitator_core::connections::{Presence, Trust};
use muster_facilitator_core::metric_labels::count_update;
use muster_facilitator_core::traces::export_ended;
use muster_http::rate_limit::RateLimiter;
use muster_process::error::Causes;
use muster_protocol::wire::checks::{JobCheck, RefundNotice};
use muster_protocol::wire::facilitator::{FromFacilitator, JobStatusUpdate, Response, ToFacilitator};
use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::wire::muster::{CapacityNotice, GatewayNotice};
use muster_protocol::{JobId, Timestamp, ValidatorKey};
use muster_store::StoreError;
use muster_websocket::{CloseCode, PeerSession, SessionError, SocketError};

use super::frames::{self, ValidatorPeer};
use super::services::SessionServices;
use crate::change_notices::Notice;
use crate::validator_sessions::SessionRegistration;
use muster_facilitator_store::{LiveMessage, UpdateOutcome};

/// The interval at which a session checks a shared store without a notice: notices of other facilitators may be lost,
/// and a connection that another facilitator held may have ended with it.
const CHECK_SHARED_STORE: Duration = Duration::from_secs(5);

/// The shortest time between two capacities of one validator that are stored. A validator of this version leaves three
/// seconds between them.
const CAPACITY_EVERY: Duration = Duration::from_secs(1);

/// Messages about miners of one connection that are stored a minute; further ones are dropped.
const MINERS_PER_MINUTE: u32 = 120;

/// Gateways of one connection that are stored a minute. A validator of this version announces its gateway once. Of
/// further ones the newest is stored with the next heartbeat.
const GATEWAYS_PER_MINUTE: u32 = 20;

/// Heartbeats of one connection that reach the store a minute. Further ones only show that the validator is there.
/// Validators send one in some seconds or in a minute.
const HEARTBEATS_PER_MINUTE: u32 = 120;

/// A session with an authenticated validator.
pub(super) struct ValidatorSession {
    pub(super) session: PeerSession<ValidatorPeer>,
    pub(super) registration: SessionRegistration,
    trust: Trust,
    /// Whether this connection holds the validator's jobs, as last read from the store.
    holds_jobs: bool,
    last_heartbeat: Timestamp,
    /// When this connection last brought a capacity that was stored.
    capacity_at: Option<Timestamp>,
    miner_pace: RateLimiter<()>,
    gateway_pace: RateLimiter<()>,
    heartbeat_pace: RateLimiter<()>,
    /// The newest gateway that came too early to be stored.
    early_gateway: Option<GatewayNotice>,
    /// Running jobs that the validator has been asked over this connection to stop.
    pub(super) stopping: BTreeSet<JobId>,
    pub(super) services: Arc<SessionServices>,
}

/// The reason why a session ends.
pub(super) enum SessionEnd {
    /// The validator disconnected, or its connection broke.
    Disconnected,
    /// The facilitator closes the connection, with a code and a reason.
    Close(CloseCode, &'static str),
}

impl From<StoreError> for SessionEnd {
    /// An update must not be answered unless it is durable, so the session ends without an answer.
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %Causes(&error), "a validator's session failed in the store");
        Self::Close(CloseCode::Internal, "the facilitator's store does not answer")
    }
}

impl From<SocketError> for SessionEnd {
    fn from(error: SocketError) -> Self {
        tracing::info!(error = %Causes(&error), "a validator's connection broke");
        Self::Disconnected
    }
}

// === impl ValidatorSession ===

impl ValidatorSession {
    pub(super) fn new(
        session: PeerSession<ValidatorPeer>,
        registration: SessionRegistration,
        trust: Trust,
        services: Arc<SessionServices>,
    ) -> Self {
        Self {
            session,
            registration,
            trust,
            holds_jobs: false,
            last_heartbeat: services.clock.now(),
            capacity_at: None,
            miner_pace: RateLimiter::new(MINERS_PER_MINUTE),
            gateway_pace: RateLimiter::new(GATEWAYS_PER_MINUTE),
            heartbeat_pace: RateLimiter::new(HEARTBEATS_PER_MINUTE),
            early_gateway: None,
            stopping: BTreeSet::new(),
            services,
        }
    }

    /// Runs the session to its end.
    pub(super) async fn run(mut self) {
        match self.exchange_messages().await {
            SessionEnd::Disconnected => {}
            SessionEnd::Close(code, reason) => {
                // The registration ends before the peer answers the close frame, which may take seconds.
                drop(self.registration);
                self.session.close(code, reason).await;
            }
        }
    }

    async fn exchange_messages(&mut self) -> SessionEnd {
        let stop = self.services.tasks.token();
        let clock = Arc::clone(&self.services.clock);
        if let Err(end) = self.record_heartbeat(true).await {
            return end;
        }
        let shared = self.services.store.is_shared();
        loop {
            let outcome = tokio::select! {
                () = stop.cancelled() => Err(SessionEnd::Close(CloseCode::GoingAway, "the facilitator is stopping")),
                () = clock.sleep_until(Presence::lost_at(self.last_heartbeat)) =>
                    Err(SessionEnd::Close(CloseCode::Policy, "no heartbeat for ten minutes")),
                () = self.registration.woken() => self.do_work().await,
                () = clock.sleep(CHECK_SHARED_STORE), if shared => self.check_shared_store().await,
                message = self.session.recv() => {
                    self.registration.record_frame(clock.now());
                    match message {
                        Ok(Some(message)) => self.handle(message).await,
                        Ok(None) => Err(SessionEnd::Disconnected),
                        Err(SessionError::Malformed(malformed)) => self.respond(malformed.response()).await,
                        Err(SessionError::Socket(error)) if error.is_fatal() => Err(error.into()),
                        Err(SessionError::Socket(_)) => self.respond(frames::binary_frame_response()).await,
                    }
                }
            };
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    /// Records a heartbeat and sends what is due. `first` marks the start of the session.
    ///
    /// A connection that does not hold the validator's jobs does not make the validator selectable.
    async fn record_heartbeat(&mut self, first: bool) -> Result<(), SessionEnd> {
        let now = self.services.clock.now();
        self.last_heartbeat = now;
        if self.heartbeat_pace.take((), now).is_err() {
            return Ok(());
        }
        self.claim_jobs(first).await?;
        if let Some(notice) = self.early_gateway.take() {
            self.record_gateway(notice).await?;
        }
        self.send_due_if_holding().await
    }

    /// Claims the validator's jobs in the store for this process, if this connection is the one that should hold them.
    async fn claim_jobs(&mut self, first: bool) -> Result<(), SessionEnd> {
        let (held, now) = (self.holds_jobs, self.services.clock.now());
        let (validator, trust) = (self.validator(), self.trust);
        self.holds_jobs = self.registration.holds_jobs(now)
            && self
                .services
                .store
                .claim_validator(validator, trust, first, now)
                .await?;
        if self.holds_jobs && !held {
            let features = self.session.features();
            self.services.store.record_features(validator, features).await?;
        }
        if first && self.holds_jobs {
            // The previous holder, here or at another facilitator, must see that it no longer holds the jobs.
            self.services.notifier.publish(Notice::Look(validator));
        }
        if held && !self.holds_jobs {
            tracing::info!(%validator, "another connection holds the validator's jobs now");
        }
        Ok(())
    }

    async fn check_shared_store(&mut self) -> Result<(), SessionEnd> {
        if !self.holds_jobs {
            self.claim_jobs(false).await?;
        }
        self.send_due_if_holding().await
    }

    /// Whether this connection still holds the jobs: in this process, and among the facilitators that share the store.
    async fn still_holds_jobs(&mut self) -> Result<bool, SessionEnd> {
        if !self.holds_jobs && self.registration.holds_jobs(self.services.clock.now()) {
            // The connection that held the jobs has just ended.
            self.claim_jobs(false).await?;
        }
        if self.holds_jobs {
            let store = &self.services.store;
            self.holds_jobs = self.registration.holds_jobs(self.services.clock.now())
                && !(store.is_shared() && store.is_held_elsewhere(self.validator()).await?);
        }
        Ok(self.holds_jobs)
    }

    async fn do_work(&mut self) -> Result<(), SessionEnd> {
        let work = self.registration.take_work();
        if !self.still_holds_jobs().await? {
            return Ok(());
        }
        if work.check_store {
            self.send_due().await?;
        }
        for job in work.deliver {
            if self.registration.take_if_due(job, self.services.clock.now()) {
                self.deliver(job).await?;
            }
        }
        for job in work.cancel {
            self.stopping.insert(job);
            self.send_cancel(job).await?;
        }
        Ok(())
    }

    async fn send_due_if_holding(&mut self) -> Result<(), SessionEnd> {
        if self.still_holds_jobs().await? {
            self.send_due().await?;
        }
        Ok(())
    }

    async fn handle(&mut self, message: ToFacilitator) -> Result<(), SessionEnd> {
        match message {
            ToFacilitator::V0AuthenticationRequest(_) | ToFacilitator::MusterChallengeResponse(_) => {
                self.respond(frames::already_authenticated()).await
            }
            ToFacilitator::V0Heartbeat(_) => self.record_heartbeat(false).await,
            ToFacilitator::V0JobStatusUpdate(update) => {
                if self.still_holds_jobs().await? {
                    return self.record_update(&update).await;
                }
                let (validator, job, status) = (self.validator(), update.uuid, update.status);
                tracing::warn!(%validator, %job, %status, "a status update over a connection that does not hold the job");
                self.respond(frames::not_the_holder()).await
            }
            ToFacilitator::MusterJobLog(log) => {
                let message = LiveMessage::Log(log);
                self.services.live_output.record(self.validator(), message);
                Ok(())
            }
            ToFacilitator::MusterJobProgress(progress) => {
                let message = LiveMessage::Progress(progress);
                self.services.live_output.record(self.validator(), message);
                Ok(())
            }
            ToFacilitator::MusterJobMetrics(metrics) => {
                let message = LiveMessage::Metrics(metrics);
                self.services.live_output.record(self.validator(), message);
                Ok(())
            }
            ToFacilitator::MusterJobCheckpoints(told) => {
                if self.still_holds_jobs().await? {
                    let (validator, checkpoints) = (self.validator(), &self.services.checkpoints);
                    let (kept, ended) = (&told.kept, told.ended_attempts);
                    checkpoints.record_kept(validator, told.uuid, kept, ended).await?;
                }
                Ok(())
            }
            ToFacilitator::MusterJobQueued(place) => {
                let message = LiveMessage::Queued(place, self.services.clock.now());
                self.services.live_output.record(self.validator(), message);
                Ok(())
            }
            ToFacilitator::MusterCapacity(notice) => self.record_capacity(*notice).await,
            ToFacilitator::MusterMiner(notice) => self.record_miner(*notice).await,
            ToFacilitator::MusterGateway(notice) => self.record_gateway(*notice).await,
            ToFacilitator::MusterJobCheck(notice) => self.record_check(bound_check(*notice)).await,
            ToFacilitator::MusterRefund(notice) => self.record_refund(bound_refund(*notice)).await,
            // ComputeHorde's facilitator gives no answer to machine specifications, and nothing here uses them yet.
            ToFacilitator::V0MachineSpecsUpdate(_) => Ok(()),
        }
    }

    async fn record_update(&mut self, update: &JobStatusUpdate) -> Result<(), SessionEnd> {
        if update.status.is_terminal() && self.session.is_muster() {
            // The job's last output must be stored before its end.
            self.services.live_output.flush().await;
        }
        let now = self.services.clock.now();
        let store = &self.services.store;
        let outcome = store.record(self.validator(), update, now).await?;
        let response = frames::update_response(&outcome);
        let (job, status, recorded) = (update.uuid, update.status, frames::is_success(&response));
        tracing::info!(%job, %status, recorded, "a validator reported a status");
        let must_stop = match outcome {
            UpdateOutcome::Recorded => {
                count_update(update);
                self.services.notifier.publish(Notice::Changed(job));
                if status.is_terminal()
                    && muster_span_export::is_on()
                    && let Some(stored) = store.job(job).await?
                {
                    export_ended(&stored.request, &stored.history);
                }
                false
            }
            // The validator works on a job that has ended for its user: cancelled, or not answered in time.
            UpdateOutcome::Rejected(_) => !status.is_terminal() && store.is_cancelled(job).await?,
            UpdateOutcome::NoSuchJob | UpdateOutcome::HeldElsewhere => false,
        };
        self.respond(response).await?;
        if must_stop {
            self.send_cancel(job).await?;
        }
        Ok(())
    }

    /// Records the address of the validator's gateway. Users' prompts go there, so only a proven connection that
    /// holds the validator's jobs may set it, and not too often.
    async fn record_gateway(&mut self, notice: GatewayNotice) -> Result<(), SessionEnd> {
        if self.gateway_pace.take((), self.services.clock.now()).is_err() {
            self.early_gateway = Some(notice);
            return Ok(());
        }
        self.early_gateway = None;
        let allowed = match self.trust {
            Trust::Proven => self.still_holds_jobs().await?,
            Trust::Claimed => false,
        };
        let validator = self.validator();
        if !allowed {
            tracing::warn!(%validator, "ignored a gateway over a connection that does not hold the validator's jobs");
            return Ok(());
        }
        Ok(self.services.gateways.announce(validator, notice).await?)
    }

    /// Records what the validator's miners offer. Only a connection that holds the validator's jobs may report it.
    async fn record_capacity(&mut self, notice: CapacityNotice) -> Result<(), SessionEnd> {
        let now = self.services.clock.now();
        let is_early = self
            .capacity_at
            .is_some_and(|last| now.since(last) < CAPACITY_EVERY);
        if is_early || !self.still_holds_jobs().await? {
            return Ok(());
        }
        self.capacity_at = Some(now);
        let store = &self.services.store;
        store
            .record_capacity(self.validator(), &bound_capacity(notice), now)
            .await?;
        Ok(())
    }

    /// Records what the validator knows of a miner. Only a connection that holds the validator's jobs may report it,
    /// and not too often.
    async fn record_miner(&mut self, notice: MinerNotice) -> Result<(), SessionEnd> {
        let now = self.services.clock.now();
        if self.miner_pace.take((), now).is_err() || !self.still_holds_jobs().await? {
            return Ok(());
        }
        let store = &self.services.store;
        store.record_miner(self.validator(), &notice.bound(), now).await?;
        Ok(())
    }

    /// Records what running a job again showed. Only a connection that holds the validator's jobs may report it.
    async fn record_check(&mut self, check: JobCheck) -> Result<(), SessionEnd> {
        if self.still_holds_jobs().await? {
            let (store, now) = (&self.services.store, self.services.clock.now());
            store.record_check(self.validator(), &check, now).await?;
        }
        Ok(())
    }

    /// Records a refund. Only a proven connection that holds the validator's jobs may report it.
    async fn record_refund(&mut self, refund: RefundNotice) -> Result<(), SessionEnd> {
        if self.trust == Trust::Proven && self.still_holds_jobs().await? {
            let (store, now) = (&self.services.store, self.services.clock.now());
            store.record_refund(self.validator(), &refund, now).await?;
        }
        Ok(())
    }

    async fn respond(&self, response: Response) -> Result<(), SessionEnd> {
        Ok(self.session.send(&FromFacilitator::Response(response)).await?)
    }

    pub(super) fn validator(&self) -> ValidatorKey {
        self.session.peer().0
    }
}
