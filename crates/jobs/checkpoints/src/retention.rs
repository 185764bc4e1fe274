//! Which checkpoints of a job are kept: the newest three, and the best one by a metric that the user named.

use muster_protocol::job::{BestMetric, MetricValue};

/// The newest checkpoints that are kept.
pub const NEWEST_KEPT: usize = 3;

/// The facts about a checkpoint that decide whether it is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointFacts {
    /// The number of the checkpoint in its job; the first is 1.
    pub ordinal: u32,
    /// The value of the user's metric when it was taken, if the program had reported one.
    pub metric: Option<MetricValue>,
}

/// The ordinals of the checkpoints that are kept no longer, ascending. `checkpoints` are those that are kept so far, in
/// any order.
///
/// Of several that are equally good the newest one counts as the best.
pub fn find_superfluous(checkpoints: &[CheckpointFacts], best: Option<&BestMetric>) -> Vec<u32> {
    let mut by_age: Vec<CheckpointFacts> = checkpoints.to_vec();
    by_age.sort_by_key(|checkpoint| checkpoint.ordinal);
    let best = best.and_then(|rule| find_best(&by_age, rule));
    let old = by_age.len().saturating_sub(NEWEST_KEPT);
    let superfluous = by_age.iter().take(old).map(|checkpoint| checkpoint.ordinal);
    superfluous.filter(|ordinal| Some(*ordinal) != best).collect()
}

fn find_best(by_age: &[CheckpointFacts], rule: &BestMetric) -> Option<u32> {
    let mut best: Option<(f64, u32)> = None;
    for checkpoint in by_age {
        let Some(value) = checkpoint.metric.map(f64::from) else {
            continue;
        };
        let is_better = best.is_none_or(|(so_far, _)| match rule.larger_is_better {
            true => value >= so_far,
            false => value <= so_far,
        });
        if is_better {
            best = Some((value, checkpoint.ordinal));
        }
    }
    best.map(|(_, ordinal)| ordinal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checkpoints(of: &[(u32, Option<f64>)]) -> Vec<CheckpointFacts> {
        let facts = |(ordinal, metric): &(u32, Option<f64>)| CheckpointFacts {
            ordinal: *ordinal,
            metric: metric.map(|value| value.try_into().unwrap()),
        };
        of.iter().map(facts).collect()
    }

    fn loss(larger_is_better: bool) -> BestMetric {
        BestMetric {
            name: "loss".parse().unwrap(),
            larger_is_better,
        }
    }

    #[test]
    fn three_newest_and_the_best_stay() {
        let five = checkpoints(&[
            (1, Some(0.5)),
            (5, None),
            (2, Some(0.9)),
            (4, Some(0.7)),
            (3, Some(0.8)),
        ]);
        assert_eq!(find_superfluous(&five, None), [1, 2]);
        assert_eq!(find_superfluous(&five, Some(&loss(false))), [2]);
        assert_eq!(find_superfluous(&five, Some(&loss(true))), [1]);
        assert_eq!(find_superfluous(&five[..3], None), [0; 0]);
        let equal = checkpoints(&[(1, Some(1.0)), (2, Some(1.0)), (3, None), (4, None), (5, None)]);
        assert_eq!(
            find_superfluous(&equal, Some(&loss(false))),
            [1],
            "the newer one of two equals"
        );
    }

    proptest! {
        #[test]
        fn the_newest_one_always_stays_and_never_more_than_four(
            metrics in prop::collection::vec(prop::option::of(-9.0..9.0_f64), 1..12), larger in any::<bool>(),
        ) {
            let all: Vec<(u32, Option<f64>)> = (1..).zip(metrics).collect();
            let facts = checkpoints(&all);
            let gone = find_superfluous(&facts, Some(&loss(larger)));
            let last = u32::try_from(all.len()).unwrap();
            prop_assert!(!gone.contains(&last));
            prop_assert!(all.len() - gone.len() <= NEWEST_KEPT + 1);
            let kept: Vec<_> = facts.iter().filter(|one| !gone.contains(&one.ordinal)).copied().collect();
            prop_assert_eq!(find_superfluous(&kept, Some(&loss(larger))), Vec::<u32>::new());
        }
    }
}
