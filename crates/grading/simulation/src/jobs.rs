//! The jobs of an epoch: users' ones are offered to miners in the order of the real routing, and a colluding validator
//! pays its miner for the time that they leave.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::ops::Range;

use muster_protocol::{AttemptId, JobId};
use muster_routing::{AttemptMark, CacheKey, CollateralVerdict, JobRequirements, RoutableNeuron, route};
use muster_scoring::MULTIPLIER;
use uuid::Uuid;

use crate::attempt::Attempt;
use crate::hardware::SimulatedMiner;
use crate::honest_validator::View;
use crate::numbers::Numbers;
use crate::strategy::Strategy;
use crate::subnet::{BLOCK_MS, BLOCKS, CLASS, EPOCH_MS, STAKE, first_block, miner_key, time};

/// The attempts of one epoch, while they are made.
pub(crate) struct EpochWork<'a> {
    pub(crate) epoch: u32,
    pub(crate) strategy: &'a Strategy,
    pub(crate) miners: &'a [SimulatedMiner],
    pub(crate) numbers: &'a mut Numbers,
    /// The stake of each payer, by its place.
    pub(crate) stakes: &'a [u64],
    /// The agreed executors of each miner at the begin of the epoch before.
    pub(crate) proven_before: &'a [u32],
    /// The number of honest validators. Their places come first.
    pub(crate) honest: usize,
    pub(crate) attempts: Vec<Attempt>,
    /// The number of the last attempt of all epochs.
    pub(crate) last: u128,
    /// When each executor of each miner is free again.
    free_from: Vec<Vec<u64>>,
    /// The next block that each payer and miner may name.
    next_block: BTreeMap<(usize, usize), u64>,
}

/// An attempt that runs: its end, the view of its validator, its miner.
type Running = Reverse<(u64, usize, usize)>;

impl<'a> EpochWork<'a> {
    pub(crate) fn new(
        epoch: u32,
        strategy: &'a Strategy,
        miners: &'a [SimulatedMiner],
        numbers: &'a mut Numbers,
        last: u128,
    ) -> Self {
        let free = |miner: &SimulatedMiner| {
            let slots = usize::try_from(miner.slots(strategy)).unwrap_or(usize::MAX);
            vec![0; slots]
        };
        Self {
            epoch,
            strategy,
            miners,
            numbers,
            stakes: &[],
            proven_before: &[],
            honest: 0,
            attempts: Vec::new(),
            last,
            free_from: miners.iter().map(free).collect(),
            next_block: BTreeMap::new(),
        }
    }

    /// Offers the users' jobs of an epoch, `jobs` of `job_ms` milliseconds each.
    pub(crate) fn offer_jobs(&mut self, views: &mut [View], jobs: u64, job_ms: u64) {
        let latest = EPOCH_MS.saturating_sub(job_ms);
        let mut arrivals: Vec<_> = (0..jobs)
            .map(|_| (self.numbers.below(latest), self.numbers.below(1_000)))
            .collect();
        arrivals.sort_unstable();
        let neurons: Vec<_> = self.miners.iter().map(routable).collect();
        let mut running = BinaryHeap::<Running>::new();
        for (at, lot) in arrivals {
            while let Some(Reverse((end, of, miner))) = running.peek().copied().filter(|top| top.0.0 <= at) {
                running.pop();
                self.end_job(views, end, of, miner);
            }
            let mut below = 0;
            let drawn = views.iter().position(|view| {
                below = view.traffic.saturating_add(below);
                lot < below
            });
            let Some((of, view)) = drawn.and_then(|of| Some((of, views.get_mut(of)?))) else {
                continue;
            };
            if let Some((end, miner)) = self.offer_job(view, &neurons, at, job_ms) {
                running.push(Reverse((end, of, miner)));
            }
        }
        // Jobs end with their epoch.
        while let Some(Reverse((end, of, miner))) = running.pop() {
            self.end_job(views, end, of, miner);
        }
    }

    fn end_job(&self, views: &mut [View], end: u64, of: usize, miner: usize) {
        if let (Some(view), Some(miner)) = (views.get_mut(of), self.miners.get(miner)) {
            let (key, now) = (miner_key(&miner.neuron), time(self.epoch, end));
            view.ledger.close_attempt(key, CLASS);
            view.ledger.record_mark(key, AttemptMark::Done, now);
            view.refresh(key, now);
        }
    }

    /// Offers one job to the miners in the order of the route, until one takes it. Returns its end and the miner.
    fn offer_job(
        &mut self,
        view: &mut View,
        neurons: &[RoutableNeuron],
        at: u64,
        job_ms: u64,
    ) -> Option<(u64, usize)> {
        let job = Uuid::from_u64_pair(self.numbers.below(u64::MAX), self.numbers.below(u64::MAX));
        let requirements = JobRequirements {
            job: JobId::from_uuid(job),
            class: CLASS,
            image: CacheKey::image("job"),
            inputs: BTreeSet::new(),
            tried: BTreeSet::new(),
            avoided_owners: BTreeSet::new(),
            private_image: false,
            reserved_us: job_ms.saturating_mul(1_000),
            lasts_s: job_ms / 1_000,
        };
        let order = route(&requirements, neurons, &view.stats, &view.policy);
        let now = time(self.epoch, at);
        for candidate in order.candidates {
            let at_work = view
                .stats
                .get(&candidate.miner)
                .map_or(0, |stats| stats.open.get(&CLASS).copied().unwrap_or(0));
            let place = usize::from(candidate.uid);
            let Some(miner) = self.miners.get(place) else {
                continue;
            };
            let refuses = miner.cheats && self.numbers.happens(self.strategy.refuses);
            let slots = self.free_from.get(place).map(Vec::as_slice).unwrap_or_default();
            let slot = slots.iter().position(|free| *free <= at).filter(|_| !refuses);
            if at_work < miner.proven {
                view.note_offer(place, slot.is_none());
            }
            view.ledger.record_offer(candidate.miner, now);
            let Some(slot) = slot else {
                view.ledger
                    .record_mark(candidate.miner, AttemptMark::Unexcused, now);
                view.ledger.record_full(candidate.miner, CLASS, now);
                view.refresh(candidate.miner, now);
                continue;
            };
            let longer = if miner.cheats { self.strategy.stalls } else { 0 };
            let ms = job_ms.saturating_mul(u64::from(longer).saturating_add(1_000)) / 1_000;
            let end = at.saturating_add(ms).min(EPOCH_MS);
            view.ledger
                .record_accepted(candidate.miner, CLASS, job_ms / 1_000);
            view.ledger.open_attempt(candidate.miner, CLASS);
            view.refresh(candidate.miner, now);
            self.add(view.place, place, slot, at..end);
            return Some((end, place));
        }
        None
    }

