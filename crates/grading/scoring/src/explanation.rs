//! Every term of one miner's weight, by name.

use std::collections::BTreeMap;
use std::fmt;

use muster_protocol::{ExecutorClass, Hotkey, MinerKey, Uid};
use serde::Serialize;

use crate::DropReason;
use crate::agreed_capacity::AgreedCapacity;
use crate::class_points::Member;
use crate::score_cycle::score_cycle;
use crate::score_terms::{ClassTerms, Terms};
use crate::scores::{Score, Scores};
use crate::snapshot::ScoringSnapshot;
use crate::snapshot_rows::OnchainWeight;
use crate::vesting::{VESTING_CYCLES, earlier_points};
use crate::zero_reasons::ZeroReason;

/// The terms of one miner's weight in one cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MinerExplanation {
    /// The number of the cycle.
    pub cycle: u64,
    /// The miner whose weight is explained.
    pub miner: MinerKey,
    /// The miner's number in the subnet.
    pub uid: Uid,
    /// The terms of each class in which the miner has work or credit.
    pub classes: Vec<ClassExplanation>,
    /// The work that does not count, by reason.
    pub lost: Vec<LostWork>,
    /// The points of this cycle, before they are split over the hotkeys of the coldkey.
    pub earned: u64,
    /// The main hotkey that the miners of the coldkey named, if it is registered under that coldkey.
    pub main_hotkey: Option<Hotkey>,
    /// The points of this cycle after the split.
    pub points: u64,
    /// The points of the neuron in the nineteen cycles before.
    pub earlier: u64,
    /// The points that are paid with this cycle: a twentieth of those of this cycle and of the nineteen before, rounded
    /// down. 0 if the cycle pays nobody, or if the miner is convicted.
    pub vested: u64,
    /// The points of the miner that is paid most with this cycle. It has the weight 65,535, and the others their share.
    pub most_vested: u64,
    /// In a cycle that pays nobody, the terms of the weight that stands.
    pub standing: Option<StandingTerms>,
    /// The weight that the chain has after the cycle, of 65,535.
    pub weight: u16,
    /// The reason, if the weight is zero.
    pub zero: Option<ZeroReason>,
}

/// The terms of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassExplanation {
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The weight of the class.
    pub weight: u32,
    /// Whether the class is graded.
    pub graded: bool,
    /// The agreed executors, the credit that they showed, and the factor for acceptance.
    pub agreed: AgreedCapacity,
    /// `C_m`: the miner's credit, in thousandths of an executor.
    pub credit: u64,
    /// `Q`: the credit of all miners.
    pub all_credit: u64,
    /// `W_m`: the miner's counted work in this cycle, in milliseconds.
    pub work_ms: u64,
    /// `W`: the counted work of all miners.
    pub all_work_ms: u64,
    /// Counted work that later cycles count, in milliseconds.
    pub deferred_ms: u64,
    /// The miner's points, with the weight of the class.
    pub points: u64,
}

/// The terms of a weight that stands, since the cycle pays nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StandingTerms {
    /// The weight of the uid before the cycle, of 65,535.
    pub before: u16,
    /// Whether the neuron burns the weights of neurons that may not keep theirs.
    pub burns: bool,
    /// Whether the weight is to be burned, and no neuron of the subnet burns.
    pub unburned: bool,
}

/// Receipts that do not count for one reason, in whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LostWork {
    /// The reason why they do not count.
    pub reason: DropReason,
    /// The number of receipts.
    pub receipts: u64,
    /// The executor-microseconds that do not count.
    pub micros: u64,
}

