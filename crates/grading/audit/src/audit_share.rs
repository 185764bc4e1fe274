//! How much to audit: the share of a miner's answers at which cheating in any part of them does not pay.
//!
//! A miner that cheats in a share x of its answers, and saves a share g of their pay, is convicted after n(x) audited
//! answers. Until then it has served n(x)/p cheated ones. It loses what it has at stake, Π mean answers. All terms are
//! those of one coldkey and one model: split over hotkeys, they stay the same.

use muster_response_proof::MAX_SHARE_PPM;

/// The largest x·n₉₅(x): audited answers to conviction, times the share that was cheated in.
pub const DETECTION_ANSWERS: u64 = 35;
/// The default for the share of an answer's pay that a cheat saves, in thousandths.
pub const GAIN_PER_MILLE: u64 = 500;
/// The smallest share that is audited, in millionths.
const LEAST_PPM: u64 = 1_000;
/// The factor on the share at which cheating just does not pay.
const MARGIN: u64 = 2;
/// Twice the number of cycles of a day: the mean age of pay that is still being vested is half the vesting time.
const TWICE_CYCLES_A_DAY: u64 = 40;

/// The facts about one coldkey's answers from one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditedMiner {
    /// Answers a day.
    pub answers_a_day: u64,
    /// The miner's stake in its honesty, in mean answers' pay: collateral, pay that is still being vested, and the cost
    /// of another registration.
    pub at_stake: u64,
    /// The share of an answer's pay that a cheat saves, in thousandths.
    pub gain_per_mille: u64,
    /// The largest x·n₉₅(x) of the cheats that are policed.
    pub detection: u64,
}

impl AuditedMiner {
    /// The share of answers to audit, in millionths: twice the share at which a cheat breaks even, enough that a cheat
    /// is convicted within a day, and never less than one in a thousand.
    pub fn share_ppm(&self) -> u32 {
        let all = u64::from(MAX_SHARE_PPM);
        let by_stake = ratio_up(
            [all, MARGIN, self.detection, self.gain_per_mille],
            self.at_stake.saturating_mul(1_000),
        );
        let within_a_day = ratio_up([all, self.detection, 1, 1], self.answers_a_day);
        let share = LEAST_PPM.max(by_stake).max(within_a_day).min(all);
        u32::try_from(share).unwrap_or(MAX_SHARE_PPM)
    }
}

/// The pay that is still being vested, in mean answers: it is spread over `vesting_cycles`.
pub const fn unvested_answers(answers_a_day: u64, vesting_cycles: u64) -> u64 {
    answers_a_day.saturating_mul(vesting_cycles.saturating_sub(1)) / TWICE_CYCLES_A_DAY
}

/// The product of the factors, divided and rounded up; without a divisor the largest number.
fn ratio_up(factors: [u64; 4], divisor: u64) -> u64 {
    if divisor == 0 {
        return u64::MAX;
    }
    let product = factors.iter().fold(1_u128, |product, factor| {
        product.saturating_mul(u128::from(*factor))
    });
    u64::try_from(product.div_ceil(divisor.into())).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(answers_a_day: u64, at_stake: u64, gain_per_mille: u64, detection: u64) -> u32 {
        AuditedMiner {
            answers_a_day,
            at_stake,
            gain_per_mille,
            detection,
        }
        .share_ppm()
    }

    /// Answers a day at which the term "within a day" is the smallest of all.
    const MANY: u64 = 1_000_000_000;

    #[test]
    fn shares_by_what_is_at_stake() {
        // Rows: 100, 1,000 and 10,000 mean answers at stake. Columns: gains of 0.1, 0.3, 0.5, each at N* = 13 and 35.
        let rows = [
            (100, [26_000, 70_000, 78_000, 210_000, 130_000, 350_000]),
            (1_000, [2_600, 7_000, 7_800, 21_000, 13_000, 35_000]),
            (10_000, [1_000, 1_000, 1_000, 2_100, 1_300, 3_500]),
        ];
        for (at_stake, expected) in rows {
            let cells = [100, 300, 500]
                .into_iter()
                .flat_map(|gain| [(gain, 13), (gain, 35)]);
            let found: Vec<u32> = cells.map(|(gain, n)| share(MANY, at_stake, gain, n)).collect();
            assert_eq!(found, expected, "{at_stake} answers at stake");
        }
    }

    #[test]
    fn shares_by_answers_a_day() {
        // Answers a day, unvested answers, the share without collateral and with collateral of 1,000 answers.
        let rows = [
            (50, 23, 1_000_000, 700_000),
            (500, 237, 147_680, 70_000),
            (5_000, 2_375, 14_737, 10_371),
            (50_000, 23_750, 1_474, 1_415),
        ];
        for (answers, unvested, without, with) in rows {
            let at_stake = unvested_answers(answers, 20);
            assert_eq!(at_stake, unvested);
            let shares = [0, 1_000]
                .map(|collateral| share(answers, at_stake + collateral, GAIN_PER_MILLE, DETECTION_ANSWERS));
            assert_eq!(shares, [without, with], "{answers} a day");
            // Without collateral some 75 answers a day, whatever the volume; fewer only where there are fewer.
            let audited = answers * u64::from(without) / 1_000_000;
            assert!((50..=75).contains(&audited), "{audited}");
        }
    }

    #[test]
    fn a_miner_with_nothing_to_lose_is_audited_whole() {
        assert_eq!(share(MANY, 0, 500, 35), MAX_SHARE_PPM);
        assert_eq!(share(0, MANY, 500, 35), MAX_SHARE_PPM);
        assert_eq!(share(u64::MAX, u64::MAX, u64::MAX, u64::MAX), MAX_SHARE_PPM);
        assert_eq!(unvested_answers(u64::MAX, u64::MAX), u64::MAX / 40);
        assert_eq!(unvested_answers(100, 0), 0);
    }

    proptest! {
        #[test]
        fn more_at_stake_is_audited_less_and_no_share_leaves_its_bounds(
            answers in 1_u64..1_000_000, at_stake in 1_u64..1_000_000, more in 0_u64..1_000_000,
        ) {
            let (less, other) = (share(answers, at_stake, 500, 35), share(answers, at_stake + more, 500, 35));
            prop_assert!(other <= less);
            prop_assert!((1_000..=MAX_SHARE_PPM).contains(&less));
            // The condition of incentives: x·g·n/p stays within half of what is at stake, unless all is audited.
            if less < MAX_SHARE_PPM {
                prop_assert!(35 * 500 * 2 * 1_000 <= u64::from(less) * at_stake);
            }
        }
    }
}
