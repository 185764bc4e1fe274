//! The judgements of a whole batch. Excuses and sessions in use are limited by what each miner has proven in earlier
//! batches. The capacities that count follow from the judgements.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::receipt::AttemptAtWork;
use muster_protocol::{ExecutorClass, MinerKey};
use muster_scoring::{WHOLE_EXECUTOR, executor_credit};
use serde::{Deserialize, Serialize};

use crate::batch_plan::{Participant, SilentMiner};
use crate::grade_spec::GradeSpec;
use crate::judgement::{Absence, Judgement, Why};

/// The executors of one class of one miner that count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// The miner of the executors.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The number of executors proven in this batch.
    pub proven: u32,
    /// The number of executors that answered in the sessions that they serve.
    pub serving: u32,
    /// The attempts that excuse further executors, one each.
    pub excuses: Vec<AttemptAtWork>,
    /// The number of executors that the plan has.
    pub announced: u32,
    /// The credit of what the proven and the serving ones showed, in thousandths of an executor. An executor that
    /// serves shows a part of its class.
    pub credit: u64,
}

/// The largest number of executors that a miner had proven in one of the last eight batches, by miner and class.
pub type ProvenBefore = BTreeMap<(MinerKey, ExecutorClass), u32>;

/// Judges all executors of a batch. For each miner and class, the executors that are proven, serving or excused are
/// together never more than were proven in one batch, this one or an earlier one.
pub fn settle(
    participants: &[Participant],
    absent: &BTreeMap<usize, Absence>,
    judged: &BTreeMap<usize, Judgement>,
    before: &ProvenBefore,
) -> Vec<Judgement> {
    let mut room = BTreeMap::<(MinerKey, ExecutorClass), u32>::new();
    for (place, participant) in participants.iter().enumerate() {
        let kind = (participant.miner, participant.class);
        let most = room
            .entry(kind)
            .or_insert_with(|| before.get(&kind).copied().unwrap_or(0));
        if matches!(judged.get(&place), Some(Judgement::Proven { .. })) {
            *most = most.saturating_sub(1);
        }
    }
    let mut excuses = shown_attempts(participants, absent);
    // Executors that answered in their sessions come before those that are excused by receipts only.
    let mut beyond = BTreeSet::new();
    for (place, participant) in participants.iter().enumerate() {
        if matches!(judged.get(&place), Some(Judgement::Serving { .. })) {
            match room.get_mut(&(participant.miner, participant.class)) {
                Some(room) if *room > 0 => *room = room.saturating_sub(1),
                Some(_) | None => {
                    beyond.insert(place);
                }
            }
        }
    }
    let settled = participants.iter().enumerate().map(|(place, participant)| {
        let kind = (participant.miner, participant.class);
        let zero = |why| Judgement::Zero { reasons: vec![why] };
        if beyond.contains(&place) {
            return zero(Why::ServesBeyondProven {
                proven: before.get(&kind).copied().unwrap_or(0),
            });
        }
        if let Some(judged) = judged.get(&place) {
            return judged.clone();
        }
        match absent.get(&place) {
            Some(Absence::NotLeased {
                said, backed: true, ..
            }) => match room.get_mut(&kind).filter(|room| **room > 0) {
                Some(room) => excuse(said, room, excuses.get_mut(&kind)),
                None => zero(Why::ExcuseBeyondProven {
                    proven: before.get(&kind).copied().unwrap_or(0),
                }),
            },
            Some(Absence::NotLeased {
                said, backed: false, ..
            }) => zero(Why::NeverLeased { said: said.clone() }),
            Some(Absence::NotReady { said }) => zero(Why::NotAtBarrier { said: said.clone() }),
            Some(Absence::LeftBarrier { said }) => zero(Why::VanishedAtBarrier { said: said.clone() }),
            Some(Absence::Void { said }) => Judgement::Void { said: said.clone() },
            None => Judgement::Void {
                said: "the validator lost track of it".to_owned(),
            },
        }
    });
    settled.collect()
}

