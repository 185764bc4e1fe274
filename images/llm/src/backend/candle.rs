//! The default backend: a Llama on the processor, whose products are `products`'.

use rayon::prelude::*;

use super::kernels::Past;
use super::products::{Product, multiply, products};
use super::{Backend, BackendError, Cache, Job, Rounding, Want, kernels, starts};
use crate::model::{Shape, Weights};

struct Block {
    attention_norm: Vec<f32>,
    qkv: Vec<Product>,
    output: Vec<Product>,
    ffn_norm: Vec<f32>,
    gate_up: Vec<Product>,
    down: Vec<Product>,
}

#[derive(Default)]
struct Slot {
    length: usize,
    past: Vec<Past>,
}

/// The default backend.
pub struct Candle {
    shape: Shape,
    cache: Cache,
    rounding: Rounding,
    embedding: Vec<f32>,
    blocks: Vec<Block>,
    norm: Vec<f32>,
    head: Vec<Product>,
    slots: Vec<Slot>,
}

impl Candle {
    /// Takes the weights over. Slots grow with their texts, to at most the context.
    ///
    /// # Errors
    /// Weights that candle does not take.
    pub fn new(shape: Shape, weights: Weights, cache: Cache, slots: usize) -> Result<Self, BackendError> {
        let blocks = weights.layers.into_iter().map(|layer| {
            Ok(Block {
                attention_norm: layer.attention_norm,
                qkv: products(layer.qkv)?,
                output: products(layer.output)?,
                ffn_norm: layer.ffn_norm,
                gate_up: products(layer.gate_up)?,
                down: products(layer.down)?,
            })
        });
        Ok(Self {
            cache,
            rounding: Rounding::F32,
            embedding: weights.embedding,
            blocks: blocks.collect::<Result<_, BackendError>>()?,
            norm: weights.norm,
            head: products(weights.head)?,
            slots: (0..slots)
                .map(|_| Slot {
                    length: 0,
                    past: vec![Past::default(); shape.layers],
                })
                .collect(),
            shape,
        })
    }

    /// Rounds what goes into products and what comes out of them: what a cheaper engine would do.
    #[must_use]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// Rows of inputs to rows of outputs.
    fn apply(&self, products: &[Product], mut x: Vec<f32>, rows: usize) -> Result<Vec<f32>, BackendError> {
        kernels::round(&mut x, self.rounding);
        let mut y = multiply(products, x, rows)?;
        kernels::round(&mut y, self.rounding);
        Ok(y)
    }

    fn embed(&self, jobs: &[Job<'_>]) -> Vec<f32> {
        let dim = self.shape.dim;
        let tokens = jobs.iter().flat_map(|job| job.tokens);
        tokens
            .filter_map(|token| self.embedding.get(*token as usize * dim..)?.get(..dim))
            .flatten()
            .copied()
            .collect()
    }

    /// Takes queries, keys and values in rows; keeps keys and values; gives what the heads saw.
    fn attend(
        &mut self,
        layer: usize,
        jobs: &[Job<'_>],
        starts: &[usize],
        turns: &[Turns],
        mut qkv: Vec<f32>,
    ) -> Result<Vec<f32>, BackendError> {
        let Shape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let width = queries + 2 * keys;
        let neighbours = self.shape.rope.neighbours;
        for (row, turn) in qkv.chunks_exact_mut(width).zip(turns) {
            let (turned, kept) = row.split_at_mut(queries + keys);
            kernels::turn(turned, head_dim, turn, neighbours);
            if self.cache == Cache::Int8 {
                let (_, turned) = turned.split_at_mut(queries);
                kernels::round_to_int8(turned, head_dim);
                kernels::round_to_int8(kept, head_dim);
            }
        }
        let mut rest = qkv.as_slice();
        for job in jobs {
            let (mine, others) = rest.split_at(job.tokens.len() * width);
            rest = others;
            let past = self
                .slots
                .get_mut(job.slot)
                .and_then(|slot| slot.past.get_mut(layer));
            let past = past.ok_or(BackendError::Job)?;
            for row in mine.chunks_exact(width) {
                let (key, value) = row.split_at(queries).1.split_at(keys);
                past.keys.extend_from_slice(key);
                past.values.extend_from_slice(value);
            }
        }
        let mut out = vec![0.0; qkv.len() / width * queries];
        let (mut rest, mut out_rest) = (qkv.as_slice(), out.as_mut_slice());
        let mut texts = Vec::with_capacity(jobs.len());
        for (job, start) in jobs.iter().zip(starts) {
            let (mine, others) = rest.split_at(job.tokens.len() * width);
            let (seen, others_seen) = out_rest.split_at_mut(job.tokens.len() * queries);
            (rest, out_rest) = (others, others_seen);
            let past = self.slots.get(job.slot).and_then(|slot| slot.past.get(layer));
            texts.push((*start, mine, past.ok_or(BackendError::Job)?, seen));
        }
        let shape = &self.shape;
        let see = |(start, mine, past, seen): (usize, &[f32], &Past, &mut [f32])| {
            kernels::attend(shape, start, mine, past, seen)
        };
        if texts.len() > 1 && rayon::current_num_threads() > 1 {
            texts.into_par_iter().try_for_each(see)?;
        } else {
            texts.into_iter().try_for_each(see)?;
        }
        Ok(out)
    }
}

type Turns = Vec<(f32, f32)>;

impl Backend for Candle {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn slots(&self) -> usize {
        self.slots.len()
    }

    fn truncate(&mut self, slot: usize, length: usize) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.length = slot.length.min(length);
            for past in &mut slot.past {
                past.keys.truncate(length * width);
                past.values.truncate(length * width);
            }
        }
    }

