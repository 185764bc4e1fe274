//! The numbers: against a plain implementation in f64, alone and in company, from both file formats.

use candle_core::quantized::GgmlDType;
use muster_image_llm::backend::{Backend, Cache, Candle, Job, Rounding, Want};
use muster_image_llm::model::{Loaded, Storage};

use crate::support::{self, DIM, FFN, HEAD, HEADS, KV_HEADS, LAYERS, Named, VOCABULARY};

fn backend(loaded: Loaded, cache: Cache) -> Candle {
    Candle::new(loaded.shape, loaded.weights, cache, 4).unwrap()
}

fn honest() -> Candle {
    backend(support::loaded(Storage::AsGiven).unwrap(), Cache::F32)
}

fn text() -> Vec<u32> {
    let mut random = support::Random(99);
    (0..40).map(|_| random.below(VOCABULARY) as u32).collect()
}

fn all(backend: &mut Candle, slot: usize, tokens: &[u32]) -> Vec<f32> {
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

/// A Llama as a textbook has it: f64, one position after the other, nothing kept.
fn plain(tokens: &[u32]) -> Vec<f32> {
    let tensors = support::tensors();
    let weight = |name: &str| -> &Named {
        tensors
            .iter()
            .find(|t| t.name == format!("{name}.weight"))
            .unwrap()
    };
    let times = |name: &str, x: &[f64]| -> Vec<f64> {
        let matrix = weight(name);
        matrix
            .values
            .chunks(x.len())
            .map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    };
    let norm = |name: &str, x: &[f64]| -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter()
            .zip(&weight(name).values)
            .map(|(x, w)| x / (mean + 1e-5).sqrt() * f64::from(*w))
            .collect()
    };
    let turn = |x: &mut [f64], position: usize| {
        for head in x.chunks_mut(HEAD) {
            for i in 0..HEAD / 2 {
                let angle = position as f64 * 10_000_f64.powf(-2.0 * i as f64 / HEAD as f64);
                let (a, b) = (head[i], head[i + HEAD / 2]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + HEAD / 2] = b * angle.cos() + a * angle.sin();
            }
        }
    };
    let mut keys = vec![vec![]; LAYERS];
    let mut values = vec![vec![]; LAYERS];
    let mut out = Vec::new();
    for (position, token) in tokens.iter().enumerate() {
        let row = &weight("model.embed_tokens").values[*token as usize * DIM..][..DIM];
        let mut x: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
        for layer in 0..LAYERS {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let h = norm(&name("input_layernorm"), &x);
            let mut q = times(&name("self_attn.q_proj"), &h);
            let mut k = times(&name("self_attn.k_proj"), &h);
            turn(&mut q, position);
            turn(&mut k, position);
            keys[layer].push(k);
            values[layer].push(times(&name("self_attn.v_proj"), &h));
            let mut seen = vec![0.0; HEADS * HEAD];
            for head in 0..HEADS {
                let at = head / (HEADS / KV_HEADS) * HEAD;
                let query = &q[head * HEAD..][..HEAD];
                let score = |k: &Vec<f64>| query.iter().zip(&k[at..]).map(|(a, b)| a * b).sum::<f64>() / 4.0;
                let shares: Vec<f64> = keys[layer].iter().map(|k| score(k).exp()).collect();
                let sum: f64 = shares.iter().sum();
                for (share, value) in shares.iter().zip(&values[layer]) {
                    for i in 0..HEAD {
                        seen[head * HEAD + i] += share / sum * value[at + i];
                    }
                }
            }
            x.iter_mut()
                .zip(times(&name("self_attn.o_proj"), &seen))
                .for_each(|(x, y)| *x += y);
            let h = norm(&name("post_attention_layernorm"), &x);
            let (gate, up) = (times(&name("mlp.gate_proj"), &h), times(&name("mlp.up_proj"), &h));
            let gated: Vec<f64> = gate
                .iter()
                .zip(&up)
                .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                .collect();
            assert_eq!(gated.len(), FFN);
            x.iter_mut()
                .zip(times(&name("mlp.down_proj"), &gated))
                .for_each(|(x, y)| *x += y);
        }
        let logits = times("model.embed_tokens", &norm("model.norm", &x));
        out.extend(logits.iter().map(|v| *v as f32));
    }
    out
}

