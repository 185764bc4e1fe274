//! The division of one class's points among its miners: work and capacity in one formula.
//!
//! With credits `C` in thousandths of an executor, `Q = ΣC`, a cycle of `T` milliseconds, `Cap = Q·T / 1000` and `W_m`
//! milliseconds of counted work, a miner gets this part of the class's points:
//!
//! `[(1000 − a)·W_m·Q + (1000·Cap − (1000 − a)·W)·C_m] / (1000·Cap·Q)`
//!
//! A worked second is a premium on the credit of what was shown, and the part that nobody worked for falls to capacity.
//! `docs/adr/0063` has the reasons.

use std::collections::BTreeMap;

use muster_protocol::MinerKey;

/// The worth of one unit of a class's weight, in points.
pub const POINTS: u64 = 1_000_000_000_000;

/// The largest weight of a class: all weights and their points fit into 64 bits.
pub const MAX_CLASS_WEIGHT: u32 = 1_000_000;

/// The part of a class's weight that capacity gets even if every second is worked, in thousandths. The premium of a
/// worked second, a fifth, exceeds the marginal cost of working (about a tenth of a card's cost), and bounds what
/// stalling, washing and over-reserving can win; see `docs/adr/0063`.
pub const CAPACITY_PER_MILLE: u16 = 800;

/// Classes whose executors take at least this many seconds to appear cannot be proven: renting one on demand is honest
/// there (`docs/adr/0064`).
pub(crate) const UNPROVABLE_SPIN_UP_SECS: u64 = 60;

/// The thousandths of one whole executor.
pub const WHOLE_EXECUTOR: u64 = 1_000;

/// The longest cycle that is scored, in milliseconds: twenty epochs of 72 minutes and some room. It bounds the products
/// in the formula.
pub(crate) const MAX_CYCLE_MS: u64 = 100_000_000;

/// The work and the credit of one miner in a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// Milliseconds of counted work.
    pub(crate) work_ms: u64,
    /// Credit of what was shown, in thousandths of an executor.
    pub(crate) credit: u64,
}

/// How a class treats the part of its weight that nobody worked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// The unused part falls to capacity; capacity alone gets these thousandths.
    ToCapacity(u16),
    /// Capacity of the class cannot be proven: work alone is paid, and the unused part is burned.
    Burned,
    /// The class is not graded: shares of work divide it.
    WorkOnly,
}

/// The points of each miner of a class, for a weight of 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassPoints {
    /// The points by miner.
    pub(crate) points: BTreeMap<MinerKey, u64>,
    /// The points that are burned.
    pub(crate) burned: u64,
}

/// Divides [`POINTS`] among the members of a class. Nothing is divided if nobody shows or works anything. Otherwise the
/// points and the burned part add up to exactly [`POINTS`].
pub(crate) fn divide(members: &BTreeMap<MinerKey, Member>, cycle_ms: u64, division: Division) -> ClassPoints {
    let cycle = u128::from(cycle_ms.clamp(1, MAX_CYCLE_MS));
    let credits: u128 = members.values().map(|member| u128::from(member.credit)).sum();
    let work = fit_work(members, credits.saturating_mul(cycle) / 1_000, division);
    let worked: u128 = work.values().sum();
    // A thousand times the capacity of the class, in milliseconds.
    let cap = credits.saturating_mul(cycle);
    let part = |work: u128, credit: u128| match division {
        Division::ToCapacity(per_mille) => {
            let premium = u128::from(1_000_u16.saturating_sub(per_mille));
            let idle = cap.saturating_sub(premium.saturating_mul(worked));
            let sum = premium
                .saturating_mul(work)
                .saturating_mul(credits)
                .saturating_add(idle.saturating_mul(credit));
            points_of(sum, cap.saturating_mul(credits))
        }
        Division::Burned => points_of(work.saturating_mul(1_000), cap),
        Division::WorkOnly => points_of(work, worked),
    };
    // Differences of rounded sums add up to the rounded whole: no point is lost.
    let (mut result, mut sums, mut given) = (ClassPoints::default(), (0_u128, 0_u128), 0_u64);
    for (miner, member) in members {
        sums.0 = sums.0.saturating_add(work.get(miner).copied().unwrap_or(0));
        sums.1 = sums.1.saturating_add(u128::from(member.credit));
        let through = part(sums.0, sums.1);
        let own = through.saturating_sub(given);
        given = through;
        if own > 0 {
            result.points.insert(*miner, own);
        }
    }
    if division == Division::Burned && credits > 0 {
        result.burned = POINTS.saturating_sub(given);
    }
    result
}

/// Each member's work, scaled down if all of it together exceeds the class's capacity of `cap_ms`.
fn fit_work(
    members: &BTreeMap<MinerKey, Member>,
    cap_ms: u128,
    division: Division,
) -> BTreeMap<MinerKey, u128> {
    let worked: u128 = members.values().map(|member| u128::from(member.work_ms)).sum();
    let fits = worked <= cap_ms || division == Division::WorkOnly;
    let scaled = |work_ms: u64| match u128::from(work_ms) {
        work if fits => work,
        work => work.saturating_mul(cap_ms).checked_div(worked).unwrap_or(0),
    };
    members
        .iter()
        .map(|(miner, member)| (*miner, scaled(member.work_ms)))
        .collect()
}

