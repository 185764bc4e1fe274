//! The epochs of one strategy: what every party does, and what the real scoring code pays for it.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, Uid, ValidatorKey};
use muster_scoring::{
    AllowanceInputs, CAPACITY_PER_MILLE, CapacityInputs, CapacityRow, CapacityStatement, EpochFacts, Neuron,
    OBSERVATIONS, Observation, ObservationKind, PaidReceipt, PastCycle, PastPoints, ProvenExecutors,
    SNAPSHOT_FORMAT, ScoredSpan, Scores, ScoringRules, ScoringSnapshot, VESTING_CYCLES, WHOLE_EXECUTOR,
    proven_by, score_cycle,
};
use uuid::Uuid;

use crate::numbers::Numbers;
use crate::strategy::Strategy;
use crate::{Settings, StrategyOutcome};

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnGpu24Gb;
const KINDS: [ObservationKind; 2] = [ObservationKind::Announced, ObservationKind::Unannounced];
/// An epoch of the public network: 360 blocks of twelve seconds.
const BLOCKS: u64 = 360;
const BLOCK_MS: u64 = 12_000;
const EPOCH_MS: u64 = BLOCKS * BLOCK_MS;
/// The time of block 0, in milliseconds since 1970.
const BEGIN_MS: u64 = 1_769_000_000_000;
/// The chance that a miner is out of reach at a probe, and that one of its executors restarts then.
const FAILURE: u16 = 10;
/// A card that is rented for five minutes an epoch, at one and a half times the price: thousandths of a card's price.
const RENTAL: u64 = 5 * 60 * 1_500 * 1_000 / EPOCH_MS;
/// Epochs in which miners prove their first executors; they are not measured.
const WARM_UP: u32 = 10;
const SCORER: u8 = 0;
const COLLUDER: u8 = 1;
/// All stake, in rao.
const STAKE: u64 = 1_000_000;

/// The outcome of every strategy.
pub fn simulate(settings: &Settings, strategies: &[Strategy]) -> Vec<StrategyOutcome> {
    let outcome = |strategy: &Strategy| {
        let mut world = World::new(settings, strategy);
        for epoch in 0..settings.epochs {
            world.run_epoch(epoch);
        }
        world.outcome()
    };
    strategies.iter().map(outcome).collect()
}

/// One miner's part of the hardware, under one hotkey.
struct Miner {
    neuron: Neuron,
    /// Whether it follows the strategy.
    cheats: bool,
    /// The cards of an honest miner that stand behind this hotkey: the first, and the one after the last.
    cards: (u16, u16),
    observations: Vec<Observation>,
    /// The agreed capacity in whole executors, at the begin of each epoch.
    proven: u32,
    paid: u128,
    money: u128,
}

/// The bad luck of one probe, the same for a strategy and its twin.
struct Luck {
    out: bool,
    restarts: Vec<bool>,
    away: bool,
}

struct World<'a> {
    settings: &'a Settings,
    strategy: &'a Strategy,
    numbers: Numbers,
    miners: Vec<Miner>,
    epochs: Vec<EpochFacts>,
    history: Vec<PastCycle>,
    scores: Scores,
    attempts: u64,
    /// The capacity that the twin kept, and the cards that it had, over all measured epochs; in thousandths of a card.
    kept: (u64, u64),
}

fn hotkey(number: u16, salt: u8) -> Hotkey {
    let mut bytes = [salt; 32];
    let [high, low] = number.to_be_bytes();
    bytes[0] = high;
    bytes[1] = low;
    Hotkey::from_bytes(bytes)
}

fn validator(number: u8) -> ValidatorKey {
    ValidatorKey(hotkey(number.into(), 9))
}

fn neuron(uid: u16, salt: u8) -> Neuron {
    Neuron {
        uid: Uid(uid),
        hotkey: hotkey(uid, salt),
        coldkey: hotkey(uid, salt.saturating_add(1)),
        registered: u64::from(uid).saturating_add(1),
    }
}

