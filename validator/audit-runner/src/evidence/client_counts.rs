//! Counts the answers of each client and day, for the test of missing answers: a bundle hides the clients of answers
//! that are not audited, so its replay cannot count them. Pure.

use std::collections::BTreeSet;

use muster_audit::ClientDays;
use muster_gateway::store::LoggedAnswer;
use muster_protocol::Digest;

use crate::evidence::inputs::WholeSession;

/// The answers of a bundle, proven and missing ones, that are beyond the first four of their client and day.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BeyondClients {
    /// The ids of proven answers.
    answers: BTreeSet<String>,
    /// Missing answers: the place of the session, and the number among its missing ones.
    missing: BTreeSet<(usize, usize)>,
}

/// One answer that counts.
enum Counted<'a> {
    Proven(&'a LoggedAnswer),
    Missing(usize, usize),
}

impl BeyondClients {
    /// Counts in the order of the test: by bucket and place, and those of a bucket without a place last.
    pub(crate) fn of(sessions: &[WholeSession]) -> Self {
        let mut counted: Vec<((u64, u64), Digest, Counted<'_>)> = Vec::new();
        for (place, session) in sessions.iter().enumerate() {
            let proven = session.answers.iter();
            counted
                .extend(proven.map(|one| ((one.bucket.0, one.position), one.client, Counted::Proven(one))));
            for (number, one) in session.unproven.iter().enumerate() {
                counted.push((
                    (one.bucket, u64::MAX),
                    one.client,
                    Counted::Missing(place, number),
                ));
            }
        }
        counted.sort_by_key(|(place, _, _)| *place);
        let (mut days, mut beyond) = (ClientDays::default(), Self::default());
        for ((bucket, _), client, one) in counted {
            if days.admit(client, bucket) {
                continue;
            }
            match one {
                Counted::Proven(answer) => drop(beyond.answers.insert(answer.id.clone())),
                Counted::Missing(place, number) => drop(beyond.missing.insert((place, number))),
            }
        }
        beyond
    }

    /// Whether a proven answer is beyond them.
    pub(crate) fn has(&self, answer: &LoggedAnswer) -> bool {
        self.answers.contains(&answer.id)
    }

    /// Whether the missing answer of this number of the session at this place is beyond them.
    pub(crate) fn has_missing(&self, session: usize, number: usize) -> bool {
        self.missing.contains(&(session, number))
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::MinerKey;

    use super::*;
    use crate::evidence::inputs::MissingProof;
    use crate::testing::{answer, key};

    #[test]
    fn four_answers_of_a_client_and_day_count_over_all_sessions_whether_they_came_or_not() {
        let session = |miner: u8, answers: u64, missing: &[u64]| WholeSession {
            miner: MinerKey(key(miner)),
            attestation: "attested".to_owned(),
            answers: (0..answers).map(|sequence| answer(miner, sequence)).collect(),
            others: Vec::new(),
            unproven: missing
                .iter()
                .map(|bucket| MissingProof {
                    bucket: *bucket,
                    client: answer(miner, 0).client,
                    after: answers,
                })
                .collect(),
            newest_unproven: None,
            behind_gap: Vec::new(),
        };
        // All answers are of one client and stand in bucket 4.
        let sessions = [session(1, 2, &[3, 4]), session(2, 3, &[288, 4])];
        let beyond = BeyondClients::of(&sessions);
        let places = |of: usize| {
            let session = &sessions[of];
            let proven = session.answers.iter().filter(|one| beyond.has(one));
            let missing = (0..session.unproven.len()).filter(|number| beyond.has_missing(of, *number));
            (
                proven.map(|one| one.sequence).collect::<Vec<_>>(),
                missing.collect::<Vec<_>>(),
            )
        };
        // The one missing in bucket 3 is first, then places 0, 0 and 1 of bucket 4; the rest of that day is beyond.
        assert_eq!(places(0), (vec![], vec![1]));
        assert_eq!(places(1), (vec![1, 2], vec![1]), "bucket 288 is of another day");
        let mut others = sessions.to_vec();
        for (number, one) in (0_u8..).zip(&mut others[1].answers) {
            one.client = Digest::of(&[number]);
        }
        assert!(
            others[1]
                .answers
                .iter()
                .all(|one| !BeyondClients::of(&others).has(one))
        );
    }
}
