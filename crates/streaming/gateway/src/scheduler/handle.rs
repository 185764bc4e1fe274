//! The scheduler's interface: commands to it, and its assignments of requests to sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_openai::OpenAiError;
use muster_protocol::{Digest, JobId, Timestamp};
use muster_response_proof::SessionId;
use muster_session_pool::{Event, RequestNumber, SessionNumber, WaitingPlace};
use tokio::sync::{mpsc, oneshot};

use super::ShortenedSession;
use super::assignment::SessionAssignment;
use super::model_pool::ModelStatus;
use muster_sealed_client::SealedSession;

/// Time after which a client may retry if the gateway is stopping.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A command to the scheduler.
pub(crate) enum SchedulerCommand {
    /// Queue a request for a session of the pool, or for this one only.
    Enqueue {
        pool: usize,
        request: RequestNumber,
        client: Digest,
        /// How long it waits for any session before it is refused.
        patience: Duration,
        only: Option<SessionId>,
        assignments: mpsc::UnboundedSender<SessionAssignment>,
    },
    /// Take an event of the pool into account.
    Apply(usize, Event),
    /// Let a session that was checked serve.
    AddSession(usize, SessionNumber, Arc<SealedSession>),
    /// Start the next session of the pool with this time.
    ShortenNext(usize, ShortenedSession),
    /// Reply the place of a request that waits in the pool.
    FindPlace(usize, RequestNumber, oneshot::Sender<Option<WaitingPlace>>),
    ListModels(oneshot::Sender<Vec<ModelStatus>>),
    ListLiveSessions(oneshot::Sender<Vec<Arc<SealedSession>>>),
    /// Drain the session that this job runs.
    DrainSession(JobId),
    /// Keep a session until this time if clients use it, and reply whether they do.
    HoldSession(SessionId, Timestamp, oneshot::Sender<bool>),
}

/// Sends commands to the scheduler. Clones reach the same one.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerHandle {
    commands: mpsc::UnboundedSender<SchedulerCommand>,
    next_request: Arc<AtomicU64>,
}

/// A client's request in the scheduler. Dropping it unfinished notifies the scheduler that the client has gone.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    scheduler: SchedulerHandle,
    pool: usize,
    number: RequestNumber,
    assignments: mpsc::UnboundedReceiver<SessionAssignment>,
    /// Keeps the channel of assignments open for a request that stands in no pool: a closed one means that the gateway
    /// is stopping.
    _assign: Option<mpsc::UnboundedSender<SessionAssignment>>,
    is_finished: bool,
}

/// Reads the place of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestPlace {
    scheduler: SchedulerHandle,
    pool: usize,
    number: RequestNumber,
}

impl RequestPlace {
    /// The place of the request now; `None` if it does not wait.
    pub(crate) async fn find(self) -> Option<WaitingPlace> {
        let (reply, place) = oneshot::channel();
        let command = SchedulerCommand::FindPlace(self.pool, self.number, reply);
        self.scheduler.send(command);
        place.await.unwrap_or_default()
    }
}

impl SchedulerHandle {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<SchedulerCommand>) {
        // Unbounded, but every sender holds a permit for a request or is one of a bounded number of sessions.
        let (commands, received) = mpsc::unbounded_channel();
        let next_request = Arc::default();
        (
            Self {
                commands,
                next_request,
            },
            received,
        )
    }

    /// Queues a request of this client for a session of the pool, or for one session only.
    pub(crate) fn enqueue(
        &self,
        pool: usize,
        (client, patience): (Digest, Duration),
        only: Option<SessionId>,
    ) -> StreamRequest {
        let number = RequestNumber(self.next_request.fetch_add(1, Ordering::Relaxed));
        let (assign, assignments) = mpsc::unbounded_channel();
        self.send(SchedulerCommand::Enqueue {
            pool,
            request: number,
            client,
            patience,
            only,
            assignments: assign,
        });
        StreamRequest {
            scheduler: self.clone(),
            pool,
            number,
            assignments,
            _assign: None,
            is_finished: false,
        }
    }

    /// The status of every model; empty once the gateway has stopped.
    pub(crate) async fn list_models(&self) -> Vec<ModelStatus> {
        let (reply, listed) = oneshot::channel();
        self.send(SchedulerCommand::ListModels(reply));
        listed.await.unwrap_or_default()
    }

    /// The sessions that take requests; empty once the gateway has stopped.
    pub(crate) async fn list_live_sessions(&self) -> Vec<Arc<SealedSession>> {
        let (reply, listed) = oneshot::channel();
        self.send(SchedulerCommand::ListLiveSessions(reply));
        listed.await.unwrap_or_default()
    }

    /// Keeps a session until this time if clients use it. Returns whether they do.
    pub(crate) async fn hold_session(&self, session: SessionId, until: Timestamp) -> bool {
        let (reply, held) = oneshot::channel();
        self.send(SchedulerCommand::HoldSession(session, until, reply));
        held.await.unwrap_or(false)
    }

    /// Drains the session that this job runs, if it is live.
    pub(crate) fn drain_session(&self, job: JobId) {
        self.send(SchedulerCommand::DrainSession(job));
    }

    /// Reports an event of a pool.
    pub(crate) fn report(&self, pool: usize, event: Event) {
        self.send(SchedulerCommand::Apply(pool, event));
    }

    pub(crate) fn send(&self, command: SchedulerCommand) {
        // The scheduler stops only with the gateway; a caller that waits for a reply then sees its channel close.
        let _ = self.commands.send(command);
    }
}

impl StreamRequest {
    /// A request that this session serves, which stands in no pool. Reports about it reach nobody.
    pub(crate) fn of_session(session: SessionNumber, line: Arc<SealedSession>) -> Self {
        let (scheduler, _) = SchedulerHandle::new();
        let (assign, assignments) = mpsc::unbounded_channel();
        // The receiver is here.
        let _ = assign.send(SessionAssignment::Assigned(session, line));
        Self {
            scheduler,
            pool: usize::MAX,
            number: RequestNumber(0),
            assignments,
            _assign: Some(assign),
            is_finished: false,
        }
    }

    /// Where the place of this request is read while it waits.
    pub(crate) fn place(&self) -> RequestPlace {
        RequestPlace {
            scheduler: self.scheduler.clone(),
            pool: self.pool,
            number: self.number,
        }
    }

    /// The next answer of the scheduler. There may be several, since a session that dies is replaced by another.
    pub(crate) async fn next_assignment(&mut self) -> SessionAssignment {
        self.assignments.recv().await.unwrap_or_else(|| {
            SessionAssignment::Refused(OpenAiError::Unavailable {
                message: "the gateway is stopping".to_owned(),
                retry_after: RETRY_AFTER,
            })
        })
    }

    /// Reports that the answer's first byte is on its way: no other session may serve the request any more.
    pub(crate) fn report_first_byte(&self, session: SessionNumber) {
        self.report(Event::FirstByte(self.number, session));
    }

    /// Reports that the session failed before the first byte.
    pub(crate) fn report_failure(&self, session: SessionNumber) {
        self.report(Event::Failed(self.number, session));
    }

    /// Reports that the answer has ended.
    pub(crate) fn finish(mut self, session: SessionNumber) {
        self.is_finished = true;
        self.report(Event::Served(self.number, session));
    }

    fn report(&self, event: Event) {
        self.scheduler.report(self.pool, event);
    }
}

impl Drop for StreamRequest {
    fn drop(&mut self) {
        if !self.is_finished {
            self.report(Event::Left(self.number));
        }
    }
}
