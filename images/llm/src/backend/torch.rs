//! Products by libtorch, on the processor or on a CUDA device. Norms, positions, attention and gates are libtorch's
//! too, so that the loops of the first backend are held against code that shares nothing with them.

use std::collections::BTreeSet;

use tch::{Device, Kind, TchError, Tensor};

use super::{Backend, BackendError, Cache, Job, Rounding, Want, starts};
use crate::model::{Linear, Matrix, Shape, Weights};

/// Positions by which a slot grows.
const STEP: usize = 64;

struct Block {
    attention_norm: Tensor,
    /// Inputs by outputs, all of them: products only look at their weights from the other side.
    qkv: Tensor,
    output: Tensor,
    ffn_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
}

/// Keys and values of one text in one block: positions, heads, width. Entries beyond the slot's length have no meaning.
struct Past {
    keys: Tensor,
    values: Tensor,
}

#[derive(Default)]
struct Slot {
    length: usize,
    room: usize,
    past: Vec<Past>,
}

/// The backend of feature `torch`. Quantised weights are unpacked: here only their rounding counts, not their speed.
pub struct Torch {
    shape: Shape,
    cache: Cache,
    device: Device,
    /// The numbers of products.
    kind: Kind,
    embedding: Tensor,
    frequencies: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    head: Tensor,
    slots: Vec<Slot>,
}

/// The facts of a round that all blocks need.
struct Round<'a> {
    jobs: &'a [Job<'a>],
    starts: Vec<usize>,
    cos: Tensor,
    sin: Tensor,
}

type Made<T> = Result<T, TchError>;

impl Torch {
    /// Takes the weights over to the processor.
    ///
    /// # Errors
    /// Weights that libtorch does not take.
    pub fn new(shape: Shape, weights: Weights, cache: Cache, slots: usize) -> Result<Self, BackendError> {
        Self::on(Device::Cpu, shape, weights, cache, slots)
    }

    /// Takes the weights over to the first CUDA device.
    ///
    /// # Errors
    /// There is none that libtorch can use, or weights that it does not take.
    pub fn cuda(shape: Shape, weights: Weights, cache: Cache, slots: usize) -> Result<Self, BackendError> {
        if !tch::utils::has_cuda() {
            return Err(BackendError::NoDevice(list_loaded_libraries()));
        }
        Self::on(Device::Cuda(0), shape, weights, cache, slots)
    }

    fn on(
        device: Device,
        shape: Shape,
        weights: Weights,
        cache: Cache,
        slots: usize,
    ) -> Result<Self, BackendError> {
        let Shape { dim, ffn, .. } = shape;
        let row = |values: &[f32]| Tensor::f_from_slice(values)?.f_to(device);
        let blocks = weights.layers.iter().map(|layer| -> Result<Block, BackendError> {
            Ok(Block {
                attention_norm: row(&layer.attention_norm)?,
                qkv: product(&layer.qkv, dim, device)?,
                output: product(&layer.output, shape.heads * shape.head_dim, device)?,
                ffn_norm: row(&layer.ffn_norm)?,
                gate_up: product(&layer.gate_up, dim, device)?,
                down: product(&layer.down, ffn, device)?,
            })
        });
        Ok(Self {
            cache,
            device,
            kind: Kind::Float,
            embedding: row(&weights.embedding)?.f_reshape([-1, dim as i64])?,
            frequencies: row(&shape.rope.frequencies)?,
            blocks: blocks.collect::<Result<_, _>>()?,
            norm: row(&weights.norm)?,
            head: product(&weights.head, dim, device)?,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            shape,
        })
    }

    /// Rounds what goes into products and what comes out of them, and the weights. The device multiplies numbers of
    /// that kind.
    ///
    /// # Errors
    /// libtorch does not take the rounded weights.
    pub fn rounding(mut self, rounding: Rounding) -> Result<Self, BackendError> {
        self.kind = match rounding {
            Rounding::F32 => Kind::Float,
            Rounding::F16 => Kind::Half,
            Rounding::Bf16 => Kind::BFloat16,
        };
        for block in &mut self.blocks {
            for weights in [
                &mut block.qkv,
                &mut block.output,
                &mut block.gate_up,
                &mut block.down,
            ] {
                *weights = weights.f_to_kind(self.kind)?;
            }
        }
        self.head = self.head.f_to_kind(self.kind)?;
        Ok(self)
    }

