//! The work that counts: every finished receipt of the cycle, the scorer's own included, goes through the same checks.
//!
//! A receipt counts with the least of its amount, its allowance, and the time that the attempt took (at least the
//! minimum charge). It has to fit on the proven executors at every instant.

use std::collections::BTreeMap;

use muster_protocol::job::MAX_JOB_SECS;
use muster_protocol::receipt::MINIMUM_CHARGE_US;
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, Timestamp};

use crate::agreed_capacity::Agreement;
use crate::allowance::{Claim, SpentBlocks, allowances, spent_after};
use crate::key_map::KeyMap;
use crate::occupancy::{Interval, beyond};
use crate::parties::{Parties, Party, PartyNumber};
use crate::snapshot::ScoringSnapshot;
use crate::snapshot_rows::{Neuron, PaidReceipt};
use crate::{DropReason, allowance};

/// The most that one job can be paid, in executor-microseconds: no validator's word makes a receipt worth a year.
const MAX_MICROS: u64 = MAX_JOB_SECS * 1_000_000;

/// How long after its receipt was signed an attempt may have ended, in microseconds: the two times come from two
/// readings of a clock.
const SIGNING_LEEWAY_US: i64 = 60_000_000;

/// A receipt that counts, with its parties by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedReceipt {
    /// The place of the receipt in the snapshot.
    place: usize,
    validator: PartyNumber,
    miner: PartyNumber,
    attempt: AttemptId,
    class: ExecutorClass,
    /// When the attempt began, in microseconds since 1970.
    began: i64,
    /// The counted executor-microseconds.
    micros: u64,
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

/// The attempts whose receipts count, each with the begin and the end of the time that counts.
pub type CountedAttempts = BTreeMap<AttemptId, (Timestamp, Timestamp)>;

/// Executor-microseconds by class and miner.
pub(crate) type WorkByClass = BTreeMap<ExecutorClass, BTreeMap<MinerKey, u64>>;

/// The work of a cycle.
#[derive(Debug, Default)]
pub(crate) struct CountedWork {
    counted: Vec<CountedReceipt>,
    /// Counted executor-microseconds by class and miner.
    pub(crate) by_class: WorkByClass,
    /// Receipts that do not count at all, in the order of the snapshot.
    pub(crate) dropped: Vec<LostReceipt>,
    /// The parts that were cut off receipts that count.
    pub(crate) cut: Vec<LostReceipt>,
    /// The blocks that are spent for later cycles.
    pub(crate) spent: Vec<SpentBlocks>,
}

impl CountedWork {
    /// The attempts that count, with their begin and end.
    pub(crate) fn attempts(&self) -> CountedAttempts {
        let interval = |receipt: &CountedReceipt| {
            let micros = i64::try_from(receipt.micros).unwrap_or(i64::MAX);
            let ended = receipt.began.saturating_add(micros);
            let interval = (
                Timestamp::from_micros(receipt.began),
                Timestamp::from_micros(ended),
            );
            (receipt.attempt, interval)
        };
        self.counted.iter().map(interval).collect()
    }

    fn sum(snapshot: &ScoringSnapshot, counted: &[CountedReceipt]) -> WorkByClass {
        let mut sums = KeyMap::<(PartyNumber, ExecutorClass), (usize, u64)>::default();
        for receipt in counted {
            let sum = sums
                .entry((receipt.miner, receipt.class))
                .or_insert((receipt.place, 0));
            sum.1 = sum.1.saturating_add(receipt.micros);
        }
        let mut by_class = WorkByClass::new();
        for ((_, class), (place, micros)) in sums {
            if let Some(paid) = snapshot.receipts.get(place) {
                let of_class = by_class.entry(class).or_default();
                of_class.insert(paid.receipt.miner_hotkey, micros);
            }
        }
        by_class
    }
}

/// A receipt that needs no other one to count.
struct ValidReceipt<'a> {
    place: usize,
    paid: &'a PaidReceipt,
    validator: PartyNumber,
    miner: PartyNumber,
    class: ExecutorClass,
    /// Its amount in executor-microseconds.
    micros: u64,
}

/// Counts the receipts of a snapshot.
pub(crate) fn count_work(
    snapshot: &ScoringSnapshot,
    neurons: &BTreeMap<MinerKey, &Neuron>,
    agreed: &Agreement,
) -> CountedWork {
    let mut work = CountedWork::default();
    let parties = Parties::new(snapshot, neurons);
    let twins = Twins::new(&snapshot.receipts, &parties);
    let mut valid = Vec::with_capacity(snapshot.receipts.len());
    for (place, paid) in snapshot.receipts.iter().enumerate() {
        let checked = check(snapshot, &parties, place, paid).and_then(|receipt| {
            twins.check(place)?;
            Ok(receipt)
        });
        match checked {
            Ok(receipt) => valid.push(receipt),
            Err(reason) => work.dropped.push(lost(paid, reason)),
        }
    }
    let mut fitting = cut_to_amounts(snapshot, &valid, &mut work);
    drop_unburned(snapshot, &mut fitting, &mut work);
    drop_beyond_proven(snapshot, &parties, agreed, &mut fitting, &mut work);
    work.by_class = CountedWork::sum(snapshot, &fitting);
    work.counted = fitting;
    work
}

