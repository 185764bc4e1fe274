//! How many audited answers a cheat survives, and how often honest miners are accused: simulated by the real test.
//!
//! The first, third and every further odd answer of each engine makes the tables; the others are drawn with
//! replacement. A simulation redraws answers that were measured once; it cannot show rates below those of its answers.
//! The bound on false alarms is the theorem of [`crate::EProcess`] with the premise that
//! [`Calibration::exceeded_premises`] tests.

use serde::Serialize;

use crate::calibration::{Alternative, Calibration, MachineRun};
use crate::e_process::{ALARM, EProcess, Restart};
use crate::likelihood::LikelihoodTable;
use crate::margin_cells::{CellCounts, ENTROPY_BINS};
use crate::seeded_numbers::SeededNumbers;

/// The settings of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurveSettings {
    /// The shares of cheated answers to try, in thousandths.
    pub shares: &'static [u16],
    /// The miners of each point.
    pub trials: u32,
    /// The answers after which a miner counts as not convicted.
    pub most_answers: u32,
    /// The seed of all chance.
    pub seed: u64,
}

impl Default for CurveSettings {
    fn default() -> Self {
        Self {
            shares: &[1_000, 500, 300, 100, 50, 30],
            trials: 200,
            most_answers: 5_000,
            seed: 1,
        }
    }
}

/// The audited answers until the first alarm against one cheat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CurvePoint {
    /// The cheat's engine.
    pub alternative: String,
    /// The share of answers that it gives, in thousandths.
    pub share: u16,
    /// The number of simulated miners.
    pub trials: u32,
    /// The number of them that were accused at all.
    pub accused: u32,
    /// The median of answers; `None` if fewer than half were accused.
    pub median: Option<u32>,
    /// The number of answers within which 95 of 100 were accused.
    pub most: Option<u32>,
    /// The tokens of the median's answers.
    pub median_tokens: Option<u32>,
}

/// The alarms against one honest machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HonestDays {
    /// The name of the machine whose answers were drawn.
    pub machine: String,
    /// The days of all miners together.
    pub miner_days: u32,
    /// The audited answers of a day.
    pub answers_a_day: u32,
    /// The number of miners that were accused, each for ten days.
    pub accused: u32,
}

/// Tables of one half of a calibration's answers, and the other half.
pub(crate) struct HalvedCalibration {
    pub(crate) tables: Vec<LikelihoodTable>,
    pub(crate) machines: Vec<MachineRun>,
    pub(crate) alternatives: Vec<Alternative>,
}

impl HalvedCalibration {
    pub(crate) fn new(calibration: &Calibration) -> Self {
        let half = |answers: &[CellCounts], from: usize| -> Vec<CellCounts> {
            answers.iter().skip(from).step_by(2).copied().collect()
        };
        let halved = |from| Calibration {
            machines: calibration
                .machines
                .iter()
                .map(|run| MachineRun {
                    answers: half(&run.answers, from),
                    ..run.clone()
                })
                .collect(),
            alternatives: calibration
                .alternatives
                .iter()
                .map(|alternative| Alternative {
                    answers: half(&alternative.answers, from),
                    ..alternative.clone()
                })
                .collect(),
            ..calibration.clone()
        };
        let (known, other) = (halved(0), halved(1));
        Self {
            tables: known.tables(&known.bound(), known.tested_alternatives()),
            machines: other.machines,
            alternatives: other.alternatives,
        }
    }

    /// The likelihoods of answers under every table.
    pub(crate) fn likelihoods(&self, answers: &[CellCounts]) -> Vec<Vec<u128>> {
        let of_answer = |answer| self.tables.iter().map(|table| table.of_answer(answer)).collect();
        answers.iter().map(of_answer).collect()
    }

    /// The likelihoods of the answers of all honest machines.
    pub(crate) fn honest_likelihoods(&self) -> Vec<Vec<u128>> {
        let answers = self.machines.iter().flat_map(|run| run.answers.iter().copied());
        self.likelihoods(&answers.collect::<Vec<_>>())
    }
}

/// The answers to conviction of every alternative at every share.
pub fn draw_curve(calibration: &Calibration, settings: &CurveSettings) -> Vec<CurvePoint> {
    let halved = HalvedCalibration::new(calibration);
    let honest = halved.honest_likelihoods();
    let mut points = Vec::new();
    for alternative in &halved.alternatives {
        let cheated = halved.likelihoods(&alternative.answers);
        let tokens = mean_tokens(&alternative.answers);
        for share in settings.shares {
            let label = format!("{}\n{}\n{share}", settings.seed, alternative.name);
            let mut numbers = SeededNumbers::new("muster/audit-curve/1", label.as_bytes());
            let mut ends: Vec<u32> = (0..settings.trials)
                .filter_map(|_| {
                    let next = |numbers: &mut SeededNumbers| {
                        let cheats = numbers.below(1_000) < usize::from(*share);
                        let from = if cheats { &cheated } else { &honest };
                        from.get(numbers.below(from.len())).cloned().unwrap_or_default()
                    };
                    answers_to_alarm(halved.tables.len(), settings.most_answers, &mut numbers, next)
                })
                .collect();
            ends.sort_unstable();
            let median = rank(&ends, settings.trials, 50);
            points.push(CurvePoint {
                alternative: alternative.name.clone(),
                share: *share,
                trials: settings.trials,
                accused: u32::try_from(ends.len()).unwrap_or(u32::MAX),
                median,
                most: rank(&ends, settings.trials, 95),
                median_tokens: median.map(|answers| answers.saturating_mul(tokens)),
            });
        }
    }
    points
}

