//! The test that runs, and those that are ordered.

use std::collections::BTreeSet;

use muster_protocol::MinerKey;
use muster_response_proof::BucketNumber;
use parking_lot::Mutex;

use crate::store::self_tests::SelfTest;

/// The test that runs, and the models whose test the operator has ordered.
#[derive(Debug, Default)]
pub(crate) struct SelfTests {
    ordered: Mutex<BTreeSet<String>>,
    running: Mutex<Option<RunningTest>>,
}

/// A test between its first question and its verdict.
#[derive(Clone, Debug)]
pub(super) struct RunningTest {
    pub(super) test: SelfTest,
    pub(super) miner: MinerKey,
    /// The bucket of the last answer; `None` while prompts are asked.
    pub(super) asked_in: Option<BucketNumber>,
}

impl SelfTests {
    /// Orders a test of this model, which begins with the next block.
    pub(crate) fn order(&self, model: String) {
        self.ordered.lock().insert(model);
    }

    /// Whether a test runs.
    pub(super) fn is_running(&self) -> bool {
        self.running.lock().is_some()
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
            asked_in: None,
        };
        tests.replace(Some(running.clone()));
        assert!(tests.find_drawn(1_000).is_none(), "it still asks");
        running.asked_in = Some(BucketNumber(2));
        tests.replace(Some(running));
        let draw = BucketNumber(2).draw_block();
        assert!(tests.find_drawn(draw - 1).is_none());
        assert_eq!(
            tests.find_drawn(draw).map(|(_, last)| last),
            Some(BucketNumber(2))
        );
    }
}
