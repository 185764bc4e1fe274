//! The test that runs, and those that are ordered.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_protocol::MinerKey;
use muster_response_proof::BucketNumber;
use parking_lot::Mutex;

use crate::store::self_tests::SelfTest;

/// The test that runs, and the models whose test the operator has ordered.
#[derive(Debug, Default)]
pub(crate) struct SelfTests {
    ordered: Mutex<BTreeSet<String>>,
    running: Mutex<Option<RunningTest>>,
    /// Whether a test is due and waits until no prompt of the list in use is open.
    is_waiting: AtomicBool,
}

/// A test between its first question and its verdict.
#[derive(Clone, Debug)]
pub(super) struct RunningTest {
    pub(super) test: SelfTest,
    pub(super) miner: MinerKey,
    /// The seed of its list, until the prompts of the list are asked.
    pub(super) prepared: Option<[u8; 32]>,
    /// The bucket of the last answer; `None` while prompts are asked.
    pub(super) asked_in: Option<BucketNumber>,
}

impl SelfTests {
    /// Orders a test of this model, which begins once the next bucket is closed.
    pub(crate) fn order(&self, model: String) {
        self.ordered.lock().insert(model);
    }

    /// Whether a test runs.
    pub(super) fn is_running(&self) -> bool {
        self.running.lock().is_some()
    }

    /// Notes whether a test is due and waits until no prompt is open.
    pub(super) fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Release);
    }

    /// Whether no other prompts are asked, and no other list is begun, now that this bucket has ended: a test waits for
    /// open ones, asks its own, or has answers in a bucket whose header has to name its list.
    pub(crate) fn needs_list(&self, ended: BucketNumber) -> bool {
        let running = self.running.lock();
        let is_unclosed = |one: &RunningTest| one.asked_in.is_none_or(|last| last > ended);
        self.is_waiting.load(Ordering::Acquire) || running.as_ref().is_some_and(is_unclosed)
    }

    /// The first ordered model of these.
    pub(super) fn find_ordered(&self, models: &[&String]) -> Option<String> {
        let ordered = self.ordered.lock();
        ordered.iter().find(|model| models.contains(model)).cloned()
    }

    /// Drops the order of a test of this model.
    pub(super) fn forget_order(&self, model: &str) {
        self.ordered.lock().remove(model);
    }

    /// The prepared test as it is while its prompts are asked, and the seed of its list.
    pub(super) fn find_prepared(&self) -> Option<(RunningTest, [u8; 32])> {
        let mut asking = self.running.lock().clone()?;
        let seed = asking.prepared.take()?;
        Some((asking, seed))
    }

    /// Notes the test that runs now, if any.
    pub(super) fn replace(&self, running: Option<RunningTest>) {
        *self.running.lock() = running;
    }

    /// The test whose last bucket is drawn from at this block, and that bucket.
    pub(super) fn find_drawn(&self, block: u64) -> Option<(RunningTest, BucketNumber)> {
        let running = self.running.lock();
        let one = running.as_ref()?;
        let last = one.asked_in.filter(|last| last.draw_block() <= block)?;
        Some((one.clone(), last))
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;

    use super::*;
    use crate::testing::self_test as tested;

    #[test]
    fn a_test_is_judged_after_the_draw_of_its_last_bucket() {
        let tests = SelfTests::default();
        assert!(tests.find_drawn(1_000).is_none());
        let mut running = RunningTest {
            test: tested("a", 0, None),
            miner: MinerKey(Hotkey::from_bytes([1; 32])),
            prepared: None,
            asked_in: None,
        };
        tests.replace(Some(running.clone()));
        assert!(tests.needs_list(BucketNumber(9)));
        assert!(tests.find_drawn(1_000).is_none(), "it still asks");
        running.asked_in = Some(BucketNumber(2));
        tests.replace(Some(running));
        assert!(
            tests.needs_list(BucketNumber(1)),
            "the header of its last answers is not signed"
        );
        assert!(!tests.needs_list(BucketNumber(2)));
        let draw = BucketNumber(2).draw_block();
        assert!(tests.find_drawn(draw - 1).is_none());
        assert_eq!(
            tests.find_drawn(draw).map(|(_, last)| last),
            Some(BucketNumber(2))
        );
    }
}
