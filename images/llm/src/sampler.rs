//! Which token is chosen: penalties, bias, temperature, min-p, top-k, top-p, then noise, then the largest.
//!
//! A pure function of the logits, the tokens chosen before, the parameters and the seed. docs/proofs.md, "Audit: the
//! seeded sampler", gives it bit for bit. Logits are taken to Q24 first and everything after that is exact.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::noise::{Noise, ONE, Position, STRETCH, Seed, fill_stretch, gumbel, gumbel_at_most, weight};

/// The version of this sampler.
pub const VERSION: &str = "1";

/// Logits beyond this are taken to it; further apart nothing is ever chosen.
const FARTHEST: f64 = 16_384.0;

/// How a token is chosen. Real numbers are in Q24.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// 0: the likeliest token, without noise.
    pub temperature: i64,
    /// One or more: off.
    pub top_p: i64,
    /// The number of most likely tokens to choose from; 0 switches the rule off.
    pub top_k: u32,
    /// A token whose probability is less than this share of the likeliest token's is not chosen; 0 switches the rule
    /// off.
    pub min_p: i64,
    /// Taken once from each token that the answer contains already.
    pub presence_penalty: i64,
    /// Taken for each time that the answer contains it.
    pub frequency_penalty: i64,
    /// Added to the logits of these tokens.
    pub logit_bias: BTreeMap<u32, i64>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            temperature: ONE,
            top_p: ONE,
            top_k: 0,
            min_p: 0,
            presence_penalty: 0,
            frequency_penalty: 0,
            logit_bias: BTreeMap::new(),
        }
    }
}

/// A number in Q24, half to even. A NaN becomes 0.
#[must_use]
pub fn q24(value: f64) -> i64 {
    // The product is exact; the conversion saturates.
    (value * ONE as f64).round_ties_even() as i64
}

/// How far a replay may be off before it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    /// Of a probability, in Q24, where min-p and top-p cut.
    pub share: i64,
    /// Of a logit, in Q24, where top-k cuts.
    pub logit: i64,
    /// Margins end here, in Q24.
    pub clip: i64,
}

impl Slack {
    /// No slack at all: what is exactly so.
    pub(crate) const fn none() -> Self {
        Self {
            share: 0,
            logit: 0,
            clip: 0,
        }
    }
}

impl Default for Slack {
    /// 1/256, 1/16 and 16.
    fn default() -> Self {
        Self {
            share: ONE / 256,
            logit: ONE / 16,
            clip: 16 * ONE,
        }
    }
}

/// A set that a token is chosen from: as it is, or what is surely, or possibly, in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    Exact,
    Surely(Slack),
    Possibly(Slack),
}

/// One position of one answer.
pub struct Draw<'a> {
    parameters: &'a Parameters,
    noise: Noise,
    /// Logits in Q24 after penalties and bias, with their tokens in rising order; a masked token is absent.
    live: Vec<(i64, u32)>,
}

impl<'a> Draw<'a> {
    /// `counts` holds how often each token stands in the answer already; `position` is how many there are.
    #[must_use]
    pub fn new(
        logits: &[f32],
        counts: &BTreeMap<u32, u32>,
        parameters: &'a Parameters,
        seed: Seed,
        position: u32,
    ) -> Self {
        Self::with_noise(logits, counts, parameters, Noise::Muster(seed, position))
    }

    /// The same under any noise.
    #[must_use]
    pub fn with_noise(
        logits: &[f32],
        counts: &BTreeMap<u32, u32>,
        parameters: &'a Parameters,
        noise: Noise,
    ) -> Self {
        let masked = |logit: f32| logit.is_nan() || logit == f32::NEG_INFINITY;
        let plain = |logit: f32| q24(f64::from(logit).clamp(-FARTHEST, FARTHEST));
        let mut live = Vec::with_capacity(logits.len());
        let all = (0..).zip(logits).filter(|(_, logit)| !masked(**logit));
        live.extend(all.map(|(token, logit)| (plain(*logit), token)));
        let mut shift = |token: u32, by: i64| {
            let at = live.binary_search_by_key(&token, |(_, other)| *other).ok();
            if let Some((x, _)) = at.and_then(|at| live.get_mut(at)) {
                *x += by;
            }
        };
        if parameters.presence_penalty != 0 || parameters.frequency_penalty != 0 {
            for (token, count) in counts.iter().filter(|(_, count)| **count > 0) {
                let penalty = parameters.frequency_penalty * i64::from(*count) + parameters.presence_penalty;
                shift(*token, -penalty);
            }
        }
        for (token, bias) in &parameters.logit_bias {
            shift(*token, *bias);
        }
        Self {
            parameters,
            noise,
            live,
        }
    }

    /// The token that is chosen; none where all are masked.
    #[must_use]
    pub fn choose(&self) -> Option<u32> {
        self.best(self.kept(Edge::Exact)).map(|(_, token)| token)
    }

    /// How far `token` is behind what would have been chosen, in Q24; none where it cannot have been chosen.
    #[must_use]
    pub fn margin(&self, token: u32, slack: Slack) -> Option<i64> {
        let at = self.live.binary_search_by_key(&token, |(_, other)| *other).ok()?;
        let (x, _) = *self.live.get(at)?;
        if self.cuts()
            && !self
                .kept(Edge::Possibly(slack))
                .iter()
                .any(|(_, other)| *other == token)
        {
            return None;
        }
        let (best, _) = self.best(self.kept(Edge::Surely(slack)))?;
        Some((best - self.noised(x, token)).clamp(0, slack.clip))
    }

    /// The logits, in rising order of their tokens.
    pub(crate) fn live(&self) -> &[(i64, u32)] {
        &self.live
    }

