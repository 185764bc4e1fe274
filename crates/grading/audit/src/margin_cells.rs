//! Scored tokens, and the cells into which they are counted: by the entropy at their place, and by their margin.
//!
//! An answer is judged by its counts alone. Tokens of low entropy are judged apart from those of high entropy, so that
//! a client cannot dilute a miner's errors with prompts whose answers leave nothing to choose.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of bins of entropy.
pub const ENTROPY_BINS: usize = 4;
/// The number of bins of margins.
pub const MARGIN_BINS: usize = 9;
/// The entropies, in millinats, at which the second and each further bin begins.
pub const ENTROPY_EDGES: [u32; ENTROPY_BINS - 1] = [500, 1_500, 3_000];
/// The largest margins, in micronats, of the first and each further bin. The last bin but one has all larger margins,
/// the last the tokens that the model cannot have chosen.
pub const MARGIN_EDGES: [u32; MARGIN_BINS - 2] = [0, 10_000, 50_000, 200_000, 500_000, 1_000_000, 2_000_000];
/// The most tokens of an answer that are read.
pub const MAX_TOKENS: usize = 131_072;

/// The distance of a token from the reference's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Margin {
    /// In micronats; 0 for the reference's own choice.
    Micronats(u32),
    /// The reference cannot have chosen the token.
    Impossible,
}

/// A token of an answer as the reference scored it. In JSON a list of two numbers; an impossible margin is -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenScore {
    /// The token's margin.
    pub margin: Margin,
    /// The entropy of the reference's distribution at the token's place, in millinats.
    pub entropy: u32,
}

impl TokenScore {
    /// Reads the numbers of the reference, in nats; `None` stands for an impossible margin. Margins are rounded up, so
    /// that no token that is off counts as the reference's choice. No score if a number is negative or none at all.
    pub fn from_nats(margin: Option<f64>, entropy: f64) -> Option<Self> {
        let scaled =
            |nats: f64, per_nat: f64| (nats >= 0.0).then_some((nats * per_nat).min(f64::from(u32::MAX)));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the numbers lie between 0 and the largest u32"
        )]
        let whole = |number: f64| number as u32;
        let margin = match margin {
            Some(nats) => Margin::Micronats(whole(scaled(nats, 1e6)?.ceil())),
            None => Margin::Impossible,
        };
        Some(Self {
            margin,
            entropy: whole(scaled(entropy, 1e3)?),
        })
    }

    /// The bin of the token's entropy and the bin of its margin.
    pub fn bins(&self) -> (usize, usize) {
        let entropy = ENTROPY_EDGES.iter().filter(|edge| self.entropy >= **edge).count();
        let margin = match self.margin {
            Margin::Micronats(micronats) => MARGIN_EDGES.iter().filter(|edge| micronats > **edge).count(),
            Margin::Impossible => MARGIN_BINS - 1,
        };
        (entropy, margin)
    }
}

impl Serialize for TokenScore {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let margin = match self.margin {
            Margin::Micronats(micronats) => i64::from(micronats),
            Margin::Impossible => -1,
        };
        (margin, self.entropy).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TokenScore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (margin, entropy) = <(i64, u32)>::deserialize(deserializer)?;
        let margin = match margin {
            -1 => Margin::Impossible,
            micronats => u32::try_from(micronats)
                .map(Margin::Micronats)
                .map_err(|_| serde::de::Error::custom("a margin is -1 or a number of micronats"))?,
        };
        Ok(Self { margin, entropy })
    }
}

/// The numbers of tokens by bin of entropy and bin of margin. In JSON a list: number of the cell, count, number of the
/// next cell, and so on, in rising order; the cell of bins e and m has the number 9e + m.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellCounts(pub [[u32; MARGIN_BINS]; ENTROPY_BINS]);

impl CellCounts {
    /// Counts the tokens of one answer.
    pub fn of(tokens: &[TokenScore]) -> Self {
        let mut counts = Self::default();
        for token in tokens {
            let (entropy, margin) = token.bins();
            if let Some(count) = counts.cell_mut(entropy, margin) {
                *count = count.saturating_add(1);
            }
        }
        counts
    }

