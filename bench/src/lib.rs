//! Speed as a ratio: ours and a peer's, in turns, in one run.
//!
//! A machine that others use too makes absolute times worthless and drifts while one measures. So both sides take turns
//! (ours, peer, ours, peer, …), medians are compared, and the raw samples are kept. `cargo xtask bench` runs the
//! programs below `src/bin/`, stores their [`Report`]s and tables in `bench/results/` and writes the table of targets
//! into `docs/performance.md`.

use std::time::{Duration, Instant};

pub mod command_line;
pub mod facilitator_server;
pub mod plot;
pub mod process;
mod publish;
mod report;
pub mod stage;
pub mod streams;

pub use publish::{Record, publish};
pub use report::{Direction, Report, Row};

/// Samples of both sides, in the order they were taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turns {
    /// Our samples, in the unit of the measurement.
    pub ours: Vec<f64>,
    /// The peer's samples, in the same unit.
    pub peer: Vec<f64>,
}

/// Measures in turns: one round of each first, whose samples are dropped (caches, lazy set-up), then `rounds` that
/// count.
///
/// # Errors
/// The first error of either side.
pub fn take_turns(
    rounds: usize,
    mut ours: impl FnMut() -> anyhow::Result<f64>,
    mut peer: impl FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<Turns> {
    ours()?;
    peer()?;
    let mut turns = Turns::default();
    for _ in 0..rounds {
        turns.ours.push(ours()?);
        turns.peer.push(peer()?);
    }
    Ok(turns)
}

/// The result of some work and its duration, by the machine's monotonic clock.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "a bench measures real time; no test moves it"
    )]
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// The middle sample; of an even number the mean of the two in the middle. `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// The sample that this share of all samples does not exceed: 0.99 asks for P99. `None` without samples.
pub fn quantile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "nobody takes so many samples"
    )]
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_round_warms_up_and_does_not_count() {
        let mut order = Vec::new();
        let log = std::cell::RefCell::new(&mut order);
        let side = |name: char| {
            log.borrow_mut().push(name);
            Ok(log.borrow().len() as f64)
        };
        let turns = take_turns(2, || side('a'), || side('b')).unwrap();
        assert_eq!(turns.ours, [3.0, 5.0]);
        assert_eq!(turns.peer, [4.0, 6.0]);
        assert_eq!(order, ['a', 'b', 'a', 'b', 'a', 'b']);
    }

    #[test]
    fn an_error_of_either_side_ends_the_run() {
        assert!(take_turns(1, || Ok(1.0), || anyhow::bail!("the peer is not installed")).is_err());
    }

    #[test]
    fn quantiles() {
        assert_eq!(quantile(&[], 0.99), None);
        assert_eq!(quantile(&[2.0], 0.99), Some(2.0));
        let hundred: Vec<_> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), Some(99.0));
        assert_eq!(quantile(&hundred, 1.0), Some(100.0));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }
}
