//! The effects of verdicts that count, and of appeals against them: whose answers are all audited, who gets no sessions
//! for clients, and since when answers are judged. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_audit::Verdict;
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_validator_store::AdoptedAudit;
use muster_verdict_exchange::ConvictionGround;

use crate::appeals::appeal_end::AppealEnd;
use crate::appeals::stored_appeal::StoredAppeal;
use crate::audits::subject::Subject;

/// How long a suspect is audited in full and gets no sessions.
const SUSPECT_TIME: Duration = DAY;
const DAY: Duration = Duration::from_secs(86_400);

/// The coldkeys and models whose answers are all audited: those with an open appeal, suspects of the last day, and
/// former convicts until enough of their answers are consistent.
pub(crate) fn watched(
    counting: &[AdoptedAudit],
    appeals: &[StoredAppeal],
    former: Vec<Subject>,
    now: Timestamp,
) -> BTreeSet<Subject> {
    let suspects = counting
        .iter()
        .filter(|verdict| {
            Verdict::is_accusation(&verdict.verdict) && now.since(verdict.adopted_at) < SUSPECT_TIME
        })
        .map(|verdict| Subject {
            coldkey: verdict.coldkey,
            model: verdict.model.clone(),
        });
    let open = appeals
        .iter()
        .filter(|appeal| appeal.is_open())
        .map(StoredAppeal::subject);
    suspects.chain(open).chain(former).collect()
}

/// The convicts that are asked fresh own prompts now, each by one of its hotkeys, another one each day: those whose
/// convictions rest on own scores, and that were not asked within the last day. A conviction renews by such answers
/// alone.
pub(crate) fn convicts_to_ask(
    counting: &[AdoptedAudit],
    asked_at: &BTreeMap<Subject, Timestamp>,
    now: Timestamp,
) -> Vec<(Subject, MinerKey)> {
    let day = usize::try_from(now.micros().max(0) / 86_400_000_000).unwrap_or_default();
    let mut asked: BTreeMap<Subject, MinerKey> = BTreeMap::new();
    for verdict in counting {
        let is_own = ConvictionGround::of(verdict.origin) == ConvictionGround::OwnScores;
        if !is_own || Verdict::of_name(&verdict.verdict) != Some(Verdict::Convicted) {
            continue;
        }
        let subject = Subject {
            coldkey: verdict.coldkey,
            model: verdict.model.clone(),
        };
        let is_due = asked_at.get(&subject).is_none_or(|at| now.since(*at) >= DAY);
        let miner = verdict.miners.get(day % verdict.miners.len().max(1));
        if let (true, Some(miner)) = (is_due, miner) {
            asked.insert(subject, *miner);
        }
    }
    asked.into_iter().collect()
}

/// The miners that get no sessions for clients, by model: those of convicted coldkeys, and of suspects for a day.
pub(crate) fn barred(
    counting: &[AdoptedAudit],
    owners: &BTreeMap<MinerKey, Hotkey>,
    now: Timestamp,
) -> BTreeMap<String, BTreeSet<MinerKey>> {
    let mut barred: BTreeMap<String, BTreeSet<MinerKey>> = BTreeMap::new();
    for verdict in counting {
        let is_suspect =
            Verdict::is_accusation(&verdict.verdict) && now.since(verdict.adopted_at) < SUSPECT_TIME;
        let is_convict = Verdict::of_name(&verdict.verdict) == Some(Verdict::Convicted);
        if !is_suspect && !is_convict {
            continue;
        }
        let of_owner = owners
            .iter()
            .filter(|(_, owner)| **owner == verdict.coldkey)
            .map(|(miner, _)| *miner);
        barred
            .entry(verdict.model.clone())
            .or_default()
            .extend(of_owner.chain(verdict.miners.iter().copied()));
    }
    barred
}

/// Since when the answers of a subject are judged: nothing from before an appeal that is open or has lifted a verdict
/// counts any more.
pub(crate) fn judged_since(subject: &Subject, appeals: &[StoredAppeal], window: Timestamp) -> Timestamp {
    let counts = |appeal: &&StoredAppeal| {
        let is_lifted = appeal.ended.as_deref() == Some(AppealEnd::Lifted.name());
        appeal.subject() == *subject && (appeal.is_open() || is_lifted)
    };
    let newest = appeals
        .iter()
        .filter(counts)
        .map(|appeal| appeal.received_at)
        .max();
    newest.map_or(window, |received| window.max(received))
}

