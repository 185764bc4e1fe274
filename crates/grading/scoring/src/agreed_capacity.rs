//! The capacity that validators agree on: the stake-weighted median of their statements.
//!
//! Every permitted validator states what it observed, for each miner, class and kind of probe. The median needs half of
//! the stake: a validator with less cannot raise its friend nor hurt its rival beyond what others state. While less
//! than half of the stake states anything, each validator uses its own rows (`docs/adr/0064`).

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{ExecutorClass, MinerKey, ValidatorKey};
use serde::{Deserialize, Serialize};

use crate::class_points::{UNPROVABLE_SPIN_UP_SECS, WHOLE_EXECUTOR};
use crate::proven_capacity::{MAX_EXECUTORS, ObservationKind, ProvenCapacity};
use crate::snapshot_rows::ProvenExecutors;

/// Offers from which on refusals count (`docs/adr/0064`).
const LEAST_OFFERS: u32 = 20;
/// Refusals in a thousand offers that cost nothing.
const FREE_REFUSALS: u64 = 50;
/// Thousandths of credit that each further refusal in a thousand offers costs.
const REFUSAL_COST: u64 = 4;

/// The statement of one validator about the capacity that it observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityStatement {
    /// The validator that states it.
    pub validator: ValidatorKey,
    /// The cycle for which it is stated.
    pub cycle: u64,
    /// The rows. A miner and class without a row has nothing, in the eyes of this validator.
    pub rows: Vec<CapacityRow>,
}

/// The observations of one validator about one miner in one class, by one kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityRow {
    /// The miner of the executors.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The kind of the probes.
    pub kind: ObservationKind,
    /// The executors that are proven.
    pub executors: u32,
    /// The credit of what they showed, in thousandths of an executor.
    pub credit: u64,
    /// Offers of the last seven days that were within the miner's manifest and its proven executors.
    pub offers: u32,
    /// The part of them that the miner refused without an excuse.
    pub refused: u32,
}

/// The inputs of the agreed capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityInputs {
    /// The classes that this subnet grades. In another class, work alone is paid.
    pub classes: BTreeSet<ExecutorClass>,
    /// The kinds of probe that this subnet makes. A miner has to have passed each of them.
    pub kinds: BTreeSet<ObservationKind>,
    /// The stake of each permitted validator, in rao: the lower one of the last two epoch boundaries.
    pub stakes: BTreeMap<ValidatorKey, u64>,
    /// The statements, the scorer's own among them.
    pub statements: Vec<CapacityStatement>,
}

/// The agreed capacity of one miner in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgreedCapacity {
    /// The proven executors: as many at once may be paid.
    pub executors: u32,
    /// The credit before refusals, in thousandths of an executor.
    pub shown: u64,
    /// The factor for acceptance, in thousandths.
    pub acceptance: u64,
}

impl AgreedCapacity {
    /// The credit that counts, in thousandths of an executor.
    pub(crate) fn credit(&self) -> u64 {
        self.shown.saturating_mul(self.acceptance.min(WHOLE_EXECUTOR)) / WHOLE_EXECUTOR
    }
}

/// The agreed capacity of every miner in a cycle, in whole executors: the credit of what was shown, rounded up. By it
/// the blocks of the cycle's epoch are worth more or less to validators.
pub fn proven_executors(inputs: &CapacityInputs, me: ValidatorKey, cycle: u64) -> Vec<ProvenExecutors> {
    let agreed = Agreement::reach(inputs, me, cycle);
    let whole = |(miner, class, agreed): (MinerKey, ExecutorClass, &AgreedCapacity)| ProvenExecutors {
        miner,
        class,
        executors: u32::try_from(agreed.shown.div_ceil(WHOLE_EXECUTOR)).unwrap_or(MAX_EXECUTORS),
    };
    let mut proven: Vec<_> = agreed.iter().map(whole).collect();
    proven.retain(|proven| proven.executors > 0);
    proven
}

/// The executors that validators agree are proven. By default no class is graded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GradedExecutors(Agreement);

