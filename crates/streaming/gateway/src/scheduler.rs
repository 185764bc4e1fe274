//! Puts everything that happens to sessions and requests in one order.
//!
//! The [`SessionScheduler`] owns the pools of all models. It takes commands one after another, answers the requests,
//! and returns the sessions to be started and closed as values, which the gateway carries out.

mod assignment;
mod handle;
mod model_pool;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_openai::OpenAiError;
use muster_protocol::{ExecutorClass, JobId, Timestamp};
use muster_response_proof::SessionId;
use muster_session_pool::{CloseReason, Effect, Event, Limits, Service, SessionNumber};
use tokio::sync::oneshot;
use uuid::Uuid;

pub(crate) use self::assignment::SessionAssignment;
pub(crate) use self::handle::{RequestPlace, SchedulerCommand, SchedulerHandle, StreamRequest};
use self::model_pool::{ModelPool, OpenSession};
pub use self::model_pool::{ModelStatus, SessionStatus};
use muster_sealed_client::SealedSession;

/// A session to be started.
pub(crate) struct SessionStart {
    pub(crate) service: Service,
    /// The index of the model's pool.
    pub(crate) pool: usize,
    pub(crate) session: SessionNumber,
    pub(crate) job: JobId,
    /// Set if executors are free only for a shorter session than usual.
    pub(crate) shortened: Option<ShortenedSession>,
}

/// A session that is shorter than usual, as executors are free only for such a one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortenedSession {
    /// How long it serves at most.
    pub(crate) lifetime: Duration,
    /// How often the time was shortened in a row.
    pub(crate) times: u32,
}

/// A session to be closed.
pub(crate) struct SessionEnd {
    pub(crate) job: JobId,
    /// `None` if the session was not ready yet.
    pub(crate) line: Option<Arc<SealedSession>>,
    pub(crate) reason: CloseReason,
}

/// An action for the gateway.
pub(crate) enum SessionAction {
    /// The receiver resolves once the scheduler has closed the session.
    Start(Box<SessionStart>, oneshot::Receiver<()>),
    Close(SessionEnd),
}

/// The owner of all pools.
pub(crate) struct SessionScheduler {
    pools: Vec<ModelPool>,
}

impl SessionScheduler {
    /// One pool for each service; a pool's index is that of its service.
    pub(crate) fn new(services: &[Service], limits: Limits) -> Self {
        let pools = services
            .iter()
            .map(|service| ModelPool::new(service.clone(), limits))
            .collect();
        Self { pools }
    }

