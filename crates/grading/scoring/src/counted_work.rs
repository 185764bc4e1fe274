//! The work that counts: every finished receipt of the cycle, the scorer's own included, goes through the same checks.
//!
//! A receipt counts with the least of its amount, its allowance, and the time that the attempt took (at least the
//! minimum charge). It has to fit on the proven executors at every instant.

use std::collections::{BTreeMap, HashMap};

use muster_protocol::job::MAX_JOB_SECS;
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, ValidatorKey};

use crate::agreed_capacity::Agreement;
use crate::allowance::{Claim, SpentBlocks, allowances, spent_after};
use crate::occupancy::{Interval, beyond};
use crate::snapshot::{Neuron, PaidReceipt, ScoringSnapshot};
use crate::{DropReason, allowance};

/// The most that one job can be paid, in executor-microseconds: no validator's word makes a receipt worth a year.
const MAX_MICROS: u64 = MAX_JOB_SECS * 1_000_000;

/// The time that every attempt may be paid, however short it was, in microseconds (`docs/adr/0063`).
pub const MINIMUM_CHARGE_US: u64 = 10_000_000;

/// How long after its receipt was signed an attempt may have ended, in microseconds: the two times come from two
/// readings of a clock.
const SIGNING_LEEWAY_US: i64 = 60_000_000;

/// A receipt that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedReceipt {
    pub(crate) validator: ValidatorKey,
    pub(crate) attempt: AttemptId,
    pub(crate) miner: MinerKey,
    pub(crate) class: ExecutorClass,
    /// When the attempt began, in microseconds since 1970.
    pub(crate) began: i64,
    /// The counted executor-microseconds.
    pub(crate) micros: u64,
}

/// A receipt that does not count, or the part of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostReceipt {
    pub(crate) attempt: AttemptId,
    pub(crate) miner: MinerKey,
    pub(crate) reason: DropReason,
    /// The executor-microseconds that do not count.
    pub(crate) micros: u64,
}

/// The work of a cycle.
#[derive(Debug, Default)]
pub(crate) struct CountedWork {
    pub(crate) counted: Vec<CountedReceipt>,
    /// Receipts that do not count at all, in the order of the snapshot.
    pub(crate) dropped: Vec<LostReceipt>,
    /// The parts that were cut off receipts that count.
    pub(crate) cut: Vec<LostReceipt>,
    /// The blocks that are spent for later cycles.
    pub(crate) spent: Vec<SpentBlocks>,
}

impl CountedWork {
    /// Counted executor-microseconds by class and miner.
    pub(crate) fn by_class(&self) -> BTreeMap<ExecutorClass, BTreeMap<MinerKey, u64>> {
        let mut sums = BTreeMap::<ExecutorClass, BTreeMap<MinerKey, u64>>::new();
        for receipt in &self.counted {
            let sum = sums
                .entry(receipt.class)
                .or_default()
                .entry(receipt.miner)
                .or_default();
            *sum = sum.saturating_add(receipt.micros);
        }
        sums
    }
}

/// Counts the receipts of a snapshot.
pub(crate) fn count_work(
    snapshot: &ScoringSnapshot,
    neurons: &BTreeMap<MinerKey, &Neuron>,
    agreed: &Agreement,
) -> CountedWork {
    let mut work = CountedWork::default();
    let twins = Twins::new(&snapshot.receipts);
    let mut valid = Vec::new();
    for (place, paid) in snapshot.receipts.iter().enumerate() {
        let checked = check(snapshot, neurons, paid).and_then(|(class, micros)| {
            twins.check(place, paid)?;
            Ok((class, micros))
        });
        match checked {
            Ok((class, micros)) => valid.push((place, paid, class, micros)),
            Err(reason) => work.dropped.push(lost(paid, reason)),
        }
    }
    let claims: Vec<_> = valid
        .iter()
        .map(|(_, paid, class, micros)| claim(paid, *class, *micros))
        .collect();
    let allowed = snapshot.allowance.as_ref().map(|inputs| {
        work.spent = spent_after(inputs, &claims, snapshot.span.last_block);
        allowances(inputs, snapshot.span.last_block, &claims)
    });
    let mut fitting = Vec::with_capacity(valid.len());
    for (number, (place, paid, class, micros)) in valid.iter().enumerate() {
        let allowance = allowed.as_ref().and_then(|allowed| allowed.get(number).copied());
        let (amount, cut) = match amount_of(paid, *micros, allowance) {
            Ok(amount) => amount,
            Err(reason) => {
                work.dropped.push(lost(paid, reason));
                continue;
            }
        };
        if let Some(reason) = cut {
            work.cut.push(LostReceipt {
                micros: micros.saturating_sub(amount),
                ..lost(paid, reason)
            });
        }
        let receipt = CountedReceipt {
            validator: paid.receipt.validator_hotkey,
            attempt: paid.receipt.job_uuid,
            miner: paid.receipt.miner_hotkey,
            class: *class,
            began: paid.receipt.time_started.micros(),
            micros: amount,
        };
        fitting.push((*place, receipt));
    }
    drop_unburned(snapshot, &mut fitting, &mut work);
    drop_beyond_proven(neurons, agreed, &mut fitting, &mut work);
    work.counted = fitting.into_iter().map(|(_, receipt)| receipt).collect();
    work
}