    /// Rows of inputs to rows of outputs.
    fn multiply(&self, x: &Tensor, weights: &Tensor) -> Made<Tensor> {
        x.f_to_kind(self.kind)?.f_matmul(weights)?.f_to_kind(Kind::Float)
    }

    /// `kv_heads · head_dim` numbers for each of `positions` positions.
    fn empty(&self, positions: usize) -> Made<Tensor> {
        let size = [
            positions as i64,
            self.shape.kv_heads as i64,
            self.shape.head_dim as i64,
        ];
        Tensor::f_zeros(size, (Kind::Float, self.device))
    }

    /// Makes room for `length` positions in a slot.
    fn grow(&mut self, index: usize, length: usize) -> Made<()> {
        let Some(held) = self.slots.get(index).map(|slot| (slot.room, slot.length)) else {
            return Ok(());
        };
        if held.0 >= length {
            return Ok(());
        }
        let room = length.next_multiple_of(STEP).min(self.shape.context).max(length);
        let mut past = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            let new = Past {
                keys: self.empty(room)?,
                values: self.empty(room)?,
            };
            if let Some(old) = self.slots.get(index).and_then(|slot| slot.past.get(layer)) {
                let known = held.1 as i64;
                new.keys
                    .f_narrow(0, 0, known)?
                    .f_copy_(&old.keys.f_narrow(0, 0, known)?)?;
                new.values
                    .f_narrow(0, 0, known)?
                    .f_copy_(&old.values.f_narrow(0, 0, known)?)?;
            }
            past.push(new);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            slot.room = room;
            slot.past = past;
        }
        Ok(())
    }

    /// Turns every head of `x` (rows, heads, width) by its row's position.
    fn turn(&self, x: &Tensor, round: &Round<'_>) -> Made<Tensor> {
        let planes = (self.shape.head_dim / 2) as i64;
        let (rows, heads) = match x.size().as_slice() {
            [rows, heads, ..] => (*rows, *heads),
            _ => (0, 0),
        };
        let turned = |a: &Tensor, b: &Tensor| -> Made<[Tensor; 2]> {
            Ok([
                a.f_mul(&round.cos)?.f_sub(&b.f_mul(&round.sin)?)?,
                b.f_mul(&round.cos)?.f_add(&a.f_mul(&round.sin)?)?,
            ])
        };
        if self.shape.rope.neighbours {
            let pairs = x.f_reshape([rows, heads, planes, 2])?;
            let both = turned(&pairs.f_select(3, 0)?, &pairs.f_select(3, 1)?)?;
            Tensor::f_stack(&both, 3)?.f_reshape([rows, heads, 2 * planes])
        } else {
            let both = turned(&x.f_narrow(2, 0, planes)?, &x.f_narrow(2, planes, planes)?)?;
            Tensor::f_cat(&both, 2)
        }
    }

    /// Rounds each head to eight bits with one scale.
    fn kept(&self, x: Tensor) -> Made<Tensor> {
        match self.cache {
            Cache::F32 => Ok(x),
            Cache::Int8 => {
                let scale = x
                    .f_abs()?
                    .f_amax([-1].as_slice(), true)?
                    .f_div_scalar(127.0)?
                    .f_clamp_min(f64::from(f32::MIN_POSITIVE))?;
                x.f_div(&scale)?.f_round()?.f_mul(&scale)
            }
        }
    }

    /// Takes queries, keys and values in rows; keeps keys and values; gives what the heads saw.
    fn attend(&self, layer: usize, round: &Round<'_>, qkv: &Tensor) -> Made<Tensor> {
        let [heads, kv_heads, width] =
            [self.shape.heads, self.shape.kv_heads, self.shape.head_dim].map(|n| n as i64);
        let rows = qkv.size().first().copied().unwrap_or(0);
        let split = qkv
            .f_reshape([rows, heads + 2 * kv_heads, width])?
            .f_split_with_sizes([heads, kv_heads, kv_heads].as_slice(), 1)?;
        let [queries, keys, values] = split.as_slice() else {
            return Err(TchError::Shape("queries, keys and values".into()));
        };
        let queries = self.turn(queries, round)?;
        let keys = self.kept(self.turn(keys, round)?)?;
        let values = self.kept(values.f_contiguous()?)?;
        let (mut seen, mut at) = (Vec::with_capacity(round.jobs.len()), 0);
        for (job, start) in round.jobs.iter().zip(&round.starts) {
            let (count, start) = (job.tokens.len() as i64, *start as i64);
            let past = self
                .slots
                .get(job.slot)
                .and_then(|slot| slot.past.get(layer))
                .ok_or_else(|| TchError::Shape("a slot without room".into()))?;
            past.keys
                .f_narrow(0, start, count)?
                .f_copy_(&keys.f_narrow(0, at, count)?)?;
            past.values
                .f_narrow(0, start, count)?
                .f_copy_(&values.f_narrow(0, at, count)?)?;
            let query = queries.f_narrow(0, at, count)?;
            seen.push(see(&query, past, start, heads / kv_heads)?);
            at += count;
        }
        Tensor::f_cat(&seen, 0)
    }

    /// The stream's rows after the last block.
    fn stream(&self, round: &Round<'_>) -> Made<Tensor> {
        let (ffn, eps) = (self.shape.ffn as i64, f64::from(self.shape.eps));
        let tokens: Vec<i64> = round
            .jobs
            .iter()
            .flat_map(|job| job.tokens)
            .map(|token| i64::from(*token))
            .collect();
        let tokens = Tensor::f_from_slice(&tokens)?.f_to(self.device)?;
        let mut x = self.embedding.f_index_select(0, &tokens)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let qkv = self.multiply(&norm(&x, &block.attention_norm, eps)?, &block.qkv)?;
            let seen = self.attend(layer, round, &qkv)?;
            x = x.f_add(&self.multiply(&seen, &block.output)?)?;
            let both = self.multiply(&norm(&x, &block.ffn_norm, eps)?, &block.gate_up)?;
            let gate = both.f_narrow(1, 0, ffn)?.f_silu()?;
            let gated = gate.f_mul(&both.f_narrow(1, ffn, ffn)?)?;
            x = x.f_add(&self.multiply(&gated, &block.down)?)?;
        }
        Ok(x)
    }

    /// The logits that the jobs want, from the stream's rows.
    fn logits(&self, jobs: &[Job<'_>], x: &Tensor) -> Made<Vec<Vec<f32>>> {
        let (mut wanted, mut counts, mut at) = (Vec::new(), Vec::new(), 0_usize);
        for job in jobs {
            let end = at + job.tokens.len();
            let first = match job.want {
                Want::Nothing => end,
                Want::Last => end - 1,
                Want::All => at,
            };
            wanted.extend((first..end).map(|row| row as i64));
            counts.push((end - first) * self.shape.vocabulary);
            at = end;
        }
        if wanted.is_empty() {
            return Ok(vec![Vec::new(); jobs.len()]);
        }
        let rows = x.f_index_select(0, &Tensor::f_from_slice(&wanted)?.f_to(self.device)?)?;
        let last = norm(&rows, &self.norm, f64::from(self.shape.eps))?;
        let all = self
            .multiply(&last, &self.head)?
            .f_to(Device::Cpu)?
            .f_contiguous()?;
        let mut numbers = vec![0.0_f32; counts.iter().sum()];
        let count = numbers.len();
        all.f_copy_data(&mut numbers, count)?;
        let mut rest = numbers.as_slice();
        let split = |count: usize| {
            let (mine, others) = rest.split_at(count);
            rest = others;
            mine.to_vec()
        };
        Ok(counts.into_iter().map(split).collect())
    }

    fn begin(&mut self, jobs: &[Job<'_>]) -> Result<(Vec<usize>, Tensor, Tensor), BackendError> {
        let starts = starts(&self.shape, jobs, |slot| {
            self.slots.get(slot).map(|slot| slot.length)
        })?;
        for (job, start) in jobs.iter().zip(&starts) {
            self.grow(job.slot, start + job.tokens.len())?;
        }
        let positions: Vec<f32> = jobs
            .iter()
            .zip(&starts)
            .flat_map(|(job, start)| *start..start + job.tokens.len())
            .map(|position| position as f32)
            .collect();
        let angles = Tensor::f_from_slice(&positions)?
            .f_to(self.device)?
            .f_reshape([-1, 1, 1])?
            .f_mul(&self.frequencies)?;
        Ok((starts, angles.f_cos()?, angles.f_sin()?))
    }
}

/// The libraries of libtorch and of CUDA that the loader has put into this process, and the version of the driver.
fn list_loaded_libraries() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let names: BTreeSet<&str> = maps
        .lines()
        .filter_map(|line| line.rsplit_once('/').map(|(_, name)| name))
        .filter(|name| {
            let is_of_them = |of: &&str| name.starts_with(*of);
            name.contains(".so") && ["libtorch", "libc10", "libcuda"].iter().any(is_of_them)
        })
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let driver = driver.lines().next().unwrap_or("none").trim();
    format!("loaded are {}; the driver is {driver}", names.join(", "))
}

