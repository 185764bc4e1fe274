//! The capacity that counts in a cycle: this validator's statement of what its probes proved, and those of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_grading_runner::store::{SeenCapacity, WaitingExcuse};
use muster_protocol::{ExecutorClass, Timestamp, ValidatorKey};
use muster_scoring::capacity_statements::{
    CapacityEvidence, MinerObservations, StatementContext, check_statement, evidence_digest, sign_statement,
};
use muster_scoring::{
    CapacityInputs, CapacityStatement, CountedAttempts, EpochFacts, ExcuseState, Observation,
    ObservationKind, settle_excuse, stated_kinds,
};
use muster_store::StoreError;

use super::WeightSetter;
use muster_subnet_view::cycle_duties::BlockSpan;

use crate::store::{OfferCount, StoredStatement};

/// The time over which offers and refusals count (`docs/adr/0064`).
const OFFERS_BACK: Duration = Duration::from_secs(7 * 24 * 3_600);

/// How long after the receipts of an attempt expire its finished receipt may still be signed.
const LATE_END: Duration = Duration::from_secs(60);

impl WeightSetter {
    /// Signs what this validator's probes proved before the cycle of `span`, for others to read. Without a probe it
    /// states nothing.
    pub(super) async fn state_capacity(&self, span: BlockSpan, netuid: u16) -> Result<(), StoreError> {
        let (store, now) = (&self.state.store, self.state.clock.now());
        let observed = self.observe(span).await?;
        if observed.is_empty() || store.statement_of(self.state.key(), span.cycle).await?.is_some() {
            return Ok(());
        }
        let evidence = CapacityEvidence::of(&observed);
        let context = self.statement_context(self.state.key(), span, netuid);
        let statement = sign_statement(&self.state.keypair, context, &evidence);
        let text = evidence.to_text();
        store.put_evidence(evidence_digest(&text), &text, now).await?;
        store
            .put_statement(&statement.stated(), &statement.to_text(), now)
            .await
    }

    /// The capacity that counts in the cycle of a span; `None` if nobody grades. `stakes` are those of the cycle's
    /// epoch and of the one before it.
    pub(super) async fn capacity_inputs(
        &self,
        span: BlockSpan,
        netuid: u16,
    ) -> Result<Option<CapacityInputs>, StoreError> {
        let me = self.state.key();
        let mut statements = Vec::new();
        for StoredStatement { validator, body } in self.state.store.statements_for(span.cycle).await? {
            // Statements were checked when they came.
            if let Ok(statement) = check_statement(&body, &self.statement_context(validator, span, netuid)) {
                statements.push(statement.stated());
            }
        }
        let observed = self.observe(span).await?;
        if statements.iter().all(|statement| statement.validator != me) && !observed.is_empty() {
            statements.push(CapacityStatement {
                validator: me,
                cycle: span.cycle.0,
                rows: CapacityEvidence::of(&observed).rows(),
            });
        }
        if statements.is_empty() {
            return Ok(None);
        }
        let epochs = self
            .state
            .store
            .epochs_between(span.cycle.0, span.cycle.0)
            .await?;
        let stakes = lower_stakes(&epochs);
        let mut classes: BTreeSet<ExecutorClass> = observed.keys().map(|(_, class)| *class).collect();
        classes.extend(self.state.config.grading.images.keys());
        classes.extend(stated_classes(&statements, &stakes));
        Ok(Some(CapacityInputs {
            classes,
            kinds: stated_kinds(&statements, &stakes, me),
            stakes,
            statements,
        }))
    }

    /// The observations of this validator's probes before the cycle of a span.
    async fn observe(&self, span: BlockSpan) -> Result<MinerObservations, StoreError> {
        let mut observed = Vec::new();
        for kind in [ObservationKind::Announced, ObservationKind::Unannounced] {
            let first = span.first.0.saturating_sub(self.state.config.blocks_back(kind));
            let batches = self.grading.store();
            observed.extend(batches.capacities_between(kind, first, span.last.0).await?);
        }
        let since = self.state.clock.now().minus(OFFERS_BACK);
        let offers = self.state.store.offers_since(since).await?;
        Ok(observations(&observed, &offers))
    }

