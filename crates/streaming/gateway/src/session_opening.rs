//! Orders the job of a session, and opens the session once its miner attests it.

use std::time::Duration;

use muster_process::{SharedClock, Tasks, certificate};
use muster_protocol::{JobId, MinerKey};
use muster_sealed_client::{AddressPermit, SealedSession, SessionParameters};
use muster_session_pool::Service;
use tokio::sync::mpsc;

use crate::backend::{JobNews, NoRoom, StreamingJobOrder, ValidatorBackend};

/// News of one job that may wait to be received.
const NEWS_CAPACITY: usize = 8;

/// The times of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionTimes {
    /// How long machine, image and engine may take to be there.
    pub start: Duration,
    /// How long the session serves at most once it has begun.
    pub lifetime: Duration,
}

/// Why a session is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpeningFailure {
    /// The reason as text.
    pub(crate) why: String,
    /// Set if no executor was free.
    pub(crate) no_room: Option<NoRoom>,
}

impl From<String> for OpeningFailure {
    fn from(why: String) -> Self {
        Self { why, no_room: None }
    }
}

/// A session that is to be opened.
pub(crate) struct SessionOpening<'a> {
    /// The validator, which runs the session as a job of its own.
    pub(crate) backend: &'a dyn ValidatorBackend,
    /// The job's id.
    pub(crate) job: JobId,
    /// The service that the session is to run.
    pub(crate) service: &'a Service,
    /// The only miner that may run it; any miner if `None`.
    pub(crate) miner: Option<MinerKey>,
    /// The times of the session.
    pub(crate) times: SessionTimes,
    /// The addresses at which the session may be dialled.
    pub(crate) permits: AddressPermit<'a>,
    /// The most by which the validator's clock and an executor's may differ.
    pub(crate) skew: Duration,
    /// The clock of all times of the validator.
    pub(crate) clock: &'a SharedClock,
    /// The tasks of the session's connections.
    pub(crate) tasks: &'a Tasks,
}

impl SessionOpening<'_> {
    /// Orders the job and opens the session. Further news of the job come through the receiver.
    ///
    /// # Errors
    /// No miner takes the job, the session does not come up in time, or it is not what was ordered. The job may run in
    /// all of these cases but for want of room.
    pub(crate) async fn open(self) -> Result<(SealedSession, mpsc::Receiver<JobNews>), OpeningFailure> {
        tokio::select! {
            opened = self.bring_up() => opened,
            () = self.clock.sleep(self.times.start) => {
                Err(format!("it did not come up within {} s", self.times.start.as_secs()).into())
            }
        }
    }

    async fn bring_up(&self) -> Result<(SealedSession, mpsc::Receiver<JobNews>), OpeningFailure> {
        let names = ["muster-validator".to_owned()];
        let made = certificate::make_self_signed(&names).map_err(|error| error.to_string())?;
        let (sender, mut news) = mpsc::channel(NEWS_CAPACITY);
        let order = StreamingJobOrder {
            job: self.job,
            service: self.service.clone(),
            certificate: made.pem,
            lifetime: self.times.lifetime,
            start_limit: self.times.start,
            miner: self.miner,
            news: sender,
        };
        self.backend.start_job(order).await?;
        let (miner, ready) = match news.recv().await {
            Some(JobNews::Ready { miner, ready }) => (miner, ready),
            Some(JobNews::Ended { why, no_room, .. }) => return Err(OpeningFailure { why, no_room }),
            Some(JobNews::Closed(_)) => {
                return Err("its session was closed before it served".to_owned().into());
            }
            None => return Err("its job was forgotten".to_owned().into()),
        };
        let parameters = SessionParameters {
            me: self.backend.validator(),
            job: self.job,
            service: self.service,
            identity: &made.identity,
            until: self.clock.now().plus(self.times.lifetime),
            skew: self.skew,
            permits: AddressPermit(self.permits.0),
            clock: self.clock,
            tasks: self.tasks,
        };
        let session = SealedSession::open(&parameters, miner, *ready).await?;
        Ok((session, news))
    }
}
