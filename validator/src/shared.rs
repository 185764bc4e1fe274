//! What the parts of one validator share.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_chain::BlockNumber;
use muster_gateway::Gateway;
use muster_gateway::backend::JobNews;
use muster_grading_runner::RollCall;
use muster_identity::Keypair;
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{JobId, MinerKey, Timestamp, ValidatorKey};
use muster_routing::{Ledger, Windows};
use muster_websocket::lines::Lines;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::{mpsc, watch};

use crate::Error;
use crate::chain::Outlook;
use crate::config::Config;
use crate::live::Live;
use crate::store::Store;

/// How the link to the facilitator, or to the chain, stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LinkState {
    /// It is being dialled for the first time.
    #[default]
    Connecting,
    /// It answers, and has accepted this validator.
    Connected,
    /// It was lost, or would not have us.
    Lost {
        /// Why.
        reason: String,
    },
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) keypair: Keypair,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    pub(crate) store: Store,
    pub(crate) outlook: Outlook,
    pub(crate) link: watch::Sender<LinkState>,
    /// What is known of the miners. Held from looking at it to noting the attempt, so that two jobs do not take one
    /// executor, and never across an await.
    pub(crate) ledger: Mutex<Ledger>,
    /// Where drivers hear that their job was called off.
    pub(crate) cancels: Mutex<HashMap<JobId, watch::Sender<Option<String>>>>,
    /// Who hears how jobs of the validator's own fare.
    pub(crate) news: watch::Sender<HashMap<JobId, mpsc::Sender<JobNews>>>,
    /// The only miners that may run these jobs of the validator's own.
    pub(crate) pins: Mutex<HashMap<JobId, MinerKey>>,
    /// Who grades.
    pub(crate) roll_call: OnceLock<RollCall>,
    /// The door to streaming sessions, if there is one.
    pub(crate) gateway: OnceLock<Gateway>,
    /// What jobs print, on its way to the facilitator.
    pub(crate) live: Live,
    /// When which block was made; none before the chain has told its rules.
    pub(crate) anchor: watch::Sender<Option<Anchor>>,
    /// Whether every open job of an earlier process has its driver. Until then none of them dials.
    pub(crate) resumed: watch::Sender<bool>,
    /// Held while a cycle is scored, and while a gathered receipt is given the block that decides its cycle.
    pub(crate) scoring: tokio::sync::Mutex<()>,
    /// The connections to miners.
    pub(crate) lines: Lines,
    /// The first error that nothing can go on with.
    pub(crate) fatal: Mutex<Option<Error>>,
}

impl Shared {
    pub(crate) fn me(&self) -> ValidatorKey {
        ValidatorKey(self.keypair.hotkey())
    }

    /// Stops the validator over what no waiting mends. What cannot be made durable must not be said.
    pub(crate) fn fail(&self, error: impl Into<Error>) {
        let mut fatal = self.fatal.lock();
        if fatal.is_none() {
            *fatal = Some(error.into());
        }
        self.tasks.shutdown();
    }

    /// Runs a part of the validator whose only errors are the store's.
    pub(crate) fn spawn<F>(self: &Arc<Self>, name: &'static str, part: F)
    where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let shared = Arc::clone(self);
        // Whoever waits for the tasks waits for this one too.
        drop(self.tasks.spawn(name, async move {
            if let Err(error) = part.await {
                shared.fail(error);
            }
        }));
    }

    /// What is known of the miners. No lock of it outlives a statement or two.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Registers the driver of a job, which hears of a cancellation from here on; `called_off` if there was one before.
    pub(crate) fn listen_for_cancel(self: &Arc<Self>, job: JobId, called_off: Option<String>) -> CancelEar {
        let sender = watch::Sender::new(called_off);
        let heard = sender.subscribe();
        self.cancels.lock().insert(job, sender);
        CancelEar {
            shared: Arc::clone(self),
            job,
            heard,
        }
    }

    /// Whether a job has its driver: then it is known, whoever hands it over.
    pub(crate) fn is_driven(&self, job: JobId) -> bool {
        let cancels = self.cancels.lock();
        cancels.contains_key(&job)
    }

    /// Whether a job is the validator's own.
    pub(crate) fn is_own(&self, job: JobId) -> bool {
        self.news.borrow().contains_key(&job)
    }

    /// The only miner that may run this job, if there is only one.
    pub(crate) fn pinned(&self, job: JobId) -> Option<MinerKey> {
        let pins = self.pins.lock();
        pins.get(&job).copied()
    }