impl GradedExecutors {
    /// The executors that count in a cycle.
    pub fn agree(inputs: &CapacityInputs, me: ValidatorKey, cycle: u64) -> Self {
        Self(Agreement::reach(inputs, me, cycle))
    }

    /// The proven executors of a miner in a class; `None` if nobody grades the class.
    pub fn of(&self, miner: MinerKey, class: ExecutorClass) -> Option<u32> {
        self.0.is_graded(class).then(|| self.0.of(miner, class).executors)
    }
}

type MinerClass = (MinerKey, ExecutorClass);

/// The capacity that counts in a cycle. Nothing is graded by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// The classes that are graded.
    classes: BTreeSet<ExecutorClass>,
    capacities: BTreeMap<MinerClass, AgreedCapacity>,
}

impl Agreement {
    /// The capacity of every miner and class, as the scorer `me` has to score it in `cycle`.
    pub(crate) fn reach(inputs: &CapacityInputs, me: ValidatorKey, cycle: u64) -> Self {
        let mut capacities = agree(inputs, me, cycle);
        capacities.retain(|(_, class), _| inputs.classes.contains(class));
        Self {
            classes: inputs.classes.clone(),
            capacities,
        }
    }

    /// Whether the capacity of a class is graded at all.
    pub(crate) fn is_graded(&self, class: ExecutorClass) -> bool {
        self.classes.contains(&class)
    }

    /// The capacity of a miner in a class; nothing if it has none.
    pub(crate) fn of(&self, miner: MinerKey, class: ExecutorClass) -> AgreedCapacity {
        self.capacities.get(&(miner, class)).copied().unwrap_or_default()
    }

    /// The capacities of all miners, with their classes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MinerKey, ExecutorClass, &AgreedCapacity)> {
        self.capacities
            .iter()
            .map(|((miner, class), agreed)| (*miner, *class, agreed))
    }
}

fn agree(inputs: &CapacityInputs, me: ValidatorKey, cycle: u64) -> BTreeMap<MinerClass, AgreedCapacity> {
    let statements = usable(&inputs.statements, cycle);
    let stake = |validator: &ValidatorKey| u128::from(inputs.stakes.get(validator).copied().unwrap_or(0));
    let all: u128 = inputs.stakes.values().map(|stake| u128::from(*stake)).sum();
    let stated: u128 = statements.keys().map(stake).sum();
    let voices: Vec<(u128, Rows)> = if all > 0 && stated.saturating_mul(2) >= all {
        statements
            .iter()
            .map(|(validator, rows)| (stake(validator), index(rows)))
            .filter(|(stake, _)| *stake > 0)
            .collect()
    } else {
        let own = statements.get(&me).map(|rows| (1, index(rows)));
        own.into_iter().collect()
    };
    let places: BTreeSet<MinerClass> = voices
        .iter()
        .flat_map(|(_, rows)| rows.keys().map(|(miner, class, _)| (*miner, *class)))
        .collect();
    let agreed = |place: MinerClass| {
        let kinds = inputs.kinds.iter().filter(|kind| is_probed_by(place.1, **kind));
        let by_kind = kinds.map(|kind| agree_on(&voices, place, *kind));
        let agreed = by_kind.reduce(|a, b| AgreedCapacity {
            executors: a.executors.min(b.executors),
            shown: a.shown.min(b.shown),
            acceptance: a.acceptance.min(b.acceptance),
        });
        (place, agreed.unwrap_or_default())
    };
    places.into_iter().map(agreed).collect()
}

/// Whether executors of a class can be probed in this way. One that may take minutes to appear is not there at the
/// instant of an unannounced probe, however honest its miner is.
pub fn is_probed_by(class: ExecutorClass, kind: ObservationKind) -> bool {
    match kind {
        ObservationKind::Announced => true,
        ObservationKind::Unannounced => class.spin_up_time().as_secs() < UNPROVABLE_SPIN_UP_SECS,
    }
}

