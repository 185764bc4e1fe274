//! The operating characteristic of the test: at each threshold, the share of cheats that reach it and that of honest
//! miners, simulated by the real test.
//!
//! Half of a calibration's answers make the tables, and the other half are drawn, as for the curve of answers to alarm.

use serde::Serialize;

use crate::calibration::Calibration;
use crate::detection_curve::HalvedCalibration;
use crate::e_process::{ALARM, EProcess, Restart};
use crate::seeded_numbers::SeededNumbers;

/// The settings of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocSettings {
    /// The share of answers that a cheat gives with another engine, in thousandths.
    pub share: u16,
    /// The audited answers of each miner.
    pub answers: u32,
    /// The miners of each kind.
    pub trials: u32,
    /// The seed of all chance.
    pub seed: u64,
}

impl Default for RocSettings {
    fn default() -> Self {
        Self {
            share: 100,
            answers: 100,
            trials: 200,
            seed: 1,
        }
    }
}

/// The characteristic against one cheat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RocCurve {
    /// The cheat's engine.
    pub alternative: String,
    /// The share of answers that it gives, in thousandths.
    pub share: u16,
    /// The audited answers of each miner.
    pub answers: u32,
    /// The simulated miners of each kind.
    pub trials: u32,
    /// The points by rising threshold; the last threshold is [`ALARM`].
    pub points: Vec<RocPoint>,
}

/// The miners that reached one threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RocPoint {
    /// The mean evidence.
    #[serde(rename = "wealth")]
    pub evidence: u64,
    /// The honest miners that reached it.
    pub honest: u32,
    /// The cheats that reached it.
    pub cheats: u32,
}

/// The characteristic of every alternative of a calibration.
pub fn draw_roc(calibration: &Calibration, settings: &RocSettings) -> Vec<RocCurve> {
    let halved = HalvedCalibration::new(calibration);
    let honest = halved.honest_likelihoods();
    let tables = halved.tables.len();
    let highest = |name: &str, cheated: &[Vec<u128>], share: u16| -> Vec<u128> {
        let label = format!("{}\n{name}\n{share}", settings.seed);
        let mut numbers = SeededNumbers::new("muster/audit-roc/1", label.as_bytes());
        let miner = |_| {
            let mut test = EProcess::new(tables, Restart::AtOne);
            let mut highest = test.mean();
            for _ in 0..settings.answers {
                let cheats = numbers.below(1_000) < usize::from(share);
                let from: &[Vec<u128>] = if cheats { cheated } else { &honest };
                if let Some(likelihoods) = from.get(numbers.below(from.len())) {
                    test.observe(likelihoods);
                    highest = highest.max(test.mean());
                }
            }
            highest
        };
        (0..settings.trials).map(miner).collect()
    };
    let of_honest = highest("honest", &[], 0);
    let curve = |(name, cheated): (String, Vec<Vec<u128>>)| {
        let of_cheats = highest(&name, &cheated, settings.share);
        RocCurve {
            points: thresholds()
                .map(|evidence| point(evidence, &of_honest, &of_cheats))
                .collect(),
            alternative: name,
            share: settings.share,
            answers: settings.answers,
            trials: settings.trials,
        }
    };
    let alternatives = halved.alternatives.iter();
    let alternatives = alternatives.map(|one| (one.name.clone(), halved.likelihoods(&one.answers)));
    alternatives.map(curve).collect()
}

/// The powers of two below the alarm, and the alarm.
fn thresholds() -> impl Iterator<Item = u128> {
    let powers = (0..ALARM.ilog2().saturating_add(1)).map(|power| 1_u128 << power);
    powers.chain([ALARM])
}

fn point(evidence: u128, honest: &[u128], cheats: &[u128]) -> RocPoint {
    let reached = |miners: &[u128]| {
        let count = miners.iter().filter(|highest| **highest >= evidence).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    RocPoint {
        evidence: u64::try_from(evidence).unwrap_or(u64::MAX),
        honest: reached(honest),
        cheats: reached(cheats),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALIBRATION: &str = include_str!("../../../../tests/vectors/audit-calibration.json");

    #[test]
    fn cheats_reach_every_threshold_more_often_than_honest_miners_do() {
        let calibration = Calibration::parse(CALIBRATION).unwrap();
        let settings = RocSettings {
            trials: 50,
            ..RocSettings::default()
        };
        let curves = draw_roc(&calibration, &settings);
        assert_eq!(curves.len(), calibration.alternatives.len());
        for curve in &curves {
            let (first, last) = (curve.points.first().unwrap(), curve.points.last().unwrap());
            assert_eq!(
                (first.evidence, first.honest),
                (1, 50),
                "every test begins with one"
            );
            assert_eq!(last.evidence, u64::try_from(ALARM).unwrap());
            assert_eq!(last.honest, 0, "{curve:?}");
            assert!(curve.points.is_sorted_by_key(|point| point.evidence));
            assert!(
                curve.points.iter().all(|point| point.cheats >= point.honest),
                "{curve:?}"
            );
        }
        assert_eq!(
            curves,
            draw_roc(&calibration, &settings),
            "all chance comes from the seed"
        );
    }
}
