//! The votes of validators that contradict themselves.

use std::collections::BTreeMap;

use muster_protocol::ValidatorKey;

use crate::agreed_capacity::{CapacityInputs, CapacityStatement};

/// Takes the votes of the validators of which two statements were seen. Both statements go into the inputs, so that
/// anybody who scores by them finds the contradiction; two with the same rows would count as one, so they are left out.
pub fn silence_contradictions(
    mut inputs: CapacityInputs,
    seen: BTreeMap<ValidatorKey, Vec<CapacityStatement>>,
) -> CapacityInputs {
    for (validator, statements) in seen {
        let [first, second, ..] = statements.as_slice() else {
            continue;
        };
        inputs.statements.retain(|stated| stated.validator != validator);
        if first.rows != second.rows {
            inputs.statements.extend(statements);
        }
    }
    inputs
}

#[cfg(test)]
mod tests {
    use muster_protocol::{ExecutorClass, Hotkey, MinerKey};

    use super::*;
    use crate::{CapacityRow, GradedExecutors, ObservationKind};

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const MINER: MinerKey = MinerKey(Hotkey::from_bytes([9; 32]));

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn statement(of: u8, executors: u32) -> CapacityStatement {
        CapacityStatement {
            validator: validator(of),
            cycle: 1,
            rows: vec![CapacityRow {
                miner: MINER,
                class: CLASS,
                kind: ObservationKind::Announced,
                executors,
                credit: u64::from(executors) * 1_000,
                offers: 0,
                refused: 0,
            }],
        }
    }

    /// The executors that count if validators 1 and 3 have as much stake as the liar 2, of which these statements were
    /// seen; and the number of statements in the inputs.
    fn agreed(seen: Vec<CapacityStatement>) -> (u32, usize) {
        let inputs = CapacityInputs {
            classes: [CLASS].into(),
            kinds: [ObservationKind::Announced].into(),
            stakes: [(validator(1), 50), (validator(2), 100), (validator(3), 50)].into(),
            statements: vec![statement(1, 4), statement(2, 9), statement(3, 4)],
        };
        let inputs = silence_contradictions(inputs, [(validator(2), seen)].into());
        let graded = GradedExecutors::agree(&inputs, validator(1), 1);
        (
            graded.of(MINER, CLASS).unwrap_or_default(),
            inputs.statements.len(),
        )
    }

    #[test]
    fn a_validator_of_which_two_statements_were_seen_has_no_vote() {
        let by_median = (4, 3);
        assert_eq!(
            agreed(vec![statement(2, 9)]),
            by_median,
            "the lower median of two halves"
        );
        assert_eq!(
            agreed(vec![statement(2, 9), statement(2, 8)]),
            (4, 4),
            "both are in the snapshot"
        );
        assert_eq!(
            agreed(vec![statement(2, 9), statement(2, 9)]),
            (4, 2),
            "other evidence, the same rows"
        );
        // With its vote, a liar that states less would have moved the median.
        assert_eq!(agreed(vec![statement(2, 0)]).0, 4);
    }
}
