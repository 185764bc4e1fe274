//! When a reference is started: only after enough answers have gathered, or some have waited long enough, and not again
//! soon after an audit that came to nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::Timestamp;

use crate::audits::run_record::AuditRun;
use crate::audits::subject::{Gathered, Subject};
use crate::settings::Settings;

/// The pause before the next audit by itself after one that came to nothing.
const PAUSE: Duration = Duration::from_secs(600);

/// The coldkeys and models whose last audit came to nothing, and until when none is begun by itself. A subject that
/// cannot be audited delays no other.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditPauses {
    until: BTreeMap<Subject, Timestamp>,
}

impl AuditPauses {
    pub(crate) fn is_paused(&self, subject: &Subject, now: Timestamp) -> bool {
        self.until.get(subject).is_some_and(|until| now < *until)
    }

    /// Takes the audits of these subjects into account. A subject without an audit had nothing to be scored.
    pub(crate) fn note(&mut self, subjects: &[Subject], runs: &[AuditRun], now: Timestamp) {
        self.until.retain(|_, until| now < *until);
        for subject in subjects {
            let has_come_to_something =
                |run: &AuditRun| run.subject() == *subject && run.verdict.is_some() && run.scored > 0;
            if !runs.iter().any(has_come_to_something) {
                self.until.insert(subject.clone(), now.plus(PAUSE));
            }
        }
    }
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
    use crate::audits::run_record::RunState;
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

    #[test]
    fn a_subject_rests_after_an_audit_that_came_to_nothing_and_no_other_does() {
        let subject = |coldkey: u8| Subject {
            coldkey: key(coldkey),
            model: "a".to_owned(),
        };
        let run = |coldkey: u8, scored: u64, verdict: Option<&str>| AuditRun {
            run: coldkey.to_string(),
            coldkey: key(coldkey),
            model: "a".to_owned(),
            state: RunState::Ended,
            answers: 9,
            scored,
            began_at: Timestamp::from_secs(1),
            ended_at: None,
            bundle: None,
            verdict: verdict.map(str::to_owned),
            reason: None,
        };
        let runs = [
            run(1, 9, Some("consistent")),
            run(2, 0, Some("consistent")),
            run(3, 9, None),
        ];
        let subjects: Vec<Subject> = (1..=4).map(subject).collect();
        let mut pauses = AuditPauses::default();
        pauses.note(&subjects, &runs, Timestamp::from_secs(100));
        let paused = |pauses: &AuditPauses, now| {
            let is_paused = |coldkey: &u8| pauses.is_paused(&subject(*coldkey), Timestamp::from_secs(now));
            (1..=5).filter(is_paused).collect::<Vec<u8>>()
        };
        assert_eq!(paused(&pauses, 699), [2, 3, 4]);
        assert_eq!(paused(&pauses, 700), [0_u8; 0]);
        pauses.note(&[], &[], Timestamp::from_secs(700));
        assert!(pauses.until.is_empty(), "pauses that are over are forgotten");
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
