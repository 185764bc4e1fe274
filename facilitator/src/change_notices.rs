//! Notices: messages that stored data has changed. Each wakes the validators' sessions and the users' event streams of
//! this process, and is passed on to the other facilitators on the same store.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use muster_facilitator_core::credentials::Account;
use muster_protocol::{JobId, ValidatorKey};
use tokio::sync::mpsc;

use crate::job_watchers::{JobWatchers, SessionWatchers};
use crate::validator_sessions::ValidatorSessions;

/// The most notices that wait to be sent to the other facilitators. Losing one delays the others by a few seconds,
/// since they also check the store periodically.
const MAX_QUEUED: usize = 65_536;

/// A change of stored data, made here or by another facilitator on the same store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The validator has a new job.
    Deliver(ValidatorKey, JobId),
    /// The validator must stop a job.
    Cancel(ValidatorKey, JobId),
    /// Something else waits for the validator, or another connection holds its jobs now.
    Look(ValidatorKey),
    /// The job has a new status or new output.
    Changed(JobId),
    /// Sessions of the account's browsers may have ended.
    Sessions(Account),
}

/// A text that is no notice, for example one of a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a notice of this version")]
pub(crate) struct NoticeError;

/// Passes notices to the sessions and event streams of this process, and to the other facilitators. Clones share both.
#[derive(Clone)]
pub(crate) struct Notifier {
    sessions: Arc<ValidatorSessions>,
    watchers: Arc<JobWatchers>,
    browsers: Arc<SessionWatchers>,
    /// The queue to the other facilitators; `None` where the store belongs to this process alone.
    replicas: Option<mpsc::Sender<Notice>>,
}

// === impl Notice ===

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deliver(validator, job) => write!(f, "deliver {validator} {job}"),
            Self::Cancel(validator, job) => write!(f, "cancel {validator} {job}"),
            Self::Look(validator) => write!(f, "look {validator}"),
            Self::Changed(job) => write!(f, "changed {job}"),
            Self::Sessions(account) => write!(f, "sessions {account}"),
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
            "sessions" => Self::Sessions(next()?.parse().map_err(|_| NoticeError)?),
            _ => return Err(NoticeError),
        };
        next().is_err().then_some(notice).ok_or(NoticeError)
    }
}

// === impl Notifier ===

impl Notifier {
    /// A notifier of this process, and the queue of notices for the other facilitators if `shared` states that there
    /// may be any.
    pub(crate) fn new(
        sessions: Arc<ValidatorSessions>,
        watchers: Arc<JobWatchers>,
        browsers: Arc<SessionWatchers>,
        shared: bool,
    ) -> (Self, Option<mpsc::Receiver<Notice>>) {
        let (replicas, queue) = if shared {
            let (sender, receiver) = mpsc::channel(MAX_QUEUED);
            (Some(sender), Some(receiver))
        } else {
            (None, None)
        };
        let notifier = Self {
            sessions,
            watchers,
            browsers,
            replicas,
        };
        (notifier, queue)
    }

    /// Publishes a change that this process has made.
    pub(crate) fn publish(&self, notice: Notice) {
        self.wake(&notice);
        if let Some(replicas) = &self.replicas
            && replicas.try_send(notice).is_err()
        {
            tracing::warn!("dropped a notice to the other facilitators: the store is too slow");
        }
    }

    /// Wakes the sessions and event streams of this process that a change concerns.
    pub(crate) fn wake(&self, notice: &Notice) {
        match notice {
            Notice::Deliver(validator, job) => self.sessions.queue_delivery(*validator, *job),
            Notice::Cancel(validator, job) => self.sessions.queue_cancellation(*validator, *job),
            Notice::Look(validator) => self.sessions.wake(*validator),
            Notice::Changed(job) => self.watchers.wake(job),
            Notice::Sessions(account) => self.browsers.wake(account),
        }
    }

    /// Wakes every session and event stream: notices may have been missed.
    pub(crate) fn wake_all(&self) {
        self.sessions.wake_all();
        self.watchers.wake_all();
        self.browsers.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;

    #[test]
    fn a_notice_is_one_line_that_reads_back() {
        let job: JobId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let validator = ValidatorKey(Hotkey::from_bytes([1; 32]));
        for notice in [
            Notice::Deliver(validator, job),
            Notice::Cancel(validator, job),
            Notice::Look(validator),
            Notice::Changed(job),
            Notice::Sessions("alice.b-1_".parse().unwrap()),
        ] {
            let line = notice.to_string();
            assert!(!line.contains('\n'));
            assert_eq!(line.parse(), Ok(notice));
            assert_eq!(format!("{line} x").parse::<Notice>(), Err(NoticeError));
        }
        for bad in ["", "deliver", "look x", "changed", "sessions A", "other 1"] {
            assert_eq!(bad.parse::<Notice>(), Err(NoticeError), "{bad}");
        }
    }
}