    /// The counts of several answers together.
    pub fn sum<'a>(answers: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for answer in answers {
            let cells = sum.0.iter_mut().flatten().zip(answer.0.iter().flatten());
            for (total, count) in cells {
                *total = total.saturating_add(*count);
            }
        }
        sum
    }

    /// The number of tokens in a bin of entropy.
    pub fn tokens(&self, entropy: usize) -> u32 {
        self.at_least(entropy, 0)
    }

    /// The number of tokens in a bin of entropy whose margins are in this bin or a higher one.
    pub fn at_least(&self, entropy: usize, margin: usize) -> u32 {
        let row = self.0.get(entropy).and_then(|row| row.get(margin..));
        row.map_or(0, |counts| {
            counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
        })
    }

    fn cell_mut(&mut self, entropy: usize, margin: usize) -> Option<&mut u32> {
        self.0.get_mut(entropy)?.get_mut(margin)
    }
}

impl Serialize for CellCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let cells = (0_u32..).zip(self.0.iter().flatten());
        let filled = cells.filter(|(_, count)| **count > 0);
        serializer.collect_seq(filled.flat_map(|(cell, count)| [cell, *count]))
    }
}

impl<'de> Deserialize<'de> for CellCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let listed = Vec::<u32>::deserialize(deserializer)?;
        let (mut counts, mut least) = (Self::default(), 0);
        for pair in listed.chunks(2) {
            let [cell, count] = *pair else {
                return Err(serde::de::Error::custom("a cell has no count"));
            };
            let at = usize::try_from(cell).unwrap_or(usize::MAX);
            let place = counts.cell_mut(at / MARGIN_BINS, at % MARGIN_BINS);
            let place = place.filter(|_| cell >= least && count > 0);
            let place =
                place.ok_or_else(|| serde::de::Error::custom("cells rise from 0 to 35, counts from 1"))?;
            (*place, least) = (count, cell + 1);
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn score(margin: Option<f64>, entropy: f64) -> TokenScore {
        TokenScore::from_nats(margin, entropy).unwrap()
    }

    #[test]
    fn a_token_falls_into_the_cell_of_its_entropy_and_margin() {
        assert_eq!(score(Some(0.0), 0.0).bins(), (0, 0));
        assert_eq!(
            score(Some(1e-9), 0.499_9).bins(),
            (0, 1),
            "a token that is off stays off"
        );
        assert_eq!(score(Some(0.01), 0.5).bins(), (1, 1));
        assert_eq!(score(Some(0.010_001), 1.5).bins(), (2, 2));
        assert_eq!(score(Some(2.0), 2.999).bins(), (2, 6));
        assert_eq!(score(Some(1e12), 1e12).bins(), (3, 7));
        assert_eq!(score(None, 3.0).bins(), (3, 8));
        assert_eq!(TokenScore::from_nats(Some(f64::NAN), 1.0), None);
        assert_eq!(TokenScore::from_nats(Some(-1.0), 1.0), None);
        assert_eq!(TokenScore::from_nats(None, f64::NAN), None);
    }

    #[test]
    fn texts_are_lists_of_numbers_and_others_are_refused() {
        let tokens = [score(None, 1.0), score(Some(0.25), 4.0), score(Some(0.0), 0.1)];
        let text = serde_json::to_string(&tokens).unwrap();
        assert_eq!(text, "[[-1,1000],[250000,4000],[0,100]]");
        assert_eq!(serde_json::from_str::<Vec<TokenScore>>(&text).unwrap(), tokens);
        let counts = CellCounts::of(&tokens);
        assert_eq!(serde_json::to_string(&counts).unwrap(), "[0,1,17,1,31,1]");
        for bad in ["[-2,0]", "[4294967296,0]", "[0,-1]", "[0]"] {
            assert!(serde_json::from_str::<TokenScore>(bad).is_err(), "{bad}");
        }
        for bad in [
            "[0]",
            "[36,1]",
            "[3,1,2,1]",
            "[3,1,3,1]",
            "[3,0]",
            "[4294967295,1]",
        ] {
            assert!(serde_json::from_str::<CellCounts>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn counts_come_back_and_add_up(tokens in proptest::collection::vec((0_u32..3_000_000, 0_u32..5_000), 0..200)) {
            let scores: Vec<_> = tokens
                .iter()
                .map(|(margin, entropy)| TokenScore { margin: Margin::Micronats(*margin), entropy: *entropy })
                .collect();
            let counts = CellCounts::of(&scores);
            let text = serde_json::to_string(&counts).unwrap();
            prop_assert_eq!(serde_json::from_str::<CellCounts>(&text).unwrap(), counts);
            let all: u32 = (0..ENTROPY_BINS).map(|entropy| counts.tokens(entropy)).sum();
            prop_assert_eq!(usize::try_from(all).unwrap(), scores.len());
            let (left, right) = scores.split_at(scores.len() / 2);
            prop_assert_eq!(CellCounts::sum(&[CellCounts::of(left), CellCounts::of(right)]), counts);
        }
    }
}
