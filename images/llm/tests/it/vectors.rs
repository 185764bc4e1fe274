//! The golden vectors of `reference/sampler.py`: two implementations that share nothing but the text in docs/proofs.md.

use std::collections::BTreeMap;

use muster_image_llm::backend::{Cache, Candle};
use muster_image_llm::engine::{Engine, Limits, Margin, Score, Scored};
use muster_image_llm::llama_cpp::Uniforms;
use muster_image_llm::model::{Loaded, Storage, load};
use muster_image_llm::noise::{Noise, ONE, Position, Seed, gumbel, weight};
use muster_image_llm::replay::Chooser;
use muster_image_llm::sampler::{Draw, Parameters, Slack, q24};
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn vectors<T: DeserializeOwned>(text: &str) -> Vec<T> {
    let rows: Vec<T> = serde_json::from_str(text).unwrap();
    assert!(rows.len() >= 30);
    rows
}

fn word(hex: &str) -> u64 {
    u64::from_str_radix(hex, 16).unwrap()
}

#[derive(Deserialize)]
struct Gumbel {
    word: String,
    gumbel_q24: i64,
}

#[test]
fn the_noise_is_the_references() {
    for row in vectors::<Gumbel>(include_str!("../vectors/noise.json")) {
        assert_eq!(gumbel(word(&row.word)), row.gumbel_q24, "{}", row.word);
    }
}

#[derive(Deserialize)]
struct Drawn {
    openai_seed: i64,
    choice: u32,
    choice_seed: String,
    position: u32,
    token: u32,
    word: String,
}

#[test]
fn seeds_and_words_are_the_references() {
    for row in vectors::<Drawn>(include_str!("../vectors/draws.json")) {
        let seed = Seed::of_openai(row.openai_seed).choice(row.choice);
        assert_eq!(hex::encode(seed.0), row.choice_seed);
        assert_eq!(
            Position::new(&seed, row.position).word(row.token),
            word(&row.word)
        );
    }
}

#[derive(Deserialize)]
struct Weight {
    distance_q24: i64,
    temperature_q24: i64,
    weight_q40: u64,
}

#[test]
fn weights_are_the_references() {
    for row in vectors::<Weight>(include_str!("../vectors/weights.json")) {
        assert_eq!(weight(row.distance_q24, row.temperature_q24), row.weight_q40);
    }
}

#[derive(Deserialize)]
struct Asked {
    temperature: f64,
    top_p: f64,
    top_k: u32,
    min_p: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    logit_bias: Vec<(u32, f64)>,
}

#[derive(Deserialize)]
struct Chosen {
    parameters: Asked,
    logits_f32: Vec<String>,
    counts: Vec<(u32, u32)>,
    seed: String,
    position: u32,
    token: u32,
    slack_q24: i64,
    edge_q24: i64,
    clip_q24: i64,
    margins_q24: Vec<Option<i64>>,
}

#[test]
fn choices_and_margins_are_the_references() {
    for (i, row) in vectors::<Chosen>(include_str!("../vectors/choices.json"))
        .into_iter()
        .enumerate()
    {
        let asked = row.parameters;
        let parameters = Parameters {
            temperature: q24(asked.temperature),
            top_p: q24(asked.top_p),
            top_k: asked.top_k,
            min_p: q24(asked.min_p),
            presence_penalty: q24(asked.presence_penalty),
            frequency_penalty: q24(asked.frequency_penalty),
            logit_bias: asked
                .logit_bias
                .iter()
                .map(|(token, bias)| (*token, q24(*bias)))
                .collect(),
        };
        let logits: Vec<f32> = row
            .logits_f32
            .iter()
            .map(|bits| f32::from_bits(u32::from_str_radix(bits, 16).unwrap()))
            .collect();
        let counts: BTreeMap<u32, u32> = row.counts.into_iter().collect();
        let seed = Seed(hex::decode(&row.seed).unwrap().try_into().unwrap());
        let draw = Draw::new(&logits, &counts, &parameters, seed, row.position);
        assert_eq!(draw.choose(), Some(row.token), "case {i}");
        let slack = Slack {
            share: row.slack_q24,
            logit: row.edge_q24,
            clip: row.clip_q24,
        };
        for (token, margin) in (0..).zip(&row.margins_q24) {
            assert_eq!(draw.margin(token, slack), *margin, "case {i}, token {token}");
        }
        assert_eq!(draw.margin(row.token, slack), Some(0), "case {i}");
    }
}

