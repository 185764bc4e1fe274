//! How many answers and tokens an engine needs until its alarm and its conviction, at each entropy, with what is known
//! of these numbers: simulated by the real test.
//!
//! As in [`crate::draw_curve`], half of a calibration's answers make the tables and the other half are drawn. The
//! interval beside each median comes from drawing that other half itself again, with replacement: it shows how far the
//! median follows from the answers that happened to be measured. At one entropy, answers are made of tokens that are
//! drawn one by one from those that were measured there.

use serde::Serialize;

use crate::calibration::Calibration;
use crate::detection_curve::HalvedCalibration;
use crate::e_process::{ALARM, CONFIRMATION, EProcess, Restart};
use crate::margin_cells::{CellCounts, ENTROPY_BINS, MARGIN_BINS};
use crate::seeded_numbers::SeededNumbers;
use crate::wilson::RateInterval;

/// Fewer tokens than this at an entropy show nothing about an engine there.
const LEAST_TOKENS: u32 = 100;
/// The made-up answers from which those of one entropy are drawn.
const POOL: usize = 40;
/// Of the medians, one in forty is left out at each end: an interval of 95 in 100.
const LEFT_OUT: usize = 40;

/// The settings of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectionSettings {
    /// How often the answers are drawn again for the interval.
    pub resamples: u32,
    /// The miners of each engine, entropy and draw.
    pub trials: u32,
    /// The answers after which a miner counts as not convicted.
    pub most_answers: u32,
    /// The tokens of an answer of one entropy.
    pub answer_tokens: u32,
    /// The seed of all chance.
    pub seed: u64,
}

impl Default for DetectionSettings {
    fn default() -> Self {
        Self {
            resamples: 40,
            trials: 100,
            most_answers: 2_000,
            answer_tokens: 128,
            seed: 1,
        }
    }
}

/// A median over miners, and the interval that holds it in 95 of 100 draws of the answers. A number that was not
/// reached by half of the miners is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MedianRange {
    /// The lower end.
    pub low: Option<u32>,
    /// The median of the answers as they were measured.
    pub median: Option<u32>,
    /// The upper end.
    pub high: Option<u32>,
}

/// The answers to alarm and conviction of a miner that always uses one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detection {
    /// The engine's name.
    pub engine: String,
    /// The bin of entropy in which all tokens of the answers lie; none for the answers as they were measured.
    pub entropy: Option<usize>,
    /// The share of tokens that are off, with its interval.
    pub off: RateInterval,
    /// The tokens of an answer, on average.
    pub tokens_an_answer: u32,
    /// The number of simulated miners.
    pub trials: u32,
    /// The number of them that were convicted.
    pub convicted: u32,
    /// The answers until the alarm: the verdict is `suspect`, or `weak` without a seed.
    pub alarm: MedianRange,
    /// The answers until the conviction: the alarm, and its confirmation by the answers after it.
    pub conviction: MedianRange,
}

/// The detection of every alternative, over all entropies and at each of them where tokens were measured.
pub fn detect(calibration: &Calibration, settings: &DetectionSettings) -> Vec<Detection> {
    let halved = HalvedCalibration::new(calibration);
    let places = || std::iter::once(None).chain((0..ENTROPY_BINS).map(Some));
    let alternatives = halved.alternatives.iter();
    alternatives
        .flat_map(|alternative| {
            places().filter_map(|entropy| {
                Simulation {
                    halved: &halved,
                    engine: &alternative.name,
                    answers: &alternative.answers,
                    entropy,
                    settings,
                }
                .run()
            })
        })
        .collect()
}

/// One engine at one entropy.
struct Simulation<'a> {
    halved: &'a HalvedCalibration,
    engine: &'a str,
    answers: &'a [CellCounts],
    entropy: Option<usize>,
    settings: &'a DetectionSettings,
}

/// The answers until one miner's alarm and conviction.
#[derive(Clone, Copy)]
struct Ends {
    alarm: Option<u32>,
    conviction: Option<u32>,
}