    /// Waits until a job of the validator's own is over; not at all for any other.
    pub(crate) async fn own_job_over(&self, job: JobId) {
        // The sender lives here.
        let _ = self
            .news
            .subscribe()
            .wait_for(|jobs| !jobs.contains_key(&job))
            .await;
    }

    /// Tells whoever wanted a job of the validator's own how it fares. After its end nobody is told anything more.
    pub(crate) fn tell(&self, job: JobId, news: JobNews) {
        let mut listener = None;
        self.news.send_if_modified(|listeners| match &news {
            JobNews::Ready { .. } | JobNews::Closed(_) => {
                listener = listeners.get(&job).cloned();
                false
            }
            JobNews::Ended(_) => {
                listener = listeners.remove(&job);
                listener.is_some()
            }
        });
        if let JobNews::Ended(_) = &news {
            self.pins.lock().remove(&job);
        }
        if let Some(listener) = listener {
            // A listener that has gone does not want to know; one has place for more news than a job has.
            let _ = listener.try_send(news);
        }
    }

    /// Tells a job's driver, if there is one, that its user called it off.
    pub(crate) fn call_off(&self, job: JobId, reason: &str) {
        let cancels = self.cancels.lock();
        if let Some(driver) = cancels.get(&job) {
            driver.send_replace(Some(reason.to_owned()));
        }
    }
}

/// How a driver hears that its job was called off. Unregistered when it is dropped.
#[derive(Debug)]
pub(crate) struct CancelEar {
    shared: Arc<Shared>,
    job: JobId,
    heard: watch::Receiver<Option<String>>,
}

impl CancelEar {
    /// The user's reason, if the job was called off.
    pub(crate) fn called_off(&self) -> Option<String> {
        self.heard.borrow().clone()
    }

    /// Waits until it is. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> String {
        loop {
            if let Some(reason) = self.heard.borrow_and_update().clone() {
                return reason;
            }
            if self.heard.changed().await.is_err() {
                // The sender stays registered for as long as this ear is; without one nobody will ever say.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for CancelEar {
    fn drop(&mut self) {
        self.shared.cancels.lock().remove(&self.job);
    }
}

/// When a block was made, and how long one takes: what a time in a receipt means in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) block: BlockNumber,
    pub(crate) time_ms: u64,
    pub(crate) block_ms: u64,
}

impl Anchor {
    /// The block that was the head at `time`, also of times to come.
    pub(crate) fn block_at(&self, time: Timestamp) -> BlockNumber {
        let micros = i128::from(time.micros());
        let since = micros.saturating_sub(i128::from(self.time_ms).saturating_mul(1_000));
        let length = i128::from(self.block_ms.max(1)).saturating_mul(1_000);
        let block = i128::from(self.block.0).saturating_add(since.div_euclid(length));
        BlockNumber(u64::try_from(block.max(0)).unwrap_or(u64::MAX))
    }
}

/// What is known of the miners from the attempts in the store. What they have at hand is learned anew.
pub(crate) async fn remembered(
    store: &Store,
    windows: Windows,
    now: Timestamp,
) -> Result<Ledger, StoreError> {
    let before = |window: Duration| {
        let span = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(now.micros().saturating_sub(span))
    };
    let mut ledger = Ledger::new(windows);
    for past in store
        .history(before(windows.record), before(windows.given))
        .await?
    {
        for _ in 0..past.count {
            ledger.given(past.miner, past.started_at);
            match past.ended {
                Some((at, mark)) => ledger.marked(past.miner, mark, at),
                None => ledger.opened(past.miner, past.class),
            }
        }
    }
    Ok(ledger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_means_a_block() {
        let anchor = Anchor {
            block: BlockNumber(100),
            time_ms: 1_000_000,
            block_ms: 12_000,
        };
        let at = |secs| anchor.block_at(Timestamp::from_secs(secs)).0;
        assert_eq!((at(1_000), at(1_011), at(1_012)), (100, 100, 101));
        assert_eq!((at(999), at(988), at(0)), (99, 99, 16));
        let young = Anchor {
            block: BlockNumber(3),
            ..anchor
        };
        assert_eq!(young.block_at(Timestamp::from_secs(0)), BlockNumber(0));
        let still = Anchor {
            block_ms: 0,
            ..anchor
        };
        assert!(
            still.block_at(Timestamp::from_secs(2_000)).0 > 100,
            "no chain makes us divide by nothing"
        );
    }
}
