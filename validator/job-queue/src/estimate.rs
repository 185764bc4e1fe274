//! The estimate of a waiting time, from the durations of recent attempts.

use std::collections::VecDeque;
use std::time::Duration;

/// Durations that are remembered for a class.
const KEPT: usize = 64;

/// How long the last attempts of a class kept their executors.
#[derive(Clone, Debug, Default)]
pub struct DurationRecord {
    recent: VecDeque<Duration>,
}

impl DurationRecord {
    /// Notes how long an attempt kept its executor. The oldest of more than 64 durations is forgotten.
    pub fn note(&mut self, duration: Duration) {
        if self.recent.len() >= KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(duration);
    }

    /// The mean of the remembered durations; `None` if there are none.
    pub fn mean(&self) -> Option<Duration> {
        let count = u32::try_from(self.recent.len()).ok().filter(|count| *count > 0)?;
        let sum = self
            .recent
            .iter()
            .fold(Duration::ZERO, |sum, duration| sum.saturating_add(*duration));
        sum.checked_div(count)
    }
}

/// How long a job with `ahead` jobs before it is likely to wait while all `executors` are at work. Without one,
/// `back_in` is the time until the first benched miner is asked again. `None` means unknown: no executor of the class
/// is known, or no attempt of the class has ended lately.
pub fn estimate_wait(
    ahead: usize,
    executors: u32,
    back_in: Option<Duration>,
    record: &DurationRecord,
) -> Option<Duration> {
    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
    if executors == 0 {
        let before = record.mean().unwrap_or_default().saturating_mul(ahead);
        return Some(back_in?.saturating_add(before));
    }
    record
        .mean()?
        .saturating_mul(ahead.saturating_add(1))
        .checked_div(executors)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_estimate_grows_with_the_line_and_shrinks_with_the_executors() {
        let mut record = DurationRecord::default();
        record.note(SECOND * 10);
        record.note(SECOND * 30);
        assert_eq!(estimate_wait(0, 1, None, &record), Some(SECOND * 20));
        assert_eq!(estimate_wait(3, 2, None, &record), Some(SECOND * 40));
    }

    #[test]
    fn a_job_that_waits_for_a_benched_miner_waits_until_it_is_asked_again() {
        let mut record = DurationRecord::default();
        let back_in = Some(SECOND * 216);
        assert_eq!(estimate_wait(0, 0, back_in, &record), Some(SECOND * 216));
        record.note(SECOND * 10);
        assert_eq!(estimate_wait(3, 0, back_in, &record), Some(SECOND * 246));
        assert_eq!(
            estimate_wait(0, 1, back_in, &record),
            Some(SECOND * 10),
            "another is there"
        );
    }

    #[test]
    fn an_unknown_wait_is_not_estimated() {
        let mut record = DurationRecord::default();
        assert_eq!(estimate_wait(0, 4, None, &record), None, "no attempt has ended");
        record.note(SECOND);
        assert_eq!(estimate_wait(0, 0, None, &record), None, "no executor is known");
    }

    #[test]
    fn old_durations_are_forgotten() {
        let mut record = DurationRecord::default();
        record.note(SECOND * 1_000_000);
        for _ in 0..KEPT {
            record.note(SECOND);
        }
        assert_eq!(record.mean(), Some(SECOND));
    }
}