impl Simulation<'_> {
    fn run(&self) -> Option<Detection> {
        let sum = CellCounts::sum(self.answers);
        let bins = || (0..ENTROPY_BINS).filter(|bin| self.entropy.is_none_or(|entropy| entropy == *bin));
        let count = |from| {
            bins()
                .map(|bin| sum.at_least(bin, from))
                .fold(0, u32::saturating_add)
        };
        let tokens = count(0);
        if tokens < LEAST_TOKENS {
            return None;
        }
        let label = format!("{}\n{}\n{:?}", self.settings.seed, self.engine, self.entropy);
        let mut numbers = SeededNumbers::new("muster/audit-detection/1", label.as_bytes());
        let miners = self.miners(self.answers, &mut numbers);
        let (mut alarms, mut convictions) = (Vec::new(), Vec::new());
        for _ in 0..self.settings.resamples {
            let again: Vec<CellCounts> = (0..self.answers.len())
                .filter_map(|_| self.answers.get(numbers.below(self.answers.len())).copied())
                .collect();
            let of_draw = self.miners(&again, &mut numbers);
            alarms.push(median(of_draw.iter().map(|ends| ends.alarm)));
            convictions.push(median(of_draw.iter().map(|ends| ends.conviction)));
        }
        let convicted = miners.iter().filter(|ends| ends.conviction.is_some()).count();
        let answers = u32::try_from(self.answers.len()).unwrap_or(u32::MAX).max(1);
        Some(Detection {
            engine: self.engine.to_owned(),
            entropy: self.entropy,
            off: RateInterval::of(count(1).into(), tokens.into()),
            tokens_an_answer: match self.entropy {
                None => tokens / answers,
                Some(_) => self.settings.answer_tokens,
            },
            trials: self.settings.trials,
            convicted: u32::try_from(convicted).unwrap_or(u32::MAX),
            alarm: range(median(miners.iter().map(|ends| ends.alarm)), alarms),
            conviction: range(median(miners.iter().map(|ends| ends.conviction)), convictions),
        })
    }

    /// Simulated miners that give these answers.
    fn miners(&self, answers: &[CellCounts], numbers: &mut SeededNumbers) -> Vec<Ends> {
        let pool = match self.entropy {
            None => answers.to_vec(),
            Some(entropy) => {
                let row = CellCounts::sum(answers)
                    .0
                    .get(entropy)
                    .copied()
                    .unwrap_or_default();
                (0..POOL).map(|_| self.made_up(entropy, &row, numbers)).collect()
            }
        };
        let likelihoods = self.halved.likelihoods(&pool);
        (0..self.settings.trials)
            .map(|_| self.miner(&likelihoods, numbers))
            .collect()
    }

    /// An answer of tokens of one entropy.
    fn made_up(&self, entropy: usize, row: &[u32; MARGIN_BINS], numbers: &mut SeededNumbers) -> CellCounts {
        let total = row.iter().fold(0_u32, |sum, count| sum.saturating_add(*count));
        let mut made = CellCounts::default();
        let Some(counts) = made.0.get_mut(entropy) else {
            return made;
        };
        for _ in 0..self.settings.answer_tokens {
            let mut place = numbers.draw() % u64::from(total.max(1));
            for (count, weight) in counts.iter_mut().zip(row) {
                match place.checked_sub((*weight).into()) {
                    Some(rest) => place = rest,
                    None => {
                        *count += 1;
                        break;
                    }
                }
            }
        }
        made
    }

    fn miner(&self, pool: &[Vec<u128>], numbers: &mut SeededNumbers) -> Ends {
        let tables = self.halved.tables.len();
        let mut test = EProcess::new(tables, Restart::AtOne);
        let mut alarm = None;
        for answer in 1..=self.settings.most_answers {
            if let Some(likelihoods) = pool.get(numbers.below(pool.len())) {
                test.observe(likelihoods);
            }
            match alarm {
                None if test.mean() >= ALARM => {
                    alarm = Some(answer);
                    test = EProcess::new(tables, Restart::Never);
                }
                Some(_) if test.mean() >= CONFIRMATION => {
                    return Ends {
                        alarm,
                        conviction: Some(answer),
                    };
                }
                None | Some(_) => {}
            }
        }
        Ends {
            alarm,
            conviction: None,
        }
    }
}

/// The median where a missing number is larger than all others.
fn median(numbers: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    let mut sorted: Vec<u32> = numbers.map(|number| number.unwrap_or(u32::MAX)).collect();
    sorted.sort_unstable();
    let middle = sorted.len().saturating_sub(1) / 2;
    sorted.get(middle).copied().filter(|number| *number < u32::MAX)
}

fn range(of_measured: Option<u32>, medians: Vec<Option<u32>>) -> MedianRange {
    let mut sorted: Vec<u32> = medians.into_iter().map(|one| one.unwrap_or(u32::MAX)).collect();
    sorted.sort_unstable();
    let out = sorted.len() / LEFT_OUT;
    let at = |place: usize| sorted.get(place).copied().filter(|number| *number < u32::MAX);
    MedianRange {
        low: at(out),
        median: of_measured,
        high: at(sorted.len().saturating_sub(out + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALIBRATION: &str = include_str!("../../../../tests/vectors/audit-calibration.json");

    #[test]
    fn medians_know_what_was_not_reached() {
        let of = |numbers: &[Option<u32>]| median(numbers.iter().copied());
        assert_eq!(of(&[Some(3), None, Some(1)]), Some(3));
        assert_eq!(of(&[Some(3), None, None]), None);
        assert_eq!(of(&[]), None);
        let all: Vec<Option<u32>> = (0..39).map(Some).chain([None]).collect();
        let found = range(Some(7), all);
        assert_eq!(
            (found.low, found.median, found.high),
            (Some(1), Some(7), Some(38))
        );
        assert_eq!(range(None, vec![None; 40]).high, None);
    }

    #[test]
    fn cheats_are_convicted_after_their_alarm_and_sooner_where_more_is_open() {
        let calibration = Calibration::parse(CALIBRATION).unwrap();
        let settings = DetectionSettings {
            resamples: 5,
            trials: 15,
            most_answers: 300,
            ..DetectionSettings::default()
        };
        let found = detect(&calibration, &settings);
        let at = |engine: &str, entropy| {
            let named = |one: &&Detection| one.engine == engine && one.entropy == entropy;
            found.iter().find(named).unwrap()
        };
        let int4 = at("int4", None);
        let (alarm, conviction) = (int4.alarm.median.unwrap(), int4.conviction.median.unwrap());
        assert!(alarm < conviction && conviction <= 12, "{int4:?}");
        assert_eq!(int4.convicted, settings.trials);
        assert!(
            int4.conviction.low <= int4.conviction.median && int4.conviction.median <= int4.conviction.high
        );
        let (low, high) = (at("int4", Some(0)), at("int4", Some(3)));
        assert!(high.conviction.median.unwrap() < low.conviction.median.unwrap_or(u32::MAX));
        assert!(high.off.events * low.off.trials > low.off.events * high.off.trials);
        assert_eq!(at("int8", None).conviction.median, None, "no table against it");
        assert_eq!(
            detect(&calibration, &settings),
            found,
            "all chance comes from the seed"
        );
    }
}
