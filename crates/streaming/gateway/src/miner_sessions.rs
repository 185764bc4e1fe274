//! Sessions of the validator's own with one miner: the trusted one, or one that is asked for fresh answers. No user's
//! request reaches them.
//!
//! A session ends by its deadline whatever happens: its job's time is bounded at the miner, at the executor and here;
//! an earlier process's sessions are called off at the start; and a [`MinerSession`] that is dropped ends its job.

use std::sync::Arc;
use std::time::Duration;

use muster_process::{SharedClock, Tasks};
use muster_protocol::{JobId, MinerKey};
use muster_sealed_client::{AddressPermit, SealedSession};
use muster_session_pool::Service;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::backend::{JobNews, ValidatorBackend};
use crate::session_opening::SessionOpening;
pub use crate::session_opening::SessionTimes;

/// The reason that is sent to the miner when a session is no longer needed.
const DONE: &str = "the check that needed the session is over";

/// Opens sessions with one miner.
#[derive(Clone)]
pub struct MinerSessions {
    /// The validator, which runs the sessions as jobs of its own.
    pub backend: Arc<dyn ValidatorBackend>,
    /// The only miner that gets the sessions.
    pub miner: MinerKey,
    /// Whether it is the trusted miner, which names addresses of the operator's own network.
    pub is_trusted: bool,
    /// The most by which the validator's clock and an executor's may differ.
    pub skew: Duration,
    /// The clock of all times of the validator.
    pub clock: SharedClock,
    /// The tasks of the validator.
    pub tasks: Tasks,
}

/// A session with a miner. Its job ends when this is closed or dropped.
pub struct MinerSession {
    session: Arc<SealedSession>,
    job: OpenJob,
    news: mpsc::Receiver<JobNews>,
}

/// A job that ends when this is dropped.
struct OpenJob {
    sessions: MinerSessions,
    job: JobId,
    /// Whether the session has given its close statement.
    is_closed: bool,
}

impl MinerSessions {
    /// Opens a session of a service and checks what the miner attests of it. A miner without a free executor refuses
    /// at once; the caller may try again.
    ///
    /// # Errors
    /// The reason as text: the miner does not answer or refuses, the session does not come up in time, or it is not
    /// what was ordered.
    pub async fn open(&self, service: &Service, times: SessionTimes) -> Result<MinerSession, String> {
        let id = JobId::from_uuid(Uuid::new_v4());
        // From here on the job ends with this future, too.
        let job = OpenJob {
            sessions: self.clone(),
            job: id,
            is_closed: false,
        };
        let opening = SessionOpening {
            backend: &*self.backend,
            job: id,
            service,
            miner: Some(self.miner),
            times,
            permits: AddressPermit(&|host, address| {
                self.is_trusted || self.backend.permits_address(host, address)
            }),
            skew: self.skew,
            clock: &self.clock,
            tasks: &self.tasks,
        };
        let (session, news) = opening.open().await.map_err(|failure| failure.why)?;
        tracing::info!(session = %session.id(), model = service.model, job = %id, miner = %self.miner,
            "a session of the validator's own serves");
        Ok(MinerSession {
            session: Arc::new(session),
            job,
            news,
        })
    }
}

impl MinerSession {
    /// The session: requests, proofs, its address and its deadline.
    pub fn sealed(&self) -> &Arc<SealedSession> {
        &self.session
    }

    /// Waits until the session has ended by itself; returns the reason as text. Cancel-safe.
    pub async fn wait_for_end(&mut self) -> String {
        loop {
            match self.news.recv().await {
                // The end of its job follows.
                Some(JobNews::Closed(statement)) => self.session.set_close_from_miner(statement),
                Some(JobNews::Ended { why, .. }) => return why,
                Some(JobNews::Ready { .. }) => return "it moved to another address".to_owned(),
                None => return "its job was forgotten".to_owned(),
            }
        }
    }

    /// Closes the session and has its job ended, which nobody waits for. Returns the close statement in text form, and
    /// the fault of a session that did not close correctly.
    pub async fn close(mut self) -> (Option<String>, Option<String>) {
        let (statement, fault) = self.session.close().await;
        self.job.is_closed = statement.is_some();
        (statement, fault)
    }
}

impl Drop for OpenJob {
    fn drop(&mut self) {
        let (job, is_closed) = (self.job, self.is_closed);
        let backend = Arc::clone(&self.sessions.backend);
        let ending = async move { backend.end_job(job, DONE, is_closed).await };
        drop(self.sessions.tasks.spawn("end a session", ending));
    }
}