    fn copy(&mut self, from: usize, to: usize, length: usize) -> Result<(), BackendError> {
        self.truncate(to, 0);
        let width = self.shape.kv_heads * self.shape.head_dim;
        let source = self.slots.get(from).ok_or(BackendError::Job)?;
        let length = length.min(source.length);
        let begin = |all: &[f32]| all.get(..length * width).unwrap_or_default().to_vec();
        let past = source
            .past
            .iter()
            .map(|past| Past {
                keys: begin(&past.keys),
                values: begin(&past.values),
            })
            .collect();
        let slot = self.slots.get_mut(to).ok_or(BackendError::Job)?;
        *slot = Slot { length, past };
        Ok(())
    }

    fn forward(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Vec<f32>>, BackendError> {
        // From outside the pool every step of it would wait for a thread to wake.
        if rayon::current_num_threads() > 1 {
            rayon::scope(|_| self.round(jobs))
        } else {
            self.round(jobs)
        }
    }
}

impl Candle {
    fn round(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Vec<f32>>, BackendError> {
        let starts = starts(&self.shape, jobs, |slot| {
            self.slots.get(slot).map(|slot| slot.length)
        })?;
        let (dim, ffn, eps) = (self.shape.dim, self.shape.ffn, self.shape.eps);
        let mut x = self.embed(jobs);
        let rows = x.len() / dim;
        let turns: Vec<Turns> = jobs
            .iter()
            .zip(&starts)
            .flat_map(|(job, start)| *start..start + job.tokens.len())
            .map(|position| kernels::angles(&self.shape.rope.frequencies, position))
            .collect();
        let blocks = std::mem::take(&mut self.blocks);
        let mut run = || -> Result<(), BackendError> {
            for (layer, block) in blocks.iter().enumerate() {
                let qkv = self.apply(&block.qkv, kernels::norm(&x, &block.attention_norm, eps), rows)?;
                let seen = self.attend(layer, jobs, &starts, &turns, qkv)?;
                kernels::add(&mut x, &self.apply(&block.output, seen, rows)?);
                let gated = self.apply(&block.gate_up, kernels::norm(&x, &block.ffn_norm, eps), rows)?;
                kernels::add(
                    &mut x,
                    &self.apply(&block.down, kernels::gate(&gated, ffn), rows)?,
                );
                kernels::round(&mut x, self.rounding);
            }
            Ok(())
        };
        let done = run();
        self.blocks = blocks;
        done?;
        for (job, start) in jobs.iter().zip(&starts) {
            if let Some(slot) = self.slots.get_mut(job.slot) {
                slot.length = start + job.tokens.len();
            }
        }
        self.logits(jobs, &x)
    }

    /// The logits that the jobs want, from the stream's rows.
    fn logits(&self, jobs: &[Job<'_>], x: &[f32]) -> Result<Vec<Vec<f32>>, BackendError> {
        let dim = self.shape.dim;
        let (mut wanted, mut counts, mut at) = (Vec::new(), Vec::new(), 0);
        for job in jobs {
            let end = at + job.tokens.len();
            let first = match job.want {
                Want::Nothing => end,
                Want::Last => end - 1,
                Want::All => at,
            };
            wanted.extend_from_slice(x.get(first * dim..end * dim).unwrap_or_default());
            counts.push(end - first);
            at = end;
        }
        let rows = wanted.len() / dim;
        if rows == 0 {
            return Ok(vec![Vec::new(); jobs.len()]);
        }
        let normed = kernels::norm(&wanted, &self.norm, self.shape.eps);
        let all = self.apply(&self.head, normed, rows)?;
        if jobs.len() == 1 {
            return Ok(vec![all]);
        }
        let mut rest = all.as_slice();
        let split = |count: usize| {
            let (mine, others) = rest.split_at(count * self.shape.vocabulary);
            rest = others;
            mine.to_vec()
        };
        Ok(counts.into_iter().map(split).collect())
    }
}
