//! Products by candle, on the processor.
//!
//! Many rows go through candle's matrix product in f32; quantised weights are unpacked for it. A few rows, as when
//! texts go on by one token each, are bound by reading the weights: they are read once, as they are held, in loops of
//! our own.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module as _, Storage, Tensor};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use rayon::prelude::*;

use super::kernels::{Number, Past, dot};
use super::{Backend, BackendError, Cache, Job, Rounding, Want, kernels, starts};
use crate::model::{Linear, Matrix, Shape, Weights};

/// From so many rows on, preparing a matrix for candle's product pays.
const MANY: usize = 8;

/// A product with fewer weights than this is not worth a second thread.
const LARGE: usize = 1 << 19;

/// Rows of weights that a thread takes at a time.
const SHARE: usize = 64;

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

/// One matrix, outputs by inputs.
enum Product {
    Single(Tensor),
    /// Numbers that half precision holds exactly, in half the memory. So is `Brain`.
    Half(Vec<f16>),
    Brain(Vec<bf16>),
    Blocks(QMatMul),
}

/// The matrices of one step. No number is changed on the way.
fn products(linear: Linear) -> Result<Vec<Product>, BackendError> {
    linear.into_iter().map(product).collect()
}

fn product(matrix: Matrix) -> Result<Product, BackendError> {
    let (values, rows, columns) = match matrix {
        Matrix::Blocks(tensor) => return Ok(Product::Blocks(QMatMul::from_arc(tensor)?)),
        Matrix::Plain {
            values,
            rows,
            columns,
        } => (values, rows, columns),
    };
    // A NaN equals nothing, and stays as it is.
    if values.iter().all(|v| f16::from_f32(*v).to_f32() == *v) {
        let mut half = vec![f16::ZERO; values.len()];
        half.convert_from_f32_slice(&values);
        return Ok(Product::Half(half));
    }
    if values.iter().all(|v| bf16::from_f32(*v).to_f32() == *v) {
        let mut brain = vec![bf16::ZERO; values.len()];
        brain.convert_from_f32_slice(&values);
        return Ok(Product::Brain(brain));
    }
    Ok(Product::Single(Tensor::from_vec(
        values,
        (rows, columns),
        &Device::Cpu,
    )?))
}