/// The kinds of probe that a subnet makes, by its statements: announced batches, and unannounced probes once holders of
/// at least half of the stake state what these showed. While less than half of the stake states anything, the
/// statement of `me` counts alone.
pub fn stated_kinds(
    statements: &[CapacityStatement],
    stakes: &BTreeMap<ValidatorKey, u64>,
    me: ValidatorKey,
) -> BTreeSet<ObservationKind> {
    let stake = |validator: &ValidatorKey| u128::from(stakes.get(validator).copied().unwrap_or(0));
    let sum = |validators: &BTreeSet<ValidatorKey>| validators.iter().map(stake).sum::<u128>();
    let all: u128 = stakes.values().map(|stake| u128::from(*stake)).sum();
    let of_half = |validators: &BTreeSet<ValidatorKey>| all > 0 && sum(validators).saturating_mul(2) >= all;
    let validators: BTreeSet<_> = statements.iter().map(|statement| statement.validator).collect();
    let probes = |statement: &&CapacityStatement| {
        let mut kinds = statement.rows.iter().map(|row| row.kind);
        kinds.any(|kind| kind == ObservationKind::Unannounced)
    };
    let probing: BTreeSet<_> = statements
        .iter()
        .filter(probes)
        .map(|statement| statement.validator)
        .collect();
    let is_made = if of_half(&validators) {
        of_half(&probing)
    } else {
        probing.contains(&me)
    };
    let mut kinds = BTreeSet::from([ObservationKind::Announced]);
    if is_made {
        kinds.insert(ObservationKind::Unannounced);
    }
    kinds
}

/// The rows of one statement by miner, class and kind.
type Rows = BTreeMap<(MinerKey, ExecutorClass, ObservationKind), CapacityRow>;

/// Of a row that is repeated in one statement, the lowest capacity counts.
fn index(rows: &[CapacityRow]) -> Rows {
    let mut indexed = Rows::new();
    for row in rows {
        let key = (row.miner, row.class, row.kind);
        let lower = |known: &CapacityRow| (row.executors, row.credit) < (known.executors, known.credit);
        if indexed.get(&key).is_none_or(lower) {
            indexed.insert(key, *row);
        }
    }
    indexed
}

/// The statements for this cycle, by validator. Of a validator with two that differ, none counts: it contradicts
/// itself.
fn usable(statements: &[CapacityStatement], cycle: u64) -> BTreeMap<ValidatorKey, &[CapacityRow]> {
    let mut usable = BTreeMap::<ValidatorKey, Option<&[CapacityRow]>>::new();
    for statement in statements.iter().filter(|statement| statement.cycle == cycle) {
        let known = usable.entry(statement.validator).or_insert(Some(&statement.rows));
        if known.is_some_and(|known| known != statement.rows) {
            *known = None;
        }
    }
    usable
        .into_iter()
        .filter_map(|(validator, rows)| Some((validator, rows?)))
        .collect()
}

fn agree_on(voices: &[(u128, Rows)], place: MinerClass, kind: ObservationKind) -> AgreedCapacity {
    let median = |value: &dyn Fn(Option<&CapacityRow>) -> u64| {
        let key = (place.0, place.1, kind);
        let stated = voices.iter().map(|(stake, rows)| (value(rows.get(&key)), *stake));
        weighted_median(stated.collect())
    };
    let executors = median(&|row| row.map_or(0, |row| row.executors.min(MAX_EXECUTORS).into()));
    let credit = median(&|row| row.map_or(0, |row| row.credit));
    let proven = ProvenCapacity {
        executors: u32::try_from(executors).unwrap_or(MAX_EXECUTORS),
        credit: credit.min(executors.saturating_mul(WHOLE_EXECUTOR)),
    };
    AgreedCapacity {
        executors: proven.executors,
        shown: proven.credit,
        acceptance: median(&|row| row.map_or(WHOLE_EXECUTOR, acceptance)),
    }
}

/// The factor for acceptance in thousandths: each refusal beyond fifty in a thousand costs four thousandths.
fn acceptance(row: &CapacityRow) -> u64 {
    if row.offers < LEAST_OFFERS {
        return WHOLE_EXECUTOR;
    }
    let refused = u64::from(row.refused.min(row.offers)).saturating_mul(1_000) / u64::from(row.offers);
    WHOLE_EXECUTOR.saturating_sub(REFUSAL_COST.saturating_mul(refused.saturating_sub(FREE_REFUSALS)))
}

