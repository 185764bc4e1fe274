//! One model's pool, with the connections of its sessions and the channels of its requests.

use std::collections::HashMap;
use std::sync::Arc;

use muster_protocol::{JobId, MinerKey, Timestamp};
use muster_response_proof::SessionId;
use muster_session_pool::pool::PoolCounts;
use muster_session_pool::{Limits, RequestNumber, Service, SessionNumber, SessionPool};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::ShortenedSession;
use super::assignment::SessionAssignment;
use muster_sealed_client::SealedSession;

/// The status of one model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelStatus {
    /// The model's id, as clients name it.
    pub model: String,
    /// Number of sessions that are being started.
    pub starting: usize,
    /// Number of sessions that take requests.
    pub live: usize,
    /// Number of sessions that serve the requests they have and take no more.
    pub draining: usize,
    /// Number of requests that wait.
    pub waiting: usize,
    /// Number of requests that are being served.
    pub serving: usize,
    /// Why the last start of a session failed; empty once one is ready.
    pub trouble: String,
    /// The sessions that serve.
    pub sessions: Vec<SessionStatus>,
}

/// The status of one session that serves.
#[derive(Clone, Debug, Serialize)]
pub struct SessionStatus {
    /// The session's id.
    pub session: String,
    /// The streaming job that runs it.
    pub job: JobId,
    /// The miner that runs the job.
    pub miner: MinerKey,
    /// Host and port of the session's endpoint.
    pub address: String,
    /// The end of the session, as its miner attested it.
    pub until: Timestamp,
}

/// The pool of one model.
pub(super) struct ModelPool {
    pub(super) service: Service,
    pub(super) pool: SessionPool,
    /// Set if executors are free only for a shorter session than usual.
    pub(super) shortened: Option<ShortenedSession>,
    pub(super) sessions: HashMap<SessionNumber, OpenSession>,
    /// Where each request that has not ended receives its assignments.
    pub(super) requests: HashMap<RequestNumber, mpsc::UnboundedSender<SessionAssignment>>,
}

/// A session that the pool counts.
pub(super) struct OpenSession {
    pub(super) job: JobId,
    /// `None` until the session is ready.
    pub(super) line: Option<Arc<SealedSession>>,
    /// Dropping it ends the task that watches the session.
    pub(super) _watched: oneshot::Sender<()>,
}

impl ModelPool {
    pub(super) fn new(service: Service, limits: Limits) -> Self {
        Self {
            service,
            pool: SessionPool::new(limits),
            shortened: None,
            sessions: HashMap::new(),
            requests: HashMap::new(),
        }
    }

    pub(super) fn assign(&self, request: RequestNumber, session: SessionNumber) {
        let line = self.sessions.get(&session).and_then(|open| open.line.clone());
        match line {
            Some(line) => self.answer(request, SessionAssignment::Assigned(session, line)),
            // The pool assigns requests to live sessions only, and a session is live once its connection is here.
            None => tracing::error!(session = session.0, "a session without a connection was assigned"),
        }
    }

    pub(super) fn answer(&self, request: RequestNumber, assignment: SessionAssignment) {
        if let Some(assignments) = self.requests.get(&request) {
            // A client that has gone reports that by dropping its request.
            let _ = assignments.send(assignment);
        }
    }

    pub(super) fn live_sessions(&self) -> impl Iterator<Item = Arc<SealedSession>> {
        let live = self
            .sessions
            .iter()
            .filter(|(number, _)| self.pool.is_live(**number));
        live.filter_map(|(_, open)| open.line.clone())
    }

    /// The number of a session that is ready.
    pub(super) fn find_line(&self, session: SessionId) -> Option<SessionNumber> {
        let mut open = self.sessions.iter();
        open.find_map(|(number, open)| (open.line.as_ref()?.id() == session).then_some(*number))
    }

    /// The session that this job runs.
    pub(super) fn find_session(&self, job: JobId) -> Option<SessionNumber> {
        let mut open = self.sessions.iter();
        open.find_map(|(number, open)| (open.job == job).then_some(*number))
    }

    pub(super) fn status(&self) -> ModelStatus {
        let counts = self.pool.counts();
        let lines = self.sessions.values().filter_map(|open| open.line.as_ref());
        ModelStatus {
            model: self.service.model.clone(),
            starting: counts.starting,
            live: counts.live,
            draining: counts.draining,
            waiting: counts.waiting + counts.bound,
            serving: counts.serving,
            trouble: self.pool.last_failure().to_owned(),
            sessions: lines
                .map(|line| SessionStatus {
                    session: line.id().to_string(),
                    job: line.job(),
                    miner: line.miner(),
                    address: line.address().to_owned(),
                    until: line.not_after(),
                })
                .collect(),
        }
    }

    /// Sets the gauges of this model.
    pub(super) fn measure(&self) {
        let PoolCounts {
            starting,
            live,
            draining,
            waiting,
            bound,
            serving,
        } = self.pool.counts();
        let model = &self.service.model;
        for (state, number) in [("starting", starting), ("live", live), ("draining", draining)] {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            metrics::gauge!("muster_gateway_sessions", "model" => model.clone(), "state" => state)
                .set(number);
        }
        for (state, number) in [("waiting", waiting + bound), ("served", serving)] {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            metrics::gauge!("muster_gateway_requests", "model" => model.clone(), "state" => state)
                .set(number);
        }
    }
}