    fn statement_context(&self, validator: ValidatorKey, span: BlockSpan, netuid: u16) -> StatementContext {
        StatementContext {
            genesis: self.state.store.genesis(),
            netuid,
            validator,
            cycle: span.cycle.0,
        }
    }
}

/// The excuses that no longer wait once these attempts count. `earliest` is the time before which receipts are late
/// from this cycle on: an attempt that had to end by then gets no receipt any more that counts.
pub(super) fn settle_waiting(
    waiting: Vec<WaitingExcuse>,
    counted: &CountedAttempts,
    earliest: Option<Timestamp>,
) -> Vec<(WaitingExcuse, ExcuseState)> {
    let settle = |excuse: WaitingExcuse| {
        let closed = earliest.is_some_and(|earliest| excuse.until.plus(LATE_END) < earliest);
        match settle_excuse(excuse.attempt, excuse.at, counted, closed) {
            ExcuseState::Waiting => None,
            state @ (ExcuseState::Covered | ExcuseState::Failed) => Some((excuse, state)),
        }
    };
    waiting.into_iter().filter_map(settle).collect()
}

/// The observations of this validator's batches, with the offers of the miners that they saw.
fn observations(observed: &[SeenCapacity], offers: &[OfferCount]) -> MinerObservations {
    let mut miners = MinerObservations::new();
    for capacity in observed {
        let seen = miners.entry((capacity.miner, capacity.class)).or_default();
        seen.observations.push(Observation {
            kind: capacity.kind,
            at: capacity.at,
            announced: capacity.announced,
            shown: capacity.shown,
            credit: capacity.credit,
            excuses: capacity.excuses.clone(),
        });
    }
    for count in offers {
        if let Some(seen) = miners.get_mut(&(count.miner, count.class)) {
            (seen.offers, seen.refused) = (count.offers, count.refused);
        }
    }
    miners
}

/// The stake of each validator with a permit at two boundaries: the lower one. Nothing is known without two boundaries.
fn lower_stakes(epochs: &[EpochFacts]) -> BTreeMap<ValidatorKey, u64> {
    let [before, now] = epochs else {
        return BTreeMap::new();
    };
    let lower = |(validator, stake): (&ValidatorKey, &u64)| {
        Some((*validator, *before.permitted.get(validator)?.min(stake)))
    };
    now.permitted.iter().filter_map(lower).collect()
}

