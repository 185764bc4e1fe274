//! llama.cpp's sampler, replayed: a Mersenne twister of a 32-bit seed, one uniform number a token, and the first
//! candidate at which the sum of the candidates' weights reaches it.
//!
//! The facts are those of [`VERSION`], its chain in the usual order: top-k, top-p and min-p on the probabilities at
//! temperature 1, then the temperature, then the choice. The candidates stand in falling order of their logits where
//! top-k or top-p sorts them, and in the order of their tokens otherwise.

use std::collections::BTreeMap;

use crate::noise::{Noise, ONE, Seed, weight};
use crate::sampler::{Draw, Parameters, Slack};

/// The version whose sampler this is. A number is drawn for every token, also where one candidate is left; versions
/// before that choice drew none there, and would be replayed wrongly from the first such token on.
pub const VERSION: &str = "b11549";

/// Logits closer than this part of [`Slack::logit`] may stand in either order.
const ORDER_PART: i64 = 16;

/// The Mersenne twister MT19937 (Matsumoto and Nishimura, 1998), as C++ has it.
struct Twister {
    state: Vec<u32>,
    at: usize,
}

impl Twister {
    const LENGTH: usize = 624;
    const AHEAD: usize = 397;

    fn new(seed: u32) -> Self {
        let mut state = Vec::with_capacity(Self::LENGTH);
        let mut last = seed;
        for i in 0..Self::LENGTH as u32 {
            if i > 0 {
                last = 1_812_433_253_u32.wrapping_mul(last ^ last >> 30).wrapping_add(i);
            }
            state.push(last);
        }
        Self {
            state,
            at: Self::LENGTH,
        }
    }

    fn twist(&mut self) {
        let word = |state: &[u32], i: usize| state.get(i % Self::LENGTH).copied().unwrap_or_default();
        for i in 0..Self::LENGTH {
            let joined = word(&self.state, i) & 0x8000_0000 | word(&self.state, i + 1) & 0x7FFF_FFFF;
            let odd = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
            let new = word(&self.state, i + Self::AHEAD) ^ joined >> 1 ^ odd;
            if let Some(old) = self.state.get_mut(i) {
                *old = new;
            }
        }
        self.at = 0;
    }

    fn next(&mut self) -> u32 {
        if self.at >= Self::LENGTH {
            self.twist();
        }
        let mut y = self.state.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9D2C_5680;
        y ^= y << 15 & 0xEFC6_0000;
        y ^ y >> 18
    }
}

/// The uniform numbers of an answer's tokens, in order, each in units of 2⁻⁶⁴.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uniforms(Vec<u64>);

impl Uniforms {
    /// The first `count` numbers of a seed. A number is made of two words of the twister, the lower one first.
    #[must_use]
    pub fn new(seed: u32, count: usize) -> Self {
        let mut twister = Twister::new(seed);
        let uniform = |_| {
            let low = u64::from(twister.next());
            low | u64::from(twister.next()) << 32
        };
        Self((0..count).map(uniform).collect())
    }

    /// The number of the `position`-th token; none beyond the count.
    #[must_use]
    pub fn get(&self, position: u32) -> Option<u64> {
        self.0.get(position as usize).copied()
    }
}

/// Whether the twister gives the number that the C++ standard demands of it.
pub(crate) fn self_test() -> bool {
    let mut twister = Twister::new(5489);
    (0..9_999).for_each(|_| {
        twister.next();
    });
    twister.next() == 4_123_659_995
}

/// A candidate in the order in which the sums are made.
#[derive(Clone, Copy)]
struct Candidate {
    /// The logit after bias, in Q24.
    x: i64,
    token: u32,
    /// The weight after temperature, in Q40.
    weight: u64,
}

/// The candidates after top-k, top-p and min-p, in falling order of their logits. Their number depends on the last
/// digits of the probabilities: the least, the exact and the largest one.
struct Candidates {
    sorted: Vec<Candidate>,
    least: usize,
    exact: usize,
    most: usize,
}

impl Candidates {
    fn new(live: &[(i64, u32)], parameters: &Parameters, slack: Slack) -> Self {
        let mut sorted: Vec<(i64, u32)> = live.to_vec();
        sorted.sort_unstable_by_key(|(x, token)| (std::cmp::Reverse(*x), *token));
        let top = sorted.first().map_or(0, |(x, _)| *x);
        let plain: Vec<u64> = sorted.iter().map(|(x, _)| weight(top - x, ONE)).collect();
        let left = |share: i64, logit: i64| left(&sorted, &plain, parameters, share, logit);
        let (least, exact, most) = (
            left(slack.share, slack.logit / ORDER_PART),
            left(0, 0),
            left(-slack.share, -slack.logit / ORDER_PART),
        );
        let of = |(x, token): &(i64, u32)| Candidate {
            x: *x,
            token: *token,
            weight: weight(top - x, parameters.temperature),
        };
        Self {
            sorted: sorted.iter().take(most.max(exact)).map(of).collect(),
            least,
            exact,
            most,
        }
    }

