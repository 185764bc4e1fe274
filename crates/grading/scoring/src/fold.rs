//! The fold from a snapshot to scores.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::job::MAX_JOB_SECS;
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Uid};

use crate::{
    DropReason, FaultySession, MAX_CLASS_WEIGHT, MAX_LISTED, Neuron, POINTS, PaidReceipt, Score, Scores,
    ScoringSnapshot, StreamedSession,
};

/// The most that one job can be paid, in executor-microseconds: no validator's word makes a receipt worth a year.
const MAX_MICROS: u64 = MAX_JOB_SECS * 1_000_000;

/// The running total of one miner.
#[derive(Clone, Copy, Default)]
struct MinerTotal {
    micros: u128,
    rao: u128,
    points: u64,
}

/// Folds the receipts and sessions of one cycle. [`Scores::zeros`] is left empty: it also depends on the weights, see
/// [`crate::explain_zeros`].
pub fn score(snapshot: &ScoringSnapshot) -> Scores {
    let places: BTreeMap<MinerKey, &Neuron> = snapshot
        .neurons
        .iter()
        .map(|neuron| (MinerKey(neuron.hotkey), neuron))
        .collect();
    let mut scores = Scores::default();
    let mut totals = BTreeMap::<MinerKey, MinerTotal>::new();
    let weight = |class: &ExecutorClass| snapshot.class_weights.get(class).copied().unwrap_or(0);
    let capacity = count_executors(snapshot, &places);
    for (class, by_miner) in &capacity {
        for (miner, _, points) in share_out(by_miner, &places, weight(class)) {
            let total = totals.entry(miner).or_default();
            let part = percent(points, snapshot.capacity_percent);
            total.points = total.points.saturating_add(part);
        }
    }
    for (class, by_miner) in &sum_receipts(snapshot, &places, &mut scores) {
        // Where no executor has proven anything, paid work gets the whole weight.
        let for_work = match capacity.contains_key(class) {
            true => 100_u8.saturating_sub(snapshot.capacity_percent),
            false => 100,
        };
        for (miner, share, points) in share_out(by_miner, &places, weight(class)) {
            let total = totals.entry(miner).or_default();
            total.micros = total.micros.saturating_add(share);
            total.points = total.points.saturating_add(percent(points, for_work));
        }
    }
    let answered = sum_sessions(snapshot, &places, &mut scores);
    for (miner, share, points) in share_out(&answered, &places, snapshot.streaming_weight) {
        let total = totals.entry(miner).or_default();
        total.rao = total.rao.saturating_add(share);
        total.points = total.points.saturating_add(points);
    }
    scores.scores = totals
        .into_iter()
        .filter_map(|(miner, total)| {
            Some(Score {
                uid: places.get(&miner)?.uid,
                miner,
                micros: u64::try_from(total.micros).unwrap_or(u64::MAX),
                rao: u64::try_from(total.rao).unwrap_or(u64::MAX),
                points: total.points,
            })
        })
        .collect();
    scores.scores.sort_by_key(|score| score.uid);
    scores
}

/// Executor-microseconds by class and miner, from the receipts that count.
fn sum_receipts(
    snapshot: &ScoringSnapshot,
    places: &BTreeMap<MinerKey, &Neuron>,
    scores: &mut Scores,
) -> BTreeMap<ExecutorClass, BTreeMap<MinerKey, u128>> {
    let mut earned = BTreeMap::<ExecutorClass, BTreeMap<MinerKey, u128>>::new();
    let mut seen = BTreeSet::new();
    for paid in &snapshot.receipts {
        let receipt = &paid.receipt;
        let first = || seen.insert((receipt.validator_hotkey, receipt.job_uuid));
        match receipt_amount(snapshot, places, paid, first) {
            Ok((class, micros)) => {
                let sum = earned
                    .entry(class)
                    .or_default()
                    .entry(receipt.miner_hotkey)
                    .or_default();
                *sum = sum.saturating_add(u128::from(micros));
            }
            Err(reason) => scores.drop_one(receipt.job_uuid, reason),
        }
    }
    earned
}

/// Rao by miner, from the sessions that count. Also lists the faulty sessions.
fn sum_sessions(
    snapshot: &ScoringSnapshot,
    places: &BTreeMap<MinerKey, &Neuron>,
    scores: &mut Scores,
) -> BTreeMap<MinerKey, u128> {
    let mut earned = BTreeMap::<MinerKey, u128>::new();
    let mut seen = BTreeSet::new();
    for session in &snapshot.streamed {
        if (session.unproven > 0 || session.fault.is_some()) && scores.faults.len() < MAX_LISTED {
            scores.faults.push(FaultySession {
                attempt: session.attempt,
                miner: session.miner,
                unproven: session.unproven,
                fault: session.fault.clone(),
            });
        }
        match session_rao(places, session, || seen.insert(session.attempt)) {
            Ok(rao) => {
                let sum = earned.entry(session.miner).or_default();
                *sum = sum.saturating_add(u128::from(rao));
            }
            Err(reason) => scores.drop_one(session.attempt, reason),
        }
    }
    earned
}

