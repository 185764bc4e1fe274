//! The chain's time: what a block states as its timestamp.

use std::time::{SystemTime, UNIX_EPOCH};

/// Where blocks take their timestamps from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    source: Source,
    /// Milliseconds by which the next block is later than its source shows, or earlier.
    ahead: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Wall,
    Steps(u64),
}

/// The chain's time at genesis where it is stepped: 2025-01-01T00:00:00Z.
const STEPS_BEGIN_MS: u64 = 1_735_689_600_000;

/// The time asked for is not later than the last block's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the last block's time is {0} ms; time only moves forward")]
pub struct Past(pub u64);

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub const fn wall() -> Self {
        Self {
            source: Source::Wall,
            ahead: 0,
        }
    }

    /// Every block this many milliseconds after its parent, from 2025-01-01: the same blocks in every run.
    #[must_use]
    pub const fn steps(milliseconds: u64) -> Self {
        Self {
            source: Source::Steps(milliseconds),
            ahead: 0,
        }
    }

    /// The timestamp of the block after one with timestamp `parent`, in milliseconds; always later than it.
    #[must_use]
    pub fn next(&self, parent: Option<u64>) -> u64 {
        let due = self.due(parent).saturating_add_signed(self.ahead);
        due.max(parent.map_or(0, |parent| parent.saturating_add(1)))
    }

    /// Goes on from the time of the last block, where that is ahead of the machine's clock.
    pub fn resume(&mut self, last: Option<u64>) {
        match self.source {
            Source::Wall => self.advance(last.unwrap_or(0).saturating_sub(self.due(None))),
            Source::Steps(_) => {}
        }
    }

    /// Must be called when a block has taken its time: a jump of a stepping clock is over then.
    pub fn taken(&mut self) {
        match self.source {
            Source::Wall => {}
            Source::Steps(_) => self.ahead = 0,
        }
    }

    /// Makes the next block later by some milliseconds, and with it all that follow.
    pub fn advance(&mut self, milliseconds: u64) {
        self.ahead = self.ahead.saturating_add_unsigned(milliseconds);
    }

    /// Gives the next block its time in milliseconds.
    ///
    /// # Errors
    /// When that is not later than the last block's.
    pub fn set(&mut self, time: u64, parent: Option<u64>) -> Result<(), Past> {
        if let Some(parent) = parent
            && time <= parent
        {
            return Err(Past(parent));
        }
        let (time, due) = (i128::from(time), i128::from(self.due(parent)));
        self.ahead = i64::try_from(time - due).unwrap_or(i64::MAX);
        Ok(())
    }

    fn due(&self, parent: Option<u64>) -> u64 {
        match self.source {
            Source::Wall => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }
            Source::Steps(step) => parent.unwrap_or(STEPS_BEGIN_MS).saturating_add(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_only_moves_forward() {
        assert_eq!(Clock::steps(12).next(None), STEPS_BEGIN_MS + 12);
        assert_eq!(Clock::steps(12).next(Some(7)), 19);
        let future = u64::MAX / 2;
        assert_eq!(Clock::wall().next(Some(future)), future + 1);
    }

    #[test]
    fn a_jump_of_a_stepping_clock_is_for_one_block() {
        let mut clock = Clock::steps(12);
        clock.advance(1000);
        clock.advance(1);
        assert_eq!(clock.next(Some(0)), 1013);
        clock.taken();
        assert_eq!(clock.next(Some(1013)), 1025);
        clock.set(5000, Some(1025)).unwrap();
        assert_eq!(clock.next(Some(1025)), 5000);
        assert_eq!(clock.set(1025, Some(1025)), Err(Past(1025)));
        clock.set(1026, Some(1025)).unwrap();
        assert_eq!(clock.next(Some(1025)), 1026);
    }

    #[test]
    fn the_machines_clock_stays_ahead() {
        let mut clock = Clock::wall();
        let now = clock.next(None);
        clock.advance(3_600_000);
        clock.taken();
        assert!(clock.next(None) >= now + 3_600_000);
    }
}