/// The amount of every receipt that counts at all, by its allowance and the time that it took.
fn cut_to_amounts(
    snapshot: &ScoringSnapshot,
    valid: &[ValidReceipt<'_>],
    work: &mut CountedWork,
) -> Vec<CountedReceipt> {
    let allowed = snapshot.allowance.as_ref().map(|inputs| {
        let claims: Vec<_> = valid.iter().map(claim).collect();
        work.spent = spent_after(inputs, &claims, snapshot.span.last_block);
        allowances(inputs, snapshot.span.last_block, &claims)
    });
    let mut fitting = Vec::with_capacity(valid.len());
    for (number, receipt) in valid.iter().enumerate() {
        let allowance = allowed.as_ref().and_then(|allowed| allowed.get(number).copied());
        let (amount, cut) = match amount_of(receipt, allowance) {
            Ok(amount) => amount,
            Err(reason) => {
                work.dropped.push(lost(receipt.paid, reason));
                continue;
            }
        };
        if let Some(reason) = cut {
            work.cut.push(LostReceipt {
                micros: receipt.micros.saturating_sub(amount),
                ..lost(receipt.paid, reason)
            });
        }
        fitting.push(CountedReceipt {
            place: receipt.place,
            validator: receipt.validator,
            miner: receipt.miner,
            attempt: receipt.paid.receipt.job_uuid,
            class: receipt.class,
            began: receipt.paid.receipt.time_started.micros(),
            micros: amount,
        });
    }
    fitting
}

fn lost(paid: &PaidReceipt, reason: DropReason) -> LostReceipt {
    LostReceipt {
        attempt: paid.receipt.job_uuid,
        miner: paid.receipt.miner_hotkey,
        reason,
        micros: paid.receipt.score_micros().unwrap_or(0),
    }
}

/// Everything about a receipt that needs no other receipt.
fn check<'a>(
    snapshot: &ScoringSnapshot,
    parties: &Parties<'_>,
    place: usize,
    paid: &'a PaidReceipt,
) -> Result<ValidReceipt<'a>, DropReason> {
    let receipt = &paid.receipt;
    let registered = parties.get(receipt.miner_hotkey.0);
    let miner = registered
        .filter(|miner| miner.neuron.is_some())
        .ok_or(DropReason::NotRegistered)?;
    let paying = parties.get(receipt.validator_hotkey.0);
    let validator = paying
        .filter(|validator| validator.may_pay)
        .ok_or(DropReason::Stranger)?;
    let micros = receipt.score_micros().ok_or(DropReason::NoAmount)?;
    if micros == 0 {
        return Err(DropReason::Unpaid);
    }
    if micros > MAX_MICROS {
        return Err(DropReason::TooMuch);
    }
    let class = paid.class.ok_or(DropReason::NoStart)?;
    if validator.owner.is_some() && validator.owner == miner.owner {
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
    Ok(ValidReceipt {
        place,
        paid,
        validator: validator.number,
        miner: miner.number,
        class,
        micros,
    })
}

/// Receipts of one validator about one attempt. The same receipt twice counts once; two that differ count for nothing.
struct Twins {
    /// The group of each receipt; none for a receipt of a stranger.
    groups: Vec<Option<usize>>,
    /// The place of the first receipt of each group, and whether the others are the same.
    first: Vec<(usize, bool)>,
}

impl Twins {
    fn new(receipts: &[PaidReceipt], parties: &Parties<'_>) -> Self {
        let mut known = KeyMap::<(PartyNumber, AttemptId), usize>::default();
        known.reserve(receipts.len());
        let mut first: Vec<(usize, bool)> = Vec::with_capacity(receipts.len());
        let mut group_of = |place: usize, paid: &PaidReceipt| {
            let validator = parties.get(paid.receipt.validator_hotkey.0)?;
            let group = *known
                .entry((validator.number, paid.receipt.job_uuid))
                .or_insert(first.len());
            match first.get_mut(group) {
                Some((other, same)) => {
                    let other = receipts.get(*other);
                    *same &= other.is_some_and(|other| other.receipt == paid.receipt);
                }
                None => first.push((place, true)),
            }
            Some(group)
        };
        let groups = receipts
            .iter()
            .enumerate()
            .map(|(place, paid)| group_of(place, paid))
            .collect();
        Self { groups, first }
    }

    fn check(&self, place: usize) -> Result<(), DropReason> {
        let group = self.groups.get(place).copied().flatten();
        match group.and_then(|group| self.first.get(group)) {
            Some((_, false)) => Err(DropReason::Contradicting),
            Some((first, true)) if *first != place => Err(DropReason::Repeated),
            Some(_) | None => Ok(()),
        }
    }
}