/// Excuses an executor by the next attempt that is shown. The file of an earlier release shows none: there the miner is
/// believed. `room` is the number of further executors that may be excused, at least 1.
fn excuse(said: &str, room: &mut u32, shown: Option<&mut ShownAttempts>) -> Judgement {
    let by = match shown {
        None => None,
        Some(shown) => match shown.left.next() {
            Some(attempt) => Some(attempt),
            None => {
                let reasons = vec![Why::ExcuseMissing { shown: shown.shown }];
                return Judgement::Zero { reasons };
            }
        },
    };
    *room = room.saturating_sub(1);
    Judgement::Excused {
        said: said.to_owned(),
        by,
    }
}

/// The attempts that a miner's refusals show at work in one class. Each of them excuses one executor.
struct ShownAttempts {
    left: std::vec::IntoIter<AttemptAtWork>,
    shown: u32,
}

/// The attempts that refusals show, by miner and class, each once, users' jobs first. Of an attempt that several
/// refusals show, the earliest showing counts.
fn shown_attempts(
    participants: &[Participant],
    absent: &BTreeMap<usize, Absence>,
) -> BTreeMap<(MinerKey, ExecutorClass), ShownAttempts> {
    let mut shown = BTreeMap::<_, BTreeMap<_, AttemptAtWork>>::new();
    for (place, absence) in absent {
        let (Some(participant), Absence::NotLeased { at_work, .. }) = (participants.get(*place), absence)
        else {
            continue;
        };
        for attempt in at_work {
            let of_kind = shown.entry((participant.miner, participant.class)).or_default();
            let known = of_kind.entry(attempt.attempt).or_insert(*attempt);
            *known = (*known).min(*attempt);
        }
    }
    let attempts = |attempts: BTreeMap<_, AttemptAtWork>| {
        let mut attempts: Vec<_> = attempts.into_values().collect();
        attempts.sort_by_key(|attempt| !attempt.is_organic);
        ShownAttempts {
            shown: u32::try_from(attempts.len()).unwrap_or(u32::MAX),
            left: attempts.into_iter(),
        }
    };
    shown
        .into_iter()
        .map(|(kind, of_kind)| (kind, attempts(of_kind)))
        .collect()
}

/// The judgement of a miner that did not announce its executors.
pub fn judge_silent_miner(silent: &SilentMiner) -> Judgement {
    let said = silent.said.clone();
    Judgement::Zero {
        reasons: vec![Why::NeverAnnounced { said }],
    }
}

/// Counts the executors that count, by miner and class, and their credit by the thresholds of `specs`.
pub fn count_capacities(
    participants: &[Participant],
    judged: &[Judgement],
    specs: &[GradeSpec],
) -> Vec<Capacity> {
    let mut counts = BTreeMap::<(MinerKey, ExecutorClass), Capacity>::new();
    for (participant, judgement) in participants.iter().zip(judged) {
        let (miner, class) = (participant.miner, participant.class);
        let count = counts
            .entry((miner, class))
            .or_insert_with(|| Capacity::none(miner, class));
        count.announced = count.announced.saturating_add(1);
        let credit = match judgement {
            Judgement::Proven { .. } => {
                count.proven = count.proven.saturating_add(1);
                WHOLE_EXECUTOR
            }
            Judgement::Serving { measured, .. } => {
                let spec = specs.iter().find(|spec| spec.class() == class);
                let floor = spec.map_or(0, |spec| spec.thresholds.least.int8);
                count.serving = count.serving.saturating_add(1);
                executor_credit(measured.int8, floor)
            }
            Judgement::Excused { by, .. } => {
                count.excuses.extend(by);
                0
            }
            Judgement::Zero { .. } | Judgement::Void { .. } => 0,
        };
        count.credit = count.credit.saturating_add(credit);
    }
    counts.into_values().collect()
}

impl Capacity {
    /// No executor of a miner and class.
    pub const fn none(miner: MinerKey, class: ExecutorClass) -> Self {
        Self {
            miner,
            class,
            proven: 0,
            serving: 0,
            excuses: Vec::new(),
            announced: 0,
            credit: 0,
        }
    }
}
