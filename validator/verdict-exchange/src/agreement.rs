//! Whether scores of another reference agree with those that a bundle states.
//!
//! Two honest references make the same choice at most places. Where they differ, a token that one of them would have
//! chosen is off by the other; the calibration bounds how often that occurs on honest machines.

use muster_audit::{BILLION, ENTROPY_EDGES, HonestBound, Margin, TokenScore};

/// Two entropies that differ by no more, in millinats, may fall into different bins.
const ENTROPY_NOISE: u32 = 100;
/// One token in this many may differ at most, whatever the calibration allows.
const LARGEST_SHARE: u64 = 20;
/// Millionths of a token, the unit of the expected number.
const MILLION: u64 = 1_000_000;

/// The result of scoring answers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The answers that were scored again.
    pub pairs: usize,
    /// The number of their tokens.
    pub tokens: u64,
    /// The tokens about which the references differ.
    pub differing: u64,
    /// The tokens about which they may differ.
    pub allowed: u64,
}

impl Agreement {
    /// Whether the references agree.
    pub const fn is_within(&self) -> bool {
        self.differing <= self.allowed
    }
}

impl std::fmt::Display for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            pairs,
            tokens,
            differing,
            allowed,
        } = self;
        write!(
            f,
            "{pairs} pairs were scored again: {differing} of {tokens} tokens differ, {allowed} may"
        )
    }
}

/// Compares what a bundle states of answers with this validator's own scores, by the bound of honest machines of its
/// own calibration. Tokens that only one of both scored differ.
pub fn compare_scores(bound: &HonestBound, pairs: &[(Vec<TokenScore>, Vec<TokenScore>)]) -> Agreement {
    let (mut tokens, mut differing, mut expected) = (0_u64, 0_u64, 0_u64);
    for (stated, own) in pairs {
        let longer = stated.len().max(own.len());
        let common = stated.iter().zip(own);
        tokens = tokens.saturating_add(count(longer));
        differing = differing.saturating_add(count(longer - stated.len().min(own.len())));
        for (stated, own) in common {
            differing = differing.saturating_add(u64::from(differs(stated, own)));
            let [chosen, ..] = bound.masses(own.bins().0);
            // From billionths to millionths, rounded up.
            expected = expected.saturating_add(BILLION.saturating_sub(chosen).div_ceil(1_000));
        }
    }
    Agreement {
        pairs: pairs.len(),
        tokens,
        differing,
        allowed: allowed(expected).min(tokens / LARGEST_SHARE),
    }
}

/// The number of tokens that may differ if `expected` are to, in millionths: three standard deviations and one
/// token more.
fn allowed(expected: u64) -> u64 {
    let deviation = expected.saturating_mul(MILLION).isqrt().saturating_add(1);
    let most = expected.saturating_add(deviation.saturating_mul(3));
    most.div_ceil(MILLION).saturating_add(1)
}

/// Whether two scores of one token cannot be those of two honest references, but for their rounding: one states that
/// the token is off and the other does not, their sizes lie more than one bin apart, or they are of places of different
/// entropy.
fn differs(stated: &TokenScore, own: &TokenScore) -> bool {
    let is_off = |score: &TokenScore| score.margin != Margin::Micronats(0);
    let ((stated_entropy, stated_margin), (own_entropy, own_margin)) = (stated.bins(), own.bins());
    let other_place = stated_entropy != own_entropy && stated.entropy.abs_diff(own.entropy) > ENTROPY_NOISE;
    is_off(stated) != is_off(own) || stated_margin.abs_diff(own_margin) > 1 || other_place
}

const _: () = assert!(
    ENTROPY_EDGES[0] > ENTROPY_NOISE,
    "noise is smaller than every bin"
);

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use muster_audit::{Calibration, CellCounts};
    use proptest::prelude::*;

    use super::*;

    fn bound() -> HonestBound {
        let text = include_str!("../../../tests/vectors/audit-calibration.json");
        Calibration::parse(text).unwrap().bound()
    }

    fn token(margin: u32, entropy: u32) -> TokenScore {
        TokenScore {
            margin: Margin::Micronats(margin),
            entropy,
        }
    }

    fn compared(stated: &[TokenScore], own: &[TokenScore]) -> Agreement {
        compare_scores(&bound(), &[(stated.to_vec(), own.to_vec())])
    }

    #[test]
    fn rounding_is_allowed_and_forged_tokens_are_not() {
        let own = vec![token(0, 2_000); 640];
        let mut stated = own.clone();
        assert!(compared(&stated, &own).is_within());
        for place in 0..5 {
            stated[place * 9] = token(7_000, 2_010);
        }
        let agreed = compared(&stated, &own);
        assert!(agreed.is_within(), "{agreed}");
        for place in 0..64 {
            stated[place * 10] = token(300_000, 2_000);
        }
        let forged = compared(&stated, &own);
        assert!(!forged.is_within(), "one token in ten: {forged}");
    }

    #[test]
    fn larger_margins_and_other_entropies_are_forged_too() {
        // An honest bf16 machine is off now and then, but never by so much.
        let mut own = vec![token(0, 3_500); 640];
        for place in 0..40 {
            own[place * 16] = token(20_000, 3_500);
        }
        let stated = |margin: Margin, entropy: u32| -> Vec<TokenScore> {
            let forge = |score: &TokenScore| match score.margin {
                Margin::Micronats(0) => *score,
                Margin::Micronats(_) | Margin::Impossible => TokenScore { margin, entropy },
            };
            own.iter().map(forge).collect()
        };
        assert!(compared(&stated(Margin::Micronats(60_000), 3_480), &own).is_within());
        assert!(!compared(&stated(Margin::Impossible, 3_500), &own).is_within());
        assert!(!compared(&stated(Margin::Micronats(20_000), 100), &own).is_within());
    }

    #[test]
    fn answers_of_other_lengths_differ_by_the_tokens_that_are_missing() {
        let own = vec![token(0, 2_000); 100];
        let agreed = compared(&own[..40], &own);
        assert_eq!((agreed.tokens, agreed.differing), (100, 60));
        assert!(!agreed.is_within());
    }

    proptest! {
        #[test]
        fn a_reference_agrees_with_itself_and_the_allowance_is_small(
            tokens in proptest::collection::vec((0u32..3_000_000, 0u32..5_000), 0..400),
        ) {
            let scores: Vec<_> = tokens.iter().map(|(margin, entropy)| token(*margin, *entropy)).collect();
            let agreed = compared(&scores, &scores);
            prop_assert_eq!(agreed.differing, 0);
            prop_assert!(agreed.allowed <= agreed.tokens / LARGEST_SHARE);
            let counted = CellCounts::of(&scores);
            let all: u32 = (0..4).map(|entropy| counted.tokens(entropy)).sum();
            prop_assert_eq!(agreed.tokens, u64::from(all));
        }

        #[test]
        fn more_expected_tokens_never_lower_the_allowance(expected in 0u64..1_000_000_000, more in 0u64..1_000_000) {
            prop_assert!(allowed(expected) <= allowed(expected + more));
            prop_assert!(allowed(expected) * MILLION > expected);
        }
    }
}
