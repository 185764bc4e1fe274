//! The executors that a miner has proven in one class, from the observations that one validator made.
//!
//! An observation is one probe of all its executors at once, announced or not. The two kinds are kept apart, so that
//! hardware that is rented for announced batches proves nothing. Of each kind the second-lowest of the last eight
//! counts: one failure in eight is forgiven. `docs/adr/0064` has the reasons and what honest miners lose by it.

use std::collections::BTreeMap;

use muster_protocol::{AttemptId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::class_points::WHOLE_EXECUTOR;

/// Observations of one kind that count (`docs/adr/0064`).
pub const OBSERVATIONS: usize = 8;

/// How long a lowered manifest stays planned maintenance, in microseconds: a day (`docs/adr/0064`).
const MAINTENANCE_US: i64 = 24 * 3_600 * 1_000_000;

/// The most executors of one class and miner that count: it bounds the products of the formula. A batch proves fewer.
pub const MAX_EXECUTORS: u32 = 10_000;

/// How a probe was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObservationKind {
    /// A batch that leases every executor before its barrier.
    Announced,
    /// A probe of all idle executors at once without a barrier.
    Unannounced,
}

impl ObservationKind {
    /// The name in texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Announced => "announced",
            Self::Unannounced => "unannounced",
        }
    }
}

/// The state of the receipt by which an executor was excused from a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExcuseState {
    /// Its attempt may still get a finished receipt that counts.
    Waiting,
    /// A finished receipt of its attempt counts and covers the instant of the probe.
    Covered,
    /// No receipt that counts covers the instant.
    Failed,
}

/// One probe of a miner's executors of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// How the probe was made.
    pub kind: ObservationKind,
    /// The time of the probe.
    pub at: Timestamp,
    /// The executors in the miner's manifest then; 0 if it is not known.
    pub announced: u32,
    /// The executors that showed themselves.
    pub shown: u32,
    /// The credit of what they showed, in thousandths of an executor.
    pub credit: u64,
    /// The executors that were excused by started receipts.
    #[serde(default)]
    pub excuses: Vec<ExcuseState>,
}

/// The executors and the credit that a miner has proven in one class by one kind of probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenCapacity {
    /// The number of executors.
    pub executors: u32,
    /// The credit of what they showed, in thousandths of an executor.
    pub credit: u64,
}

/// The credit of one executor that measured `measured` where its class asks for `floor`, in thousandths: what is shown
/// at that instant, at most a whole executor.
pub fn executor_credit(measured: u64, floor: u64) -> u64 {
    let shown = u128::from(measured).saturating_mul(u128::from(WHOLE_EXECUTOR));
    let credit = shown.checked_div(u128::from(floor)).unwrap_or(0);
    u64::try_from(credit).unwrap_or(u64::MAX).min(WHOLE_EXECUTOR)
}

/// The state of an excuse that names `attempt`, for a probe at `at`. `counted` holds the intervals of the attempts
/// whose finished receipts count, and `closed` states that no further receipt of that time can count.
pub fn settle_excuse(
    attempt: AttemptId,
    at: Timestamp,
    counted: &BTreeMap<AttemptId, (Timestamp, Timestamp)>,
    closed: bool,
) -> ExcuseState {
    match counted.get(&attempt) {
        Some((began, ended)) if *began <= at && at < *ended => ExcuseState::Covered,
        Some(_) => ExcuseState::Failed,
        None if closed => ExcuseState::Failed,
        None => ExcuseState::Waiting,
    }
}

/// The capacity that the observations of one kind prove; none before the first one that is passed. `manifest` is the
/// number of executors that the miner announces now, if it is known: a lower manifest counts at once.
pub fn proven_by(
    observations: &[Observation],
    kind: ObservationKind,
    manifest: Option<u32>,
) -> Option<ProvenCapacity> {
    let mut of_kind: Vec<_> = observations.iter().filter(|seen| seen.kind == kind).collect();
    of_kind.sort_by_key(|seen| seen.at);
    let mut record = Record::default();
    for observation in of_kind {
        record.observe(observation);
    }
    let most = manifest.unwrap_or(MAX_EXECUTORS).min(MAX_EXECUTORS);
    let proven = record.proven()?;
    let executors = proven.executors.min(most);
    let full = u64::from(executors).saturating_mul(WHOLE_EXECUTOR);
    Some(ProvenCapacity {
        executors,
        credit: proven.credit.min(full),
    })
}

/// The value of an observation once its excuses are settled.
struct Settled {
    void: bool,
    proven: ProvenCapacity,
}

/// The observations of one kind that count so far, oldest first.
#[derive(Default)]
struct Record {
    /// At most [`OBSERVATIONS`] values; `None` is a void observation, which counts for nothing and takes a place.
    last: Vec<Option<ProvenCapacity>>,
    /// The observations under a lowered manifest, and when the first of them was made.
    maintenance: Option<(Timestamp, Vec<ProvenCapacity>)>,
}

