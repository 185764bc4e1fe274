//! The backend of libtorch against the one of candle: the same numbers within what was measured, and the same verdicts.
//! docs/llm/torch.md says how to build this and what it last printed. It ends with an error where they disagree.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "it measures and judges, as a test does"
)]

#[path = "../tests/it/support.rs"]
mod support;

use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use muster_image_llm::backend::{Backend, BackendError, Cache, Candle, Job, Rounding, Torch, Want};
use muster_image_llm::engine::{Engine, Event, Generate, Limits, Margin, Score};
use muster_image_llm::model::{Loaded, Storage, load};
use muster_image_llm::noise::{ONE, Seed};
use muster_image_llm::replay::Chooser;
use muster_image_llm::sampler::{Parameters, Slack};
use muster_image_llm::text::Tokenizer;

use support::{CONTEXT, VOCABULARY};

fn main() {
    both_libraries_give_the_same_numbers();
    products_are_rounded_alike();
    a_device_that_is_not_there_is_said_so();
    a_text_in_pieces_in_company_and_from_a_prefix_is_the_same_text();
    jobs_that_cannot_be_are_refused_and_change_nothing();
    the_trained_model_has_the_same_probabilities();
    answers_of_one_library_are_scored_as_honest_by_the_other();
    println!("libtorch and candle agree");
}

fn torch(loaded: Loaded, cache: Cache) -> Torch {
    Torch::new(loaded.shape, loaded.weights, cache, 4).unwrap()
}

fn candle(loaded: Loaded, cache: Cache) -> Candle {
    Candle::new(loaded.shape, loaded.weights, cache, 4).unwrap()
}

fn honest() -> Torch {
    torch(support::loaded(Storage::AsGiven).unwrap(), Cache::F32)
}

fn text() -> Vec<u32> {
    let mut random = support::Random(99);
    (0..150).map(|_| random.below(VOCABULARY) as u32).collect()
}