fn lost(paid: &PaidReceipt, reason: DropReason) -> LostReceipt {
    LostReceipt {
        attempt: paid.receipt.job_uuid,
        miner: paid.receipt.miner_hotkey,
        reason,
        micros: paid.receipt.score_micros().unwrap_or(0),
    }
}

/// Everything about a receipt that needs no other receipt. Returns its class and its amount in executor-microseconds.
fn check(
    snapshot: &ScoringSnapshot,
    neurons: &BTreeMap<MinerKey, &Neuron>,
    paid: &PaidReceipt,
) -> Result<(ExecutorClass, u64), DropReason> {
    let receipt = &paid.receipt;
    let Some(miner) = neurons.get(&receipt.miner_hotkey) else {
        return Err(DropReason::NotRegistered);
    };
    let validator = receipt.validator_hotkey;
    if validator != snapshot.me && !snapshot.validators.contains(&validator) {
        return Err(DropReason::Stranger);
    }
    let micros = receipt.score_micros().ok_or(DropReason::NoAmount)?;
    if micros == 0 {
        return Err(DropReason::Unpaid);
    }
    if micros > MAX_MICROS {
        return Err(DropReason::TooMuch);
    }
    let class = paid.class.ok_or(DropReason::NoStart)?;
    let owner = neurons.get(&MinerKey(validator.0)).map(|neuron| neuron.coldkey);
    if owner == Some(miner.coldkey) {
        return Err(DropReason::OwnColdkey);
    }
    if snapshot
        .span
        .earliest
        .is_some_and(|earliest| receipt.timestamp < earliest)
    {
        return Err(DropReason::Late);
    }
    let (signed, began) = (receipt.timestamp.micros(), receipt.time_started.micros());
    let took = i64::try_from(receipt.time_took_us).unwrap_or(i64::MAX);
    if began.saturating_add(took) > signed.saturating_add(SIGNING_LEEWAY_US) {
        return Err(DropReason::AheadOfItsTime);
    }
    let longest = i64::try_from(MAX_MICROS).unwrap_or(i64::MAX);
    if signed.saturating_sub(began).saturating_sub(took.min(longest)) > longest {
        return Err(DropReason::Ancient);
    }
    Ok((class, micros))
}

/// Receipts of one validator about one attempt. The same receipt twice counts once; two that differ count for nothing.
struct Twins<'a> {
    first: HashMap<(ValidatorKey, AttemptId), (usize, &'a PaidReceipt, bool)>,
}

impl<'a> Twins<'a> {
    fn new(receipts: &'a [PaidReceipt]) -> Self {
        let mut first = HashMap::with_capacity(receipts.len());
        for (place, paid) in receipts.iter().enumerate() {
            let key = (paid.receipt.validator_hotkey, paid.receipt.job_uuid);
            let known = first.entry(key).or_insert((place, paid, true));
            known.2 &= known.1.receipt == paid.receipt;
        }
        Self { first }
    }

    fn check(&self, place: usize, paid: &PaidReceipt) -> Result<(), DropReason> {
        match self
            .first
            .get(&(paid.receipt.validator_hotkey, paid.receipt.job_uuid))
        {
            Some((_, _, false)) => Err(DropReason::Contradicting),
            Some((first, _, true)) if *first != place => Err(DropReason::Repeated),
            Some(_) | None => Ok(()),
        }
    }
}