/// The pay of a session's answers, in rao.
pub(crate) fn session_rao(
    places: &BTreeMap<MinerKey, &Neuron>,
    session: &StreamedSession,
    first: impl FnOnce() -> bool,
) -> Result<u64, DropReason> {
    if !places.contains_key(&session.miner) {
        return Err(DropReason::NotRegistered);
    }
    if session.proven == 0 {
        return Err(DropReason::Unproven);
    }
    if session.earned == 0 {
        return Err(DropReason::Free);
    }
    if !first() {
        return Err(DropReason::Repeated);
    }
    Ok(session.earned)
}

/// The shares of one kind of work, and the worth of each in points.
fn share_out(
    by_miner: &BTreeMap<MinerKey, u128>,
    places: &BTreeMap<MinerKey, &Neuron>,
    weight: u32,
) -> Vec<(MinerKey, u128, u64)> {
    let all = by_miner
        .values()
        .fold(0_u128, |sum, amount| sum.saturating_add(*amount));
    let worth = |(miner, share)| (miner, share, points(share, all, weight));
    split_by_coldkey(by_miner, places)
        .into_iter()
        .map(worth)
        .collect()
}

impl Scores {
    fn drop_one(&mut self, attempt: AttemptId, reason: DropReason) {
        if self.dropped.len() < MAX_LISTED {
            self.dropped.push((attempt, reason));
        } else {
            self.more_dropped = self.more_dropped.saturating_add(1);
        }
    }
}

/// Proven executors of each class, of miners that are in the subnet.
fn count_executors(
    snapshot: &ScoringSnapshot,
    places: &BTreeMap<MinerKey, &Neuron>,
) -> BTreeMap<ExecutorClass, BTreeMap<MinerKey, u128>> {
    let mut capacity = BTreeMap::<ExecutorClass, BTreeMap<MinerKey, u128>>::new();
    for proven in &snapshot.proven {
        if proven.executors > 0 && places.contains_key(&proven.miner) {
            let of_class = capacity.entry(proven.class).or_default();
            let count = of_class.entry(proven.miner).or_default();
            *count = count.saturating_add(u128::from(proven.executors));
        }
    }
    capacity
}

/// A percentage of some points, rounded down.
fn percent(points: u64, hundredths: u8) -> u64 {
    let part = u128::from(points).saturating_mul(u128::from(hundredths.min(100))) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The pay of a receipt in executor-microseconds, and its class.
pub(crate) fn receipt_amount(
    snapshot: &ScoringSnapshot,
    places: &BTreeMap<MinerKey, &Neuron>,
    paid: &PaidReceipt,
    first: impl FnOnce() -> bool,
) -> Result<(ExecutorClass, u64), DropReason> {
    let receipt = &paid.receipt;
    if !places.contains_key(&receipt.miner_hotkey) {
        return Err(DropReason::NotRegistered);
    }
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
    if !first() {
        return Err(DropReason::Repeated);
    }
    Ok((class, micros))
}

/// Splits the work of each coldkey evenly over its hotkeys that have any; the remainder goes to the lowest uids.
fn split_by_coldkey(
    by_miner: &BTreeMap<MinerKey, u128>,
    places: &BTreeMap<MinerKey, &Neuron>,
) -> Vec<(MinerKey, u128)> {
    let mut groups = BTreeMap::<Hotkey, (u128, Vec<(Uid, MinerKey)>)>::new();
    for (miner, micros) in by_miner {
        let Some(neuron) = places.get(miner) else { continue };
        let group = groups.entry(neuron.coldkey).or_default();
        group.0 = group.0.saturating_add(*micros);
        group.1.push((neuron.uid, *miner));
    }
    let mut shares = Vec::with_capacity(by_miner.len());
    for (sum, mut members) in groups.into_values() {
        members.sort_unstable();
        let count = u128::try_from(members.len()).unwrap_or(1).max(1);
        let (each, mut rest) = (sum / count, sum % count);
        for (_, miner) in members {
            let more = rest.min(1);
            rest -= more;
            shares.push((miner, each.saturating_add(more)));
        }
    }
    shares
}

/// `weight · share / all`, in points, rounded down.
fn points(share: u128, all: u128, weight: u32) -> u64 {
    let part = share
        .saturating_mul(u128::from(POINTS))
        .checked_div(all)
        .unwrap_or(0);
    let weight = u128::from(weight.min(MAX_CLASS_WEIGHT));
    u64::try_from(part.saturating_mul(weight)).unwrap_or(u64::MAX)
}
