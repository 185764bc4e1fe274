//! Bounds the openings that are fetched and judged at the same time, since each is held in memory: all of them, and
//! those of one miner, so that a miner whose openings do not come keeps nobody else's from being judged.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use muster_protocol::MinerKey;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One miner has at most this share of the permits.
const SHARE_OF_ONE: usize = 4;
/// The openings of one miner that may run out of time before its further ones are waited for less.
const PATIENT_WITH: u32 = 3;
/// The wait for a further opening of such a miner.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// The permits of all batches.
#[derive(Debug)]
pub(crate) struct JudgingPermits {
    all: Arc<Semaphore>,
    of_one: usize,
    /// The miners that hold a permit or wait for one.
    miners: Mutex<HashMap<MinerKey, Arc<MinerLane>>>,
}

#[derive(Debug)]
struct MinerLane {
    permits: Arc<Semaphore>,
    /// The openings that ran out of time.
    late: AtomicU32,
}

/// The permission to fetch and judge one opening, until it is dropped.
#[derive(Debug)]
pub(crate) struct JudgingPermit {
    lane: Arc<MinerLane>,
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl JudgingPermits {
    /// Permits for `all` openings at the same time.
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            of_one: (all / SHARE_OF_ONE).max(1),
            miners: Mutex::default(),
        }
    }

    /// Waits for a permit for an opening of this miner. `None` cannot happen: the permits are never closed.
    pub(crate) async fn acquire(&self, miner: MinerKey) -> Option<JudgingPermit> {
        let lane = {
            let mut miners = self.miners.lock();
            // Only the map itself knows the others.
            miners.retain(|_, lane| Arc::strong_count(lane) > 1);
            let new = || {
                Arc::new(MinerLane {
                    permits: Arc::new(Semaphore::new(self.of_one)),
                    late: AtomicU32::new(0),
                })
            };
            Arc::clone(miners.entry(miner).or_insert_with(new))
        };
        // A miner's openings wait in its own line first, so at most its share of them waits in the line of all.
        let own = Arc::clone(&lane.permits).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(JudgingPermit {
            lane,
            _own: own,
            _all: all,
        })
    }
}

impl JudgingPermit {
    /// The longest wait for the opening; `None` if its own limit holds.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (self.lane.late.load(Ordering::Relaxed) >= PATIENT_WITH).then_some(SHORT_WAIT)
    }

    /// Notes that the opening did not come in time.
    pub(crate) fn note_late(&self) {
        self.lane.late.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use muster_protocol::Hotkey;

    use super::*;

    #[test]
    fn a_miner_whose_openings_do_not_come_takes_no_other_miners_turn() {
        let miner = |seed| MinerKey(Hotkey::from_bytes([seed; 32]));
        let permits = JudgingPermits::new(8);
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..256 {
            let mut asked = Box::pin(permits.acquire(miner(1)));
            match (&mut asked).now_or_never() {
                Some(permit) => held.push(permit.unwrap()),
                None => waiting.push(asked),
            }
        }
        assert_eq!(held.len(), 2, "a fourth of all");
        let other = permits.acquire(miner(2)).now_or_never().unwrap().unwrap();
        for permit in held {
            assert_eq!(permit.patience(), None);
            permit.note_late();
        }
        let third = waiting.remove(0).now_or_never().unwrap().unwrap();
        third.note_late();
        assert_eq!(third.patience(), Some(SHORT_WAIT), "after three");
        assert_eq!(other.patience(), None);
        drop((waiting, third));
        let later = permits.acquire(miner(1)).now_or_never().unwrap().unwrap();
        assert_eq!(later.patience(), None, "a later round begins anew");
        drop((later, other));
        drop(permits.acquire(miner(3)).now_or_never().unwrap());
        assert_eq!(
            permits.miners.lock().len(),
            1,
            "miners without openings are forgotten"
        );
    }
}
