//! This validator's statement of capacity: what its own batches observed.

use std::collections::{BTreeMap, BTreeSet};

use muster_grading::batch_settlement::Capacity;
use muster_protocol::{ExecutorClass, MinerKey, Timestamp, ValidatorKey};
use muster_scoring::{
    CapacityInputs, CapacityRow, CapacityStatement, Observation, ObservationKind, proven_by,
};

/// The capacity that counts in a cycle, from the observations of this validator's batches; `None` if it has none.
///
/// Statements of other validators are not gathered yet, so the own rows count. The only kind of probe is the announced
/// batch, and executors that receipts excuse count as shown, as the batch has bounded them.
pub(super) fn own_capacity(
    me: ValidatorKey,
    cycle: u64,
    observed: &[(Timestamp, Capacity)],
    graded: impl Iterator<Item = ExecutorClass>,
) -> Option<CapacityInputs> {
    if observed.is_empty() {
        return None;
    }
    let mut observations = BTreeMap::<(MinerKey, ExecutorClass), Vec<Observation>>::new();
    for (at, capacity) in observed {
        let of_class = observations.entry((capacity.miner, capacity.class)).or_default();
        of_class.push(Observation {
            kind: ObservationKind::Announced,
            at: *at,
            announced: capacity.announced,
            shown: capacity.proven.saturating_add(capacity.excused),
            credit: capacity.credit,
            excuses: Vec::new(),
        });
    }
    let classes: BTreeSet<_> = observations
        .keys()
        .map(|(_, class)| *class)
        .chain(graded)
        .collect();
    let row = |((miner, class), observations): (&(MinerKey, ExecutorClass), &Vec<Observation>)| {
        let proven = proven_by(observations, ObservationKind::Announced, None)?;
        Some(CapacityRow {
            miner: *miner,
            class: *class,
            kind: ObservationKind::Announced,
            executors: proven.executors,
            credit: proven.credit,
            offers: 0,
            refused: 0,
        })
    };
    Some(CapacityInputs {
        classes,
        kinds: [ObservationKind::Announced].into(),
        stakes: BTreeMap::new(),
        statements: vec![CapacityStatement {
            validator: me,
            cycle,
            rows: observations.iter().filter_map(row).collect(),
        }],
    })
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    #[test]
    fn the_second_lowest_of_the_last_eight_batches_is_stated() {
        let key = |seed| Hotkey::from_bytes([seed; 32]);
        let observed = |second, proven| {
            let capacity = Capacity {
                proven,
                announced: 4,
                credit: u64::from(proven) * 1_000,
                ..Capacity::none(MinerKey(key(1)), CLASS)
            };
            (Timestamp::from_secs(second), capacity)
        };
        let me = ValidatorKey(key(9));
        assert_eq!(own_capacity(me, 7, &[], [CLASS].into_iter()), None);
        let counts = [0, 4, 4, 1, 4, 4, 3, 4, 4];
        let batches: Vec<_> = counts
            .iter()
            .zip(0..)
            .map(|(proven, at)| observed(at, *proven))
            .collect();
        let inputs = own_capacity(me, 7, &batches, std::iter::empty()).unwrap();
        assert_eq!(inputs.classes, [CLASS].into());
        let row = inputs.statements[0].rows[0];
        assert_eq!((row.executors, row.credit), (3, 3_000));
    }
}
