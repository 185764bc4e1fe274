//! Lower tolerance bounds: a threshold that nearly every honest machine of a class reaches, including machines never
//! measured.
//!
//! The model uses logarithms of rates. A run is its machine's mean plus noise. The machine is the unit, because many
//! runs of one card show nothing about the next card. See docs/proofs.md for the model and its check.

/// z of 99 %: the share of honest first proofs, on machines never measured, that should reach the bound.
const Z_CONTENT: f64 = 2.326_347_874_040_841;
/// z of 95 %: the confidence that the bound is low enough for that share.
const Z_CONFIDENCE: f64 = 1.644_853_626_951_472_2;
/// The smallest spread that is assumed, as a share of the rate. Without it, a few equal machines would put the bound at
/// their own rate.
const LEAST_SPREAD: f64 = 0.01;

/// The number of machines below which no bound is computed.
pub const LEAST_MACHINES: usize = 5;
/// The number of runs below which a machine does not count.
pub const LEAST_RUNS: usize = 3;

/// Computes the bound from honest runs, machine by machine. `None` with fewer than [`LEAST_MACHINES`] machines of
/// [`LEAST_RUNS`] runs. The bound is rounded down to three digits, so that it does not depend on the last bit of a
/// logarithm.
pub fn tolerance_bound(machines: &[Vec<u64>]) -> Option<u64> {
    let logs: Vec<Vec<f64>> = machines
        .iter()
        .filter(|runs| runs.len() >= LEAST_RUNS && runs.iter().all(|run| *run > 0))
        .map(|runs| runs.iter().map(|run| (*run as f64).ln()).collect())
        .collect();
    if logs.len() < LEAST_MACHINES {
        return None;
    }
    let means: Vec<f64> = logs.iter().map(|runs| mean(runs)).collect();
    let centre = mean(&means);
    let between = sum_of_squares(&means) / (means.len() - 1) as f64;
    let within = logs.iter().map(|runs| sum_of_squares(runs)).sum::<f64>()
        / logs.iter().map(|runs| runs.len() - 1).sum::<usize>() as f64;
    // The means of r runs vary by the machines and by 1/r of the noise, so the other (r-1)/r of the noise is added.
    let runs = logs.len() as f64 / logs.iter().map(|runs| 1.0 / runs.len() as f64).sum::<f64>();
    let spread = (between + within * (1.0 - 1.0 / runs)).sqrt().max(LEAST_SPREAD);
    Some(round_to_three_digits(
        (centre - tolerance_factor(logs.len()) * spread).exp(),
    ))
}

/// The factor k of a one-sided normal tolerance bound from `count` units: the root of
/// `k - z_p = z_γ √(1/n + k²/2(n-1))`, raised by 1.5 %, its largest shortfall against the noncentral t.
fn tolerance_factor(count: usize) -> f64 {
    let n = count as f64;
    let square = Z_CONFIDENCE * Z_CONFIDENCE;
    let rest = 1.0 - square / (2.0 * (n - 1.0));
    let inside = Z_CONTENT * Z_CONTENT - rest * (Z_CONTENT * Z_CONTENT - square / n);
    1.015 * (Z_CONTENT + inside.sqrt()) / rest
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn sum_of_squares(values: &[f64]) -> f64 {
    let centre = mean(values);
    values.iter().map(|value| (value - centre).powi(2)).sum()
}

fn round_to_three_digits(value: f64) -> u64 {
    let whole = value as u64;
    let unit = 10u64.pow(whole.checked_ilog10().unwrap_or_default().saturating_sub(2));
    whole / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chacha::Key;
    use crate::challenge_keys::Draws;

    #[test]
    fn the_factor_is_at_least_the_tabulated_one() {
        // Exact factors for 99 % content, 95 % confidence (noncentral t).
        for (count, exact) in [
            (5, 5.741),
            (6, 5.062),
            (8, 4.353),
            (10, 3.981),
            (15, 3.520),
            (20, 3.295),
            (30, 3.064),
        ] {
            let ours = tolerance_factor(count);
            assert!(ours >= exact && ours < exact * 1.03, "{count}: {ours} {exact}");
        }
    }

    #[test]
    fn few_machines_justify_nothing() {
        assert_eq!(tolerance_bound(&vec![vec![100; 50]; 4]), None);
        assert_eq!(tolerance_bound(&vec![vec![100; 2]; 50]), None);
        assert_eq!(tolerance_bound(&[vec![100; 3], vec![0; 3]]), None);
        // Equal machines: the least spread decides, 1 % times k of five.
        assert_eq!(tolerance_bound(&vec![vec![1_000_000; 3]; 5]), Some(943_000));
    }

    /// A standard normal number from twelve uniform ones.
    fn normal(draws: &mut Draws) -> f64 {
        (0..12)
            .map(|_| f64::from(draws.draw_below(1 << 30)) / f64::from(1 << 30))
            .sum::<f64>()
            - 6.0
    }

    /// Over many calibrations of seven machines with machine-to-machine variance, at least the promised share keeps at
    /// least the promised content; bounds of three standard deviations of the binomial.
    #[test]
    fn the_bound_covers_machines_never_seen() {
        let mut draws = Draws::new(Key([4; 32]));
        for (machine_sd, run_sd) in [(0.03, 0.01), (0.02, 0.02), (0.0, 0.03)] {
            let calibrations = 600;
            let kept = (0..calibrations)
                .filter(|_| {
                    let machines: Vec<Vec<u64>> = (0..7)
                        .map(|_| {
                            let machine = machine_sd * normal(&mut draws);
                            (0..6)
                                .map(|_| (1e9 * (machine + run_sd * normal(&mut draws)).exp()) as u64)
                                .collect()
                        })
                        .collect();
                    let bound =
                        tolerance_bound(&machines).map_or(f64::INFINITY, |bound| (bound as f64 / 1e9).ln());
                    // The true content: a new machine's run falls below with Φ(bound / σ).
                    bound <= -Z_CONTENT * f64::hypot(machine_sd, run_sd)
                })
                .count();
            let share = kept as f64 / f64::from(calibrations);
            assert!(
                share >= 0.95 - 3.0 * (0.95f64 * 0.05 / 600.0).sqrt(),
                "{machine_sd} {run_sd}: {share}"
            );
        }
    }
}
