//! The epochs of one strategy in one world: what every party does, and what the real code makes of it.

use std::collections::BTreeMap;

use muster_protocol::ValidatorKey;
use muster_scoring::{
    CapacityInputs, CapacityRow, CapacityStatement, EpochFacts, MAX_EXECUTORS, ObservationKind,
    ProvenExecutors, QualityFactor, VESTING_CYCLES, WHOLE_EXECUTOR,
};

use crate::attempt::Attempt;
use crate::hardware::{Luck, SimulatedMiner};
use crate::honest_validator::{KINDS, SharedInputs, View, finished_receipt};
use crate::jobs::EpochWork;
use crate::numbers::Numbers;
use crate::probes::{Judge, Probed};
use crate::settings::Settings;
use crate::strategy::Strategy;
use crate::subnet::{
    BLOCK_MS, CLASS, EPOCH_MS, STAKE, begin_ms, first_block, miner_key, miner_neuron, time, validator_key,
    validator_neuron,
};

/// The validators of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cast {
    /// The number of honest validators. Each further one has less stake and half of the traffic.
    pub(crate) validators: u16,
    /// The share of other validators' receipts that a validator does not see, in thousandths.
    pub(crate) unseen: u16,
    /// Whether validators see each other's statements of capacity.
    pub(crate) gathered: bool,
    /// The share of stake of a validator that copies weights, in thousandths.
    pub(crate) copier: u16,
}

/// The part of an epoch that decides the cost of hardware.
pub(crate) struct EpochCosts {
    pub(crate) planned: bool,
    /// The probes at which the strategy was not away.
    pub(crate) there: u64,
    pub(crate) probes: u64,
}

pub(crate) struct World<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) strategy: &'a Strategy,
    cast: Cast,
    numbers: Numbers,
    judge: Judge,
    pub(crate) views: Vec<View>,
    pub(crate) miners: Vec<SimulatedMiner>,
    epochs: Vec<EpochFacts>,
    /// The agreed executors of each miner at the begin of the epoch before.
    proven_before: Vec<u32>,
    attempts: u128,
    /// The users' time that did not fill a whole job, in milliseconds.
    unused_ms: u64,
}

impl<'a> World<'a> {
    /// A world of a seed; none if the simulated class has no thresholds.
    pub(crate) fn new(
        settings: &'a Settings,
        strategy: &'a Strategy,
        cast: Cast,
        number: u32,
    ) -> Option<Self> {
        let hotkeys = u16::from(strategy.more_hotkeys).saturating_add(1);
        let honest = (0..settings.miners).map(|_| (false, (0, settings.executors)));
        let share = |part: u16| settings.executors.saturating_mul(part) / hotkeys;
        let cheating = (0..hotkeys).map(|part| (true, (share(part), share(part.saturating_add(1)))));
        let miner = |(place, (cheats, cards))| SimulatedMiner {
            neuron: miner_neuron(place),
            cheats,
            cards,
            proven: 0,
        };
        let miners: Vec<_> = (0..).zip(honest.chain(cheating)).map(miner).collect();
        let views = usize::from(cast.validators);
        let view = |place: usize| View::new(place, traffic(place, views), miners.len());
        Some(Self {
            settings,
            strategy,
            cast,
            numbers: Numbers::new(settings.seed, number),
            judge: Judge::new()?,
            views: (0..views).map(view).collect(),
            proven_before: vec![0; miners.len()],
            miners,
            epochs: Vec::new(),
            attempts: 0,
            unused_ms: 0,
        })
    }

    /// The place of the colluding validator; that of the copier is the next one.
    fn colluder(&self) -> usize {
        self.views.len()
    }

    /// The place of the validator that copies weights.
    pub(crate) fn copier(&self) -> usize {
        self.views.len().saturating_add(1)
    }

    /// The stake of every validator, by its place.
    pub(crate) fn stakes(&self) -> Vec<u64> {
        let part = |share: u16| STAKE.saturating_mul(share.into()) / 1_000;
        let (colluder, copier) = (part(self.strategy.colluder), part(self.cast.copier));
        let honest = STAKE.saturating_sub(colluder).saturating_sub(copier);
        let count = u64::from(self.cast.validators);
        let all = count.saturating_mul(count.saturating_add(1)) / 2;
        let mut stakes: Vec<_> = (0..count)
            .map(|place| honest.saturating_mul(count.saturating_sub(place)) / all.max(1))
            .collect();
        stakes.extend([colluder, copier]);
        stakes
    }