/// Inputs by outputs.
fn product(linear: &Linear, columns: usize, device: Device) -> Result<Tensor, BackendError> {
    let mut all = Vec::new();
    for matrix in linear {
        match matrix {
            Matrix::Plain { values, .. } => all.extend_from_slice(values),
            Matrix::Blocks(_) => all.extend(matrix.values()?),
        }
    }
    Ok(Tensor::f_from_slice(&all)?
        .f_to(device)?
        .f_reshape([-1, columns as i64])?
        .f_tr()?)
}

/// x / rms(x) · weight, row by row.
fn norm(x: &Tensor, weight: &Tensor, eps: f64) -> Made<Tensor> {
    let mean = x.f_square()?.f_mean_dim([-1].as_slice(), true, Kind::Float)?;
    x.f_mul(&mean.f_add_scalar(eps)?.f_rsqrt()?)?.f_mul(weight)
}

/// Queries (rows, heads, width) of one text over what it has seen; the first of them stands at `start`.
fn see(query: &Tensor, past: &Past, start: i64, group: i64) -> Made<Tensor> {
    let (rows, heads, width) = match query.size().as_slice() {
        [rows, heads, width] => (*rows, *heads, *width),
        _ => return Err(TchError::Shape("rows, heads, width".into())),
    };
    let length = start + rows;
    let by_head = |all: &Tensor| -> Made<Tensor> {
        all.f_narrow(0, 0, length)?
            .f_transpose(0, 1)?
            .f_repeat_interleave_self_int(group, 0_i64, None::<i64>)
    };
    let (keys, values) = (by_head(&past.keys)?, by_head(&past.values)?);
    let mut scores = query
        .f_transpose(0, 1)?
        .f_matmul(&keys.f_transpose(1, 2)?)?
        .f_mul_scalar(1.0 / (width as f64).sqrt())?;
    if rows > 1 {
        let later = Tensor::f_ones([rows, length], (Kind::Bool, query.device()))?.f_triu(start + 1)?;
        scores = scores.f_masked_fill(&later, f64::NEG_INFINITY)?;
    }
    scores
        .f_softmax(-1, Kind::Float)?
        .f_matmul(&values)?
        .f_transpose(0, 1)?
        .f_reshape([rows, heads * width])
}

