//! How often references are started for others' bundles in a day. Pure.

use std::time::Duration;

use muster_protocol::{Timestamp, ValidatorKey};

/// The time in which starts are counted.
const DAY: Duration = Duration::from_secs(86_400);
/// References that are started for others' bundles in a day, at most.
const MOST_OF_ALL: usize = 24;
/// References that are started for the bundles of one author in a day, at most: no author uses up those of the others.
const MOST_OF_AUTHOR: usize = 6;

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
