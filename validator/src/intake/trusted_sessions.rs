//! Sessions on the trusted miner, for the validator's own checks. No user's request reaches them.
//!
//! A session ends by its deadline whatever happens: its job's time is bounded at the miner, at the executor and here;
//! an earlier process's sessions are called off at the start; and a [`TrustedSession`] that is dropped ends its job.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::backend::{JobNews, StreamingJobOrder, ValidatorBackend as _};
use muster_process::certificate;
use muster_protocol::JobId;
use muster_sealed_client::{AddressPermit, SealedSession, SessionParameters};
use muster_session_pool::Service;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::own_jobs::OwnJobIntake;
use crate::config::TrustedMiner;

/// News of one job that may wait to be received.
const NEWS_CAPACITY: usize = 8;
/// The reason that the miner is told when a session is no longer needed.
const DONE: &str = "the check that needed the session is over";

/// The times of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionTimes {
    /// How long machine, image and engine may take to be there.
    pub(crate) start: Duration,
    /// How long the session serves at most once it has begun.
    pub(crate) lifetime: Duration,
}

/// Opens sessions on the trusted miner.
#[derive(Clone)]
pub(crate) struct TrustedSessions {
    jobs: OwnJobIntake,
    own: TrustedMiner,
}

/// A session on the trusted miner. Its job ends when this is closed or dropped.
pub(crate) struct TrustedSession {
    session: Arc<SealedSession>,
    job: OpenJob,
    news: mpsc::Receiver<JobNews>,
}

/// A job that ends when this is dropped.
struct OpenJob {
    jobs: OwnJobIntake,
    /// `None` once its end is under way.
    job: Option<JobId>,
}

impl TrustedSessions {
    /// Sessions on the miner that the configuration names; `None` if it names none.
    pub(crate) fn new(jobs: OwnJobIntake) -> Option<Self> {
        let own = jobs.state.config.trusted_miner.miner()?;
        Some(Self { jobs, own })
    }

    /// Opens a session of a service and checks what the miner attests of it. A miner without a free executor refuses
    /// at once; the caller may try again.
    ///
    /// # Errors
    /// The reason in words: the miner does not answer or refuses, the session does not come up in time, or it is not
    /// what was ordered.
    pub(crate) async fn open(
        &self,
        service: &Service,
        times: SessionTimes,
    ) -> Result<TrustedSession, String> {
        let state = &self.jobs.state;
        tokio::select! {
            opened = self.bring_up(service, times) => opened,
            () = state.clock.sleep(times.start) => {
                Err(format!("it did not come up within {} s", times.start.as_secs()))
            }
        }
    }

    async fn bring_up(&self, service: &Service, times: SessionTimes) -> Result<TrustedSession, String> {
        let state = &self.jobs.state;
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
            miner: Some(self.own.miner),
            news: sender,
        };
        // From here on the job ends with this future, too.
        let job = OpenJob {
            jobs: self.jobs.clone(),
            job: Some(id),
        };
        self.jobs.order(order).await?;
        let (miner, ready) = match news.recv().await {
            Some(JobNews::Ready { miner, ready }) => (miner, ready),
            Some(JobNews::Ended { why, .. }) => return Err(why),
            Some(JobNews::Closed(_)) => return Err("its session was closed before it served".to_owned()),
            None => return Err("its job was forgotten".to_owned()),
        };
        let parameters = SessionParameters {
            me: state.key(),
            job: id,
            service,
            identity: &made.identity,
            until: state.clock.now().plus(times.lifetime),
            skew: state.config.gateway.skew(),
            // The trusted miner names addresses of the operator's own network.
            permits: AddressPermit(&|_, _| true),
            clock: &state.clock,
            tasks: &state.tasks,
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
    pub(crate) fn sealed(&self) -> &Arc<SealedSession> {
        &self.session
    }

    /// Waits until the session has ended by itself; returns the reason in words. Cancel-safe.
    pub(crate) async fn wait_for_end(&mut self) -> String {
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

    /// Closes the session and ends its job. Returns the fault of a session that did not close correctly.
    pub(crate) async fn close(mut self) -> Option<String> {
        let (statement, fault) = self.session.close().await;
        if let Some(job) = self.job.job.take() {
            self.job.jobs.end_job(job, DONE, statement.is_some()).await;
        }
        fault
    }
}

impl Drop for OpenJob {
    fn drop(&mut self) {
        let Some(job) = self.job.take() else { return };
        let jobs = self.jobs.clone();
        let tasks = self.jobs.state.tasks.clone();
        drop(tasks.spawn("end a session", async move { jobs.cancel(job, DONE).await }));
    }
}
