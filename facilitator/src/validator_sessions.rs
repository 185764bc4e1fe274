//! Who is to be woken when something changes: the sessions of validators, of which [`Desk`] decides who gets what, and the
//! watchers of jobs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use muster_facilitator_core::delivery::{Desk, LinkId, Trust};
use muster_protocol::{JobId, Timestamp, ValidatorKey};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

/// More errands than this wait for nobody: the session looks at everything instead.
const MAX_ERRANDS: usize = 4096;

/// Something that happened to what is stored, here or at another facilitator on the same store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A validator has a new job.
    Deliver(ValidatorKey, JobId),
    /// A validator is to stop a job.
    Cancel(ValidatorKey, JobId),
    /// A validator has something else waiting, or its connection is held elsewhere now.
    Look(ValidatorKey),
    /// A job has come further or said something.
    Changed(JobId),
}

/// A text that is no notice, for example of a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a notice of this version")]
pub struct NoticeError;

/// Where sessions of validators sign in and are rung when there may be something to deliver.
#[derive(Debug, Default)]
pub struct Hub {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    desk: Desk,
    bells: BTreeMap<LinkId, Bell>,
}

#[derive(Debug, Default)]
struct Bell {
    notify: Arc<Notify>,
    errands: Errands,
}

/// What a session is to do when it is rung.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errands {
    /// Look at everything that is stored.
    pub look: bool,
    /// Jobs to deliver.
    pub deliver: Vec<JobId>,
    /// Jobs to stop.
    pub cancel: Vec<JobId>,
}

/// A session's place in the hub; given up when dropped.
#[derive(Debug)]
pub struct Seat {
    hub: Arc<Hub>,
    validator: ValidatorKey,
    link: LinkId,
    notify: Arc<Notify>,
}

/// The watchers of jobs, who are woken when a job changes.
#[derive(Debug, Default)]
pub struct Watchers {
    jobs: Mutex<HashMap<JobId, watch::Sender<()>>>,
}

/// One watcher's place; given up when dropped.
#[derive(Debug)]
pub struct Watch {
    watchers: Arc<Watchers>,
    job: JobId,
    changes: watch::Receiver<()>,
}

// === impl Notice ===

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deliver(validator, job) => write!(f, "deliver {validator} {job}"),
            Self::Cancel(validator, job) => write!(f, "cancel {validator} {job}"),
            Self::Look(validator) => write!(f, "look {validator}"),
            Self::Changed(job) => write!(f, "changed {job}"),
        }
    }
}

impl FromStr for Notice {
    type Err = NoticeError;

    fn from_str(line: &str) -> Result<Self, NoticeError> {
        let mut words = line.split(' ');
        let mut next = || words.next().ok_or(NoticeError);
        let kind = next()?;
        let validator = |word: &str| word.parse::<ValidatorKey>().map_err(|_| NoticeError);
        let job = |word: &str| word.parse::<JobId>().map_err(|_| NoticeError);
        let notice = match kind {
            "deliver" => Self::Deliver(validator(next()?)?, job(next()?)?),
            "cancel" => Self::Cancel(validator(next()?)?, job(next()?)?),
            "look" => Self::Look(validator(next()?)?),
            "changed" => Self::Changed(job(next()?)?),
            _ => return Err(NoticeError),
        };
        next().is_err().then_some(notice).ok_or(NoticeError)
    }
}

// === impl Hub ===

impl Hub {
    /// Signs a session in.
    pub fn sit(self: &Arc<Self>, validator: ValidatorKey, trust: Trust, now: Timestamp) -> Seat {
        let bell = Bell::default();
        let notify = Arc::clone(&bell.notify);
        let mut inner = self.lock();
        let link = inner.desk.connect(validator, trust, now);
        inner.bells.insert(link, bell);
        Seat {
            hub: Arc::clone(self),
            validator,
            link,
            notify,
        }
    }

    /// Whether a mere claim to be this validator is not enough.
    pub fn demands_proof(&self, validator: ValidatorKey, now: Timestamp) -> bool {
        self.lock().desk.demands_proof(validator, now)
    }

    /// Tells the validator's sessions to look at everything; only the one that holds its jobs finds any.
    pub fn ring(&self, validator: ValidatorKey) {
        self.lock().ring(validator, |errands| errands.look = true);
    }

    /// Tells every session to look at everything.
    pub fn ring_all(&self) {
        for bell in self.lock().bells.values_mut() {
            bell.errands.look = true;
            bell.notify.notify_one();
        }
    }

    /// Tells the validator's sessions of a job to deliver.
    pub fn deliver(&self, validator: ValidatorKey, job: JobId) {
        self.lock().ring(validator, |errands| errands.deliver.push(job));
    }

    /// Tells the validator's sessions of a job to stop.
    pub fn cancel(&self, validator: ValidatorKey, job: JobId) {
        self.lock().ring(validator, |errands| errands.cancel.push(job));
    }

    /// When the validator was heard last over the connection here that holds its jobs, if there is one.
    pub fn heard_at(&self, validator: ValidatorKey, now: Timestamp) -> Option<Timestamp> {
        self.lock().desk.heard_at(validator, now)
    }

    /// How many validators are connected.
    pub fn validators(&self) -> usize {
        self.lock().desk.validators()
    }