fn all(backend: &mut dyn Backend, slot: usize, tokens: &[u32]) -> Vec<f32> {
    let job = Job {
        slot,
        tokens,
        want: Want::All,
    };
    backend.forward(&[job]).unwrap().remove(0)
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().all(|v| v.is_finite()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn mean_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum();
    sum / a.len() as f64
}

fn both_libraries_give_the_same_numbers() {
    let loaded = || support::loaded(Storage::AsGiven).unwrap();
    for (what, file, other) in [
        ("safetensors", loaded(), loaded()),
        (
            "gguf",
            support::load_gguf(GgmlDType::F32).unwrap(),
            support::load_gguf(GgmlDType::F32).unwrap(),
        ),
    ] {
        let theirs = all(&mut candle(other, Cache::F32), 0, &text());
        let ours = all(&mut torch(file, Cache::F32), 0, &text());
        let off = difference(&ours, &theirs);
        println!("{what}: largest difference of a logit {off:e}");
        assert!(off < 1e-4, "{what}: {off}");
    }
    // candle's quantised products round their inputs to eight bits, too: what that costs is of the size of what the
    // same rounding of the weights costs, which both libraries share.
    let quantised = || support::load_gguf(GgmlDType::Q8_0).unwrap();
    let theirs = all(&mut candle(quantised(), Cache::F32), 0, &text());
    let ours = all(&mut torch(quantised(), Cache::F32), 0, &text());
    let exact = all(
        &mut torch(support::load_gguf(GgmlDType::F32).unwrap(), Cache::F32),
        0,
        &text(),
    );
    let (inputs, weights) = (mean_difference(&ours, &theirs), mean_difference(&ours, &exact));
    println!("q8_0: mean difference of a logit {inputs:e}, of the weights' own rounding {weights:e}");
    assert!(inputs < 2.0 * weights, "{inputs} against {weights}");
    let theirs = all(&mut candle(loaded(), Cache::Int8), 0, &text());
    let ours = all(&mut torch(loaded(), Cache::Int8), 0, &text());
    let plain = all(&mut honest(), 0, &text());
    let (near, far) = (difference(&ours, &theirs), difference(&ours, &plain));
    // A value next to the middle of two steps is rounded either way.
    assert!(near < far, "{near} against {far}");
}

fn products_are_rounded_alike() {
    let loaded = || support::loaded(Storage::Bf16).unwrap();
    for rounding in [Rounding::F16, Rounding::Bf16] {
        let mut theirs = candle(loaded(), Cache::F32).rounding(rounding);
        let mut ours = torch(loaded(), Cache::F32).rounding(rounding).unwrap();
        let (theirs, ours) = (all(&mut theirs, 0, &text()), all(&mut ours, 0, &text()));
        let plain = all(&mut torch(loaded(), Cache::F32), 0, &text());
        let (between, rounded) = (mean_difference(&ours, &theirs), mean_difference(&ours, &plain));
        println!("{rounding:?}: mean difference of a logit {between:e}, of the rounding {rounded:e}");
        assert!(
            rounded > 0.0 && between < 2.0 * rounded,
            "{between} against {rounded}"
        );
    }
}

fn a_device_that_is_not_there_is_said_so() {
    let loaded = support::loaded(Storage::AsGiven).unwrap();
    match Torch::cuda(loaded.shape, loaded.weights, Cache::F32, 4) {
        Ok(_) => println!("there is a CUDA device"),
        Err(error @ BackendError::NoDevice(_)) => {
            println!("{error}");
            assert!(error.to_string().contains("libtorch_cpu.so"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}

fn a_text_in_pieces_in_company_and_from_a_prefix_is_the_same_text() {
    let text = text();
    let whole = all(&mut honest(), 0, &text);
    let other: Vec<u32> = text.iter().rev().copied().collect();
    let alone = all(&mut honest(), 1, &other);
    let mut backend = honest();
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    for (at, size) in [(0, 7), (7, 1), (8, 70), (78, 72)] {
        let jobs = [
            Job {
                slot: 2,
                tokens: &other[at..at + size],
                want: Want::All,
            },
            Job {
                slot: 0,
                tokens: &text[at..at + size],
                want: Want::All,
            },
        ];
        let [b, a] = backend.forward(&jobs).unwrap().try_into().unwrap();
        mine.extend(a);
        others.extend(b);
    }
    assert!(difference(&whole, &mine) < 1e-4);
    assert!(difference(&alone, &others) < 1e-4);
    backend.copy(0, 3, 66).unwrap();
    let rest = all(&mut backend, 3, &text[66..]);
    assert!(difference(&whole[66 * VOCABULARY..], &rest) < 1e-4);
    backend.truncate(0, 10);
    let rest = all(&mut backend, 0, &text[10..]);
    assert!(difference(&whole[10 * VOCABULARY..], &rest) < 1e-4);
    assert!(backend.copy(1, 1, 3).is_err() && backend.copy(0, 9, 3).is_err());
}

fn jobs_that_cannot_be_are_refused_and_change_nothing() {
    let mut backend = honest();
    let text = text();
    let job = |slot, tokens| Job {
        slot,
        tokens,
        want: Want::Last,
    };
    for job in [
        job(9, text.as_slice()),
        job(0, &[]),
        job(0, &[VOCABULARY as u32]),
        job(0, &[1; CONTEXT + 1]),
    ] {
        assert!(backend.forward(&[job]).is_err());
    }
    let after = all(&mut backend, 0, &text);
    assert!(difference(&after, &all(&mut honest(), 0, &text)) < 1e-6);
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model")
}

/// Twice what was measured on 21 November 2026: docs/llm/torch.md.
const TOLERANCE: f64 = 1e-4;

fn the_trained_model_has_the_same_probabilities() {
    let loaded = load(&model(), Storage::AsGiven).unwrap();
    let tokenizer = Tokenizer::load(&model().join("tokenizer.json"), loaded.shape.vocabulary).unwrap();
    let width = loaded.shape.vocabulary;
    let tokens = tokenizer.encode(include_str!("libtorch.rs")).unwrap();
    let tokens = &tokens[..500];
    let theirs = all(
        &mut candle(load(&model(), Storage::AsGiven).unwrap(), Cache::F32),
        0,
        tokens,
    );
    let ours = all(&mut torch(loaded, Cache::F32), 0, tokens);
    let logprobs = |row: &[f32]| -> Vec<f64> {
        let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
        row.iter().map(|v| f64::from(*v) - sum.ln()).collect()
    };
    let mut worst = 0.0_f64;
    let mut equal = 0;
    let largest = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    for (a, b) in ours.chunks(width).zip(theirs.chunks(width)) {
        let off = logprobs(a)
            .iter()
            .zip(logprobs(b))
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        worst = worst.max(off);
        equal += usize::from(largest(a) == largest(b));
    }
    println!(
        "{} positions, {equal} with the same likeliest token, largest difference of a log-probability {worst:e}",
        tokens.len()
    );
    assert!(worst < TOLERANCE, "{worst}");
    assert!(equal >= tokens.len() - 1, "{equal}");
}

fn answers_of_one_library_are_scored_as_honest_by_the_other() {
    let tokenizer = Tokenizer::load(&model().join("tokenizer.json"), 2048).unwrap();
    let prompt = tokenizer.encode("An iterator ").unwrap();
    let loaded = || load(&model(), Storage::AsGiven).unwrap();
    let start = |backend: Box<dyn Backend>| Engine::start(backend, Limits::default()).unwrap();
    let engines = [
        ("candle", start(Box::new(candle(loaded(), Cache::F32)))),
        ("torch", start(Box::new(torch(loaded(), Cache::F32)))),
    ];
    let parameters = Parameters::default();
    for ((name, answering), (judge, judging)) in engines.iter().zip(engines.iter().rev()) {
        let (mut worst, mut off, mut all) = (0.0_f64, 0, 0);
        for n in 0..6 {
            let seed = Seed::of_openai(n).choice(0);
            let mut events = answering
                .generate(Generate {
                    prompt: prompt.clone(),
                    parameters: parameters.clone(),
                    chooser: Chooser::Muster(seed),
                    max_tokens: 120,
                    likely: None,
                })
                .unwrap();
            let mut tokens = prompt.clone();
            while let Some(event) = events.blocking_recv() {
                if let Event::Token(token) = event {
                    tokens.push(token.id);
                }
            }
            let scores = judging
                .score(Score {
                    tokens,
                    prompt: prompt.len(),
                    parameters: parameters.clone(),
                    chooser: Some(Chooser::Muster(seed)),
                    slack: Slack::default(),
                    likely: 0,
                })
                .unwrap()
                .blocking_recv()
                .unwrap();
            for token in &scores.tokens {
                let Margin::Known(margin) = token.margin else {
                    panic!("{token:?}");
                };
                worst = worst.max(margin as f64 / ONE as f64);
                off += usize::from(margin > 0);
                all += 1;
            }
        }
        println!("{name} answers, {judge} scores: {off} of {all} tokens off, largest margin {worst:e}");
        assert!(all > 100 && worst < TOLERANCE, "{worst}");
    }
}
