//! The terms of a cycle's scores: the work that counts, the agreed capacity, the division of every class, and the
//! points of every miner before and after the split, the burn and the vesting.

use std::collections::BTreeMap;

use muster_protocol::{ExecutorClass, Hotkey, MinerKey};

use crate::agreed_capacity::Agreement;
use crate::class_points::{
    ClassPoints, Division, MAX_CLASS_WEIGHT, MAX_CYCLE_MS, Member, POINTS, UNPROVABLE_SPIN_UP_SECS,
    WHOLE_EXECUTOR, divide,
};
use crate::coldkey_split::split;
use crate::counted_work::{CountedWork, count_work};
use crate::proven_capacity::MAX_EXECUTORS;
use crate::scores::Score;
use crate::snapshot::ScoringSnapshot;
use crate::snapshot_rows::{DeferredWork, Neuron};
use crate::vesting::{Convicted, VESTING_CYCLES, vest};

/// One class's terms.
#[derive(Debug, Default)]
pub(crate) struct ClassTerms {
    pub(crate) members: BTreeMap<MinerKey, Member>,
    /// The points for a weight of 1.
    pub(crate) divided: ClassPoints,
    pub(crate) weight: u32,
}

/// All terms of a cycle's scores.
pub(crate) struct Terms<'a> {
    pub(crate) neurons: BTreeMap<MinerKey, &'a Neuron>,
    pub(crate) agreed: Agreement,
    pub(crate) work: CountedWork,
    pub(crate) classes: BTreeMap<ExecutorClass, ClassTerms>,
    pub(crate) deferred: Vec<DeferredWork>,
    /// Points by miner, before the split of each coldkey's.
    pub(crate) earned: BTreeMap<MinerKey, u64>,
    /// Points of this cycle by miner, with the burned ones.
    pub(crate) points: BTreeMap<MinerKey, u64>,
    pub(crate) vested: BTreeMap<MinerKey, u64>,
    pub(crate) convicted: Convicted,
}

impl<'a> Terms<'a> {
    pub(crate) fn of(snapshot: &'a ScoringSnapshot) -> Self {
        // Of a key that is listed twice the lowest uid counts.
        let neurons: BTreeMap<MinerKey, &Neuron> = snapshot
            .neurons
            .iter()
            .rev()
            .map(|neuron| (MinerKey(neuron.hotkey), neuron))
            .collect();
        let agreed = snapshot
            .capacity
            .as_ref()
            .map(|inputs| Agreement::reach(inputs, snapshot.me, snapshot.span.cycle))
            .unwrap_or_default();
        let work = count_work(snapshot, &neurons, &agreed);
        let convicted = Convicted::new(&snapshot.convictions);
        let mut terms = Self {
            neurons,
            agreed,
            work,
            classes: BTreeMap::new(),
            deferred: Vec::new(),
            earned: BTreeMap::new(),
            points: BTreeMap::new(),
            vested: BTreeMap::new(),
            convicted,
        };
        terms.divide_classes(snapshot);
        terms.add_up(snapshot);
        terms
    }

    /// Work and credit of every class, and its division.
    fn divide_classes(&mut self, snapshot: &ScoringSnapshot) {
        let mut work = self.work.by_class.clone();
        for deferred in &snapshot.deferred {
            let sum = work
                .entry(deferred.class)
                .or_default()
                .entry(deferred.miner)
                .or_default();
            *sum = sum.saturating_add(deferred.ms.saturating_mul(1_000));
        }
        let cycle_ms = snapshot.span.duration_ms.clamp(1, MAX_CYCLE_MS);
        for class in ExecutorClass::ALL {
            let worked = work.remove(&class).unwrap_or_default();
            let mut members = BTreeMap::<MinerKey, Member>::new();
            for (miner, micros) in worked {
                if !self.counts(&miner) {
                    continue;
                }
                let fits = self.fitting_ms(miner, class, cycle_ms);
                let ms = micros / 1_000;
                if ms > fits {
                    let longest = fits.max(cycle_ms).saturating_mul(VESTING_CYCLES as u64);
                    let ms = ms.saturating_sub(fits).min(longest);
                    self.deferred.push(DeferredWork { miner, class, ms });
                }
                let work_ms = quality(snapshot, miner, ms.min(fits));
                members.entry(miner).or_default().work_ms = work_ms;
            }
            for (miner, _, agreed) in self.agreed.iter().filter(|(_, of, _)| *of == class) {
                if self.counts(&miner) && agreed.credit() > 0 {
                    members.entry(miner).or_default().credit = quality(snapshot, miner, agreed.credit());
                }
            }
            if members.is_empty() {
                continue;
            }
            let slow = class.spin_up_time().as_secs() >= UNPROVABLE_SPIN_UP_SECS;
            let division = match self.agreed.is_graded(class) {
                false => Division::WorkOnly,
                true if slow => Division::Burned,
                true => Division::ToCapacity(snapshot.rules.capacity_per_mille.min(1_000)),
            };
            let weight = snapshot.rules.class_weights.get(&class).copied().unwrap_or(0);
            let terms = ClassTerms {
                divided: divide(&members, cycle_ms, division),
                weight: weight.min(MAX_CLASS_WEIGHT),
                members,
            };
            self.classes.insert(class, terms);
        }
    }

