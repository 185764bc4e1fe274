//! Products by candle, on the processor.

use candle_core::quantized::QMatMul;
use candle_core::{Device, Module as _, Tensor};
use rayon::prelude::*;

use super::{Backend, BackendError, Cache, Job, Rounding, Want, kernels, starts};
use crate::model::{Linear, Matrix, Shape, Weights};

/// A product with fewer rows than this is not worth a second thread.
const FEW: usize = 8;

enum Product {
    /// Inputs by outputs, as candle wants its right side.
    Plain(Tensor),
    Blocks(QMatMul),
}

struct Block {
    attention_norm: Vec<f32>,
    qkv: Vec<Product>,
    output: Vec<Product>,
    ffn_norm: Vec<f32>,
    gate_up: Vec<Product>,
    down: Vec<Product>,
}

/// Keys and values of one text in one block.
#[derive(Clone, Default)]
struct Past {
    keys: Vec<f32>,
    values: Vec<f32>,
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
    ) -> Vec<f32> {
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
            let (turned, _) = row.split_at_mut(queries + keys);
            kernels::turn(turned, head_dim, turn, neighbours);
        }
        let mut rest = qkv.as_mut_slice();
        let mut rows = Vec::new();
        for (job, start) in jobs.iter().zip(starts) {
            let (mine, others) = rest.split_at_mut(job.tokens.len() * width);
            rest = others;
            let Some(past) = self
                .slots
                .get_mut(job.slot)
                .and_then(|slot| slot.past.get_mut(layer))
            else {
                continue;
            };
            for row in mine.chunks_exact_mut(width) {
                let (_, kept) = row.split_at_mut(queries);
                if self.cache == Cache::Int8 {
                    kernels::round_to_int8(kept, head_dim);
                }
                let (key, value) = kept.split_at(keys);
                past.keys.extend_from_slice(key);
                past.values.extend_from_slice(value);
            }
            rows.extend(
                mine.chunks_exact(width)
                    .enumerate()
                    .map(|(i, row)| (job.slot, start + i + 1, row.split_at(queries).0)),
            );
        }
        let mut out = vec![0.0; rows.len() * queries];
        let slots = &self.slots;
        let see = |((slot, length, query), out): (&(usize, usize, &[f32]), &mut [f32])| {
            let Some(past) = slots.get(*slot).and_then(|slot| slot.past.get(layer)) else {
                return;
            };
            let seen = length * keys;
            let (Some(k), Some(v)) = (past.keys.get(..seen), past.values.get(..seen)) else {
                return;
            };
            kernels::attend(query, k, v, kv_heads, head_dim, out);
        };
        if rows.len() < FEW {
            rows.iter().zip(out.chunks_exact_mut(queries)).for_each(see);
        } else {
            rows.par_iter()
                .zip(out.par_chunks_exact_mut(queries))
                .for_each(see);
        }
        out
    }
}

type Turns = Vec<(f32, f32)>;

fn products(linear: Linear) -> Result<Vec<Product>, BackendError> {
    let product = |matrix| {
        Ok(match matrix {
            Matrix::Plain {
                values,
                rows,
                columns,
            } => Product::Plain(Tensor::from_vec(values, (rows, columns), &Device::Cpu)?.t()?),
            Matrix::Blocks(tensor) => Product::Blocks(QMatMul::from_arc(tensor)?),
        })
    };
    linear.into_iter().map(product).collect()
}

fn multiply(products: &[Product], x: Vec<f32>, rows: usize) -> Result<Vec<f32>, BackendError> {
    let columns = x.len().checked_div(rows).unwrap_or(0);
    let x = Tensor::from_vec(x, (rows, columns), &Device::Cpu)?;
    let mut parts = Vec::new();
    for product in products {
        let y = match product {
            Product::Plain(weight) => x.matmul(weight)?,
            Product::Blocks(blocks) => blocks.forward(&x)?,
        };
        parts.push(y.flatten_all()?.to_vec1::<f32>()?);
    }
    if let [only] = parts.as_mut_slice() {
        return Ok(std::mem::take(only));
    }
    let mut out = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    for row in 0..rows {
        for part in &parts {
            let width = part.len() / rows;
            out.extend_from_slice(part.get(row * width..(row + 1) * width).unwrap_or_default());
        }
    }
    Ok(out)
}

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
                let seen = self.attend(layer, jobs, &starts, &turns, qkv);
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
}

impl Candle {
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
        let mut rest = all.as_slice();
        let split = |count: usize| {
            let (mine, others) = rest.split_at(count * self.shape.vocabulary);
            rest = others;
            mine.to_vec()
        };
        Ok(counts.into_iter().map(split).collect())
    }
}