/// The terms of a miner's weight; `None` if the miner is not registered in the snapshot.
pub fn explain(snapshot: &ScoringSnapshot, miner: MinerKey) -> Option<MinerExplanation> {
    let terms = Terms::of(snapshot);
    let neuron = terms.neurons.get(&miner)?;
    let uid = neuron.uid;
    let named = snapshot
        .main_hotkeys
        .iter()
        .find(|named| named.coldkey == neuron.coldkey);
    let main_hotkey = named.map(|named| named.main).filter(|main| {
        let owner = terms.neurons.get(&MinerKey(*main));
        owner.is_some_and(|owner| owner.coldkey == neuron.coldkey)
    });
    let (scores, weights) = score_cycle(snapshot);
    let of = |amounts: &BTreeMap<MinerKey, u64>| amounts.get(&miner).copied().unwrap_or(0);
    let classes = terms
        .classes
        .iter()
        .map(|(class, of)| explain_class(&terms, *class, of, miner));
    let score = scores.scores.iter().find(|score| score.miner == miner);
    let (standing, weight) = weigh(snapshot, &scores, &weights, uid);
    Some(MinerExplanation {
        cycle: snapshot.span.cycle,
        miner,
        uid,
        classes: classes.flatten().collect(),
        lost: sum_lost(&terms, miner),
        earned: of(&terms.earned),
        main_hotkey,
        points: of(&terms.points),
        earlier: earlier_points(neuron, &snapshot.history),
        vested: score.map_or(0, |score| score.paid_points()),
        most_vested: scores.scores.iter().map(Score::paid_points).max().unwrap_or(0),
        standing,
        weight,
        zero: scores
            .zeros
            .into_iter()
            .find(|zero| zero.miner == miner && weight == 0)
            .map(|zero| zero.why),
    })
}

/// The weight of a uid, with its terms if it stands from earlier cycles.
fn weigh(
    snapshot: &ScoringSnapshot,
    scores: &Scores,
    weights: &[(Uid, u16)],
    uid: Uid,
) -> (Option<StandingTerms>, u16) {
    let standing_at = |rows: &[OnchainWeight]| {
        let row = rows.iter().find(|row| row.neuron.uid == uid);
        row.map_or(0, |row| row.weight)
    };
    if scores.is_renewal() {
        let (before, after) = (standing_at(&snapshot.standing), standing_at(&scores.standing));
        let terms = StandingTerms {
            before,
            burns: after > before,
            unburned: scores.unburned.contains(&uid),
        };
        return (Some(terms), after);
    }
    let weight = weights.iter().find(|(of, _)| *of == uid);
    (None, weight.map_or(0, |(_, weight)| *weight))
}

fn explain_class(
    terms: &Terms<'_>,
    class: ExecutorClass,
    of: &ClassTerms,
    miner: MinerKey,
) -> Option<ClassExplanation> {
    let own = of.members.get(&miner)?;
    let sum = |amount: fn(&Member) -> u64| {
        of.members
            .values()
            .fold(0_u64, |sum, member| sum.saturating_add(amount(member)))
    };
    let deferred = terms
        .deferred
        .iter()
        .find(|work| work.miner == miner && work.class == class);
    let points = of.divided.points.get(&miner).copied().unwrap_or(0);
    Some(ClassExplanation {
        class,
        weight: of.weight,
        graded: terms.agreed.is_graded(class),
        agreed: terms.agreed.of(miner, class),
        credit: own.credit,
        all_credit: sum(|member| member.credit),
        work_ms: own.work_ms,
        all_work_ms: sum(|member| member.work_ms),
        deferred_ms: deferred.map_or(0, |work| work.ms),
        points: points.saturating_mul(of.weight.into()),
    })
}

fn sum_lost(terms: &Terms<'_>, miner: MinerKey) -> Vec<LostWork> {
    let mut sums = BTreeMap::<DropReason, LostWork>::new();
    let lost = terms.work.dropped.iter().chain(&terms.work.cut);
    for lost in lost.filter(|lost| lost.miner == miner) {
        let nothing = LostWork {
            reason: lost.reason,
            receipts: 0,
            micros: 0,
        };
        let sum = sums.entry(lost.reason).or_insert(nothing);
        sum.receipts = sum.receipts.saturating_add(1);
        sum.micros = sum.micros.saturating_add(lost.micros);
    }
    sums.into_values().collect()
}