#[cfg(test)]
mod tests {
    use muster_validator_store::AuditOrigin;

    use super::*;
    use crate::testing::{ago, key, now, stored_appeal as stored, verdict};

    #[test]
    fn suspects_are_watched_and_barred_for_a_day_and_convicts_barred_while_the_verdict_counts() {
        let owners = BTreeMap::from([
            (MinerKey(key(2)), key(1)),
            (MinerKey(key(5)), key(1)),
            (MinerKey(key(6)), key(7)),
        ]);
        let names = |counting: &[AdoptedAudit]| {
            let barred = barred(counting, &owners, now());
            barred.get("tiny").map_or(0, BTreeSet::len)
        };
        let watched_of = |counting: &[AdoptedAudit], appeals: &[StoredAppeal]| {
            watched(counting, appeals, Vec::new(), now()).len()
        };
        // The hotkeys of the bundle and the owner's new one.
        assert_eq!(names(&[verdict("suspect", ago(60))]), 3);
        assert_eq!(names(&[verdict("suspect", ago(86_400))]), 0);
        assert_eq!(names(&[verdict("convicted", ago(10 * 86_400))]), 3);
        assert_eq!(names(&[verdict("consistent", ago(60))]), 0);
        assert_eq!(watched_of(&[verdict("suspect", ago(60))], &[]), 1);
        assert_eq!(watched_of(&[verdict("convicted", ago(86_400))], &[]), 0);
        assert_eq!(watched_of(&[], &[stored(ago(60), None)]), 1);
        assert_eq!(watched_of(&[], &[stored(ago(60), Some("lifted"))]), 0);
        let former = vec![stored(now(), None).subject()];
        assert_eq!(
            watched(&[], &[], former.clone(), now()),
            former.into_iter().collect()
        );
    }

    #[test]
    fn a_convict_by_own_scores_is_asked_once_a_day_by_another_hotkey_each_day() {
        let convicted = |origin| AdoptedAudit {
            origin,
            miners: vec![MinerKey(key(2)), MinerKey(key(3))],
            ..verdict("convicted", ago(60))
        };
        let own = convicted(AuditOrigin::Rescored);
        let asked = |audit: &AdoptedAudit, before: &BTreeMap<Subject, Timestamp>, at| {
            convicts_to_ask(std::slice::from_ref(audit), before, at)
        };
        let first = asked(&own, &BTreeMap::new(), now());
        let next = asked(&own, &BTreeMap::new(), now().plus(DAY));
        assert_eq!((first.len(), next.len()), (1, 1));
        assert_ne!(first[0].1, next[0].1, "another hotkey");
        let before = BTreeMap::from([(first[0].0.clone(), now())]);
        assert_eq!(asked(&own, &before, now().plus(DAY / 2)), []);
        assert_eq!(asked(&own, &before, now().plus(DAY)).len(), 1);
        for other in [
            convicted(AuditOrigin::Endorsed),
            convicted(AuditOrigin::Operator),
            AdoptedAudit {
                verdict: "suspect".to_owned(),
                ..own
            },
        ] {
            assert_eq!(asked(&other, &BTreeMap::new(), now()), [], "{other:?}");
        }
    }

    #[test]
    fn an_open_or_successful_appeal_ends_what_was_before_and_others_change_nothing() {
        let window = ago(7 * 86_400);
        let subject = stored(now(), None).subject();
        let since = |appeals: &[StoredAppeal]| judged_since(&subject, appeals, window);
        assert_eq!(since(&[]), window);
        assert_eq!(since(&[stored(ago(60), None)]), ago(60));
        assert_eq!(since(&[stored(ago(600), Some("lifted"))]), ago(600));
        assert_eq!(
            since(&[
                stored(ago(600), Some("upheld")),
                stored(ago(700), Some("expired"))
            ]),
            window
        );
        assert_eq!(since(&[stored(ago(8 * 86_400), Some("lifted"))]), window);
        let of_other = StoredAppeal {
            model: "other".to_owned(),
            ..stored(ago(60), None)
        };
        assert_eq!(since(&[of_other]), window);
    }
}
