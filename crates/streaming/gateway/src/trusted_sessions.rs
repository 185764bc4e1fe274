//! Sessions on the trusted miner, for the validator's own checks. No user's request reaches them.
//!
//! A session ends by its deadline whatever happens: its job's time is bounded at the miner, at the executor and here;
//! an earlier process's sessions are called off at the start; and a [`TrustedSession`] that is dropped ends its job.

use std::sync::Arc;
use std::time::Duration;

use muster_process::{SharedClock, Tasks, certificate};
use muster_protocol::{JobId, MinerKey};
use muster_sealed_client::{AddressPermit, SealedSession, SessionParameters};
use muster_session_pool::Service;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::backend::{JobNews, StreamingJobOrder, ValidatorBackend};

/// News of one job that may wait to be received.
const NEWS_CAPACITY: usize = 8;
/// The reason that the miner is told when a session is no longer needed.
const DONE: &str = "the check that needed the session is over";

/// The times of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionTimes {
    /// How long machine, image and engine may take to be there.
    pub start: Duration,
    /// How long the session serves at most once it has begun.
    pub lifetime: Duration,
}

/// Opens sessions on the trusted miner.
#[derive(Clone)]
pub struct TrustedSessions {
    /// The validator, which runs the sessions as jobs of its own.
    pub backend: Arc<dyn ValidatorBackend>,
    /// The trusted miner.
    pub miner: MinerKey,
    /// The most by which the validator's clock and an executor's may differ.
    pub skew: Duration,
    /// The clock of all times of the validator.
    pub clock: SharedClock,
    /// The tasks of the validator.
    pub tasks: Tasks,
}

/// A session on the trusted miner. Its job ends when this is closed or dropped.
pub struct TrustedSession {
    session: Arc<SealedSession>,
    job: OpenJob,
    news: mpsc::Receiver<JobNews>,
}

/// A job that ends when this is dropped.
struct OpenJob {
    sessions: TrustedSessions,
    job: JobId,
    /// Whether the session has given its close statement.
    is_closed: bool,
}

impl TrustedSessions {
    /// Opens a session of a service and checks what the miner attests of it. A miner without a free executor refuses
    /// at once; the caller may try again.
    ///
    /// # Errors
    /// The reason in words: the miner does not answer or refuses, the session does not come up in time, or it is not
    /// what was ordered.
    pub async fn open(&self, service: &Service, times: SessionTimes) -> Result<TrustedSession, String> {
        tokio::select! {
            opened = self.bring_up(service, times) => opened,
            () = self.clock.sleep(times.start) => {
                Err(format!("it did not come up within {} s", times.start.as_secs()))
            }
        }
    }

    async fn bring_up(&self, service: &Service, times: SessionTimes) -> Result<TrustedSession, String> {
        let names = ["muster-validator".to_owned()];
        let made = certificate::make_self_signed(&names).map_err(|error| error.to_string())?;
        let (sender, mut news) = mpsc::channel(NEWS_CAPACITY);
        let id = JobId::from_uuid(Uuid::new_v4());
        let order = StreamingJobOrder {
            job: id,
            service: service.clone(),
            certificate: made.pem,
            lifetime: times.lifetime,
            start_limit: times.start,
            miner: Some(self.miner),
            news: sender,
        };
        // From here on the job ends with this future, too.
        let job = OpenJob {
            sessions: self.clone(),
            job: id,
            is_closed: false,
        };
        self.backend.start_job(order).await?;
        let (miner, ready) = match news.recv().await {
            Some(JobNews::Ready { miner, ready }) => (miner, ready),
            Some(JobNews::Ended { why, .. }) => return Err(why),
            Some(JobNews::Closed(_)) => return Err("its session was closed before it served".to_owned()),
            None => return Err("its job was forgotten".to_owned()),
        };
        let parameters = SessionParameters {
            me: self.backend.validator(),
            job: id,
            service,
            identity: &made.identity,
            until: self.clock.now().plus(times.lifetime),
            skew: self.skew,
            // The trusted miner names addresses of the operator's own network.
            permits: AddressPermit(&|_, _| true),
            clock: &self.clock,
            tasks: &self.tasks,
        };
        let session = SealedSession::open(&parameters, miner, *ready).await?;
        tracing::info!(session = %session.id(), model = service.model, job = %id, "a session on the trusted miner serves");
        Ok(TrustedSession {
            session: Arc::new(session),
            job,
            news,
        })
    }
}

impl TrustedSession {
    /// The session: requests, proofs, its address and its deadline.
    pub fn sealed(&self) -> &Arc<SealedSession> {
        &self.session
    }

    /// Waits until the session has ended by itself; returns the reason in words. Cancel-safe.
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