    /// Whether the validator has any connection here.
    pub fn has(&self, validator: ValidatorKey) -> bool {
        self.lock().desk.links(validator).next().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No holder leaves it half changed.
        self.inner.lock()
    }
}

impl Inner {
    fn ring(&mut self, validator: ValidatorKey, errand: impl Fn(&mut Errands)) {
        for link in self.desk.links(validator) {
            if let Some(bell) = self.bells.get_mut(&link) {
                errand(&mut bell.errands);
                if bell.errands.deliver.len() + bell.errands.cancel.len() > MAX_ERRANDS {
                    bell.errands = Errands {
                        look: true,
                        ..Errands::default()
                    };
                }
                bell.notify.notify_one();
            }
        }
    }
}

// === impl Seat ===

impl Seat {
    /// Ends when there is something to do. A ring while nobody waits is not lost.
    pub async fn rung(&self) {
        self.notify.notified().await;
    }

    /// What there is to do; nothing of it is told again.
    pub fn errands(&self) -> Errands {
        let mut inner = self.hub.lock();
        let bell = inner.bells.get_mut(&self.link);
        bell.map(|bell| std::mem::take(&mut bell.errands))
            .unwrap_or_default()
    }

    /// Which of the validator's unanswered jobs are to go over this connection now. They count as delivered.
    pub fn due(&self, unanswered: &[JobId], now: Timestamp) -> Vec<JobId> {
        self.hub
            .lock()
            .desk
            .due(self.validator, self.link, unanswered, now)
    }

    /// Whether this one unanswered job is to go over this connection now. It counts as delivered.
    pub fn is_due(&self, job: JobId, now: Timestamp) -> bool {
        self.hub.lock().desk.is_due(self.validator, self.link, job, now)
    }

    /// A frame has come over this connection.
    pub fn heard(&self, now: Timestamp) {
        self.hub.lock().desk.heard(self.validator, self.link, now);
    }

    /// Whether this connection holds the validator's jobs: they go over it, and it may report on them.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.hub.lock().desk.holder(self.validator, now) == Some(self.link)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.hub.lock();
        inner.bells.remove(&self.link);
        inner.desk.disconnect(self.validator, self.link);
        // Another connection may take over what this one leaves.
        inner.ring(self.validator, |errands| errands.look = true);
    }
}

// === impl Watchers, Watch ===

impl Watchers {
    /// Begins to watch a job. What changes from now on is not missed.
    pub fn watch(self: &Arc<Self>, job: JobId) -> Watch {
        let mut jobs = self.lock();
        let sender = jobs.entry(job).or_insert_with(|| watch::channel(()).0);
        Watch {
            watchers: Arc::clone(self),
            job,
            changes: sender.subscribe(),
        }
    }

    /// Wakes who watches the job.
    pub fn changed(&self, job: JobId) {
        if let Some(sender) = self.lock().get(&job) {
            sender.send_replace(());
        }
    }

    /// Wakes everybody: something may have been missed.
    pub fn all_changed(&self) {
        for sender in self.lock().values() {
            sender.send_replace(());
        }
    }

    /// How many jobs are watched.
    pub fn jobs(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, watch::Sender<()>>> {
        self.jobs.lock()
    }
}

impl Watch {
    /// Ends when the job has changed since the last call.
    pub async fn changed(&mut self) {
        // The sender stays for as long as anybody watches.
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut jobs = self.watchers.lock();
        if jobs
            .get(&self.job)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            jobs.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;

    fn job() -> JobId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    fn validator() -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([1; 32]))
    }

    #[test]
    fn a_notice_is_one_line_that_reads_back() {
        for notice in [
            Notice::Deliver(validator(), job()),
            Notice::Cancel(validator(), job()),
            Notice::Look(validator()),
            Notice::Changed(job()),
        ] {
            let line = notice.to_string();
            assert!(!line.contains('\n'));
            assert_eq!(line.parse(), Ok(notice));
            assert_eq!(format!("{line} x").parse::<Notice>(), Err(NoticeError));
        }
        for bad in ["", "deliver", "look x", "changed", "other 1"] {
            assert_eq!(bad.parse::<Notice>(), Err(NoticeError), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_watcher_is_woken_by_its_own_job_and_leaves_nothing_behind() {
        let watchers = Arc::new(Watchers::default());
        let (mut one, two) = (watchers.watch(job()), watchers.watch(job()));
        watchers.changed(JobId::from_uuid(uuid::Uuid::nil()));
        watchers.changed(job());
        one.changed().await;
        drop(two);
        assert_eq!(watchers.jobs(), 1);
        watchers.all_changed();
        one.changed().await;
        drop(one);
        assert_eq!(watchers.jobs(), 0);
    }

    #[test]
    fn errands_are_told_once_and_too_many_become_a_look() {
        let hub = Arc::new(Hub::default());
        let seat = hub.sit(validator(), Trust::Claimed, Timestamp::from_secs(1));
        hub.deliver(validator(), job());
        hub.cancel(validator(), job());
        let errands = seat.errands();
        assert_eq!(
            (errands.look, errands.deliver, errands.cancel),
            (false, vec![job()], vec![job()])
        );
        assert_eq!(seat.errands(), Errands::default());
        for _ in 0..=MAX_ERRANDS {
            hub.deliver(validator(), job());
        }
        assert!(seat.errands().look);
    }
}