fn claim(paid: &PaidReceipt, class: ExecutorClass, micros: u64) -> Claim<'_> {
    let receipt = &paid.receipt;
    let length = receipt.time_took_us.max(MINIMUM_CHARGE_US).min(micros);
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let began = receipt.time_started;
    allowance::Claim {
        validator: receipt.validator_hotkey,
        miner: receipt.miner_hotkey,
        class,
        began,
        ended: Timestamp::from_micros(began.micros().saturating_add(length)),
        blocks: &receipt.block_numbers,
    }
}

/// The amount that counts, and the reason if that is less than the receipt states.
fn amount_of(
    paid: &PaidReceipt,
    micros: u64,
    allowance: Option<Result<u64, DropReason>>,
) -> Result<(u64, Option<DropReason>), DropReason> {
    let took = paid.receipt.time_took_us.max(MINIMUM_CHARGE_US);
    let allowed = allowance.transpose()?.unwrap_or(u64::MAX);
    let amount = micros.min(took).min(allowed);
    let cut = match amount {
        amount if amount == micros => None,
        amount if amount == took => Some(DropReason::OverTime),
        _ => Some(DropReason::OverAllowance),
    };
    Ok((amount, cut))
}

/// Drops what a validator has not burned for. Its receipts are taken in the order of their begin.
fn drop_unburned(
    snapshot: &ScoringSnapshot,
    fitting: &mut Vec<(usize, CountedReceipt)>,
    work: &mut CountedWork,
) {
    let price = u128::from(snapshot.rules.burn_per_second);
    if price == 0 {
        return;
    }
    fitting.sort_unstable_by_key(|(_, receipt)| (receipt.began, receipt.validator, receipt.attempt));
    let mut left: BTreeMap<_, _> = snapshot
        .burned
        .iter()
        .map(|(key, rao)| (*key, u128::from(*rao)))
        .collect();
    fitting.retain(|(_, receipt)| {
        let cost = u128::from(receipt.micros)
            .saturating_mul(price)
            .div_ceil(1_000_000);
        match left.get_mut(&receipt.validator) {
            Some(rao) if *rao >= cost => {
                *rao = rao.saturating_sub(cost);
                true
            }
            Some(_) | None => {
                work.dropped.push(receipt.lost(DropReason::NotBurned));
                false
            }
        }
    });
}

impl CountedReceipt {
    fn lost(&self, reason: DropReason) -> LostReceipt {
        LostReceipt {
            attempt: self.attempt,
            miner: self.miner,
            reason,
            micros: self.micros,
        }
    }
}

/// The executors on which attempts have to fit: those of a miner, or the one of a coldkey on probation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ExecutorPool {
    Proven(MinerKey),
    Probation(Hotkey),
}

/// Drops the attempts beyond the proven executors. A coldkey whose miner has proven nothing yet may run one attempt at
/// a time in that class.
fn drop_beyond_proven(
    neurons: &BTreeMap<MinerKey, &Neuron>,
    agreed: &Agreement,
    fitting: &mut Vec<(usize, CountedReceipt)>,
    work: &mut CountedWork,
) {
    let mut groups = HashMap::<(ExecutorPool, ExecutorClass), (u32, Vec<Interval>)>::new();
    for (place, receipt) in fitting
        .iter()
        .filter(|(_, receipt)| agreed.is_graded(receipt.class))
    {
        let proven = agreed.of(receipt.miner, receipt.class).executors;
        let (on, executors) = match (proven, neurons.get(&receipt.miner)) {
            (0, Some(neuron)) => (ExecutorPool::Probation(neuron.coldkey), 1),
            (proven, _) => (ExecutorPool::Proven(receipt.miner), proven),
        };
        let group = groups
            .entry((on, receipt.class))
            .or_insert((executors, Vec::new()));
        group.1.push(Interval {
            began: receipt.began,
            validator: receipt.validator,
            attempt: receipt.attempt,
            micros: receipt.micros,
            receipt: *place,
        });
    }
    let groups = groups.into_values();
    let mut dropped: Vec<usize> = groups
        .flat_map(|(executors, intervals)| beyond(intervals, executors))
        .collect();
    dropped.sort_unstable();
    fitting.retain(|(place, receipt)| {
        let fits = dropped.binary_search(place).is_err();
        if !fits {
            work.dropped.push(receipt.lost(DropReason::BeyondProven));
        }
        fits
    });
}