impl<'a> World<'a> {
    fn new(settings: &'a Settings, strategy: &'a Strategy) -> Self {
        let hotkeys = u16::from(strategy.more_hotkeys).saturating_add(1);
        let honest = (0..settings.miners).map(|_| (false, (0, settings.executors)));
        let share = |part: u16| settings.executors.saturating_mul(part) / hotkeys;
        let cheating = (0..hotkeys).map(|part| (true, (share(part), share(part.saturating_add(1)))));
        let miner = |(uid, (cheats, cards))| Miner {
            neuron: neuron(uid, 1),
            cheats,
            cards,
            observations: Vec::new(),
            proven: 0,
            paid: 0,
            money: 0,
        };
        Self {
            settings,
            strategy,
            numbers: Numbers::new(settings.seed),
            miners: (2_u16..).zip(honest.chain(cheating)).map(miner).collect(),
            epochs: Vec::new(),
            history: Vec::new(),
            scores: Scores::default(),
            attempts: 0,
            kept: (0, 0),
        }
    }

    fn run_epoch(&mut self, epoch: u32) {
        let planned = self.numbers.happens(self.strategy.planned);
        let away = KINDS.map(|kind| (kind, self.luck()));
        for (kind, luck) in &away {
            let at_ms = u64::from(epoch).saturating_mul(EPOCH_MS).saturating_add(BEGIN_MS);
            let later = if *kind == ObservationKind::Announced {
                600_000
            } else {
                1_800_000
            };
            self.observe(*kind, at_ms.saturating_add(later), luck, planned);
        }
        self.spend(planned, &away.map(|(_, luck)| luck));
        let capacity = self.state_capacity(epoch, planned);
        self.begin_epoch(epoch, &capacity);
        let receipts = self.work(epoch, planned);
        let snapshot = self.snapshot(epoch, capacity, receipts);
        let (scores, _) = score_cycle(&snapshot);
        self.pay(epoch, scores);
    }

    fn luck(&mut self) -> Luck {
        Luck {
            out: self.numbers.happens(FAILURE),
            restarts: (0..self.settings.executors)
                .map(|_| self.numbers.happens(FAILURE))
                .collect(),
            away: self.numbers.happens(self.strategy.absent),
        }
    }

    /// Probes every miner.
    fn observe(&mut self, kind: ObservationKind, at_ms: u64, luck: &Luck, planned: bool) {
        let strategy = self.strategy;
        for miner in &mut self.miners {
            if miner.cheats && planned {
                continue;
            }
            let all = u64::from(miner.cards.1.saturating_sub(miner.cards.0));
            let up = (miner.cards.0..miner.cards.1)
                .filter(|card| !luck.restarts.get(usize::from(*card)).copied().unwrap_or(false));
            let working = if luck.out {
                0
            } else {
                u64::try_from(up.count()).unwrap_or(0)
            };
            let (announced, shown, credit) = if miner.cheats {
                let owned = working.saturating_mul(1_000_u64.saturating_sub(strategy.missing.into())) / 1_000;
                let rented = match kind {
                    ObservationKind::Announced => working.saturating_mul(strategy.rented.into()) / 1_000,
                    ObservationKind::Unannounced => 0,
                };
                let cards = if luck.away {
                    0
                } else {
                    owned.saturating_add(rented)
                };
                let fronts = u64::from(strategy.fronted).saturating_add(1);
                let paper = all.saturating_mul(u64::from(strategy.on_paper).saturating_add(fronts));
                (
                    paper,
                    cards.saturating_mul(fronts),
                    cards.saturating_mul(WHOLE_EXECUTOR),
                )
            } else {
                (all, working, working.saturating_mul(WHOLE_EXECUTOR))
            };
            miner.observations.push(Observation {
                kind,
                at: time(at_ms),
                announced: u32::try_from(announced).unwrap_or(u32::MAX),
                shown: u32::try_from(shown).unwrap_or(u32::MAX),
                credit,
                excuses: Vec::new(),
            });
            let kept = OBSERVATIONS.saturating_mul(4);
            let old = miner.observations.len().saturating_sub(kept);
            miner.observations.drain(..old);
        }
    }