#[derive(Deserialize)]
struct OfTriton {
    seed: i64,
    position: u64,
    temperature: f64,
    /// The logits of the tokens, in 64ths of a nat.
    logits: Vec<i16>,
    winner: u32,
    /// Of the first tokens.
    bits: Vec<u32>,
    noise: Vec<f64>,
}

#[test]
fn the_noise_of_vllm_is_that_of_tritons_interpreter() {
    let rows: Vec<OfTriton> = serde_json::from_str(include_str!("../vectors/vllm.json")).unwrap();
    assert_eq!(rows.len(), 16);
    for row in rows {
        let noise = Noise::Vllm(row.seed, row.position);
        for ((token, bits), drawn) in (0..).zip(&row.bits).zip(&row.noise) {
            let word = Position::at(&noise).word(token);
            let k = u64::from(*bits.min(&!bits)).max(1);
            assert_eq!(
                word,
                ((1 << 31) - k) << 33,
                "{} {} {token}",
                row.seed,
                row.position
            );
            // Theirs is in f32.
            assert!((gumbel(word) as f64 / ONE as f64 - drawn).abs() < 1e-5);
        }
        let logits: Vec<f32> = row.logits.iter().map(|x| f32::from(*x) / 64.0).collect();
        let parameters = Parameters {
            temperature: q24(row.temperature),
            ..Parameters::default()
        };
        let draw = Draw::with_noise(&logits, &BTreeMap::new(), &parameters, noise);
        assert_eq!(draw.choose(), Some(row.winner));
        assert_eq!(draw.margin(row.winner, Slack::default()), Some(0));
    }
}

#[derive(Deserialize)]
struct OfLlamaCpp {
    prompt: Vec<u32>,
    seed: u32,
    temperature: f64,
    top_k: u32,
    top_p: f64,
    min_p: f64,
    tokens: Vec<u32>,
}

#[test]
fn answers_of_llama_cpp_score_without_margins_under_its_seed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    let Loaded { shape, weights, .. } = load(&folder, Storage::AsGiven).unwrap();
    let backend = Candle::new(shape, weights, Cache::F32, 4).unwrap();
    let engine = Engine::start(Box::new(backend), Limits::default()).unwrap();
    let rows = vectors::<OfLlamaCpp>(include_str!("../vectors/llama_cpp.json"));
    let (mut all, mut off, mut largest, mut under_another, mut choices) = (0, 0, 0, 0, 0);
    for row in rows {
        let parameters = Parameters {
            temperature: q24(row.temperature),
            top_k: row.top_k,
            top_p: q24(row.top_p),
            min_p: q24(row.min_p),
            logit_bias: BTreeMap::from([(0, q24(-100.0))]),
            ..Parameters::default()
        };
        let margins = |seed: u32| -> Vec<Option<i64>> {
            let score = Score {
                tokens: row.prompt.iter().chain(&row.tokens).copied().collect(),
                prompt: row.prompt.len(),
                parameters: parameters.clone(),
                chooser: Some(Chooser::LlamaCpp(Uniforms::new(seed, row.tokens.len() + 1))),
                slack: Slack::default(),
                likely: 0,
            };
            let scores = engine.score(score).unwrap().blocking_recv().unwrap();
            let margin = |scored: &Scored| match scored.margin {
                Margin::Known(margin) => Some(margin),
                Margin::Impossible => None,
                Margin::Unknown => panic!("there is a seed"),
            };
            scores.tokens.iter().map(margin).collect()
        };
        for margin in margins(row.seed) {
            let margin = margin.unwrap_or(ONE);
            all += 1;
            off += usize::from(margin > 0);
            largest = largest.max(margin);
        }
        under_another += margins(row.seed ^ 5)
            .iter()
            .filter(|margin| **margin != Some(0))
            .count();
        choices += row.tokens.len();
    }
    let largest = largest as f64 / ONE as f64;
    println!(
        "{off} of {all} tokens off, by {largest} at most; {under_another} of {choices} under other seeds"
    );
    assert!(off * 200 < all && largest < 0.001, "{off} of {all}, {largest}");
    assert!(under_another * 4 > choices, "{under_another} of {choices}");
}
