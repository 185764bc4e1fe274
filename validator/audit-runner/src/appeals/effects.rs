//! The effects of verdicts that count, and of appeals against them: whose answers are all audited, who gets no sessions
//! for clients, and since when answers are judged. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_audit::Verdict;
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_validator_store::{AdoptedAudit, EndedConviction, StandingConviction};
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
    ended: &[EndedConviction],
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
    // The review of each cycle settles those that are watched no longer.
    let former = ended
        .iter()
        .filter(|conviction| {
            ConvictionGround::of(conviction.audit.origin).is_watched(conviction.consistent_since)
        })
        .map(|conviction| Subject {
            coldkey: conviction.audit.coldkey,
            model: conviction.audit.model.clone(),
        });
    suspects.chain(open).chain(former).collect()
}

/// The convicts that are asked fresh own prompts now: those that were not asked within the last day, but none that an
/// order of the operator alone convicts. Each is asked at one of its hotkeys that are registered now, those of the
/// bundle first, and at another one each day.
pub(crate) fn convicts_to_ask(
    standing: &[StandingConviction],
    owners: &BTreeMap<MinerKey, Hotkey>,
    now: Timestamp,
) -> BTreeMap<Subject, MinerKey> {
    let day = usize::try_from(now.micros().max(0) / 86_400_000_000).unwrap_or_default();
    let mut asked = BTreeMap::new();
    for conviction in standing {
        let verdict = &conviction.audit;
        let is_order = match ConvictionGround::of(verdict.origin) {
            ConvictionGround::OwnScores | ConvictionGround::Statements => false,
            ConvictionGround::Order => true,
        };
        let was_asked = conviction.asked_at.is_some_and(|at| now.since(at) < DAY);
        if is_order || was_asked {
            continue;
        }
        let registered = owners.iter().filter(|(_, owner)| **owner == verdict.coldkey);
        let (judged, others): (Vec<MinerKey>, Vec<MinerKey>) = registered
            .map(|(miner, _)| *miner)
            .partition(|miner| verdict.miners.contains(miner));
        let hotkeys = if judged.is_empty() { others } else { judged };
        if let Some(miner) = hotkeys.get(day % hotkeys.len().max(1)) {
            let subject = Subject {
                coldkey: verdict.coldkey,
                model: verdict.model.clone(),
            };
            asked.insert(subject, *miner);
        }
    }
    asked
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
            watched(counting, appeals, &[], now()).len()
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
        let ended = |origin, consistent_since| EndedConviction {
            audit: AdoptedAudit {
                origin,
                ..verdict("convicted", ago(9))
            },
            ended_at: ago(8),
            reason: String::new(),
            consistent_since,
        };
        let watched_after = |origin, consistent| watched(&[], &[], &[ended(origin, consistent)], now()).len();
        assert_eq!(watched_after(AuditOrigin::Own, 63), 1);
        assert_eq!(watched_after(AuditOrigin::Rescored, 0), 1);
        assert_eq!(watched_after(AuditOrigin::Own, 64), 0);
        assert_eq!(
            watched_after(AuditOrigin::Endorsed, 0),
            0,
            "nobody's own scores spoke against it"
        );
    }

    #[test]
    fn a_convict_is_asked_once_a_day_by_another_registered_hotkey_each_day() {
        let standing = |origin, asked_at| StandingConviction {
            audit: AdoptedAudit {
                origin,
                miners: vec![MinerKey(key(2)), MinerKey(key(3)), MinerKey(key(4))],
                ..verdict("convicted", ago(60))
            },
            unsupported_since: None,
            asked_at,
        };
        let coldkey = standing(AuditOrigin::Own, None).audit.coldkey;
        let owners_of = |keys: &[u8]| -> BTreeMap<MinerKey, Hotkey> {
            keys.iter().map(|seed| (MinerKey(key(*seed)), coldkey)).collect()
        };
        let asked = |conviction: StandingConviction, registered: &[u8], at| {
            let asked = convicts_to_ask(&[conviction], &owners_of(registered), at);
            asked.into_values().collect::<Vec<_>>()
        };
        for origin in [AuditOrigin::Own, AuditOrigin::Rescored, AuditOrigin::Endorsed] {
            let days = [now(), now().plus(DAY)];
            let [first, next] = days.map(|at| asked(standing(origin, None), &[2, 3, 7], at));
            assert_eq!((first.len(), next.len()), (1, 1));
            assert_ne!(first, next, "another hotkey");
            assert!(
                first
                    .iter()
                    .chain(&next)
                    .all(|miner| [2, 3].map(|seed| MinerKey(key(seed))).contains(miner)),
                "those of the bundle that are registered"
            );
        }
        let own = |asked_at| standing(AuditOrigin::Own, asked_at);
        assert_eq!(
            asked(own(None), &[7], now()),
            [MinerKey(key(7))],
            "a new hotkey of its owner"
        );
        assert_eq!(asked(own(None), &[], now()), []);
        assert_eq!(asked(own(Some(now())), &[2], now().plus(DAY / 2)), []);
        assert_eq!(asked(own(Some(now())), &[2], now().plus(DAY)).len(), 1);
        assert_eq!(
            asked(standing(AuditOrigin::Operator, None), &[2], now()),
            [],
            "an order"
        );
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
