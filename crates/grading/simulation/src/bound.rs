//! The most that a strategy may win, as a formula of its own shares and of what happened to its twin.

use muster_scoring::MULTIPLIER;

use crate::hardware::SAVED_BY_CHEAPER;
use crate::settings::Settings;
use crate::strategy::Strategy;

/// The most that absence may win, planned or at a probe that is forgiven, in millionths (`docs/adr/0064`).
const PLANNED: u64 = 5_000;
const WHOLE: u64 = 1_000_000;

/// The facts about the world in which a strategy was tried that its bound needs, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// `κ`: the part of a flawless miner's points that the honest twin kept in spite of its failures. The points of an
    /// epoch are shares of the class's credit Q, so epochs count by 1 / Q.
    pub kept: u64,
    /// `f`: the strategy's largest share of the class's credit in any epoch.
    pub share: u64,
}

impl Strategy {
    /// The most pay per unit of money relative to an honest miner, in thousandths, rounded up: the product of
    ///
    /// * `1 + x / (1 − f·x)`: `x` is the premium of a worked second times the share of time that the strategy adds, at
    ///   most `1 − ρ`: `ρ·s` by stalling jobs s times as long, `μ·S` by a colluding validator of stake share
    ///   S, and `ρ·(n − 1)` by n hotkeys, because routing draws hotkeys among miners of equal cost;
    /// * `1 / κ` for hardware that is spread over hotkeys, of which each is forgiven its own failures, and for cards
    ///   that are excused and so cannot fail;
    /// * `1 / (1 − min(e, μ·S))` for a share `e` of cards that do not exist and are excused by the colluding validator;
    /// * `n / π` for a card of π times the price that shows n executors;
    /// * `q / (1 − x·g)` for a share x of answers that save g of their cost, with the factor q of audits;
    /// * 1.005 for absence.
    pub(crate) fn bound(&self, settings: &Settings, conditions: Conditions) -> u64 {
        if let Some(bound) = self.bound {
            return bound;
        }
        let organic = self.organic.unwrap_or(settings.organic);
        let idle = 1_000_u64.saturating_sub(organic.into());
        let washed = u64::from(self.colluder).saturating_mul(MULTIPLIER);
        let stalled = u64::from(organic).saturating_mul(self.stalls.into()) / 1_000;
        let attracted = u64::from(organic).saturating_mul(self.more_hotkeys.into());
        let added = idle.min(washed.saturating_add(stalled).saturating_add(attracted));
        let won = Settings::PREMIUM.saturating_mul(added);
        let diluted = won.saturating_mul(conditions.share.min(WHOLE)) / WHOLE;
        let mut factors = vec![(
            WHOLE.saturating_sub(diluted).saturating_add(won),
            WHOLE.saturating_sub(diluted),
        )];
        if self.more_hotkeys > 0 || self.excused > 0 {
            factors.push((WHOLE, conditions.kept.clamp(1, WHOLE)));
        }
        let excused = u64::from(self.excused).min(washed).min(999);
        factors.push((1_000, 1_000_u64.saturating_sub(excused)));
        let executors = u64::from(self.passes_as).saturating_add(1);
        factors.push((executors.saturating_mul(1_000), self.price()));
        let saved = u64::from(self.cheaper).saturating_mul(SAVED_BY_CHEAPER);
        factors.push((WHOLE, WHOLE.saturating_sub(saved).max(1)));
        if self.quality > 0 {
            factors.push((self.quality.into(), 1_000));
        }
        if self.planned > 0 || self.absent > 0 {
            factors.push((WHOLE.saturating_add(PLANNED), WHOLE));
        }
        let product = factors.into_iter().fold(u128::from(WHOLE), multiply);
        u64::try_from(product.div_ceil(1_000)).unwrap_or(u64::MAX)
    }
}

/// `value · over / under`, rounded up.
fn multiply(value: u128, (over, under): (u64, u64)) -> u128 {
    let under = u128::from(under.max(1));
    value.saturating_mul(over.into()).div_ceil(under)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::SETTINGS;

    const FLAWLESS: Conditions = Conditions {
        kept: WHOLE,
        share: 0,
    };

    fn bound(strategy: &Strategy) -> u64 {
        strategy.bound(&SETTINGS, FLAWLESS)
    }

    #[test]
    fn the_formulas_are_those_of_the_decision() {
        let none = Strategy::default();
        assert_eq!(bound(&none), 1_000);
        let washing = |colluder| Strategy {
            colluder,
            ..none.clone()
        };
        assert_eq!(bound(&washing(20)), 1_016);
        assert_eq!(bound(&washing(100)), 1_080);
        assert_eq!(bound(&washing(300)), 1_198, "no more than the idle time");
        let diluted = Conditions {
            share: WHOLE / 10,
            ..FLAWLESS
        };
        assert_eq!(washing(100).bound(&SETTINGS, diluted), 1_081);
        let excused = Strategy {
            excused: 500,
            ..washing(100)
        };
        assert_eq!(bound(&excused), 1_800, "1.08 / (1 − 0.4)");
        let spread = Strategy {
            more_hotkeys: 1,
            ..none.clone()
        };
        let unlucky = Conditions {
            kept: 950_000,
            ..FLAWLESS
        };
        assert_eq!(spread.bound(&SETTINGS, unlucky), 1_055, "1.002 / 0.95");
        let large = Strategy {
            passes_as: 6,
            card_price: 9_000,
            ..none.clone()
        };
        assert_eq!(bound(&large), 778);
        let cheaper = Strategy {
            cheaper: 100,
            ..none.clone()
        };
        assert_eq!(bound(&cheaper), 1_053);
        let found = Strategy {
            quality: 500,
            ..cheaper
        };
        assert_eq!(bound(&found), 527);
        let stated = Strategy {
            bound: Some(7),
            ..none
        };
        assert_eq!(bound(&stated), 7);
    }
}
