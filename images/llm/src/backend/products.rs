//! Products of rows with weights, by candle and by loops of our own.
//!
//! Many rows go through candle's matrix product in f32, a tile of weights after another; quantised weights are unpacked
//! for it. A few rows, as when texts go on by one token each, are bound by reading the weights: they are read once, as
//! they are held, in loops of our own.

use std::slice::Iter;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module as _, Storage, Tensor};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use rayon::prelude::*;
use wide::f32x8;

use super::kernels::{Number, dot};
use super::{BackendError, kernels};
use crate::model::{Linear, Matrix};

/// From this many rows on, preparing a matrix for candle's product pays.
const MANY: usize = 8;

/// A product with fewer weights than this is not worth a second thread.
const LARGE: usize = 1 << 19;

/// Rows of weights that a thread takes at a time.
const SHARE: usize = 64;

/// Rows of a square that is turned at once.
const SQUARE: usize = 8;

/// Outputs that are turned side by side: a whole line of the cache.
const TURNED: usize = 2 * SQUARE;

/// Weights that one thread multiplies with many rows at once: a megabyte in f32, which fits a core's own cache.
const TILE: usize = 1 << 18;

/// One matrix, outputs by inputs.
pub(super) enum Product {
    Single(Tensor),
    /// Numbers that half precision holds exactly, in half the memory. So is `Brain`.
    Half(Vec<f16>),
    Brain(Vec<bf16>),
    Blocks(QMatMul),
}

/// The matrices of one step. No number is changed on the way.
pub(super) fn products(linear: Linear) -> Result<Vec<Product>, BackendError> {
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
pub(super) fn multiply(products: &[Product], mut x: Vec<f32>, rows: usize) -> Result<Vec<f32>, BackendError> {
    let columns = x.len().checked_div(rows).unwrap_or(0);
    let has_blocks = products
        .iter()
        .any(|product| matches!(product, Product::Blocks(_)));
    if rows < MANY && !has_blocks {
        let mut parts = products
            .iter()
            .map(|product| product.with_few(&x, rows, columns))
            .collect::<Result<Vec<_>, _>>()?;
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
        return Ok(out);
    }
    let unpacked = rows >= MANY && products.iter().all(Product::unpacks);
    if unpacked {
        kernels::round_to_q8_0(&mut x);
    }
    let x = Tensor::from_vec(x, (rows, columns), &Device::Cpu)?;
    let width = products.iter().map(|product| product.outputs(columns)).sum();
    let mut out = Outputs {
        rows: vec![0.0; rows * width],
        width,
        at: 0,
    };
    for product in products {
        if unpacked && let Product::Blocks(QMatMul::QTensor(blocks)) = product {
            out.put(&unpacked_product(blocks, &x)?)?;
        } else {
            product.with_many(&x, columns, &mut out)?;
        }
    }
    Ok(out.rows)
}

/// Rows of outputs that are filled from the left to the right.
struct Outputs {
    rows: Vec<f32>,
    /// Numbers of a row.
    width: usize,
    /// Those that are filled.
    at: usize,
}

impl Outputs {
    /// Takes the next outputs of every row out of the library's memory, once.
    fn put(&mut self, outputs: &Tensor) -> Result<(), BackendError> {
        let (_, count) = outputs.dims2()?;
        let (storage, layout) = outputs.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Err(BackendError::Device);
        };
        let (first, end) = layout.contiguous_offsets().ok_or(BackendError::Device)?;
        let numbers = storage.as_slice::<f32>()?.get(first..end).unwrap_or_default();
        let places = self.rows.chunks_exact_mut(self.width);
        for (row, numbers) in places.zip(numbers.chunks_exact(count)) {
            if let Some(place) = row.get_mut(self.at..self.at + count) {
                place.copy_from_slice(numbers);
            }
        }
        self.at += count;
        Ok(())
    }
}