impl Record {
    fn observe(&mut self, seen: &Observation) {
        // A probe whose excuses still wait counts once they are settled.
        if seen.excuses.contains(&ExcuseState::Waiting) {
            return;
        }
        let settled = settle_excuses(seen);
        // The record begins with the first probe that is passed.
        if self.last.is_empty() && settled.proven.executors == 0 {
            return;
        }
        if settled.void && !self.last.contains(&None) {
            self.push(None);
            return;
        }
        let before = lowest(&self.last);
        let lowered = seen.announced > 0
            && settled.proven.executors >= seen.announced
            && before.is_some_and(|before| seen.announced < before.executors);
        if lowered {
            let maintenance = self.maintenance.get_or_insert_with(|| (seen.at, Vec::new()));
            maintenance.1.push(settled.proven);
            if seen.at.micros().saturating_sub(maintenance.0.micros()) > MAINTENANCE_US {
                self.end_maintenance();
            }
            return;
        }
        let lasted = self.maintenance.as_ref();
        if lasted.is_some_and(|(since, _)| seen.at.micros().saturating_sub(since.micros()) > MAINTENANCE_US) {
            self.end_maintenance();
        }
        self.maintenance = None;
        self.push(Some(settled.proven));
    }

    /// A manifest that stays lowered for longer than a day is the miner's capacity, no maintenance.
    fn end_maintenance(&mut self) {
        for proven in self.maintenance.take().map(|(_, seen)| seen).unwrap_or_default() {
            self.push(Some(proven));
        }
    }

    fn push(&mut self, value: Option<ProvenCapacity>) {
        if self.last.len() == OBSERVATIONS {
            self.last.remove(0);
        }
        self.last.push(value);
    }

    fn proven(&self) -> Option<ProvenCapacity> {
        let proven = lowest(&self.last)?;
        let Some((_, lowered)) = &self.maintenance else {
            return Some(proven);
        };
        // Until the former capacity is shown again, the lowered one counts.
        let least = lowered.last().copied().unwrap_or_default();
        Some(ProvenCapacity {
            executors: proven.executors.min(least.executors),
            credit: proven.credit.min(least.credit),
        })
    }
}

/// The ⌊n/8⌋-th lowest of the last n values, counted from 0; none if there is none.
fn lowest(last: &[Option<ProvenCapacity>]) -> Option<ProvenCapacity> {
    let values: Vec<_> = last.iter().flatten().copied().collect();
    let place = values.len() / OBSERVATIONS;
    let mut executors: Vec<_> = values.iter().map(|proven| proven.executors).collect();
    let mut credits: Vec<_> = values.iter().map(|proven| proven.credit).collect();
    executors.sort_unstable();
    credits.sort_unstable();
    Some(ProvenCapacity {
        executors: *executors.get(place)?,
        credit: *credits.get(place)?,
    })
}