    /// Adds an attempt, as far as blocks are left that allow it.
    fn add(&mut self, payer: usize, miner: usize, slot: usize, span: Range<u64>) {
        let needed = span.end.saturating_sub(span.start);
        let blocks = self.name_blocks(payer, miner, needed);
        if let Some(free) = self.free_from.get_mut(miner).and_then(|of| of.get_mut(slot)) {
            *free = span.end.max(*free);
        }
        self.last = self.last.saturating_add(1);
        self.attempts.push(Attempt {
            id: AttemptId::from_uuid(Uuid::from_u128(self.last)),
            payer,
            miner,
            slot,
            from: span.start,
            ms: needed,
            blocks,
        });
    }

    /// The milliseconds that one block of the epoch before is worth to a payer at a miner.
    fn block_worth(&self, payer: usize, miner: usize) -> u64 {
        let stake = self.stakes.get(payer).copied().unwrap_or(0);
        let proven = self.proven_before.get(miner).copied().unwrap_or(0).max(1);
        stake
            .saturating_mul(MULTIPLIER)
            .saturating_mul(proven.into())
            .saturating_mul(BLOCK_MS)
            / STAKE
    }

    /// Names the next blocks of the epoch before that are worth `ms`, or those that are left.
    fn name_blocks(&mut self, payer: usize, miner: usize, ms: u64) -> Range<u64> {
        let end = first_block(self.epoch);
        let first = end.saturating_sub(BLOCKS);
        let needed = match self.block_worth(payer, miner) {
            0 => 0,
            worth => ms.div_ceil(worth),
        };
        let next = self.next_block.entry((payer, miner)).or_insert(first);
        let begin = *next;
        *next = begin.saturating_add(needed).min(end);
        begin..*next
    }

    /// A colluding validator pays its miners for every executor's idle time, as far as its blocks go: first for those
    /// that do not exist.
    pub(crate) fn collude(&mut self, payer: usize) {
        for miner in 0..self.miners.len() {
            let Some(of) = self.miners.get(miner).filter(|of| of.cheats) else {
                continue;
            };
            let slots = self.free_from.get(miner).map_or(0, Vec::len);
            let pretended = usize::try_from(of.all().max(of.proven.into()))
                .unwrap_or(0)
                .max(slots);
            for slot in (slots..pretended).chain(0..slots) {
                for gap in self.gaps(miner, slot) {
                    let worth = self.block_worth(payer, miner);
                    let end = first_block(self.epoch);
                    let next = self.next_block.get(&(payer, miner)).copied();
                    let left = end.saturating_sub(next.unwrap_or_else(|| end.saturating_sub(BLOCKS)));
                    let most = left.saturating_mul(worth);
                    let until = gap.end.min(gap.start.saturating_add(most));
                    if until > gap.start {
                        self.add(payer, miner, slot, gap.start..until);
                    }
                }
            }
        }
    }

    /// The times at which an executor has no attempt.
    fn gaps(&self, miner: usize, slot: usize) -> Vec<Range<u64>> {
        let mut busy: Vec<_> = self
            .attempts
            .iter()
            .filter(|attempt| attempt.miner == miner && attempt.slot == slot)
            .map(|attempt| (attempt.from, attempt.from.saturating_add(attempt.ms)))
            .collect();
        busy.sort_unstable();
        let (mut gaps, mut from) = (Vec::new(), 0);
        for (begin, end) in busy {
            if begin > from {
                gaps.push(from..begin);
            }
            from = from.max(end);
        }
        if from < EPOCH_MS {
            gaps.push(from..EPOCH_MS);
        }
        gaps
    }

    /// The attempts at a miner that run at an instant: on executors that exist, and on others.
    pub(crate) fn running_at(&self, miner: usize, at: u64) -> (Vec<AttemptId>, Vec<AttemptId>) {
        let slots = self.free_from.get(miner).map_or(0, Vec::len);
        let (mut real, mut pretended) = (Vec::new(), Vec::new());
        for attempt in self.attempts.iter().filter(|attempt| attempt.miner == miner) {
            if attempt.from > at || at >= attempt.from.saturating_add(attempt.ms) {
                continue;
            }
            if attempt.slot >= slots {
                pretended.push(attempt.id);
            } else if attempt.payer < self.honest {
                real.push(attempt.id);
            }
        }
        (real, pretended)
    }
}

fn routable(miner: &SimulatedMiner) -> RoutableNeuron {
    RoutableNeuron {
        uid: miner.neuron.uid.0,
        miner: miner_key(&miner.neuron),
        owner: miner.neuron.coldkey,
        axon: Some(SocketAddr::from(([10, 0, 0, 1], 8_000))),
        allowance_us: None,
        collateral: CollateralVerdict::NotRequired,
    }
}
