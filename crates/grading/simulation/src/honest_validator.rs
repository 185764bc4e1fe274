//! One honest validator: what it knows, what it states, and what it scores.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{Manifest, MinerKey, Timestamp};
use muster_routing::{LedgerWindows, MinerLedger, MinerStats, RoutingPolicy, note_proven};
use muster_scoring::{
    AllowanceInputs, CAPACITY_PER_MILLE, CapacityInputs, CapacityRow, CapacityStatement, EpochFacts, Neuron,
    ObservationKind, PaidReceipt, PastCycle, PastPoints, QualityFactor, SNAPSHOT_FORMAT, ScoredSpan, Scores,
    ScoringRules, ScoringSnapshot, VESTING_CYCLES, proven_by, score_with_attempts,
};

use crate::attempt::Attempt;
use crate::hardware::SimulatedMiner;
use crate::probes::ProbeHistory;
use crate::strategy::Strategy;
use crate::subnet::{BLOCKS, CLASS, EPOCH_MS, begin_ms, first_block, miner_key, time, validator_key};

pub(crate) const KINDS: [ObservationKind; 2] = [ObservationKind::Announced, ObservationKind::Unannounced];
/// Epochs of seven days, over which offers count.
const OFFER_EPOCHS: usize = 140;

/// An honest validator.
pub(crate) struct View {
    pub(crate) place: usize,
    /// Its share of the users' jobs, in thousandths.
    pub(crate) traffic: u64,
    pub(crate) ledger: MinerLedger,
    pub(crate) policy: RoutingPolicy,
    /// The executors that each miner has proven.
    proven: BTreeMap<MinerKey, u32>,
    /// The ledger's statistics, as of the last change of each miner.
    pub(crate) stats: BTreeMap<MinerKey, MinerStats>,
    /// Offers and refusals of each miner, by epoch.
    offers: VecDeque<Vec<(u32, u32)>>,
    /// Its probes of each miner.
    pub(crate) records: Vec<ProbeHistory>,
    history: Vec<PastCycle>,
    pub(crate) scores: Scores,
}

impl View {
    pub(crate) fn new(place: usize, traffic: u64, miners: usize) -> Self {
        // The windows are the defaults of a validator.
        let windows = LedgerWindows {
            record: Duration::from_mins(10),
            given: Duration::from_hours(1),
            manifest: Duration::from_hours(2),
            full: Duration::from_secs(5),
            warm: Duration::from_hours(24),
        };
        Self {
            place,
            traffic,
            ledger: MinerLedger::new(windows),
            policy: RoutingPolicy {
                me: validator_key(place).0,
                max_incidents: 3,
                blacklist: BTreeSet::new(),
                most_unproven: 1,
                prices: RoutingPolicy::PRICES,
            },
            proven: BTreeMap::new(),
            stats: BTreeMap::new(),
            offers: VecDeque::new(),
            records: vec![ProbeHistory::default(); miners],
            history: Vec::new(),
            scores: Scores::default(),
        }
    }

    /// Asks every miner for its manifest at the begin of an epoch.
    pub(crate) fn begin_epoch(
        &mut self,
        epoch: u32,
        miners: &[SimulatedMiner],
        strategy: &Strategy,
        planned: bool,
    ) {
        let now = time(epoch, 0);
        for miner in miners {
            let count = miner.announced(strategy, planned && miner.cheats);
            let manifest = Manifest::new([(CLASS, count)]);
            let key = miner_key(&miner.neuron);
            self.ledger.record_manifest(key, manifest, now);
            self.proven.insert(key, miner.proven);
        }
        let keys = miners.iter().map(|miner| miner_key(&miner.neuron));
        self.stats = self.ledger.stats(keys, &BTreeSet::new(), now);
        note_proven(&mut self.stats, CLASS, |miner| self.proven.get(&miner).copied());
        self.offers.push_back(vec![(0, 0); miners.len()]);
        if self.offers.len() > OFFER_EPOCHS {
            self.offers.pop_front();
        }
    }

    /// Reads a miner's statistics again after a change.
    pub(crate) fn refresh(&mut self, miner: MinerKey, now: Timestamp) {
        let mut changed = self.ledger.stats([miner], &BTreeSet::new(), now);
        note_proven(&mut changed, CLASS, |miner| self.proven.get(&miner).copied());
        self.stats.extend(changed);
    }

    /// Notes an offer within the miner's manifest and its proven executors.
    pub(crate) fn note_offer(&mut self, miner: usize, refused: bool) {
        let row = self.offers.back_mut().and_then(|rows| rows.get_mut(miner));
        if let Some((offers, refusals)) = row {
            *offers = offers.saturating_add(1);
            *refusals = refusals.saturating_add(refused.into());
        }
    }