/// The lowest value that holders of at least half of the weight do not exceed; 0 without a value.
fn weighted_median(mut values: Vec<(u64, u128)>) -> u64 {
    values.sort_unstable();
    let all: u128 = values.iter().map(|(_, weight)| *weight).sum();
    let mut below = 0_u128;
    for (value, weight) in values {
        below = below.saturating_add(weight);
        if below.saturating_mul(2) >= all {
            return value;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const KIND: ObservationKind = ObservationKind::Announced;
    const MINER: MinerKey = MinerKey(Hotkey::from_bytes([200; 32]));

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn row(kind: ObservationKind, executors: u32) -> CapacityRow {
        CapacityRow {
            miner: MINER,
            class: CLASS,
            kind,
            executors,
            credit: u64::from(executors) * WHOLE_EXECUTOR,
            offers: 0,
            refused: 0,
        }
    }

    fn statement(of: u8, executors: u32) -> CapacityStatement {
        CapacityStatement {
            validator: validator(of),
            cycle: 7,
            rows: vec![row(KIND, executors)],
        }
    }

    fn inputs(stakes: &[(u8, u64)], statements: Vec<CapacityStatement>) -> CapacityInputs {
        CapacityInputs {
            classes: [CLASS].into(),
            kinds: [KIND].into(),
            stakes: stakes
                .iter()
                .map(|(of, stake)| (validator(*of), *stake))
                .collect(),
            statements,
        }
    }

    fn executors(inputs: &CapacityInputs, me: u8) -> u32 {
        agree(inputs, validator(me), 7)
            .get(&(MINER, CLASS))
            .map_or(0, |agreed| agreed.executors)
    }

    #[test]
    fn own_rows_count_while_less_than_half_of_the_stake_states_any() {
        let stakes = [(1, 40), (2, 9), (3, 51)];
        let few = inputs(&stakes, vec![statement(1, 4), statement(2, 2)]);
        assert_eq!(
            (executors(&few, 1), executors(&few, 2), executors(&few, 3)),
            (4, 2, 0)
        );
        let all = inputs(&stakes, vec![statement(1, 4), statement(2, 2), statement(3, 3)]);
        assert_eq!(
            (executors(&all, 1), executors(&all, 2), executors(&all, 9)),
            (3, 3, 3)
        );
        // Zero stake everywhere: nobody outvotes the scorer's own rows.
        let none = inputs(&[(1, 0), (2, 0)], vec![statement(1, 4), statement(2, 2)]);
        assert_eq!((executors(&none, 1), executors(&none, 9)), (4, 0));
    }

    #[test]
    fn probes_count_once_half_of_the_stake_makes_them() {
        let both = |of: u8, executors| CapacityStatement {
            rows: vec![row(KIND, 4), row(ObservationKind::Unannounced, executors)],
            ..statement(of, 4)
        };
        let stakes: BTreeMap<_, _> = [(validator(1), 50), (validator(2), 30), (validator(3), 20)].into();
        let kinds =
            |statements: &[CapacityStatement], me: u8| stated_kinds(statements, &stakes, validator(me)).len();
        let all_state = [statement(1, 4), both(2, 4), both(3, 4)];
        assert_eq!(kinds(&all_state, 1), 2, "two of them have half of the stake");
        assert_eq!(
            kinds(&[statement(1, 4), both(2, 4)], 2),
            1,
            "less than half probes"
        );
        assert_eq!(
            (kinds(&[both(2, 4)], 2), kinds(&[both(2, 4)], 1)),
            (2, 1),
            "the own rows alone"
        );
        let mut with = inputs(
            &[(1, 50), (2, 30), (3, 20)],
            vec![both(1, 2), both(2, 3), both(3, 3)],
        );
        with.kinds.insert(ObservationKind::Unannounced);
        assert_eq!(
            executors(&with, 1),
            2,
            "the lower one of the kinds, by the median"
        );
        // An executor that takes minutes to appear is not there at the instant of a probe.
        let slow = ExecutorClass::SpinUpGpu24Gb;
        let slow_row = CapacityRow {
            class: slow,
            ..row(KIND, 4)
        };
        for statement in &mut with.statements {
            statement.rows.push(slow_row);
        }
        with.classes.insert(slow);
        let agreed = agree(&with, validator(1), 7);
        assert_eq!(agreed.get(&(MINER, slow)).map(|agreed| agreed.executors), Some(4));
    }

    #[test]
    fn statements_that_contradict_lie_or_are_copied_move_nothing_below_half_of_the_stake() {
        let stakes = [(1, 26), (2, 25), (3, 49)];
        let honest = vec![statement(1, 4), statement(2, 4)];
        let with =
            |more: Vec<CapacityStatement>| executors(&inputs(&stakes, [honest.clone(), more].concat()), 1);
        assert_eq!(
            with(vec![statement(3, 1_000_000)]),
            4,
            "a liar that raises its friend"
        );
        assert_eq!(with(vec![statement(3, 0)]), 4, "a liar that hides its rival");
        assert_eq!(with(vec![statement(3, 4)]), 4, "a copy");
        assert_eq!(
            with(vec![statement(3, 9), statement(3, 0)]),
            4,
            "two statements that differ are none"
        );
        assert_eq!(
            with(vec![statement(3, 9), statement(3, 9)]),
            4,
            "the same one twice is one"
        );
        let late = CapacityStatement {
            cycle: 6,
            ..statement(3, 9)
        };
        assert_eq!(with(vec![late]), 4, "another cycle's statement");
        let twice = CapacityStatement {
            rows: vec![row(KIND, 4), row(KIND, 1)],
            ..statement(3, 0)
        };
        assert_eq!(
            executors(&inputs(&[(3, 1)], vec![twice]), 3),
            1,
            "of a repeated row the lowest"
        );
    }

    #[test]
    fn every_kind_of_probe_must_be_passed() {
        let mut inputs = inputs(&[(1, 1)], vec![statement(1, 4)]);
        inputs.kinds.insert(ObservationKind::Unannounced);
        assert_eq!(executors(&inputs, 1), 0, "rented for the batch");
        inputs.statements[0]
            .rows
            .push(row(ObservationKind::Unannounced, 3));
        assert_eq!(executors(&inputs, 1), 3);
    }

    #[test]
    fn refusals_cost_credit_from_twenty_offers_on() {
        let factor = |offers, refused| {
            acceptance(&CapacityRow {
                offers,
                refused,
                ..row(KIND, 1)
            })
        };
        assert_eq!(factor(19, 19), 1_000);
        assert_eq!(
            (factor(20, 1), factor(100, 5)),
            (1_000, 1_000),
            "fifty in a thousand are free"
        );
        assert_eq!((factor(100, 10), factor(20, 4)), (800, 400));
        assert_eq!((factor(100, 30), factor(20, u32::MAX)), (0, 0));
        let agreed = AgreedCapacity {
            executors: 2,
            shown: 2_000,
            acceptance: 800,
        };
        assert_eq!(agreed.credit(), 1_600);
    }

    proptest! {
        #[test]
        fn less_than_half_of_the_stake_cannot_leave_the_range_of_the_honest(
            honest in proptest::collection::vec((1_u64..100, 0_u32..20), 1..8), lies in 0_u32..1_000,
        ) {
            let stake: u64 = honest.iter().map(|(stake, _)| stake).sum();
            let mut stakes: Vec<_> = honest.iter().zip(1_u8..).map(|((stake, _), of)| (of, *stake)).collect();
            stakes.push((100, stake - 1));
            let mut statements: Vec<_> = honest.iter().zip(1_u8..).map(|((_, count), of)| statement(of, *count)).collect();
            statements.push(statement(100, lies));
            let got = executors(&inputs(&stakes, statements.clone()), 1);
            let counts: Vec<_> = honest.iter().map(|(_, count)| *count).collect();
            prop_assert!(*counts.iter().min().unwrap() <= got && got <= *counts.iter().max().unwrap());
            statements.reverse();
            prop_assert_eq!(executors(&inputs(&stakes, statements), 1), got);
        }
    }
}