/// The product with quantised weights for many rows: the weights are unpacked once, and rows that are rounded already
/// are multiplied in f32. The sums are those of the blocks' own product but for the rounding of sums in f32: scales
/// times whole numbers of eight bits are exact.
fn unpacked_product(blocks: &QTensor, x: &Tensor) -> Result<Tensor, BackendError> {
    let weights = blocks.dequantize(&Device::Cpu)?;
    Ok(x.matmul(&weights.t()?)?)
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

    /// Outputs for each row.
    fn outputs(&self, columns: usize) -> usize {
        let of = |numbers: usize| numbers.checked_div(columns).unwrap_or(0);
        match self {
            Self::Single(weights) => weights.dims().first().copied().unwrap_or(0),
            Self::Half(weights) => of(weights.len()),
            Self::Brain(weights) => of(weights.len()),
            Self::Blocks(QMatMul::QTensor(blocks)) => blocks.shape().dims().first().copied().unwrap_or(0),
            Self::Blocks(QMatMul::Tensor(weights) | QMatMul::TensorF16(weights)) => {
                weights.dims().first().copied().unwrap_or(0)
            }
        }
    }

    /// Multiplies a tile of weights after another: what a tile is widened to and what comes out of it fit the caches,
    /// and their memory is used again.
    fn with_many(&self, x: &Tensor, columns: usize, out: &mut Outputs) -> Result<(), BackendError> {
        let outputs = self.outputs(columns);
        let tile = tile_of(columns);
        let mut first = 0;
        while first < outputs {
            let count = tile.min(outputs - first);
            let numbers = first * columns..(first + count) * columns;
            let turned = match self {
                Self::Blocks(blocks) => return out.put(&blocks.forward(x)?.contiguous()?),
                Self::Single(weights) => {
                    let (storage, _) = weights.storage_and_layout();
                    let Storage::Cpu(storage) = &*storage else {
                        return Err(BackendError::Device);
                    };
                    turned(
                        storage.as_slice::<f32>()?.get(numbers).unwrap_or_default(),
                        columns,
                    )
                }
                Self::Half(weights) => turned(weights.get(numbers).unwrap_or_default(), columns),
                Self::Brain(weights) => turned(weights.get(numbers).unwrap_or_default(), columns),
            };
            out.put(&x.matmul(&Tensor::from_vec(turned, (columns, count), &Device::Cpu)?)?)?;
            first += count;
        }
        Ok(())
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
                let width = self.outputs(columns);
                let mut out = Outputs {
                    rows: vec![0.0; rows * width],
                    width,
                    at: 0,
                };
                self.with_many(&x, columns, &mut out)?;
                Ok(out.rows)
            }
        }
    }
}

/// Weights, outputs by inputs, as numbers in f32, inputs by outputs: the library's product takes the outputs of an
/// input side by side, and turns what it is given number by number otherwise, which is a quarter of a whole pass.
fn turned<W: Number>(weights: &[W], columns: usize) -> Vec<f32> {
    let outputs = weights.len().checked_div(columns).unwrap_or(0);
    let mut out = vec![0.0_f32; weights.len()];
    let mut room = vec![0.0_f32; TURNED * columns];
    for (group, rows) in weights.chunks(TURNED * columns.max(1)).enumerate() {
        let (first, count) = (group * TURNED, rows.len() / columns);
        let (room, _) = room.split_at_mut(rows.len());
        W::widen(rows, room);
        let mut done = 0;
        if count == TURNED {
            turn_squares(room, columns, first, outputs, &mut out);
            done = columns / SQUARE * SQUARE;
        }
        for (input, line) in out.chunks_exact_mut(outputs).enumerate().skip(done) {
            let numbers = room.iter().skip(input).step_by(columns);
            line.iter_mut()
                .skip(first)
                .zip(numbers)
                .for_each(|(to, from)| *to = *from);
        }
    }
    out
}

/// Turns as many whole squares of sixteen rows as there are, into the lines of `out` from their place `first` on.
fn turn_squares(rows: &[f32], columns: usize, first: usize, outputs: usize, out: &mut [f32]) {
    let mut rows = rows.chunks_exact(columns);
    let mut squares_of = || rows.next().unwrap_or_default().as_chunks::<SQUARE>().0.iter();
    let mut left: [Iter<'_, [f32; SQUARE]>; SQUARE] = std::array::from_fn(|_| squares_of());
    let mut right: [Iter<'_, [f32; SQUARE]>; SQUARE] = std::array::from_fn(|_| squares_of());
    let next = |rows: &mut [Iter<'_, [f32; SQUARE]>; SQUARE]| {
        let numbers = |row: &mut Iter<'_, [f32; SQUARE]>| row.next().copied().unwrap_or_default();
        f32x8::transpose(rows.each_mut().map(|row| f32x8::from(numbers(row))))
    };
    let mut lines = out;
    for _ in 0..columns / SQUARE {
        for (a, b) in next(&mut left).iter().zip(&next(&mut right)) {
            let (line, others) = std::mem::take(&mut lines).split_at_mut(outputs);
            lines = others;
            if let Some(place) = line.get_mut(first..first + TURNED) {
                let (before, after) = place.split_at_mut(SQUARE);
                before.copy_from_slice(a.as_array());
                after.copy_from_slice(b.as_array());
            }
        }
    }
}

/// Outputs that are multiplied at once, for as many threads as there are.
fn tile_of(columns: usize) -> usize {
    let numbers = TILE * rayon::current_num_threads().max(1);
    (numbers / columns.max(1)).next_multiple_of(SHARE).max(SHARE)
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
    fn turned_weights_are_the_same_numbers_in_another_order() {
        for (outputs, columns) in [(1, 1), (16, 8), (16, 40), (5, 40), (33, 19), (64, 24), (7, 8)] {
            let weights: Vec<f32> = (0..outputs * columns).map(|n| n as f32).collect();
            let turned = turned(&weights, columns);
            for output in 0..outputs {
                for input in 0..columns {
                    let number = turned[input * outputs + output];
                    assert_eq!(
                        number,
                        weights[output * columns + input],
                        "{outputs} by {columns}"
                    );
                }
            }
        }
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