/// `POINTS · part / whole`, rounded down; `part` is at most `whole`. Two steps of a million each keep every product
/// below 2^128 for 65,536 miners of 10,000 executors.
fn points_of(part: u128, whole: u128) -> u64 {
    const STEP: u128 = 1_000_000;
    let scaled = part.saturating_mul(STEP);
    let (Some(high), Some(rest)) = (scaled.checked_div(whole), scaled.checked_rem(whole)) else {
        return 0;
    };
    let low = rest.saturating_mul(STEP) / whole;
    let points = high.saturating_mul(STEP).saturating_add(low);
    u64::try_from(points).unwrap_or(u64::MAX).min(POINTS)
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    const DIVIDED: Division = Division::ToCapacity(CAPACITY_PER_MILLE);
    /// An epoch of 360 blocks of twelve seconds.
    const EPOCH: u64 = 4_320_000;

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    fn members(rows: &[(u64, u64)]) -> BTreeMap<MinerKey, Member> {
        let member = |(at, (work_ms, credit)): (usize, &(u64, u64))| {
            let seed = u8::try_from(at).unwrap();
            (
                miner(seed),
                Member {
                    work_ms: *work_ms,
                    credit: *credit,
                },
            )
        };
        rows.iter().enumerate().map(member).collect()
    }

    fn points(rows: &[(u64, u64)], division: Division) -> Vec<u64> {
        let members = members(rows);
        let divided = divide(&members, EPOCH, division);
        members
            .keys()
            .map(|miner| divided.points.get(miner).copied().unwrap_or(0))
            .collect()
    }

    #[test]
    fn idle_capacity_shares_the_weight_and_a_worked_second_is_a_fifth_more() {
        assert_eq!(
            points(&[(0, 1_000), (0, 3_000)], DIVIDED),
            [POINTS / 4, POINTS / 4 * 3]
        );
        // Two equal miners, one of which works all the time: 0.2/2 of the points are its premium.
        assert_eq!(
            points(&[(EPOCH, 1_000), (0, 1_000)], DIVIDED),
            [POINTS / 100 * 55, POINTS / 100 * 45]
        );
        // All work all the time: nothing is left of the difference.
        assert_eq!(points(&[(EPOCH, 1_000); 2], DIVIDED), [POINTS / 2; 2]);
    }

    #[test]
    fn idle_points_of_a_class_that_cannot_be_proven_are_burned() {
        let members = members(&[(EPOCH / 2, 1_000), (0, 1_000)]);
        let divided = divide(&members, EPOCH, Division::Burned);
        assert_eq!(divided.points, [(miner(0), POINTS / 4)].into());
        assert_eq!(divided.burned, POINTS / 4 * 3);
    }

    #[test]
    fn zeros_everywhere_divide_nothing() {
        for division in [DIVIDED, Division::Burned, Division::WorkOnly] {
            assert_eq!(divide(&members(&[]), EPOCH, division), ClassPoints::default());
            assert_eq!(
                divide(&members(&[(0, 0), (0, 0)]), 0, division),
                ClassPoints::default()
            );
        }
        // Work without any credit in the class is no ground to divide it.
        assert_eq!(points(&[(EPOCH, 0)], DIVIDED), [0]);
        assert_eq!(
            points(&[(30, 0), (10, 0)], Division::WorkOnly),
            [POINTS / 4 * 3, POINTS / 4]
        );
    }

    #[test]
    fn the_wash_gain_is_the_stated_formula() {
        // One of a hundred equal miners fills its idle time; the others work one percent of theirs.
        let mut rows = vec![(EPOCH / 100, 1_000); 100];
        rows[0].0 = EPOCH;
        let got = points(&rows, DIVIDED);
        let gain = got[0] * 1_000 / got[1];
        assert!((1_190..=1_200).contains(&gain), "{gain}: 1 + (1 − a)·(1 − ρ)");
    }

    proptest! {
        #[test]
        fn a_classs_points_add_up_to_its_weight(
            rows in proptest::collection::vec((0_u64..40 * EPOCH, 0_u64..10_000_000), 1..60), ms in 0_u64..200_000_000,
            per_mille in 0_u16..=1_000,
        ) {
            let members = members(&rows);
            let any = rows.iter().any(|row| row.1 > 0);
            let divided = divide(&members, ms, Division::ToCapacity(per_mille));
            prop_assert_eq!(divided.points.values().sum::<u64>(), if any { POINTS } else { 0 });
            let burned = divide(&members, ms, Division::Burned);
            prop_assert_eq!(burned.points.values().sum::<u64>() + burned.burned, if any { POINTS } else { 0 });
        }

        #[test]
        fn no_work_wins_more_than_the_premium(
            rows in proptest::collection::vec((0_u64..=EPOCH, Just(1_000_u64)), 2..40), per_mille in 1_u16..=1_000,
        ) {
            // All hardware is equal, so the best paid miner has at most 1/a of the worst paid.
            let got = points(&rows, Division::ToCapacity(per_mille));
            let (most, least) = (got.iter().max().unwrap(), got.iter().min().unwrap());
            prop_assert!(u128::from(*most) * u128::from(per_mille) <= (u128::from(*least) + 2) * 1_000);
        }

        #[test]
        fn a_million_executors_do_not_overflow(count in 1_usize..200) {
            let rows = vec![(u64::MAX / 1_000, 10_000_000); count];
            let sum: u64 = points(&rows, DIVIDED).iter().sum();
            prop_assert_eq!(sum, POINTS);
        }
    }
}