/// The classes about which holders of at least half of the stake state anything.
fn stated_classes(
    statements: &[CapacityStatement],
    stakes: &BTreeMap<ValidatorKey, u64>,
) -> BTreeSet<ExecutorClass> {
    let all: u128 = stakes.values().map(|stake| u128::from(*stake)).sum();
    let stated = |class: &ExecutorClass| -> u128 {
        let about = |statement: &&CapacityStatement| statement.rows.iter().any(|row| row.class == *class);
        let validators: BTreeSet<_> = statements
            .iter()
            .filter(about)
            .map(|statement| statement.validator)
            .collect();
        let stakes = validators.iter().filter_map(|validator| stakes.get(validator));
        stakes.map(|stake| u128::from(*stake)).sum()
    };
    ExecutorClass::ALL
        .into_iter()
        .filter(|class| all > 0 && stated(class).saturating_mul(2) >= all)
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::{AttemptId, Hotkey, MinerKey};
    use muster_scoring::CapacityRow;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    #[test]
    fn the_second_lowest_of_the_last_eight_batches_is_stated() {
        let observed = |second, proven| SeenCapacity {
            kind: ObservationKind::Announced,
            at: Timestamp::from_secs(second),
            miner: MinerKey(key(1)),
            class: CLASS,
            announced: 4,
            shown: proven,
            proven,
            credit: u64::from(proven) * 1_000,
            excuses: vec![],
        };
        let counts = [0, 4, 4, 1, 4, 4, 3, 4, 4];
        let batches: Vec<_> = counts
            .iter()
            .zip(0..)
            .map(|(proven, at)| observed(at, *proven))
            .collect();
        let offered = |miner, offers| OfferCount {
            miner: MinerKey(key(miner)),
            class: CLASS,
            offers,
            refused: 3,
        };
        let seen = observations(&batches, &[offered(1, 40), offered(2, 50)]);
        let rows = CapacityEvidence::of(&seen).rows();
        let [row] = rows.as_slice() else {
            panic!("the miner that no batch saw is not stated: {rows:?}");
        };
        assert_eq!((row.executors, row.credit), (3, 3_000));
        assert_eq!((row.offers, row.refused), (40, 3));
    }

    #[test]
    fn an_excuse_waits_until_its_attempt_counts_or_can_count_no_more() {
        let at = Timestamp::from_secs;
        let attempt = |number: u128| AttemptId::from_uuid(uuid::Uuid::from_u128(number));
        let excuse = |number, until| WaitingExcuse {
            batch: "batch".to_owned(),
            attempt: attempt(number),
            at: at(100),
            until: at(until),
        };
        let waiting = vec![excuse(1, 900), excuse(2, 900), excuse(3, 900), excuse(4, 140)];
        let counted = [(attempt(1), (at(50), at(150))), (attempt(2), (at(50), at(99)))].into();
        let settled = |earliest| {
            let settled = settle_waiting(waiting.clone(), &counted, earliest).into_iter();
            settled
                .map(|(excuse, state)| (excuse.attempt.as_uuid().as_u128(), state))
                .collect::<Vec<_>>()
        };
        let (covered, failed) = (ExcuseState::Covered, ExcuseState::Failed);
        assert_eq!(settled(None), [(1, covered), (2, failed)]);
        assert_eq!(
            settled(Some(at(200))),
            [(1, covered), (2, failed)],
            "the fourth may end late"
        );
        assert_eq!(settled(Some(at(201))), [(1, covered), (2, failed), (4, failed)]);
    }

    #[test]
    fn a_stake_counts_as_the_lower_one_of_two_boundaries() {
        let epoch = |first_block, stakes: &[(u8, u64)]| EpochFacts {
            first_block,
            first_ms: 0,
            block_ms: 1,
            permitted: stakes
                .iter()
                .map(|(seed, stake)| (ValidatorKey(key(*seed)), *stake))
                .collect(),
            proven: vec![],
        };
        let epochs = [
            epoch(1, &[(1, 5), (2, 7), (3, 1)]),
            epoch(2, &[(1, 6), (2, 2), (4, 9)]),
        ];
        let stakes = lower_stakes(&epochs);
        assert_eq!(
            stakes,
            [(ValidatorKey(key(1)), 5), (ValidatorKey(key(2)), 2)].into()
        );
        assert_eq!(lower_stakes(&epochs[..1]), BTreeMap::new());
    }

    #[test]
    fn a_crumb_of_stake_makes_no_class_graded() {
        let statement = |seed, class| CapacityStatement {
            validator: ValidatorKey(key(seed)),
            cycle: 1,
            rows: vec![CapacityRow {
                miner: MinerKey(key(9)),
                class,
                kind: ObservationKind::Announced,
                executors: 1,
                credit: 1_000,
                offers: 0,
                refused: 0,
            }],
        };
        let stakes = [(ValidatorKey(key(1)), 60), (ValidatorKey(key(2)), 40)].into();
        let other = ExecutorClass::AlwaysOnGpu24Gb;
        let statements = [statement(1, CLASS), statement(2, other), statement(2, other)];
        assert_eq!(stated_classes(&statements, &stakes), [CLASS].into());
        assert_eq!(stated_classes(&statements, &BTreeMap::new()), BTreeSet::new());
    }
}
