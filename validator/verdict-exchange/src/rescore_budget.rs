//! How often references are started for others' bundles in a day. Pure.

use std::time::Duration;

use muster_protocol::{Timestamp, ValidatorKey};

/// The time in which starts are counted.
const DAY: Duration = Duration::from_secs(86_400);
/// References that are started for others' bundles in a day, at most.
const MOST_OF_ALL: usize = 24;
/// References that are started for the bundles of one author in a day, at most: no author uses up those of the others.
const MOST_OF_AUTHOR: usize = 6;

/// The time in which two bundles that own scores contradict pause their author, and for which they do.
const PAUSE: Duration = Duration::from_secs(7 * 86_400);
/// The time for which a contradiction may matter.
pub(crate) const CONTRADICTIONS_COUNT_FOR: Duration = Duration::from_secs(14 * 86_400);

/// Whether no reference is started for an author whose bundles own scores contradicted at these times, which rise: for
/// seven days after the second of two within seven days.
pub(crate) fn is_paused(contradicted: &[Timestamp], now: Timestamp) -> bool {
    contradicted.windows(2).any(|pair| match pair {
        [first, second] => second.since(*first) <= PAUSE && now.since(*second) < PAUSE,
        _ => false,
    })
}

/// The starts of references for others' bundles in the last day.
#[derive(Debug, Default)]
pub(crate) struct RescoreBudget(Vec<(ValidatorKey, Timestamp)>);

impl RescoreBudget {
    /// The reason why no reference is started for a bundle of this author now; `None` if one may be.
    pub(crate) fn refusal(&self, author: ValidatorKey, now: Timestamp) -> Option<&'static str> {
        let today = || self.0.iter().filter(|(_, at)| now.since(*at) < DAY);
        if today().filter(|(of, _)| *of == author).count() >= MOST_OF_AUTHOR {
            return Some("references scored enough of its author's bundles today");
        }
        (today().count() >= MOST_OF_ALL).then_some("references scored enough of others' bundles today")
    }

    /// Counts a start, and forgets those of the day before.
    pub(crate) fn note(&mut self, author: ValidatorKey, now: Timestamp) {
        self.0.retain(|(_, at)| now.since(*at) < DAY);
        self.0.push((author, now));
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;

    use super::*;

    #[test]
    fn an_author_is_paused_for_seven_days_after_two_contradicted_bundles_in_seven_days() {
        let at = |days: i64| Timestamp::from_secs(1_000_000 + days * 86_400);
        let paused =
            |days: &[i64], now: i64| is_paused(&days.iter().map(|day| at(*day)).collect::<Vec<_>>(), at(now));
        assert!(!paused(&[], 9) && !paused(&[1], 2), "one may be an accident");
        assert!(paused(&[1, 8], 14) && !paused(&[1, 8], 15));
        assert!(!paused(&[1, 9], 9), "too far apart");
        assert!(paused(&[1, 9, 10], 16) && !paused(&[1, 9, 10], 17));
    }

    #[test]
    fn a_hostile_author_leaves_the_others_their_rescorings() {
        let author = |seed| ValidatorKey(Hotkey::from_bytes([seed; 32]));
        let now = Timestamp::from_secs(1_000_000);
        let mut budget = RescoreBudget::default();
        let mut started = 0;
        while budget.refusal(author(1), now).is_none() {
            budget.note(author(1), now);
            started += 1;
        }
        assert_eq!(started, MOST_OF_AUTHOR);
        assert_eq!(budget.refusal(author(2), now), None, "another author's");
        for other in 2..5 {
            for _ in 0..MOST_OF_AUTHOR {
                budget.note(author(other), now);
            }
        }
        assert!(budget.refusal(author(9), now).is_some(), "enough of all");
        let tomorrow = now.plus(DAY);
        assert_eq!(budget.refusal(author(1), tomorrow), None);
    }
}