/// Covered excuses are executors at work, with full credit. Failed ones make the observation void, or absences.
fn settle_excuses(seen: &Observation) -> Settled {
    let count = |state| {
        let excuses = seen.excuses.iter().filter(|excuse| **excuse == state).count();
        u32::try_from(excuses).unwrap_or(u32::MAX)
    };
    let covered = count(ExcuseState::Covered);
    let full = u64::from(covered).saturating_mul(WHOLE_EXECUTOR);
    Settled {
        void: count(ExcuseState::Failed) > 0,
        proven: ProvenCapacity {
            executors: seen.shown.saturating_add(covered).min(MAX_EXECUTORS),
            credit: seen
                .credit
                .min(u64::from(seen.shown).saturating_mul(WHOLE_EXECUTOR))
                .saturating_add(full),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const ANNOUNCED: ObservationKind = ObservationKind::Announced;
    const HOUR: i64 = 3_600;

    fn seen(hour: i64, announced: u32, shown: u32) -> Observation {
        Observation {
            kind: ANNOUNCED,
            at: Timestamp::from_secs(hour * HOUR),
            announced,
            shown,
            credit: u64::from(shown) * WHOLE_EXECUTOR,
            excuses: vec![],
        }
    }

    fn proven(observations: &[Observation], manifest: u32) -> Option<u32> {
        proven_by(observations, ANNOUNCED, Some(manifest)).map(|proven| proven.executors)
    }

    #[test]
    fn the_second_lowest_of_eight_counts_and_the_lowest_of_fewer() {
        let shown = |counts: &[u32]| {
            let observations: Vec<_> = counts
                .iter()
                .zip(0..)
                .map(|(count, at)| seen(at, 4, *count))
                .collect();
            proven(&observations, 4)
        };
        assert_eq!(shown(&[]), None);
        assert_eq!(shown(&[4]), Some(4));
        assert_eq!(shown(&[0, 0]), None);
        assert_eq!(
            shown(&[0, 0, 4]),
            Some(4),
            "the first that is passed begins the record"
        );
        assert_eq!(shown(&[4, 4, 0, 4, 4, 4, 4]), Some(0), "one failure of seven");
        assert_eq!(shown(&[4, 4, 0, 4, 4, 4, 4, 4]), Some(4), "one failure of eight");
        assert_eq!(shown(&[4, 4, 0, 4, 3, 4, 4, 4]), Some(3));
        assert_eq!(
            shown(&[0, 0, 4, 4, 4, 4, 4, 4, 4]),
            Some(4),
            "the first of nine is forgotten"
        );
        assert_eq!(
            proven(&[seen(0, 4, 4)], 1),
            Some(1),
            "a lower manifest counts at once"
        );
        assert_eq!(proven(&[seen(0, 0, 4_000_000)], u32::MAX), Some(MAX_EXECUTORS));
    }

    #[test]
    fn announced_maintenance_is_no_failure_for_a_day() {
        let mut days = vec![seen(0, 8, 8), seen(1, 8, 8)];
        days.extend([seen(2, 2, 2), seen(3, 2, 2)]);
        assert_eq!(proven(&days, 2), Some(2));
        assert_eq!(proven(&days, 8), Some(2), "not shown again yet");
        let back = [days.clone(), vec![seen(20, 8, 8)]].concat();
        assert_eq!(proven(&back, 8), Some(8), "one observation brings all of it back");
        let late = [days.clone(), vec![seen(27, 8, 8)]].concat();
        assert_eq!(proven(&late, 8), Some(2), "after a day it is the capacity");
        let long = [days, vec![seen(15, 2, 2), seen(28, 2, 2), seen(29, 8, 8)]].concat();
        assert_eq!(proven(&long, 8), Some(2));
        // A probe that the lowered manifest does not pass is a failure.
        assert_eq!(proven(&[seen(0, 8, 8), seen(1, 4, 1), seen(2, 8, 8)], 8), Some(1));
    }

    #[test]
    fn an_excuse_counts_once_a_receipt_covers_it_and_one_void_in_eight_is_forgiven() {
        let excused = |hour, state| Observation {
            excuses: vec![state],
            ..seen(hour, 2, 1)
        };
        let with = |states: &[ExcuseState]| {
            let mut all = vec![seen(0, 2, 2)];
            all.extend(states.iter().zip(1..).map(|(state, hour)| excused(hour, *state)));
            proven(&all, 2)
        };
        assert_eq!(with(&[ExcuseState::Covered]), Some(2));
        assert_eq!(with(&[ExcuseState::Waiting]), Some(2), "nothing is written yet");
        assert_eq!(with(&[ExcuseState::Failed]), Some(2), "the first is void");
        assert_eq!(
            with(&[ExcuseState::Failed; 2]),
            Some(1),
            "further ones are absences"
        );
        let attempt = AttemptId::from_uuid(Uuid::from_u128(1));
        let at = Timestamp::from_secs;
        let counted = [(attempt, (at(10), at(20)))].into();
        let state = |secs, closed| settle_excuse(attempt, at(secs), &counted, closed);
        assert_eq!(
            (state(10, false), state(20, false)),
            (ExcuseState::Covered, ExcuseState::Failed)
        );
        let none = BTreeMap::new();
        assert_eq!(settle_excuse(attempt, at(10), &none, false), ExcuseState::Waiting);
        assert_eq!(settle_excuse(attempt, at(10), &none, true), ExcuseState::Failed);
    }

    #[test]
    fn credit_is_for_what_is_shown_and_never_more_than_an_executor() {
        assert_eq!(executor_credit(50, 100), 500);
        assert_eq!(
            executor_credit(1_000, 100),
            WHOLE_EXECUTOR,
            "a large card is one executor"
        );
        assert_eq!((executor_credit(0, 100), executor_credit(5, 0)), (0, 0));
        assert_eq!(executor_credit(u64::MAX, 1), WHOLE_EXECUTOR);
        let mut weak = seen(0, 2, 2);
        weak.credit = 900;
        let proven = proven_by(&[weak.clone()], ANNOUNCED, None).unwrap();
        assert_eq!((proven.executors, proven.credit), (2, 900));
        weak.credit = u64::MAX;
        assert_eq!(
            proven_by(&[weak], ANNOUNCED, None).unwrap().credit,
            2 * WHOLE_EXECUTOR
        );
    }

    proptest! {
        #[test]
        fn never_more_than_was_shown_and_the_order_of_the_list_does_not_matter(
            rows in proptest::collection::vec((0_i64..200, 0_u32..9, 0_u32..9), 0..30), manifest in 0_u32..10,
        ) {
            let mut hours = std::collections::BTreeSet::new();
            let mut observations: Vec<_> = rows.iter().filter(|row| hours.insert(row.0))
                .map(|(hour, announced, shown)| seen(*hour, *announced, *shown)).collect();
            let got = proven(&observations, manifest);
            let most = observations.iter().map(|seen| seen.shown).max().unwrap_or(0);
            prop_assert!(got.unwrap_or(0) <= most.min(manifest));
            observations.reverse();
            prop_assert_eq!(proven(&observations, manifest), got);
        }
    }
}
