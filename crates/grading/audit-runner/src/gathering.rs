//! When a reference is started: only after enough answers have gathered, or some have waited long enough.

use std::collections::BTreeMap;

use muster_protocol::{Hotkey, Timestamp};

use crate::settings::Settings;

/// A coldkey and a model: verdicts are about these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) coldkey: Hotkey,
    pub(crate) model: String,
}

/// The audited answers of one subject that no reference has scored yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gathered {
    pub(crate) answers: usize,
    /// When the oldest of them ended.
    pub(crate) oldest: Timestamp,
}

/// The model whose reference is started now, and the subjects that it audits: all of the model that have anything
/// gathered, once the answers to the model together are enough or one has waited long enough. The model whose answers
/// have waited longest is first; `None` if none is due.
pub(crate) fn next_due(
    gathered: &BTreeMap<Subject, Gathered>,
    now: Timestamp,
    settings: &Settings,
) -> Option<(String, Vec<Subject>)> {
    let mut models: BTreeMap<&str, (usize, Timestamp, Vec<Subject>)> = BTreeMap::new();
    for (subject, one) in gathered.iter().filter(|(_, one)| one.answers > 0) {
        let of_model = models
            .entry(&subject.model)
            .or_insert_with(|| (0, one.oldest, Vec::new()));
        of_model.0 = of_model.0.saturating_add(one.answers);
        of_model.1 = of_model.1.min(one.oldest);
        of_model.2.push(subject.clone());
    }
    let is_due = |answers: usize, oldest: Timestamp| {
        answers >= settings.gather_answers || now.since(oldest) >= settings.gather_age()
    };
    models
        .into_iter()
        .filter(|(_, (answers, oldest, _))| is_due(*answers, *oldest))
        .min_by_key(|(_, (_, oldest, _))| *oldest)
        .map(|(model, (_, _, subjects))| (model.to_owned(), subjects))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    fn gathered(rows: &[(u8, &str, usize, i64)]) -> BTreeMap<Subject, Gathered> {
        rows.iter()
            .map(|(coldkey, model, answers, oldest)| {
                let subject = Subject {
                    coldkey: key(*coldkey),
                    model: (*model).to_owned(),
                };
                let gathered = Gathered {
                    answers: *answers,
                    oldest: Timestamp::from_secs(*oldest),
                };
                (subject, gathered)
            })
            .collect()
    }

    fn due(rows: &[(u8, &str, usize, i64)], now: i64) -> Option<(String, usize)> {
        let settings = Settings {
            gather_answers: 10,
            gather_h: 1,
            ..Settings::default()
        };
        next_due(&gathered(rows), Timestamp::from_secs(now), &settings)
            .map(|(model, subjects)| (model, subjects.len()))
    }

    #[test]
    fn a_reference_waits_for_enough_answers_or_for_old_ones() {
        assert_eq!(due(&[], 9_999), None);
        assert_eq!(due(&[(1, "a", 9, 100)], 200), None);
        let one = |model: &str, subjects| Some((model.to_owned(), subjects));
        assert_eq!(
            due(&[(1, "a", 4, 100), (2, "a", 6, 150)], 200),
            one("a", 2),
            "together enough"
        );
        assert_eq!(due(&[(1, "a", 1, 100)], 3_700), one("a", 1), "an hour old");
        let rows = [(1, "a", 10, 150), (1, "b", 10, 100), (3, "b", 0, 1)];
        assert_eq!(
            due(&rows, 200),
            one("b", 1),
            "the oldest first, and nobody without answers"
        );
    }
}