impl fmt::Display for MinerExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cycle {}, uid {}, miner {}", self.cycle, self.uid, self.miner)?;
        for class in &self.classes {
            write!(f, "{class}")?;
        }
        for lost in &self.lost {
            let (receipts, reason) = (lost.receipts, lost.reason);
            writeln!(
                f,
                "not counted: {} of {receipts} receipts, because {reason}",
                seconds(lost.micros / 1_000)
            )?;
        }
        writeln!(f, "earned in this cycle: {} points", self.earned)?;
        if let Some(main) = self.main_hotkey {
            writeln!(f, "main hotkey of its coldkey, which gets four fifths: {main}")?;
        }
        writeln!(
            f,
            "after the split over the coldkey's hotkeys: {} points",
            self.points
        )?;
        let (points, earlier, due) = (self.points, self.earlier, self.due());
        writeln!(
            f,
            "due with this cycle: ({points} of this cycle + {earlier} of the {} before) / {VESTING_CYCLES} = {due} points, \
             rounded down",
            VESTING_CYCLES.saturating_sub(1)
        )?;
        if self.vested != due {
            writeln!(f, "paid with this cycle: {} points", self.vested)?;
        }
        if let Some(standing) = &self.standing {
            write!(f, "{standing}")?;
        }
        self.write_weight(f)
    }
}

impl MinerExplanation {
    /// The points that fall due with this cycle, whether or not it pays them.
    fn due(&self) -> u64 {
        let sum = u128::from(self.points).saturating_add(self.earlier.into());
        let due = sum.checked_div(VESTING_CYCLES as u128).unwrap_or(0);
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    fn write_weight(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = self.weight;
        match (&self.zero, &self.standing) {
            (Some(why), _) => writeln!(f, "weight: 0, because {why}"),
            (None, Some(standing)) if standing.before == weight => {
                writeln!(f, "weight: kept: the chain has {weight} of 65535")
            }
            (None, Some(standing)) => {
                writeln!(
                    f,
                    "weight: {weight} of 65535, set anew; it was {}",
                    standing.before
                )
            }
            (None, None) => writeln!(
                f,
                "weight: {weight} of 65535, which is 65535 * {} / {} points of the miner that is paid most, rounded",
                self.vested, self.most_vested
            ),
        }
    }
}

impl fmt::Display for StandingTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.before;
        writeln!(
            f,
            "the cycle pays nobody, so the earlier weights stand: that of this uid is {before}"
        )?;
        if self.burns {
            writeln!(f, "it burns the weights of neurons that may not keep theirs")?;
        }
        if self.unburned {
            writeln!(f, "its weight is to be burned, and no neuron of the subnet burns")?;
        }
        Ok(())
    }
}

impl fmt::Display for ClassExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "class {}, weight {}:", self.class, self.weight)?;
        if self.graded {
            let agreed = &self.agreed;
            writeln!(
                f,
                "  capacity: {} executors, {} shown, acceptance {} ‰: credit {} of {}",
                agreed.executors,
                executors(agreed.shown),
                agreed.acceptance,
                executors(self.credit),
                executors(self.all_credit)
            )?;
        } else {
            writeln!(f, "  capacity: the class is not graded, so work alone is paid")?;
        }
        writeln!(
            f,
            "  work: {} of {}",
            seconds(self.work_ms),
            seconds(self.all_work_ms)
        )?;
        if self.deferred_ms > 0 {
            writeln!(
                f,
                "  work that the next cycles count: {}",
                seconds(self.deferred_ms)
            )?;
        }
        writeln!(f, "  points: {}", self.points)
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03} s", ms / 1_000, ms % 1_000)
}

/// Thousandths of an executor in executors.
fn executors(credit: u64) -> String {
    format!("{}.{:03}", credit / 1_000, credit % 1_000)
}
