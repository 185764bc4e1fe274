//! The golden vectors of `reference/sampler.py`: two implementations that share nothing but the text in docs/proofs.md.

use std::collections::BTreeMap;

use muster_image_llm::noise::{Position, Seed, gumbel, weight};
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
struct Noise {
    word: String,
    gumbel_q24: i64,
}

#[test]
fn the_noise_is_the_references() {
    for row in vectors::<Noise>(include_str!("../vectors/noise.json")) {
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