    fn noised(&self, x: i64, token: u32) -> i64 {
        let t = self.parameters.temperature;
        if t == 0 {
            return x;
        }
        let word = Position::at(&self.noise).word(token);
        x + ((t * gumbel(word)) >> 24)
    }

    /// The largest noised logit among `tokens`, and whose it is: the smaller token's where two are equal.
    fn best(&self, tokens: Cow<'_, [(i64, u32)]>) -> Option<(i64, u32)> {
        let t = self.parameters.temperature;
        if t == 0 {
            return tokens
                .iter()
                .copied()
                .max_by_key(|(x, token)| (*x, Reverse(*token)));
        }
        // Neighbours' words are made together.
        let tokens = match tokens {
            Cow::Borrowed(tokens) => Cow::Borrowed(tokens),
            Cow::Owned(mut tokens) => {
                tokens.sort_unstable_by_key(|(_, token)| *token);
                Cow::Owned(tokens)
            }
        };
        let mut best: Option<(i64, u32)> = None;
        let mut try_token = |x: i64, token: u32, word: u64| {
            // Most tokens cannot win whatever the logarithm's digits are. Rounding down keeps the order of the two.
            if best.is_some_and(|(score, _)| x + ((t * gumbel_at_most(word)) >> 24) < score) {
                return;
            }
            let score = x + ((t * gumbel(word)) >> 24);
            if best.is_none_or(|(other, _)| score > other) {
                best = Some((score, token));
            }
        };
        if self.cuts() {
            let mut position = Position::at(&self.noise);
            for (x, token) in tokens.iter().copied() {
                try_token(x, token, position.word(token));
            }
            return best;
        }
        // All tokens: a stretch's words are made and looked at together.
        let mut words = [0; STRETCH];
        for tokens in tokens.chunk_by(|(_, a), (_, b)| a / STRETCH as u32 == b / STRETCH as u32) {
            let Some((_, first)) = tokens.first() else {
                continue;
            };
            fill_stretch(&self.noise, first / STRETCH as u32, &mut words);
            if tokens.len() == STRETCH {
                for ((x, token), word) in tokens.iter().zip(&words) {
                    try_token(*x, *token, *word);
                }
                continue;
            }
            for (x, token) in tokens {
                let word = words.get(*token as usize % STRETCH).copied().unwrap_or_default();
                try_token(*x, *token, word);
            }
        }
        best
    }

    /// Whether min-p, top-k or top-p can leave a token out.
    fn cuts(&self) -> bool {
        let p = self.parameters;
        let k = p.top_k as usize;
        p.temperature > 0 && (p.min_p > 0 || (k > 0 && k < self.live.len()) || p.top_p < ONE)
    }

    /// The tokens that are left after min-p, top-k and top-p.
    fn kept(&self, edge: Edge) -> Cow<'_, [(i64, u32)]> {
        if !self.cuts() {
            return Cow::Borrowed(&self.live);
        }
        let p = self.parameters;
        let mut kept = self.live.clone();
        let (share, logit) = match edge {
            Edge::Exact => (0, 0),
            Edge::Surely(slack) => (slack.share, slack.logit),
            Edge::Possibly(slack) => (-slack.share, -slack.logit),
        };
        let Some(top) = kept.iter().map(|(x, _)| *x).max() else {
            return Cow::Owned(kept);
        };
        let weigh = |x: i64| weight(top - x, p.temperature);
        if p.min_p > 0 {
            let least = ((p.min_p + share).clamp(0, ONE) as u64) << 16;
            kept.retain(|(x, _)| weigh(*x) >= least);
        }
        let k = p.top_k as usize;
        if k > 0 && k < kept.len() {
            keep_likeliest(&mut kept, k, logit);
        }
        let target = if p.top_p < ONE { p.top_p - share } else { ONE };
        if target < ONE {
            keep_share(&mut kept, target, weigh);
        }
        Cow::Owned(kept)
    }
}

/// Likelier first, the smaller token first where two are equal.
fn order(entry: &(i64, u32)) -> (Reverse<i64>, u32) {
    (Reverse(entry.0), entry.1)
}

/// The `k` likeliest; by `logit` fewer or more.
fn keep_likeliest(kept: &mut Vec<(i64, u32)>, k: usize, logit: i64) {
    let (_, next, _) = kept.select_nth_unstable_by_key(k, order);
    let next = next.0;
    let (likeliest, _) = kept.split_at(k);
    let last = likeliest.iter().map(|(x, _)| *x).min().unwrap_or(next);
    let first = likeliest.iter().copied().min_by_key(order);
    if logit < 0 {
        kept.retain(|(x, _)| *x >= last + logit);
        return;
    }
    kept.truncate(k);
    if logit > 0 {
        kept.retain(|entry| Some(*entry) == first || entry.0 >= next + logit);
    }
}

/// The fewest of the likeliest that make up `target` (Q24) of the sum of all weights.
fn keep_share(kept: &mut Vec<(i64, u32)>, target: i64, weigh: impl Fn(i64) -> u64) {
    let mut weighed: Vec<(i64, u32, u64)> = kept
        .iter()
        .map(|(x, token)| (*x, *token, weigh(*x)))
        .filter(|(_, _, w)| *w > 0)
        .collect();
    weighed.sort_unstable_by_key(|(x, token, _)| order(&(*x, *token)));
    let total: i128 = weighed.iter().map(|(_, _, w)| i128::from(*w)).sum();
    let mut sum = 0_i128;
    kept.clear();
    for (x, token, w) in weighed {
        kept.push((x, token));
        sum += i128::from(w);
        if sum << 24 >= i128::from(target) * total {
            break;
        }
    }
}