    fn stakes_by_key(&self) -> BTreeMap<ValidatorKey, u64> {
        let stakes = self.stakes().into_iter().enumerate();
        let staked = stakes.filter(|(place, stake)| *stake > 0 || *place == self.colluder());
        staked
            .map(|(place, stake)| (validator_key(place), stake))
            .collect()
    }

    /// One epoch: jobs, probes, statements, scores.
    pub(crate) fn run_epoch(&mut self, epoch: u32) -> EpochCosts {
        let planned = self.numbers.happens(self.strategy.planned);
        self.begin_epoch(epoch);
        let strategy = self.strategy;
        for view in &mut self.views {
            view.begin_epoch(epoch, &self.miners, strategy, planned);
        }
        let stakes = self.stakes();
        let jobs = self.users_jobs();
        let mut work = EpochWork::new(epoch, strategy, &self.miners, &mut self.numbers, self.attempts);
        work.stakes = &stakes;
        work.proven_before = &self.proven_before;
        work.honest = self.views.len();
        if epoch > 0 {
            work.offer_jobs(&mut self.views, jobs, self.settings.job_ms());
            if strategy.colluder > 0 && !planned {
                work.collude(self.views.len());
            }
        }
        let (there, probes) = probe_all(&mut work, &self.judge, &mut self.views, self.settings, planned);
        self.attempts = work.last;
        let attempts = work.attempts;
        self.score(epoch, planned, &attempts);
        EpochCosts {
            planned,
            there,
            probes,
        }
    }

    /// The number of the users' jobs in an epoch: they keep the honest miners' executors busy for the stated share.
    fn users_jobs(&mut self) -> u64 {
        let miners = u64::from(self.settings.miners).saturating_add(1);
        let cards = miners.saturating_mul(self.settings.executors.into());
        let organic = self.strategy.organic.unwrap_or(self.settings.organic);
        let ms = cards.saturating_mul(EPOCH_MS).saturating_mul(organic.into()) / 1_000;
        let ms = ms.saturating_add(self.unused_ms);
        let job_ms = self.settings.job_ms();
        self.unused_ms = ms % job_ms;
        ms / job_ms
    }

    /// Records the stakes and the agreed capacity at the begin of an epoch: the credit that the last cycle scored.
    fn begin_epoch(&mut self, epoch: u32) {
        let scored = self.views.first().map(|view| view.scores.scores.as_slice());
        let credits: BTreeMap<_, _> = scored
            .unwrap_or_default()
            .iter()
            .map(|score| (score.miner, score.credit))
            .collect();
        self.proven_before.clear();
        for miner in &mut self.miners {
            self.proven_before.push(miner.proven);
            let credit = credits.get(&miner_key(&miner.neuron)).copied().unwrap_or(0);
            miner.proven = u32::try_from(credit.div_ceil(WHOLE_EXECUTOR)).unwrap_or(u32::MAX);
        }
        let proven = self.miners.iter().map(|miner| ProvenExecutors {
            miner: miner_key(&miner.neuron),
            class: CLASS,
            executors: miner.proven,
        });
        self.epochs.push(EpochFacts {
            first_block: first_block(epoch),
            first_ms: begin_ms(epoch),
            block_ms: BLOCK_MS,
            permitted: self.stakes_by_key(),
            proven: proven.collect(),
        });
        let old = self.epochs.len().saturating_sub(VESTING_CYCLES.saturating_add(2));
        self.epochs.drain(..old);
    }