    /// The sum of the first `count` weights.
    fn sum(&self, count: usize) -> i128 {
        self.sorted
            .iter()
            .take(count)
            .map(|one| i128::from(one.weight))
            .sum()
    }
}

/// How many of the sorted candidates top-k, top-p and min-p leave, if probabilities are judged `share` harder and the
/// logit behind the last candidate has to be `logit` behind it.
fn left(sorted: &[(i64, u32)], plain: &[u64], parameters: &Parameters, share: i64, logit: i64) -> usize {
    let mut count = sorted.len();
    let k = parameters.top_k as usize;
    if k > 0 && k < count {
        let last = sorted.get(k - 1).map_or(0, |(x, _)| *x);
        count = match logit {
            0 => k,
            // The candidates that stand clearly before the first one that is cut, or not clearly behind the last one.
            1.. => sorted.get(k).map_or(k, |(cut, _)| {
                sorted.partition_point(|(x, _)| *x >= cut + logit).clamp(1, k)
            }),
            _ => sorted.partition_point(|(x, _)| *x >= last + logit),
        };
    }
    if parameters.top_p < ONE {
        let total: i128 = plain.iter().take(count).map(|w| i128::from(*w)).sum();
        let target = i128::from((parameters.top_p - share).clamp(0, ONE)) * total;
        let mut sum = 0_i128;
        let before = plain.iter().take(count).take_while(|w| {
            let short = sum << 24 < target;
            sum += i128::from(**w);
            short
        });
        count = before.count().max(1);
    }
    if parameters.min_p > 0 {
        let least = ((parameters.min_p + share).clamp(0, ONE) as u64) << 16;
        count = plain
            .iter()
            .take(count)
            .take_while(|w| **w >= least)
            .count()
            .max(1);
    }
    count
}

/// The token that is chosen for the uniform number of a position; none where all are masked.
#[must_use]
pub fn choose(logits: &[f32], parameters: &Parameters, uniform: u64) -> Option<u32> {
    let draw = draw_of(logits, parameters);
    if parameters.temperature == 0 {
        return draw.choose();
    }
    let mut candidates = Candidates::new(draw.live(), parameters, Slack::none());
    candidates.sorted.truncate(candidates.exact);
    if !is_sorted(parameters) {
        candidates.sorted.sort_unstable_by_key(|one| one.token);
    }
    let all = candidates.sum(candidates.sorted.len());
    let mut sum = 0_i128;
    let reached = candidates.sorted.iter().find(|one| {
        sum += i128::from(one.weight);
        // Both sides in units of 2⁻⁶⁴: weights are below 2⁴¹, and there are fewer than 2²⁰ of them.
        sum << 64 >= all * i128::from(uniform)
    });
    reached.or(candidates.sorted.last()).map(|one| one.token)
}

/// Whether the candidates stand in falling order of their logits.
const fn is_sorted(parameters: &Parameters) -> bool {
    parameters.top_k > 0 || parameters.top_p < ONE
}

/// The logits after bias. Without a temperature no noise is drawn, so any seed will do; with one, only the logits are
/// used.
fn draw_of<'a>(logits: &[f32], parameters: &'a Parameters) -> Draw<'a> {
    let noise = Noise::Muster(Seed([0; 32]), 0);
    Draw::with_noise(logits, &BTreeMap::new(), parameters, noise)
}

