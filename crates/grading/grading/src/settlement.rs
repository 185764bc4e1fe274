//! The judgements of a whole batch: absences and sessions in use are settled against what each miner has proven before, and
//! the capacities that count follow.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{ExecutorClass, MinerKey};
use serde::{Deserialize, Serialize};

use crate::judgement::{Absence, Judgement, Why};
use crate::plan::{Seat, Silent};

/// How many executors of one kind of one miner count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Whose.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// Proven in this batch.
    pub proven: u32,
    /// At work elsewhere, and proven before.
    pub excused: u32,
}

/// The most executors of one kind that a miner ever had proven in one batch.
pub type ProvenBefore = BTreeMap<(MinerKey, ExecutorClass), u32>;

/// Puts the absent beside the proven: of the executors of one kind of one miner, those that prove themselves and those that are
/// excused are together never more than were proven at once, now or before.
pub fn settle(
    seats: &[Seat],
    absent: &BTreeMap<usize, Absence>,
    judged: &BTreeMap<usize, Judgement>,
    before: &ProvenBefore,
) -> Vec<Judgement> {
    let mut room = BTreeMap::<(MinerKey, ExecutorClass), u32>::new();
    for (place, seat) in seats.iter().enumerate() {
        let kind = (seat.miner, seat.class);
        let most = room
            .entry(kind)
            .or_insert_with(|| before.get(&kind).copied().unwrap_or(0));
        if matches!(judged.get(&place), Some(Judgement::Proven { .. })) {
            *most = most.saturating_sub(1);
        }
    }
    // Who answered in its session comes before whoever shows nothing but receipts.
    let mut beyond = BTreeSet::new();
    for (place, seat) in seats.iter().enumerate() {
        if matches!(judged.get(&place), Some(Judgement::Serving { .. })) {
            match room.get_mut(&(seat.miner, seat.class)) {
                Some(room) if *room > 0 => *room = room.saturating_sub(1),
                Some(_) | None => {
                    beyond.insert(place);
                }
            }
        }
    }
    let settled = seats.iter().enumerate().map(|(place, seat)| {
        let kind = (seat.miner, seat.class);
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
            Some(Absence::NotLeased { said, backed: true }) => match room.get_mut(&kind) {
                Some(room) if *room > 0 => {
                    *room = room.saturating_sub(1);
                    Judgement::Excused { said: said.clone() }
                }
                Some(_) | None => zero(Why::ExcuseBeyondProven {
                    proven: before.get(&kind).copied().unwrap_or(0),
                }),
            },
            Some(Absence::NotLeased { said, backed: false }) => zero(Why::NeverLeased { said: said.clone() }),
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

/// What a miner comes to that did not say what it has.
pub fn silence(silent: &Silent) -> Judgement {
    let said = silent.said.clone();
    Judgement::Zero {
        reasons: vec![Why::NeverAnnounced { said }],
    }
}

/// What counts, by miner and class.
pub fn capacities(seats: &[Seat], judged: &[Judgement]) -> Vec<Capacity> {
    let mut counts = BTreeMap::<(MinerKey, ExecutorClass), (u32, u32)>::new();
    for (seat, judgement) in seats.iter().zip(judged) {
        let count = counts.entry((seat.miner, seat.class)).or_default();
        match judgement {
            Judgement::Proven { .. } => count.0 = count.0.saturating_add(1),
            // Both are at work, and proven before.
            Judgement::Serving { .. } | Judgement::Excused { .. } => count.1 = count.1.saturating_add(1),
            Judgement::Zero { .. } | Judgement::Void { .. } => {}
        }
    }
    let counted = counts
        .into_iter()
        .map(|((miner, class), (proven, excused))| Capacity {
            miner,
            class,
            proven,
            excused,
        });
    counted.collect()
}