/// Honest miners of every machine, each audited for ten days, and one at the bound itself.
pub fn accuse_honest(
    calibration: &Calibration,
    miner_days: u32,
    answers_a_day: u32,
    seed: u64,
) -> Vec<HonestDays> {
    let halved = HalvedCalibration::new(calibration);
    let mut runs = halved.machines.clone();
    runs.push(MachineRun {
        machine: "the bound itself".to_owned(),
        class: None,
        gpu: String::new(),
        answers: worst_answers(calibration, seed),
    });
    let days_of = |run: &MachineRun| {
        let likelihoods = halved.likelihoods(&run.answers);
        let label = format!("{seed}\n{}", run.machine);
        let mut numbers = SeededNumbers::new("muster/audit-honest-days/1", label.as_bytes());
        let next = |numbers: &mut SeededNumbers| {
            likelihoods
                .get(numbers.below(likelihoods.len()))
                .cloned()
                .unwrap_or_default()
        };
        let accused = (0..miner_days / 10).filter(|_| {
            answers_to_alarm(halved.tables.len(), answers_a_day * 10, &mut numbers, next).is_some()
        });
        HonestDays {
            machine: run.machine.clone(),
            miner_days,
            answers_a_day,
            accused: u32::try_from(accused.count()).unwrap_or(u32::MAX),
        }
    };
    runs.iter().map(days_of).collect()
}

/// 2,000 answers of 128 tokens, drawn token by token from the largest shares that the bound allows.
fn worst_answers(calibration: &Calibration, seed: u64) -> Vec<CellCounts> {
    let all = CellCounts::sum(calibration.machines.iter().flat_map(|run| &run.answers));
    let bound = calibration.bound();
    let total = (0..ENTROPY_BINS)
        .map(|entropy| all.tokens(entropy))
        .fold(0, u32::saturating_add);
    let mut numbers = SeededNumbers::new("muster/audit-worst/1", &seed.to_be_bytes());
    let token = |counts: &mut CellCounts, numbers: &mut SeededNumbers| {
        let weights: Vec<u64> = (0..ENTROPY_BINS)
            .map(|entropy| all.tokens(entropy).into())
            .collect();
        let entropy = pick(&weights, numbers.draw() % u64::from(total.max(1)));
        let margin = pick(&bound.masses(entropy), numbers.draw() % crate::wilson::BILLION);
        if let Some(count) = counts.0.get_mut(entropy).and_then(|row| row.get_mut(margin)) {
            *count += 1;
        }
    };
    let answer = |_| {
        let mut counts = CellCounts::default();
        (0..128).for_each(|_| token(&mut counts, &mut numbers));
        counts
    };
    (0..2_000).map(answer).collect()
}

/// The place at which the sum of the weights passes `target`.
fn pick(weights: &[u64], target: u64) -> usize {
    let mut sum = 0_u64;
    let passes = |weight: &u64| {
        sum = sum.saturating_add(*weight);
        sum > target
    };
    weights.iter().position(passes).unwrap_or(0)
}

fn answers_to_alarm(
    tables: usize,
    most: u32,
    numbers: &mut SeededNumbers,
    mut next: impl FnMut(&mut SeededNumbers) -> Vec<u128>,
) -> Option<u32> {
    let mut test = EProcess::new(tables, Restart::AtOne);
    (1..=most).find(|_| {
        test.observe(&next(numbers));
        test.mean() >= ALARM
    })
}

/// The number within which `percent` of all trials ended; those that did not end are the last.
fn rank(ends: &[u32], trials: u32, percent: u32) -> Option<u32> {
    let place = (u64::from(trials) * u64::from(percent)).div_ceil(100).max(1) - 1;
    ends.get(usize::try_from(place).ok()?).copied()
}

fn mean_tokens(answers: &[CellCounts]) -> u32 {
    let all = CellCounts::sum(answers);
    let total = (0..ENTROPY_BINS)
        .map(|entropy| all.tokens(entropy))
        .fold(0, u32::saturating_add);
    total / u32::try_from(answers.len().max(1)).unwrap_or(u32::MAX)
}