/// How far the uniform number of a position is from the interval of the numbers for which `token` is chosen, in Q24 of
/// a probability; none where the token cannot have been chosen. Where the temperature is 0, how far the token's logit
/// is behind the largest.
#[must_use]
pub fn margin(
    logits: &[f32],
    parameters: &Parameters,
    uniform: u64,
    token: u32,
    slack: Slack,
) -> Option<i64> {
    let draw = draw_of(logits, parameters);
    if parameters.temperature == 0 {
        return draw.margin(token, slack);
    }
    let candidates = Candidates::new(draw.live(), parameters, slack);
    let place = candidates.sorted.iter().position(|one| one.token == token)?;
    if place >= candidates.most.max(candidates.exact) {
        return None;
    }
    let mine = candidates.sorted.get(place)?;
    let sorted = is_sorted(parameters);
    let near = slack.logit / ORDER_PART;
    let (mut least_before, mut most_before) = (0_i128, 0_i128);
    for (at, one) in candidates
        .sorted
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != place)
    {
        let (surely, possibly) = if sorted {
            (one.x > mine.x + near, one.x >= mine.x - near)
        } else {
            (one.token < token, one.token < token)
        };
        if surely && at < candidates.least {
            least_before += i128::from(one.weight);
        }
        if possibly {
            most_before += i128::from(one.weight);
        }
    }
    let (least_sum, most_sum) = (
        candidates.sum(candidates.least.max(1)).max(1),
        candidates.sum(candidates.most.max(candidates.exact)).max(1),
    );
    // In Q24, one unit beyond each end of the interval for what was rounded.
    let low = (least_before << 24) / most_sum - 1;
    let high = ((most_before + i128::from(mine.weight)) << 24) / least_sum + 1;
    let uniform = i128::from(uniform >> 40);
    let behind = (low - uniform).max(uniform - high).max(0);
    Some(i64::try_from(behind).unwrap_or(i64::MAX).min(slack.clip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::q24;

    #[test]
    fn the_twister_is_the_standards() {
        assert!(self_test());
    }

    /// The token that llama.cpp's loop over the candidates comes to, in floating point.
    fn chosen(logits: &[f32], parameters: &Parameters, uniform: u64) -> u32 {
        let mut all: Vec<(f64, u32)> = (0..)
            .zip(logits)
            .map(|(token, x)| (f64::from(*x), token))
            .collect();
        let by_logit = |a: &(f64, u32), b: &(f64, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if parameters.top_k > 0 || parameters.top_p < ONE {
            all.sort_by(by_logit);
        }
        if parameters.top_k > 0 {
            all.truncate(parameters.top_k as usize);
        }
        let top = all.iter().map(|one| one.0).fold(f64::MIN, f64::max);
        let total: f64 = all.iter().map(|one| (one.0 - top).exp()).sum();
        if parameters.top_p < ONE {
            let (mut sum, mut left) = (0.0, 0);
            while sum < parameters.top_p as f64 / ONE as f64 && left < all.len() {
                sum += (all[left].0 - top).exp() / total;
                left += 1;
            }
            all.truncate(left);
        }
        if parameters.min_p > 0 {
            let least = top + (parameters.min_p as f64 / ONE as f64).ln();
            all.retain(|one| one.0 >= least);
        }
        let temperature = parameters.temperature as f64 / ONE as f64;
        let weights: Vec<f64> = all
            .iter()
            .map(|one| ((one.0 - top) / temperature).exp())
            .collect();
        let target = weights.iter().sum::<f64>() * (uniform as f64 / 2.0_f64.powi(64));
        let mut sum = 0.0;
        let at = weights.iter().position(|weight| {
            sum += weight;
            sum >= target
        });
        all[at.unwrap_or(all.len() - 1)].1
    }

    #[test]
    fn tokens_that_the_sampler_chooses_have_no_margin_and_others_have_one() {
        let logits: Vec<f32> = (0..200_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 20) as f32 / 700.0)
            .collect();
        for (top_k, top_p, min_p, temperature) in [
            (0, 1.0, 0.0, 1.0),
            (40, 1.0, 0.0, 1.0),
            (40, 0.9, 0.05, 0.7),
            (0, 0.8, 0.0, 1.5),
            (0, 1.0, 0.02, 1.0),
            (1, 1.0, 0.0, 1.0),
        ] {
            let parameters = Parameters {
                temperature: q24(temperature),
                top_p: q24(top_p),
                min_p: q24(min_p),
                top_k,
                ..Parameters::default()
            };
            let uniforms = Uniforms::new(9, 300);
            let (mut others, mut off) = (0, 0);
            for position in 0..300 {
                let uniform = uniforms.get(position).unwrap();
                let token = chosen(&logits, &parameters, uniform);
                let margin_of = |token| margin(&logits, &parameters, uniform, token, Slack::default());
                assert_eq!(margin_of(token), Some(0), "{top_k} {top_p} {min_p} {position}");
                assert_eq!(
                    choose(&logits, &parameters, uniform),
                    Some(token),
                    "{top_k} {top_p} {min_p}"
                );
                let other = (token + 100) % 200;
                others += 1;
                off += usize::from(margin_of(other) != Some(0));
            }
            assert!(
                off * 10 > others * 9,
                "{off} of {others}: {top_k} {top_p} {min_p}"
            );
        }
    }
}