    /// The money that the hardware of this epoch costs, in millionths of a card's price.
    fn spend(&mut self, planned: bool, luck: &[Luck]) {
        let probes = u128::try_from(luck.len()).unwrap_or(1).max(1);
        let there = u128::try_from(luck.iter().filter(|luck| !luck.away).count()).unwrap_or(0);
        let strategy = self.strategy;
        for miner in &mut self.miners {
            let cards = u128::from(miner.cards.1.saturating_sub(miner.cards.0));
            let owned = u128::from(1_000_u16.saturating_sub(strategy.missing)).saturating_mul(1_000);
            let rented = u128::from(strategy.rented).saturating_mul(RENTAL.into());
            let price = match miner.cheats {
                false => 1_000_000,
                true if planned => 0,
                true => owned.saturating_add(rented).saturating_mul(there) / probes,
            };
            miner.money = miner.money.saturating_add(cards.saturating_mul(price));
        }
    }

    /// The statements of both validators: the colluding one lies.
    fn state_capacity(&self, epoch: u32, planned: bool) -> CapacityInputs {
        let (mut honest, mut lies) = (Vec::new(), Vec::new());
        for miner in &self.miners {
            let manifest = (miner.cheats && planned).then_some(0);
            for kind in KINDS {
                let proven = proven_by(&miner.observations, kind, manifest).unwrap_or_default();
                let refuses = if miner.cheats { self.strategy.refuses } else { 0 };
                let row = CapacityRow {
                    miner: MinerKey(miner.neuron.hotkey),
                    class: CLASS,
                    kind,
                    executors: proven.executors,
                    credit: proven.credit,
                    offers: 1_000,
                    refused: refuses.into(),
                };
                honest.push(row);
                let lie = if miner.cheats { 10_000 } else { 0 };
                lies.push(CapacityRow {
                    executors: lie,
                    credit: u64::from(lie).saturating_mul(WHOLE_EXECUTOR),
                    refused: 0,
                    ..row
                });
            }
        }
        let statement = |of, rows| CapacityStatement {
            validator: validator(of),
            cycle: epoch.into(),
            rows,
        };
        CapacityInputs {
            classes: [CLASS].into(),
            kinds: KINDS.into(),
            stakes: self.stakes(),
            statements: vec![statement(SCORER, honest), statement(COLLUDER, lies)],
        }
    }

    fn stakes(&self) -> BTreeMap<ValidatorKey, u64> {
        let colluding = STAKE.saturating_mul(self.strategy.colluder.into()) / 1_000;
        [
            (validator(SCORER), STAKE.saturating_sub(colluding)),
            (validator(COLLUDER), colluding),
        ]
        .into()
    }

    /// Records the stakes and the agreed capacity at the begin of an epoch, for the allowances of the next ones.
    fn begin_epoch(&mut self, epoch: u32, capacity: &CapacityInputs) {
        let honest = capacity
            .statements
            .first()
            .map(|statement| statement.rows.as_slice());
        for miner in &mut self.miners {
            let key = MinerKey(miner.neuron.hotkey);
            let rows = honest.unwrap_or_default().iter().filter(|row| row.miner == key);
            let credit = rows.map(|row| row.credit).min().unwrap_or(0);
            miner.proven = u32::try_from(credit.div_ceil(WHOLE_EXECUTOR)).unwrap_or(u32::MAX);
        }
        let proven = self.miners.iter().map(|miner| ProvenExecutors {
            miner: MinerKey(miner.neuron.hotkey),
            class: CLASS,
            executors: miner.proven,
        });
        let number = u64::from(epoch);
        self.epochs.push(EpochFacts {
            first_block: number.saturating_mul(BLOCKS),
            first_ms: number.saturating_mul(EPOCH_MS).saturating_add(BEGIN_MS),
            block_ms: BLOCK_MS,
            permitted: self.stakes(),
            proven: proven.collect(),
        });
        let old = self.epochs.len().saturating_sub(VESTING_CYCLES.saturating_add(2));
        self.epochs.drain(..old);
    }

