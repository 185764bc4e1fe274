//! The services that grading needs from the validator.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_gateway::backend::StreamingJobOrder;
use muster_grading::batch_plan::{Announcement, BlockHash, SilentMiner};
use muster_protocol::{JobId, ValidatorKey};
use muster_sealed_client::SealedSession;

/// The validator, as grading uses it.
pub trait GradingBackend: Send + Sync + 'static {
    /// The key of the validator that runs the batches.
    fn validator_key(&self) -> ValidatorKey;

    /// Whether a session may be dialled at this address, which its miner gave as `host`.
    fn permits_address(&self, host: &str, address: SocketAddr) -> bool;

    /// Waits for the first block after this one. Returns its number and its hash.
    fn next_block(&self, block: u64) -> BoxFuture<'_, (u64, BlockHash)>;

    /// Asks every miner of the subnet for its executors.
    fn collect_announcements(&self) -> BoxFuture<'_, Announcements>;

    /// The stakes in rao by which receipts are valued at present; empty before they are known.
    fn counting_stakes(&self) -> BTreeMap<ValidatorKey, u64>;

    /// The sessions that serve users of this validator at present.
    fn serving_sessions(&self) -> BoxFuture<'_, Vec<Arc<SealedSession>>>;

    /// Drains a session of [`Self::serving_sessions`], so that its executor can be leased.
    fn drain_session(&self, job: JobId);

    /// Sends a job to the miner that its order names. News of the job follow after this has returned.
    fn begin_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>>;

    /// Ends a job that has not ended yet. Such a job is not paid; proven capacity is.
    fn end_job(&self, job: JobId, why: &'static str) -> BoxFuture<'_, ()>;
}

/// The answers of the subnet's miners about their executors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcements {
    /// The announcements that arrived in time.
    pub announced: Vec<Announcement>,
    /// The miners that announced nothing in time.
    pub silent: Vec<SilentMiner>,
}

impl Announcements {
    /// The executors of the subnet by a newer census. Of a miner that did not answer, the older words stand: a probe
    /// finds out whether it is there.
    #[must_use]
    pub(crate) fn renewed(&self, newer: &Self) -> Self {
        let silent: BTreeSet<_> = newer.silent.iter().map(|silent| silent.miner).collect();
        let kept = self.announced.iter().filter(|said| silent.contains(&said.miner));
        let mut announced: Vec<_> = newer.announced.iter().chain(kept).copied().collect();
        announced.sort_unstable();
        Self {
            announced,
            silent: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::{ExecutorClass, Hotkey, MinerKey};

    use super::*;

    #[test]
    fn a_miner_that_is_silent_for_a_while_is_probed_by_its_last_words() {
        let miner = |seed| MinerKey(Hotkey::from_bytes([seed; 32]));
        let said = |seed, count| Announcement {
            miner: miner(seed),
            class: ExecutorClass::AlwaysOnTest,
            count,
        };
        let older = Announcements {
            announced: vec![said(1, 4), said(2, 5), said(3, 6)],
            silent: vec![],
        };
        let newer = Announcements {
            announced: vec![said(1, 2)],
            silent: vec![SilentMiner {
                miner: miner(3),
                said: "no answer".to_owned(),
            }],
        };
        let renewed = older.renewed(&newer);
        assert_eq!(
            renewed.announced,
            [said(1, 2), said(3, 6)],
            "the second has left the subnet"
        );
        assert_eq!(renewed.silent, []);
    }
}
