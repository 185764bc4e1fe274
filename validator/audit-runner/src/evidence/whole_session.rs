//! The part of a session that a bundle can show.

use muster_gateway::store::{LoggedAnswer, UnprovenRow};
use muster_protocol::{Digest, MinerKey, Timestamp};

use crate::evidence::inputs::{MissingProof, WholeSession};

/// Everything that is stored about a session.
#[derive(Clone, Debug)]
pub(crate) struct StoredSession {
    pub(crate) miner: MinerKey,
    /// The signed attestation, in text form.
    pub(crate) attestation: String,
    /// Its answers in the log, in the order of their numbers.
    pub(crate) answers: Vec<LoggedAnswer>,
    /// Its other proofs with their numbers, in their order.
    pub(crate) others: Vec<(u64, String)>,
    /// Its answers without a valid proof, in the order of their ends.
    pub(crate) unproven: Vec<UnprovenRow>,
    pub(crate) end: SessionGap,
}

/// The end of a session, as far as gaps in its numbers are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionGap {
    /// It is open, or closed without a gap: what is missing now may still come.
    Regular,
    /// It ended without a closing statement, as with its machine. Proofs that nobody had fetched are lost.
    Unclosed,
    /// It stated its end and withholds proofs.
    Withheld,
}

/// The part of a session that can be shown: from number 0 up to the last proof before a gap, or before an answer that
/// stands in no drawn bucket. Answers without a proof stand behind those of the shown ones that ended before. Answers
/// behind a gap that stays are shown as such, too: their places among the session's proofs cannot be checked.
/// `None` if there is nothing to show.
pub(crate) fn whole_session(
    stored: StoredSession,
    is_drawn: impl Fn(&LoggedAnswer) -> bool,
) -> Option<WholeSession> {
    let StoredSession {
        miner,
        attestation,
        answers,
        others,
        unproven,
        end,
    } = stored;
    let mut whole = WholeSession {
        miner,
        attestation,
        answers: Vec::new(),
        others: Vec::new(),
        unproven: Vec::new(),
        newest_unproven: unproven.iter().map(|answer| answer.drawn_at).max(),
        behind_gap: Vec::new(),
    };
    let (mut answers, mut others) = (answers.into_iter().peekable(), others.into_iter().peekable());
    let mut is_gap = false;
    for number in 0_u64.. {
        if let Some(answer) = answers.next_if(|answer| answer.sequence == number && is_drawn(answer)) {
            whole.answers.push(answer);
        } else if let Some((_, proof)) = others.next_if(|(sequence, _)| *sequence == number) {
            whole.others.push(proof);
        } else {
            is_gap = answers.peek().is_some_and(|answer| answer.sequence != number);
            break;
        }
    }
    let is_hidden = |answer: &LoggedAnswer| is_gap && end != SessionGap::Regular && is_drawn(answer);
    let hidden: Vec<LoggedAnswer> = answers.filter(is_hidden).collect();
    // The end of a machine is one event, however many answers it hides.
    let events = match end {
        SessionGap::Regular | SessionGap::Unclosed => 1,
        SessionGap::Withheld => hidden.len(),
    };
    let lost = hidden
        .iter()
        .take(events)
        .map(|answer| (answer.ended_at, answer.bucket.0, answer.client));
    let unproven = unproven
        .iter()
        .map(|answer| (answer.ended_at, answer.bucket.0, answer.client));
    let mut missing: Vec<(Timestamp, u64, Digest)> = unproven.chain(lost).collect();
    missing.sort_by_key(|(ended_at, _, _)| *ended_at);
    for (ended_at, bucket, client) in missing {
        let before = whole.answers.iter().filter(|answer| answer.ended_at <= ended_at);
        let after = u64::try_from(before.count()).ok()?;
        // Two answers that end together may be numbered the other way round.
        let last = whole.unproven.last().map_or(0, |last| last.after);
        whole.unproven.push(MissingProof {
            bucket,
            client,
            after: after.max(last),
        });
    }
    let audited = hidden.into_iter().filter(|answer| answer.is_drawn);
    whole.behind_gap = audited.map(|answer| answer.id).collect();
    (!whole.answers.is_empty() || !whole.unproven.is_empty()).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{answer, key};

    #[test]
    fn a_session_is_shown_up_to_the_first_gap_or_undrawn_bucket() {
        let shown = |answers: &[(u64, u64)], others: &[u64]| {
            let logged = answers.iter().map(|(sequence, bucket)| {
                let mut one = answer(1, *sequence);
                one.bucket.0 = *bucket;
                one
            });
            let others = others.iter().map(|number| (*number, number.to_string()));
            let stored = stored(logged.collect(), others.collect(), SessionGap::Regular);
            let whole = whole_session(stored, |answer| answer.bucket.0 != 9)?;
            let numbers: Vec<u64> = whole.answers.iter().map(|answer| answer.sequence).collect();
            Some((numbers, whole.others.join(" ")))
        };
        let some = |numbers: &[u64], others: &str| Some((numbers.to_vec(), others.to_owned()));
        assert_eq!(shown(&[(1, 4), (2, 4), (4, 5)], &[0, 3]), some(&[1, 2, 4], "0 3"));
        assert_eq!(
            shown(&[(1, 4), (3, 4)], &[0]),
            some(&[1], "0"),
            "number 2 is missing"
        );
        assert_eq!(
            shown(&[(0, 4), (1, 9), (2, 4)], &[3]),
            some(&[0], ""),
            "not drawn yet"
        );
        assert_eq!(shown(&[(1, 4)], &[]), None, "the first proof is missing");
        assert_eq!(shown(&[], &[0, 1]), None, "nothing was answered");
    }

    fn stored(answers: Vec<LoggedAnswer>, others: Vec<(u64, String)>, end: SessionGap) -> StoredSession {
        StoredSession {
            miner: MinerKey(key(1)),
            attestation: "attested".to_owned(),
            answers,
            others,
            unproven: Vec::new(),
            end,
        }
    }

    #[test]
    fn answers_without_a_proof_stand_behind_those_that_ended_before() {
        let ended = |at| Timestamp::from_secs(at);
        let logged = [100, 200, 300]
            .into_iter()
            .enumerate()
            .map(|(number, at)| LoggedAnswer {
                ended_at: ended(at),
                ..answer(1, u64::try_from(number).unwrap())
            });
        let unproven = |at| UnprovenRow {
            session: answer(1, 0).session,
            miner: MinerKey(key(1)),
            attestation: "attested".to_owned(),
            client: Digest::of(b"client"),
            ended_at: ended(at),
            bucket: muster_response_proof::BucketNumber(7),
            drawn_at: ended(at + 1_000),
        };
        let shown = |answers: Vec<LoggedAnswer>| {
            let stored = StoredSession {
                unproven: [50, 200, 250, 900].map(unproven).into(),
                ..stored(answers, Vec::new(), SessionGap::Regular)
            };
            let whole = whole_session(stored, |_| true)?;
            assert_eq!(whole.newest_unproven, Some(ended(1_900)));
            Some(whole.unproven.iter().map(|one| one.after).collect::<Vec<u64>>())
        };
        assert_eq!(shown(logged.collect()), Some(vec![0, 2, 2, 3]));
        assert_eq!(
            shown(Vec::new()),
            Some(vec![0; 4]),
            "a session that answered nothing"
        );
    }

    #[test]
    fn answers_behind_a_gap_that_stays_are_missing_each_or_together() {
        let shown = |sequences: &[u64], end| {
            let answers = sequences.iter().map(|sequence| LoggedAnswer {
                is_drawn: true,
                ..answer(1, *sequence)
            });
            let whole = whole_session(stored(answers.collect(), Vec::new(), end), |_| true).unwrap();
            (whole.answers.len(), whole.unproven.len(), whole.behind_gap.len())
        };
        assert_eq!(shown(&[0, 1, 3, 4, 5], SessionGap::Withheld), (2, 3, 3));
        assert_eq!(shown(&[0, 1, 3, 4, 5], SessionGap::Unclosed), (2, 1, 3));
        assert_eq!(
            shown(&[0, 1, 3, 4, 5], SessionGap::Regular),
            (2, 0, 0),
            "the proof may come"
        );
        assert_eq!(shown(&[0, 1, 2], SessionGap::Withheld), (3, 0, 0));
        // An answer that no bucket was drawn from yet is no gap.
        let answers = [0, 1, 2].map(|sequence| answer(1, sequence));
        let drawn = |answer: &LoggedAnswer| answer.sequence != 1;
        let whole = whole_session(stored(answers.into(), Vec::new(), SessionGap::Withheld), drawn).unwrap();
        assert_eq!((whole.answers.len(), whole.unproven.len()), (1, 0));
    }
}