    /// Whether a miner may earn anything: it is registered and not convicted.
    fn counts(&self, miner: &MinerKey) -> bool {
        self.neurons
            .get(miner)
            .is_some_and(|neuron| !self.convicted.holds(neuron))
    }

    /// The most work of a miner that a cycle holds, in milliseconds: what its credit could do. A miner that shows a
    /// part of many executors is paid the work of that part, and a newcomer is paid once it has shown something.
    fn fitting_ms(&self, miner: MinerKey, class: ExecutorClass, cycle_ms: u64) -> u64 {
        if !self.agreed.is_graded(class) {
            return u64::from(MAX_EXECUTORS).saturating_mul(cycle_ms);
        }
        let credit = self.agreed.of(miner, class).credit();
        credit.saturating_mul(cycle_ms) / WHOLE_EXECUTOR
    }

    /// The points of every miner, and what is paid of them.
    fn add_up(&mut self, snapshot: &ScoringSnapshot) {
        let mut earned = BTreeMap::<MinerKey, u64>::new();
        let mut add = |miner: MinerKey, points: u64, weight: u32| {
            let sum = earned.entry(miner).or_default();
            *sum = sum.saturating_add(points.saturating_mul(weight.into()));
        };
        let mut burned = 0_u64;
        for class in self.classes.values() {
            for (miner, points) in &class.divided.points {
                add(*miner, *points, class.weight);
            }
            burned = burned.saturating_add(class.divided.burned.saturating_mul(class.weight.into()));
        }
        earned.retain(|_, points| *points > 0);
        let rules = &snapshot.rules;
        self.points = split(
            &earned,
            &self.neurons,
            &snapshot.main_hotkeys,
            rules.bonus_per_mille,
        );
        self.earned = earned;
        if let Some(burner) = self.burner(rules.burn_hotkey) {
            if self.points.is_empty() && burned == 0 {
                // Nobody earned anything: all of it is burned.
                burned = POINTS;
            }
            let sum = self.points.entry(burner).or_default();
            *sum = sum.saturating_add(burned);
        }
        self.points.retain(|_, points| *points > 0);
        self.vested = vest(
            &snapshot.neurons,
            &self.points,
            &snapshot.history,
            &self.convicted,
        );
    }

    fn burner(&self, hotkey: Option<Hotkey>) -> Option<MinerKey> {
        hotkey
            .map(MinerKey)
            .filter(|miner| self.neurons.contains_key(miner))
    }

    /// One row for every neuron that earned or is paid anything. In a cycle in which nobody earned anything, nobody is
    /// paid, and the weights on the chain stay as they are. A conviction does not wait for the next earnings: if a
    /// neuron is convicted, the others are paid the points that are due to them.
    pub(crate) fn scores(&self, snapshot: &ScoringSnapshot) -> Vec<Score> {
        let mut micros = BTreeMap::<MinerKey, u64>::new();
        for (miner, worked) in self.work.by_class.values().flatten() {
            let sum = micros.entry(*miner).or_default();
            *sum = sum.saturating_add(*worked);
        }
        let mut credits = BTreeMap::<MinerKey, u64>::new();
        for (miner, _, agreed) in self.agreed.iter() {
            let sum = credits.entry(miner).or_default();
            *sum = sum.saturating_add(agreed.credit());
        }
        let is_paid =
            !self.points.is_empty() || snapshot.neurons.iter().any(|neuron| self.convicted.holds(neuron));
        let row = |neuron: &Neuron| {
            let miner = MinerKey(neuron.hotkey);
            let of = |amounts: &BTreeMap<MinerKey, u64>| amounts.get(&miner).copied().unwrap_or(0);
            let score = Score {
                uid: neuron.uid,
                miner,
                coldkey: Some(neuron.coldkey),
                registered: neuron.registered,
                micros: of(&micros),
                credit: of(&credits),
                points: of(&self.points),
                vested: Some(if is_paid { of(&self.vested) } else { 0 }),
            };
            let any = [score.micros, score.credit, score.points, score.paid_points()];
            any.iter().any(|amount| *amount > 0).then_some(score)
        };
        let mut scores: Vec<_> = snapshot
            .neurons
            .iter()
            .filter(|neuron| {
                self.neurons
                    .get(&MinerKey(neuron.hotkey))
                    .is_some_and(|known| known.uid == neuron.uid)
            })
            .filter_map(row)
            .collect();
        scores.sort_by_key(|score| score.uid);
        scores
    }
}

/// An amount times the quality of a miner's work.
fn quality(snapshot: &ScoringSnapshot, miner: MinerKey, amount: u64) -> u64 {
    let factor = snapshot.quality.iter().find(|factor| factor.miner == miner);
    let per_mille = factor.map_or(WHOLE_EXECUTOR, |factor| {
        u64::from(factor.per_mille).min(WHOLE_EXECUTOR)
    });
    let part = u128::from(amount).saturating_mul(per_mille.into()) / u128::from(WHOLE_EXECUTOR);
    u64::try_from(part).unwrap_or(u64::MAX)
}