#[test]
fn the_numbers_are_a_textbooks() {
    let ours = all(&mut honest(), 0, &text());
    let spread = ours.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    assert!(spread > 5.0, "the model says something");
    let off = difference(&ours, &plain(&text()));
    assert!(off < 2e-4, "{off}");
}

#[test]
fn both_formats_say_the_same() {
    let ours = all(&mut honest(), 0, &text());
    let mut gguf = backend(support::load_gguf(GgmlDType::F32).unwrap(), Cache::F32);
    let off = difference(&ours, &all(&mut gguf, 0, &text()));
    assert!(off < 1e-4, "{off}");
    let f16 = all(
        &mut backend(support::loaded(Storage::F16).unwrap(), Cache::F32),
        0,
        &text(),
    );
    let mut gguf = backend(support::load_gguf(GgmlDType::F16).unwrap(), Cache::F32);
    let off = difference(&f16, &all(&mut gguf, 0, &text()));
    assert!(off < 1e-4, "{off}");
    let q8 = all(
        &mut backend(support::loaded(Storage::Q8_0).unwrap(), Cache::F32),
        0,
        &text(),
    );
    let mut gguf = backend(support::load_gguf(GgmlDType::Q8_0).unwrap(), Cache::F32);
    let off = difference(&q8, &all(&mut gguf, 0, &text()));
    assert!(off < 1e-3, "{off}");
}

#[test]
fn coarser_weights_and_caches_are_further_off() {
    let ours = all(&mut honest(), 0, &text());
    let of = |storage, cache| {
        let other = all(&mut backend(support::loaded(storage).unwrap(), cache), 0, &text());
        let squares: f32 = ours.iter().zip(&other).map(|(a, b)| (a - b) * (a - b)).sum();
        (squares / ours.len() as f32).sqrt()
    };
    let offs = [
        of(Storage::F16, Cache::F32),
        of(Storage::Bf16, Cache::F32),
        of(Storage::Q8_0, Cache::F32),
        of(Storage::Q4_0, Cache::F32),
    ];
    assert!(offs.is_sorted_by(|a, b| 0.0 < *a && a < b), "{offs:?}");
    assert!(of(Storage::AsGiven, Cache::Int8) > 0.0);
    let rounded = |rounding| {
        let mut other = honest().rounding(rounding);
        difference(&ours, &all(&mut other, 0, &text()))
    };
    let offs = [Rounding::F32, Rounding::F16, Rounding::Bf16].map(rounded);
    assert!(offs[0] < 1e-6 && 0.0 < offs[1] && offs[1] < offs[2], "{offs:?}");
}

#[test]
fn a_text_in_pieces_and_in_company_is_the_same_text() {
    let text = text();
    let whole = all(&mut honest(), 0, &text);
    let mut backend = honest();
    let other: Vec<u32> = text.iter().rev().copied().collect();
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    for (at, size) in [(0, 7), (7, 1), (8, 20), (28, 12)] {
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
    assert!(difference(&others, &all(&mut honest(), 1, &other)) < 1e-4);
}

#[test]
fn a_prefix_is_copied_and_cut() {
    let text = text();
    let whole = all(&mut honest(), 0, &text);
    let mut backend = honest();
    all(&mut backend, 0, &text);
    backend.copy(0, 3, 25).unwrap();
    let rest = all(&mut backend, 3, &text[25..]);
    assert!(difference(&whole[25 * VOCABULARY..], &rest) < 1e-4);
    backend.truncate(0, 10);
    let rest = all(&mut backend, 0, &text[10..]);
    assert!(difference(&whole[10 * VOCABULARY..], &rest) < 1e-4);
}

#[test]
fn jobs_that_cannot_be_are_refused_and_change_nothing() {
    let mut backend = honest();
    let text = text();
    for job in [
        Job {
            slot: 9,
            tokens: &text,
            want: Want::Last,
        },
        Job {
            slot: 0,
            tokens: &[],
            want: Want::Last,
        },
        Job {
            slot: 0,
            tokens: &[VOCABULARY as u32],
            want: Want::Last,
        },
        Job {
            slot: 0,
            tokens: &[1; support::CONTEXT + 1],
            want: Want::Last,
        },
    ] {
        assert!(backend.forward(&[job]).is_err());
    }
    let after = all(&mut backend, 0, &text);
    assert!(difference(&after, &all(&mut honest(), 0, &text)) < 1e-4);
}