/// Rows of inputs to rows of outputs; where there are several matrices, their outputs stand one after the other.
fn multiply(products: &[Product], x: Vec<f32>, rows: usize) -> Result<Vec<f32>, BackendError> {
    let columns = x.len().checked_div(rows).unwrap_or(0);
    let mut parts = if rows < MANY
        && !products
            .iter()
            .any(|product| matches!(product, Product::Blocks(_)))
    {
        products
            .iter()
            .map(|product| product.with_few(&x, rows, columns))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        let mut x = x;
        let unpacked = rows >= MANY && products.iter().all(Product::unpacks);
        if unpacked {
            kernels::round_to_q8_0(&mut x);
        }
        let x = Tensor::from_vec(x, (rows, columns), &Device::Cpu)?;
        let product = |product: &Product| {
            if unpacked && let Product::Blocks(QMatMul::QTensor(blocks)) = product {
                return unpacked_product(blocks, &x);
            }
            product.with_many(&x, columns)
        };
        products.iter().map(product).collect::<Result<Vec<_>, _>>()?
    };
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

/// The product with quantised weights for many rows: the weights are unpacked once, and rows that are rounded already
/// are multiplied in f32. The sums are those of the blocks' own product but for the rounding of sums in f32: scales
/// times whole numbers of eight bits are exact.
fn unpacked_product(blocks: &QTensor, x: &Tensor) -> Result<Vec<f32>, BackendError> {
    let weights = blocks.dequantize(&Device::Cpu)?;
    Ok(x.matmul(&weights.t()?)?.flatten_all()?.to_vec1()?)
}

/// Whether candle multiplies q8_0 of these outputs and inputs by the processor's products of 8-bit numbers. Its inputs
/// are then rounded in blocks of 256.
fn is_tiled(dims: &[usize]) -> bool {
    let [rows, columns] = dims else {
        return false;
    };
    #[cfg(target_arch = "x86_64")]
    let has_products = (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni"))
        || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    let has_products = false;
    has_products && rows.is_multiple_of(16) && columns.is_multiple_of(256)
}

impl Product {
    /// Whether many rows are multiplied with its unpacked weights: its own product rounds inputs to q8_0, for few rows
    /// as for many. Elsewhere candle has products of its own for many rows, which are faster, or round otherwise.
    fn unpacks(&self) -> bool {
        let Self::Blocks(QMatMul::QTensor(blocks)) = self else {
            return false;
        };
        let dtype = blocks.dtype();
        let fits = matches!(dtype, GgmlDType::Q4_0 | GgmlDType::Q5_0)
            || (dtype == GgmlDType::Q8_0 && !is_tiled(blocks.shape().dims()));
        fits && cfg!(target_arch = "x86_64")
    }

    fn with_many(&self, x: &Tensor, columns: usize) -> Result<Vec<f32>, BackendError> {
        let widened = |values: Vec<f32>| {
            let rows = values.len().checked_div(columns).unwrap_or(0);
            Tensor::from_vec(values, (rows, columns), &Device::Cpu)
        };
        let y = match self {
            Self::Single(weights) => x.matmul(&weights.t()?)?,
            Self::Half(weights) => x.matmul(&widened(weights.to_f32_vec())?.t()?)?,
            Self::Brain(weights) => x.matmul(&widened(weights.to_f32_vec())?.t()?)?,
            Self::Blocks(blocks) => blocks.forward(x)?,
        };
        Ok(y.flatten_all()?.to_vec1()?)
    }

    fn with_few(&self, x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>, BackendError> {
        match self {
            Self::Single(weights) => {
                let (storage, _) = weights.storage_and_layout();
                let Storage::Cpu(storage) = &*storage else {
                    return Err(BackendError::Device);
                };
                Ok(few(storage.as_slice::<f32>()?, x, rows, columns))
            }
            Self::Half(weights) => Ok(few(weights, x, rows, columns)),
            Self::Brain(weights) => Ok(few(weights, x, rows, columns)),
            Self::Blocks(_) => {
                let x = Tensor::from_slice(x, (rows, columns), &Device::Cpu)?;
                self.with_many(&x, columns)
            }
        }
    }
}

/// Reads the weights once, whatever the number of rows.
fn few<W: Number>(weights: &[W], x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let outputs = weights.len().checked_div(columns).unwrap_or(0);
    // Outputs by rows: each share of the weights then has its outputs in one piece.
    let mut out = vec![0.0; outputs * rows];
    let share = |weights: &[W], out: &mut [f32]| {
        let mut room = vec![0.0; columns];
        for (weights, out) in weights.chunks_exact(columns).zip(out.chunks_exact_mut(rows)) {
            if let [out] = out {
                *out = dot(weights, x);
                continue;
            }
            W::widen(weights, &mut room);
            for (out, x) in out.iter_mut().zip(x.chunks_exact(columns)) {
                *out = dot(&room, x);
            }
        }
    };
    if weights.len() >= LARGE && rayon::current_num_threads() > 1 {
        let shares = weights.par_chunks(SHARE * columns);
        shares
            .zip(out.par_chunks_mut(SHARE * rows))
            .for_each(|(weights, out)| share(weights, out));
    } else {
        share(weights, &mut out);
    }
    if rows == 1 {
        return out;
    }
    let row = |row: usize| out.iter().skip(row).step_by(rows).copied();
    (0..rows).flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|n| (n * 37 % 101) as f32 / 64.0 - 0.75).collect()
    }

    /// Outputs by inputs, 5 by 40, of a kind that halves hold and of one that they do not.
    fn matrices() -> [Vec<f32>; 3] {
        let halves = numbers(200);
        let brains = halves.iter().map(|v| v * 2.0_f32.powi(60)).collect();
        let singles = halves.iter().map(|v| v / 3.0).collect();
        [halves, brains, singles]
    }

    fn made(values: &[f32]) -> Vec<Product> {
        products(vec![Matrix::Plain {
            values: values.to_vec(),
            rows: 5,
            columns: 40,
        }])
        .unwrap()
    }

    #[test]
    fn numbers_are_held_in_the_least_room_that_changes_none() {
        let [halves, brains, singles] = matrices().map(|values| made(&values).remove(0));
        assert!(matches!(halves, Product::Half(_)));
        assert!(matches!(brains, Product::Brain(_)));
        assert!(matches!(singles, Product::Single(_)));
    }

    #[test]
    fn few_rows_and_many_give_what_they_should() {
        for values in matrices() {
            let products = made(&values);
            for rows in [1, 2, MANY - 1, MANY, 20] {
                let x = numbers(rows * 40);
                let y = multiply(&products, x.clone(), rows).unwrap();
                let exact = |x: &[f32], w: &[f32]| -> f64 {
                    x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
                };
                let mut all = x
                    .chunks(40)
                    .flat_map(|x| values.chunks(40).map(move |w| exact(x, w)));
                let most = values.iter().fold(0.0_f32, |most, v| most.max(v.abs())) * 40.0;
                for y in y {
                    assert!((f64::from(y) - all.next().unwrap()).abs() < f64::from(most) * 1e-6);
                }
                assert!(all.next().is_none());
            }
        }
    }

    #[test]
    fn quantised_products_are_the_same_for_few_rows_and_many() {
        // Blocks have 32 values, and the tensor library takes them two at a time.
        let (rows, columns) = (40, 128);
        let values = Tensor::from_vec(numbers(rows * columns), (rows, columns), &Device::Cpu).unwrap();
        for kind in [GgmlDType::Q4_0, GgmlDType::Q5_0, GgmlDType::Q8_0, GgmlDType::Q4_1] {
            let blocks = QTensor::quantize(&values, kind).unwrap();
            let products = products(vec![Matrix::Blocks(blocks.into())]).unwrap();
            assert_eq!(
                products[0].unpacks(),
                kind != GgmlDType::Q4_1 && cfg!(target_arch = "x86_64")
            );
            let x: Vec<f32> = (0..20 * columns).map(|n| (n as f32 * 0.37).sin() * 3.0).collect();
            let many = multiply(&products, x.clone(), 20).unwrap();
            let few: Vec<f32> = x
                .chunks(columns)
                .flat_map(|x| multiply(&products, x.to_vec(), 1).unwrap())
                .collect();
            let spread = few.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
            assert!(spread > 1.0);
            let off = many
                .iter()
                .zip(&few)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(off < spread * 2e-6, "{kind:?}: {off} of {spread}");
        }
    }

    #[test]
    fn large_matrices_are_shared_out() {
        let columns = 64;
        let values = numbers(columns * (LARGE / columns + 3));
        let matrix = Matrix::Plain {
            values: values.clone(),
            rows: values.len() / columns,
            columns,
        };
        let products = products(vec![matrix]).unwrap();
        let x = numbers(2 * columns);
        let y = multiply(&products, x.clone(), 2).unwrap();
        let many = multiply(
            &products,
            x.iter().copied().cycle().take(MANY * columns).collect(),
            MANY,
        )
        .unwrap();
        assert_eq!(y.len(), 2 * values.len() / columns);
        assert!(y.iter().zip(many).all(|(a, b)| (a - b).abs() < 1e-4));
    }
}