impl Backend for Torch {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn slots(&self) -> usize {
        self.slots.len()
    }

    fn truncate(&mut self, slot: usize, length: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.length = slot.length.min(length);
        }
    }

    fn copy(&mut self, from: usize, to: usize, length: usize) -> Result<(), BackendError> {
        self.truncate(to, 0);
        let length = self.slots.get(from).map_or(0, |source| source.length.min(length));
        self.grow(to, length)?;
        let Ok([source, slot]) = self.slots.get_disjoint_mut([from, to]) else {
            return Err(BackendError::Job);
        };
        let known = length as i64;
        for (mine, theirs) in slot.past.iter().zip(&source.past) {
            mine.keys
                .f_narrow(0, 0, known)?
                .f_copy_(&theirs.keys.f_narrow(0, 0, known)?)?;
            mine.values
                .f_narrow(0, 0, known)?
                .f_copy_(&theirs.values.f_narrow(0, 0, known)?)?;
        }
        slot.length = length;
        Ok(())
    }

    fn forward(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Vec<f32>>, BackendError> {
        let _without_gradients = tch::no_grad_guard();
        let (starts, cos, sin) = self.begin(jobs)?;
        let round = Round {
            jobs,
            starts,
            cos,
            sin,
        };
        let x = self.stream(&round)?;
        let logits = self.logits(jobs, &x)?;
        for (job, start) in jobs.iter().zip(&round.starts) {
            if let Some(slot) = self.slots.get_mut(job.slot) {
                slot.length = start + job.tokens.len();
            }
        }
        Ok(logits)
    }
}
