//! How an executor comes back to its lease after a lost connection, and what of a lease outlives the miner's process.

use std::time::Duration;

use muster_protocol::wire::executor::OneTimeSecret;
use muster_protocol::wire::miner::StreamingDetails;
use muster_protocol::{Digest, ExecutorClass, ExecutorToken, Timestamp};
use serde::{Deserialize, Serialize};

use super::TracedLease;

/// The fence of a lease: which connection serves it, and which secret admits the next one.
///
/// Every admission gives the executor a new secret and counts the epoch. The secret before the newest one stays valid
/// until the newest one is shown, because the message that carried the newest may have been lost with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    epoch: u64,
    newest: Digest,
    before: Option<Digest>,
}

impl Fence {
    /// The fence of a lease whose executor was admitted by its token and gets `secret`.
    pub fn new(secret: &OneTimeSecret) -> Self {
        Self {
            epoch: 1,
            newest: secret.digest(),
            before: None,
        }
    }

    /// Counts the connections that served the lease.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The fence after an executor that shows `shown` was admitted and gets `next`; `None` if it is not admitted.
    #[must_use]
    pub fn admit(self, shown: &OneTimeSecret, next: &OneTimeSecret) -> Option<Self> {
        let shown = shown.digest();
        (shown == self.newest || Some(shown) == self.before).then(|| Self {
            epoch: self.epoch.saturating_add(1),
            newest: next.digest(),
            before: Some(shown),
        })
    }
}

/// The hold on a lease whose executor can come back.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    pub(super) fence: Fence,
    /// When the lease is lost; `None` while its executor is connected.
    pub(super) away_until: Option<Timestamp>,
    /// How the executor's process ended, if it did and no other process has taken its place.
    pub(super) process_over: Option<String>,
    /// Processes that were started to take the place of one that ended.
    pub(super) successors: u32,
}

impl Hold {
    pub(super) fn new(fence: Fence) -> Self {
        Self {
            fence,
            away_until: None,
            process_over: None,
            successors: 0,
        }
    }
}

/// An executor that comes back.
#[derive(Clone, Debug, PartialEq)]
pub struct ReturningExecutor {
    /// The secret that it shows.
    pub shown: OneTimeSecret,
    /// The secret that it gets, drawn by the caller.
    pub next: OneTimeSecret,
    /// How long ago it got the job; `None` if it has not got it.
    pub job_age: Option<Duration>,
}

/// A lease whose executor can come back, as the store keeps it. The stage is not part of it: the executor repeats its
/// reports, and the lease passes its stages again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseSnapshot {
    /// The class of the executor.
    pub class: ExecutorClass,
    /// The token, which is spent and only names the lease to a process that takes the place of an earlier one.
    pub token: ExecutorToken,
    /// The admitted connections and the secrets.
    pub fence: Fence,
    /// Whether the miner started the executor for this lease alone.
    pub apart: bool,
    /// The time limit of the image in seconds, if it has one of its own.
    pub image_time_limit: Option<u64>,
    /// The account that a fetch counts towards.
    pub account: String,
    /// Whether the executor must take an image from an archive or with a login.
    pub private_image: bool,
    /// The terms of a streaming job.
    pub streaming: Option<StreamingDetails>,
    /// Whether the offer had a volume.
    pub volume_offered: bool,
    /// The most that the job may take once it was handed over, in milliseconds.
    pub job_ms: u64,
    /// For how long the program may run here, in milliseconds, if that is bounded. It counts anew from the return to
    /// another process of this miner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lend_ms: Option<u64>,
    /// The trace that the lease belongs to; `None` if its validator gave none, or an earlier version stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traced: Option<TracedLease>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(n: u8) -> OneTimeSecret {
        OneTimeSecret::from_bytes([n; 32])
    }

    #[test]
    fn a_secret_admits_once_and_the_one_before_it_until_it_was_used() {
        let first = Fence::new(&secret(1));
        assert_eq!(first.admit(&secret(9), &secret(2)), None);
        let second = first.admit(&secret(1), &secret(2)).unwrap();
        assert_eq!(second.epoch(), 2);
        // The message with secret 2 was lost: secret 1 admits again, and secret 2 was never seen by anybody.
        let again = second.admit(&secret(1), &secret(3)).unwrap();
        assert_eq!(again.admit(&secret(2), &secret(4)), None);
        // Secret 3 arrived: secret 1 is spent for good.
        let third = again.admit(&secret(3), &secret(4)).unwrap();
        assert_eq!(third.admit(&secret(1), &secret(5)), None);
        assert_eq!(third.admit(&secret(3), &secret(5)).unwrap().epoch(), 5);
    }
}