    /// Its statement of capacity.
    pub(crate) fn state(&self, epoch: u32, miners: &[SimulatedMiner], planned: bool) -> CapacityStatement {
        let mut rows = Vec::with_capacity(miners.len().saturating_mul(KINDS.len()));
        for (at, (miner, record)) in miners.iter().zip(&self.records).enumerate() {
            let manifest = (miner.cheats && planned).then_some(0);
            let observations = record.observations();
            let counts = self.offers.iter().filter_map(|rows| rows.get(at));
            let (offers, refused) = counts.fold((0_u32, 0_u32), |sum, row| {
                (sum.0.saturating_add(row.0), sum.1.saturating_add(row.1))
            });
            for kind in KINDS {
                let proven = proven_by(&observations, kind, manifest).unwrap_or_default();
                rows.push(CapacityRow {
                    miner: miner_key(&miner.neuron),
                    class: CLASS,
                    kind,
                    executors: proven.executors,
                    credit: proven.credit,
                    offers,
                    refused,
                });
            }
        }
        CapacityStatement {
            validator: validator_key(self.place),
            cycle: epoch.into(),
            rows,
        }
    }

    /// Scores an epoch and remembers what the next ones need.
    pub(crate) fn score(&mut self, epoch: u32, inputs: SharedInputs<'_>, receipts: Vec<PaidReceipt>) {
        let snapshot = self.snapshot(epoch, inputs, receipts);
        let (scores, _, counted) = score_with_attempts(&snapshot);
        for record in &mut self.records {
            record.settle(&counted);
        }
        self.history = snapshot.history;
        let rows = scores.scores.iter().filter(|score| score.points > 0);
        self.history.push(PastCycle {
            cycle: epoch.into(),
            rows: rows
                .map(|score| PastPoints {
                    neuron: Neuron {
                        uid: score.uid,
                        hotkey: score.miner.0,
                        coldkey: score.coldkey.unwrap_or(score.miner.0),
                        registered: score.registered,
                    },
                    points: score.points,
                })
                .collect(),
        });
        let old = self
            .history
            .len()
            .saturating_sub(VESTING_CYCLES.saturating_sub(1));
        self.history.drain(..old);
        self.scores = scores;
    }

    fn snapshot(
        &mut self,
        epoch: u32,
        inputs: SharedInputs<'_>,
        receipts: Vec<PaidReceipt>,
    ) -> ScoringSnapshot {
        let first = first_block(epoch);
        ScoringSnapshot {
            format: SNAPSHOT_FORMAT.to_owned(),
            genesis: String::new(),
            netuid: 1,
            span: ScoredSpan {
                cycle: epoch.into(),
                first_block: first,
                last_block: first.saturating_add(BLOCKS).saturating_sub(1),
                duration_ms: EPOCH_MS,
                earliest: None,
            },
            me: validator_key(self.place),
            neurons: inputs.neurons.to_vec(),
            validators: inputs.capacity.stakes.keys().copied().collect(),
            rules: ScoringRules {
                class_weights: [(CLASS, 1)].into(),
                capacity_per_mille: CAPACITY_PER_MILLE,
                burn_per_second: 0,
                burn_hotkey: None,
                bonus_per_mille: 0,
                min_entries: 0,
            },
            receipts,
            capacity: Some(inputs.capacity),
            allowance: Some(AllowanceInputs {
                epochs: inputs.epochs.to_vec(),
                spent: std::mem::take(&mut self.scores.spent),
            }),
            history: std::mem::take(&mut self.history),
            convictions: Vec::new(),
            quality: inputs.quality.to_vec(),
            main_hotkeys: Vec::new(),
            deferred: std::mem::take(&mut self.scores.deferred),
            burned: BTreeMap::new(),
            standing: Vec::new(),
            owner: None,
        }
    }
}

/// The inputs that are the same for all validators.
pub(crate) struct SharedInputs<'a> {
    pub(crate) neurons: &'a [Neuron],
    pub(crate) capacity: CapacityInputs,
    pub(crate) epochs: &'a [EpochFacts],
    pub(crate) quality: &'a [QualityFactor],
}

/// The finished receipt of an attempt in an epoch.
pub(crate) fn finished_receipt(epoch: u32, attempt: &Attempt, miner: &SimulatedMiner) -> PaidReceipt {
    let micros = attempt.ms.saturating_mul(1_000);
    let signed = begin_ms(epoch).saturating_add(EPOCH_MS).saturating_mul(1_000);
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: attempt.id,
            miner_hotkey: miner_key(&miner.neuron),
            validator_hotkey: validator_key(attempt.payer),
            timestamp: Timestamp::from_micros(i64::try_from(signed).unwrap_or(i64::MAX)),
            receipt_type: FinishedTag,
            time_started: time(epoch, attempt.from),
            time_took_us: micros,
            score_str: FinishedReceipt::score_text(micros),
            block_numbers: attempt.blocks.clone().collect(),
        },
        class: Some(CLASS),
    }
}