    /// The receipts of an epoch: users keep each executor busy for a while, and the colluding validator pays for the
    /// rest as far as its allowance goes. Blocks of the epoch before are named.
    fn work(&mut self, epoch: u32, planned: bool) -> Vec<PaidReceipt> {
        let mut receipts = Vec::new();
        let Some(first) = u64::from(epoch)
            .checked_sub(1)
            .map(|before| before.saturating_mul(BLOCKS))
        else {
            return receipts;
        };
        let needed = EPOCH_MS.saturating_mul(self.settings.organic.into()) / 1_000;
        for miner in self
            .miners
            .iter()
            .filter(|miner| miner.proven > 0 && !(miner.cheats && planned))
        {
            let each = BLOCKS / u64::from(miner.proven).max(1);
            for executor in 0..u64::from(miner.proven) {
                let begin = first.saturating_add(executor.saturating_mul(each));
                let blocks = || (begin..begin.saturating_add(each)).collect();
                let mut users = needed;
                if miner.cheats {
                    users =
                        users.saturating_mul(1_000_u64.saturating_sub(self.strategy.refuses.into())) / 1_000;
                    users =
                        users.saturating_mul(u64::from(self.strategy.stalls).saturating_add(1_000)) / 1_000;
                }
                let users = users.min(EPOCH_MS);
                if users > 0 {
                    self.attempts = self.attempts.saturating_add(1);
                    receipts.push(receipt(self.attempts, SCORER, miner, epoch, (0, users), blocks()));
                }
                if miner.cheats && self.strategy.colluder > 0 {
                    self.attempts = self.attempts.saturating_add(1);
                    let rest = (users, EPOCH_MS.saturating_sub(users));
                    receipts.push(receipt(self.attempts, COLLUDER, miner, epoch, rest, blocks()));
                }
            }
        }
        receipts
    }

    fn snapshot(&self, epoch: u32, capacity: CapacityInputs, receipts: Vec<PaidReceipt>) -> ScoringSnapshot {
        let number = u64::from(epoch);
        let validators = [SCORER, COLLUDER].map(|of| Neuron {
            hotkey: validator(of).0,
            ..neuron(of.into(), 5)
        });
        let miners = self.miners.iter().map(|miner| miner.neuron);
        let first = number.saturating_mul(BLOCKS);
        ScoringSnapshot {
            format: SNAPSHOT_FORMAT.to_owned(),
            genesis: String::new(),
            netuid: 1,
            span: ScoredSpan {
                cycle: number,
                first_block: first,
                last_block: first.saturating_add(BLOCKS).saturating_sub(1),
                duration_ms: EPOCH_MS,
                earliest: None,
            },
            me: validator(SCORER),
            neurons: validators.into_iter().chain(miners).collect(),
            validators: BTreeSet::from([validator(SCORER), validator(COLLUDER)]),
            rules: ScoringRules {
                class_weights: [(CLASS, 1)].into(),
                streaming_weight: 0,
                capacity_per_mille: CAPACITY_PER_MILLE,
                burn_per_second: 0,
                burn_hotkey: None,
                bonus_per_mille: 0,
                min_entries: 0,
            },
            receipts,
            streamed: Vec::new(),
            capacity: Some(capacity),
            allowance: Some(AllowanceInputs {
                epochs: self.epochs.clone(),
                spent: self.scores.spent.clone(),
            }),
            history: self.history.clone(),
            convictions: Vec::new(),
            quality: Vec::new(),
            main_hotkeys: Vec::new(),
            deferred: self.scores.deferred.clone(),
            burned: BTreeMap::new(),
        }
    }