    /// Every validator scores the epoch by what it sees.
    fn score(&mut self, epoch: u32, planned: bool, attempts: &[Attempt]) {
        let stated: Vec<_> = self
            .views
            .iter()
            .map(|view| view.state(epoch, &self.miners, planned))
            .collect();
        let lies = self.lie(epoch);
        let validators = (0..self.views.len().saturating_add(2)).map(validator_neuron);
        let neurons: Vec<_> = validators
            .chain(self.miners.iter().map(|miner| miner.neuron))
            .collect();
        let quality: Vec<_> = self.quality().collect();
        let stakes = self.stakes_by_key();
        let cast = self.cast;
        for (place, view) in self.views.iter_mut().enumerate() {
            let numbers = &mut self.numbers;
            let mut sees = |attempt: &&Attempt| attempt.payer == place || !numbers.happens(cast.unseen);
            let seen = attempts.iter().filter(|attempt| sees(attempt));
            let receipts = seen.filter_map(|attempt| {
                let miner = self.miners.get(attempt.miner)?;
                Some(finished_receipt(epoch, attempt, miner))
            });
            let receipts = receipts.collect();
            let statements = match (cast.gathered, stated.get(place)) {
                (false, Some(own)) => vec![own.clone()],
                (true, _) | (_, None) => stated.iter().chain(&lies).cloned().collect(),
            };
            let inputs = SharedInputs {
                neurons: &neurons,
                capacity: CapacityInputs {
                    classes: [CLASS].into(),
                    kinds: KINDS.into(),
                    stakes: stakes.clone(),
                    statements,
                },
                epochs: &self.epochs,
                quality: &quality,
            };
            view.score(epoch, inputs, receipts);
        }
    }

    /// The statement of the colluding validator, if there is one: its miners have everything, and others nothing.
    fn lie(&self, epoch: u32) -> Option<CapacityStatement> {
        let row = |miner: &SimulatedMiner, kind| {
            let executors = if miner.cheats { MAX_EXECUTORS } else { 0 };
            CapacityRow {
                miner: miner_key(&miner.neuron),
                class: CLASS,
                kind,
                executors,
                credit: u64::from(executors).saturating_mul(WHOLE_EXECUTOR),
                offers: 0,
                refused: 0,
            }
        };
        (self.strategy.colluder > 0).then(|| CapacityStatement {
            validator: validator_key(self.colluder()),
            cycle: epoch.into(),
            rows: self
                .miners
                .iter()
                .flat_map(|miner| KINDS.map(|kind| row(miner, kind)))
                .collect(),
        })
    }

    fn quality(&self) -> impl Iterator<Item = QualityFactor> {
        let per_mille = self.strategy.quality;
        let found = self
            .miners
            .iter()
            .filter(move |miner| miner.cheats && per_mille > 0);
        found.map(move |miner| QualityFactor {
            miner: miner_key(&miner.neuron),
            per_mille,
        })
    }
}

/// Each validator halves what the one before it gets of the users' jobs; the last two get the same, in thousandths.
fn traffic(place: usize, validators: usize) -> u64 {
    let halvings = place.saturating_add(1).min(validators.saturating_sub(1));
    let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
    let part = 1_000_u64.checked_shr(halvings).unwrap_or(0);
    if place.saturating_add(1) == validators {
        // The rest, so that every job has a validator.
        let before: u64 = (0..place).map(|place| traffic(place, validators)).sum();
        return 1_000_u64.saturating_sub(before);
    }
    part
}

/// Every validator probes all miners once by each kind. Returns at how many of the first one's probes the strategy was
/// there, and their number.
fn probe_all(
    work: &mut EpochWork<'_>,
    judge: &Judge,
    views: &mut [View],
    settings: &Settings,
    planned: bool,
) -> (u64, u64) {
    let (mut there, mut probes) = (0_u64, 0_u64);
    for (place, view) in views.iter_mut().enumerate() {
        for kind in KINDS {
            // Everybody knows when a batch is; nobody knows when the other probe is.
            let at = match kind {
                ObservationKind::Announced => 600_000,
                ObservationKind::Unannounced => work.numbers.below(EPOCH_MS),
            };
            let twin = Luck::draw(work.numbers, settings.executors, work.strategy.absent);
            if place == 0 {
                there = there.saturating_add(u64::from(!twin.away));
                probes = probes.saturating_add(1);
            }
            let mut probed = Vec::with_capacity(work.miners.len());
            for (number, miner) in work.miners.iter().enumerate() {
                // The strategy has the luck of its twin, which is the first miner. All others have their own.
                let own;
                let luck = if miner.cheats || number == 0 {
                    &twin
                } else {
                    own = Luck::draw(work.numbers, settings.executors, 0);
                    &own
                };
                let (at_work, pretended) = work.running_at(number, at);
                probed.push(Probed {
                    miner: miner_key(&miner.neuron),
                    announced: miner.announced(work.strategy, planned && miner.cheats),
                    presence: miner.presence(work.strategy, kind, work.epoch, luck),
                    at_work,
                    pretended,
                });
            }
            let key = validator_key(view.place);
            judge.probe(kind, time(work.epoch, at), key, &probed, &mut view.records);
        }
    }
    (there, probes)
}