    /// The time at which [`Self::tick`] is due unless a command comes first.
    pub(crate) fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        self.pools.iter().filter_map(|model| model.pool.wake(now)).min()
    }

    /// Takes into account that time has passed.
    pub(crate) fn tick(&mut self, now: Timestamp) -> Vec<SessionAction> {
        (0..self.pools.len())
            .flat_map(|pool| self.apply(pool, Event::Tick, now))
            .collect()
    }

    /// Takes into account that an executor may have become free.
    pub(crate) fn note_room(&mut self, now: Timestamp) -> Vec<SessionAction> {
        (0..self.pools.len())
            .flat_map(|pool| self.apply(pool, Event::Room, now))
            .collect()
    }

    /// Takes into account for which classes of executors jobs wait.
    pub(crate) fn note_waiting_jobs(
        &mut self,
        classes: &BTreeSet<ExecutorClass>,
        now: Timestamp,
    ) -> Vec<SessionAction> {
        let mut actions = Vec::new();
        for pool in 0..self.pools.len() {
            let class = self.pools.get(pool).map(|model| model.service.class);
            let jobs_wait = class.is_some_and(|class| classes.contains(&class));
            actions.extend(self.apply(pool, Event::JobsWait(jobs_wait), now));
        }
        actions
    }

    /// Carries out a command.
    pub(crate) fn handle(&mut self, command: SchedulerCommand, now: Timestamp) -> Vec<SessionAction> {
        match command {
            SchedulerCommand::Enqueue {
                pool,
                request,
                client: user,
                patience,
                only,
                assignments,
            } => {
                let Some(model) = self.pools.get_mut(pool) else {
                    return Vec::new();
                };
                model.requests.insert(request, assignments);
                let event = match only.map(|session| model.find_line(session)) {
                    None => Event::Arrived {
                        request,
                        user,
                        patience,
                    },
                    Some(Some(session)) => Event::ArrivedFor {
                        request,
                        user,
                        session,
                    },
                    Some(None) => {
                        let gone = OpenAiError::UpstreamFailed("the session is gone".to_owned());
                        model.answer(request, SessionAssignment::Refused(gone));
                        return Vec::new();
                    }
                };
                self.apply(pool, event, now)
            }
            SchedulerCommand::Apply(pool, event) => self.apply_report(pool, event, now),
            SchedulerCommand::ShortenNext(pool, shortened) => {
                if let Some(model) = self.pools.get_mut(pool) {
                    model.shortened = Some(shortened);
                }
                Vec::new()
            }
            SchedulerCommand::FindPlace(pool, request, reply) => {
                let pool = self.pools.get(pool).map(|model| &model.pool);
                // The client may have gone.
                let _ = reply.send(pool.and_then(|pool| pool.waiting_place(request, now)));
                Vec::new()
            }
            SchedulerCommand::AddSession(pool, session, line) => {
                let until = line.not_after();
                let Some(open) = self.open_session(pool, session) else {
                    return Vec::new();
                };
                open.line = Some(line);
                self.forget_shortening(pool);
                self.apply(pool, Event::Ready(session, until), now)
            }
            SchedulerCommand::ListLiveSessions(reply) => {
                // The caller may have gone.
                let _ = reply.send(self.pools.iter().flat_map(ModelPool::live_sessions).collect());
                Vec::new()
            }
            SchedulerCommand::DrainSession(job) => match self.find_session(job) {
                Some((pool, session)) => self.apply(pool, Event::Drain(session), now),
                None => Vec::new(),
            },
            SchedulerCommand::HoldSession(session, until, reply) => {
                let used = self.find_used(session, now);
                // The caller may have gone.
                let _ = reply.send(used.is_some());
                match used {
                    Some((pool, number)) => self.apply(pool, Event::Hold(number, until), now),
                    None => Vec::new(),
                }
            }
            SchedulerCommand::ListModels(reply) => {
                // The caller may have gone.
                let _ = reply.send(self.pools.iter().map(ModelPool::status).collect());
                Vec::new()
            }
        }
    }

    /// Refuses every request and returns all sessions to be closed. Nothing is started afterwards.
    pub(crate) fn stop(&mut self, now: Timestamp) -> Vec<SessionEnd> {
        let mut ends = Vec::new();
        for model in &mut self.pools {
            for effect in model.pool.apply(Event::Stop, now) {
                match effect {
                    Effect::Refuse(request, error) => {
                        model.answer(request, SessionAssignment::Refused(error))
                    }
                    // All sessions are closed below.
                    Effect::Start(_) | Effect::Route(..) | Effect::BreakOff(_) | Effect::Close(..) => {}
                }
            }
            for (_, open) in model.sessions.drain() {
                ends.push(SessionEnd::new(open, CloseReason::GatewayStopping));
            }
        }
        ends
    }

    /// Applies an event that a request or a session has reported.
    fn apply_report(&mut self, pool: usize, event: Event, now: Timestamp) -> Vec<SessionAction> {
        let (ended, dead) = (event.ended_request(), event.dead_session());
        match &event {
            Event::NoRoom { session, why, .. } => {
                let model = self.pools.get(pool).map(|model| &model.service.model);
                tracing::info!(
                    session = session.0,
                    ?model,
                    why,
                    "no executor is free for a session"
                );
                self.forget_shortening(pool);
            }
            Event::Unusable(..) => self.forget_shortening(pool),
            Event::Arrived { .. }
            | Event::ArrivedFor { .. }
            | Event::Hold(..)
            | Event::Left(_)
            | Event::FirstByte(..)
            | Event::Served(..)
            | Event::Failed(..)
            | Event::Ready(..)
            | Event::TooLong(_)
            | Event::Room
            | Event::JobsWait(_)
            | Event::Died(_)
            | Event::Health(..)
            | Event::Drain(_)
            | Event::Stop
            | Event::Tick => {}
        }
        if let Event::Unusable(session, reason) = &event {
            let model = self.pools.get(pool).map(|model| &model.service.model);
            tracing::warn!(session = session.0, ?model, reason, "a session cannot be used");
            metrics::counter!("muster_gateway_sessions_unusable_total").increment(1);
        }
        let mut actions = self.apply(pool, event, now);
        if let Some(session) = dead {
            actions.extend(self.close(pool, session, CloseReason::JobOver));
        }
        if let (Some(request), Some(model)) = (ended, self.pools.get_mut(pool)) {
            model.requests.remove(&request);
        }
        actions
    }

    fn apply(&mut self, pool: usize, event: Event, now: Timestamp) -> Vec<SessionAction> {
        let Some(model) = self.pools.get_mut(pool) else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        for effect in model.pool.apply(event, now) {
            match effect {
                Effect::Start(session) => actions.extend(self.start(pool, session)),
                Effect::Close(session, reason) => actions.extend(self.close(pool, session, reason)),
                Effect::Route(request, session) => {
                    if let Some(model) = self.pools.get(pool) {
                        model.assign(request, session);
                    }
                }
                Effect::Refuse(request, error) => {
                    metrics::counter!("muster_gateway_refused_total", "code" => error.code()).increment(1);
                    if let Some(model) = self.pools.get(pool) {
                        model.answer(request, SessionAssignment::Refused(error));
                    }
                }
                Effect::BreakOff(request) => {
                    if let Some(model) = self.pools.get(pool) {
                        model.answer(request, SessionAssignment::SessionLost);
                    }
                }
            }
        }
        if let Some(model) = self.pools.get(pool) {
            model.measure();
        }
        actions
    }

    fn start(&mut self, pool: usize, session: SessionNumber) -> Option<SessionAction> {
        let model = self.pools.get_mut(pool)?;
        let job = JobId::from_uuid(Uuid::new_v4());
        let (watched, closed) = oneshot::channel();
        tracing::info!(session = session.0, model = model.service.model, %job, "starting a session");
        let open = OpenSession {
            job,
            line: None,
            _watched: watched,
        };
        model.sessions.insert(session, open);
        let start = SessionStart {
            service: model.service.clone(),
            pool,
            session,
            job,
            shortened: model.shortened,
        };
        Some(SessionAction::Start(Box::new(start), closed))
    }

    /// The next session is as long as usual again.
    fn forget_shortening(&mut self, pool: usize) {
        if let Some(model) = self.pools.get_mut(pool) {
            model.shortened = None;
        }
    }

    fn close(&mut self, pool: usize, session: SessionNumber, reason: CloseReason) -> Option<SessionAction> {
        let model = self.pools.get_mut(pool)?;
        let open = model.sessions.remove(&session)?;
        tracing::info!(session = session.0, model = model.service.model, job = %open.job, reason = reason.text(),
            "closing a session");
        Some(SessionAction::Close(SessionEnd::new(open, reason)))
    }

    /// The pool and the number of a session that clients use.
    fn find_used(&self, session: SessionId, now: Timestamp) -> Option<(usize, SessionNumber)> {
        let mut pools = self.pools.iter().enumerate();
        pools.find_map(|(pool, model)| {
            let number = model.find_line(session)?;
            model.pool.is_used(number, now).then_some((pool, number))
        })
    }

    /// The pool and the number of the session that a job runs.
    fn find_session(&self, job: JobId) -> Option<(usize, SessionNumber)> {
        let mut pools = self.pools.iter().enumerate();
        pools.find_map(|(pool, model)| Some((pool, model.find_session(job)?)))
    }

    fn open_session(&mut self, pool: usize, session: SessionNumber) -> Option<&mut OpenSession> {
        self.pools.get_mut(pool)?.sessions.get_mut(&session)
    }
}

impl SessionEnd {
    fn new(open: OpenSession, reason: CloseReason) -> Self {
        if let Some(line) = open.line.as_ref().filter(|_| !reason.is_session_fault()) {
            line.mark_ending();
        }
        Self {
            job: open.job,
            line: open.line,
            reason,
        }
    }
}