    fn pay(&mut self, epoch: u32, scores: Scores) {
        let of: BTreeMap<MinerKey, _> = scores.scores.iter().map(|score| (score.miner, *score)).collect();
        let mut rows = Vec::new();
        if let Some(twin) = self.miners.first().filter(|_| epoch >= WARM_UP) {
            let credit = of
                .get(&MinerKey(twin.neuron.hotkey))
                .map_or(0, |score| score.credit);
            let cards = u64::from(self.settings.executors).saturating_mul(WHOLE_EXECUTOR);
            self.kept = (
                self.kept.0.saturating_add(credit),
                self.kept.1.saturating_add(cards),
            );
        }
        for miner in &mut self.miners {
            if epoch == WARM_UP {
                (miner.paid, miner.money) = (0, 0);
            }
            let Some(score) = of.get(&MinerKey(miner.neuron.hotkey)) else {
                continue;
            };
            // The points of an epoch are paid in twenty cycles, so they and not the payments belong to the money of the
            // epoch.
            miner.paid = miner.paid.saturating_add(score.points.into());
            rows.push(PastPoints {
                neuron: miner.neuron,
                points: score.points,
            });
        }
        self.history.push(PastCycle {
            cycle: epoch.into(),
            rows,
        });
        let old = self
            .history
            .len()
            .saturating_sub(VESTING_CYCLES.saturating_sub(1));
        self.history.drain(..old);
        self.scores = scores;
    }

    fn outcome(&self) -> StrategyOutcome {
        let sum = |amount: fn(&Miner) -> u128| -> u128 {
            let cheating = self.miners.iter().filter(|miner| miner.cheats);
            cheating.map(amount).fold(0, u128::saturating_add)
        };
        let (paid, money) = (sum(|miner| miner.paid), sum(|miner| miner.money));
        let (twin_paid, twin_money) = self.miners.first().map_or((0, 0), |twin| (twin.paid, twin.money));
        // Points of 10^12 over 10,000 epochs, times money in millionths: below 2^128.
        let honest = twin_paid.saturating_mul(money) / 1_000;
        let pay = paid.saturating_mul(twin_money).checked_div(honest).unwrap_or(0);
        let money = money.saturating_mul(1_000).checked_div(twin_money).unwrap_or(0);
        StrategyOutcome {
            strategy: self.strategy.name.clone(),
            pay: u64::try_from(pay).unwrap_or(u64::MAX),
            bound: self.strategy.bound(
                self.settings,
                self.kept.0.saturating_mul(1_000) / self.kept.1.max(1),
            ),
            money: u64::try_from(money).unwrap_or(u64::MAX),
        }
    }
}

fn time(ms: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(ms.saturating_mul(1_000)).unwrap_or(i64::MAX))
}

/// A receipt about a miner's work in an epoch, from a millisecond of the epoch on for so many milliseconds.
fn receipt(
    number: u64,
    of: u8,
    miner: &Miner,
    epoch: u32,
    (from, ms): (u64, u64),
    blocks: Vec<u64>,
) -> PaidReceipt {
    let begin = u64::from(epoch).saturating_mul(EPOCH_MS).saturating_add(BEGIN_MS);
    let micros = ms.saturating_mul(1_000);
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(number.into())),
            miner_hotkey: MinerKey(miner.neuron.hotkey),
            validator_hotkey: validator(of),
            timestamp: time(begin.saturating_add(EPOCH_MS)),
            receipt_type: FinishedTag,
            time_started: time(begin.saturating_add(from)),
            time_took_us: micros,
            score_str: FinishedReceipt::score_text(micros),
            block_numbers: blocks,
        },
        class: Some(CLASS),
    }
}