fn claim<'a>(valid: &ValidReceipt<'a>) -> Claim<'a> {
    let receipt = &valid.paid.receipt;
    let length = receipt.time_took_us.max(MINIMUM_CHARGE_US).min(valid.micros);
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let began = receipt.time_started;
    allowance::Claim {
        validator: receipt.validator_hotkey,
        miner: receipt.miner_hotkey,
        class: valid.class,
        began,
        ended: Timestamp::from_micros(began.micros().saturating_add(length)),
        blocks: &receipt.block_numbers,
    }
}

/// The amount that counts, and the reason if that is less than the receipt states.
fn amount_of(
    receipt: &ValidReceipt<'_>,
    allowance: Option<Result<u64, DropReason>>,
) -> Result<(u64, Option<DropReason>), DropReason> {
    let micros = receipt.micros;
    let took = receipt.paid.receipt.time_took_us.max(MINIMUM_CHARGE_US);
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
fn drop_unburned(snapshot: &ScoringSnapshot, fitting: &mut Vec<CountedReceipt>, work: &mut CountedWork) {
    let price = u128::from(snapshot.rules.burn_per_second);
    if price == 0 {
        return;
    }
    fitting.sort_unstable_by_key(|receipt| (receipt.began, receipt.validator, receipt.attempt));
    let mut left: BTreeMap<_, _> = snapshot
        .burned
        .iter()
        .map(|(key, rao)| (*key, u128::from(*rao)))
        .collect();
    fitting.retain(|receipt| {
        let Some(paid) = snapshot.receipts.get(receipt.place) else {
            return false;
        };
        let cost = u128::from(receipt.micros)
            .saturating_mul(price)
            .div_ceil(1_000_000);
        match left.get_mut(&paid.receipt.validator_hotkey) {
            Some(rao) if *rao >= cost => {
                *rao = rao.saturating_sub(cost);
                true
            }
            Some(_) | None => {
                work.dropped.push(receipt.lost(paid, DropReason::NotBurned));
                false
            }
        }
    });
}

impl CountedReceipt {
    fn lost(&self, paid: &PaidReceipt, reason: DropReason) -> LostReceipt {
        LostReceipt {
            attempt: self.attempt,
            miner: paid.receipt.miner_hotkey,
            reason,
            micros: self.micros,
        }
    }
}

/// The executors on which attempts have to fit: those of a miner, or the one of a coldkey on probation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ExecutorPool {
    Proven(PartyNumber),
    Probation(u32),
}

impl ExecutorPool {
    /// The executors for a miner's attempts in one class, and their number. A coldkey whose miner has proven nothing
    /// yet may run one attempt at a time in that class.
    fn of(agreed: &Agreement, miner: MinerKey, class: ExecutorClass, party: &Party<'_>) -> (Self, u32) {
        match (agreed.of(miner, class).executors, party.owner) {
            (0, Some(owner)) => (Self::Probation(owner), 1),
            (proven, _) => (Self::Proven(party.number), proven),
        }
    }
}

/// Drops the attempts beyond the proven executors.
fn drop_beyond_proven(
    snapshot: &ScoringSnapshot,
    parties: &Parties<'_>,
    agreed: &Agreement,
    fitting: &mut Vec<CountedReceipt>,
    work: &mut CountedWork,
) {
    let mut pools = KeyMap::<(PartyNumber, ExecutorClass), Option<(ExecutorPool, u32)>>::default();
    let mut groups = KeyMap::<(ExecutorPool, ExecutorClass), (u32, Vec<Interval>)>::default();
    for receipt in fitting.iter().filter(|receipt| agreed.is_graded(receipt.class)) {
        let pool = pools.entry((receipt.miner, receipt.class)).or_insert_with(|| {
            let miner = snapshot.receipts.get(receipt.place)?.receipt.miner_hotkey;
            let party = parties.get(miner.0)?;
            Some(ExecutorPool::of(agreed, miner, receipt.class, party))
        });
        let Some((pool, executors)) = *pool else {
            continue;
        };
        let group = groups
            .entry((pool, receipt.class))
            .or_insert((executors, Vec::new()));
        group.1.push(Interval {
            began: receipt.began,
            validator: receipt.validator,
            attempt: receipt.attempt,
            micros: receipt.micros,
            receipt: receipt.place,
        });
    }
    let mut is_beyond = vec![false; snapshot.receipts.len()];
    for (executors, intervals) in groups.into_values() {
        for place in beyond(intervals, executors) {
            if let Some(is_beyond) = is_beyond.get_mut(place) {
                *is_beyond = true;
            }
        }
    }
    fitting.retain(|receipt| {
        let fits = !is_beyond.get(receipt.place).copied().unwrap_or(false);
        if let (false, Some(paid)) = (fits, snapshot.receipts.get(receipt.place)) {
            work.dropped.push(receipt.lost(paid, DropReason::BeyondProven));
        }
        fits
    });
}
