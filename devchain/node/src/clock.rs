//! The chain's time: what a block states as its timestamp.

use muster_devchain_runtime::SLOT_DURATION_MS;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where blocks take their timestamps from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The machine's clock.
    Wall,
    /// Every block one slot after its parent, from 2025-01-01: the same blocks in every run.
    Steps,
}

/// 2025-01-01T00:00:00Z.
const STEPS_BEGIN_MS: u64 = 1_735_689_600_000;

impl Clock {
    /// The timestamp of the block after one with timestamp `parent`, in milliseconds; always later than it.
    #[must_use]
    pub fn next(self, parent: Option<u64>) -> u64 {
        match self {
            Self::Wall => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                now.max(parent.map_or(0, |parent| parent.saturating_add(1)))
            }
            Self::Steps => parent.unwrap_or(STEPS_BEGIN_MS).saturating_add(SLOT_DURATION_MS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_only_moves_forward() {
        assert_eq!(Clock::Steps.next(None), STEPS_BEGIN_MS + SLOT_DURATION_MS);
        assert_eq!(Clock::Steps.next(Some(7)), 7 + SLOT_DURATION_MS);
        let future = u64::MAX / 2;
        assert_eq!(Clock::Wall.next(Some(future)), future + 1);
    }
}
