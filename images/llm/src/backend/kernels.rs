//! The parts of a Llama between its weights' products: norms, rotary positions, attention, the gate. Plain loops that
//! the compiler turns into vector instructions; sums in one order, whatever else is in the batch.

use candle_core::{Device, Tensor};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use rayon::prelude::*;

use super::{BackendError, Rounding};
use crate::model::Shape;

/// Sums side by side: four registers of eight, so that none waits for the one before.
const LANES: usize = 32;
const REGISTER: usize = 8;

/// Numbers of a quantised block that share a scale.
const BLOCK: usize = 32;

/// Fewer rows than this are done one by one.
const MANY: usize = 8;

/// Rows of queries in one product: what a row may not see is computed for at most this many others.
const TOGETHER: usize = 64;

/// Keys and values of one text in one block: `kv_heads · head_dim` numbers a position.
#[derive(Clone, Default)]
pub(super) struct Past {
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
}

/// A key head, and the rows that look at it in one product.
struct Piece {
    head: usize,
    first: usize,
    rows: usize,
    /// The outputs of its heads, row by row, head by head.
    seen: Vec<f32>,
}

/// A number as weights are held.
pub(super) trait Number: Copy + Send + Sync {
    /// The same numbers in f32; both are equally long.
    fn widen(from: &[Self], to: &mut [f32]);
}

impl Number for f32 {
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Number for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl Number for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        to.iter_mut()
            .zip(from)
            .for_each(|(to, from)| *to = f32::from_bits(u32::from(from.to_bits()) << 16));
    }
}

/// e to the x for x from −87 to 88, taken to these ends, within 2⁻²² of itself: as a polynomial, which vectors can do.
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// 1.5·2²³: what is added to it is rounded to a whole number, which stands in its last bits.
    const WHOLE: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, WHOLE);
    let n = shifted - WHOLE;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let p = r.mul_add(1.0 / 720.0, 1.0 / 120.0);
    let p = r.mul_add(p, 1.0 / 24.0);
    let p = r.mul_add(p, 1.0 / 6.0);
    let p = r.mul_add(p, 0.5);
    let p = r.mul_add(p, 1.0);
    let p = r.mul_add(p, 1.0);
    f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3F80_0000)) * p
}

/// x / rms(x) · weight, row by row.
pub(super) fn norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let scale = 1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt();
        out.extend(row.iter().zip(weight).map(|(x, w)| x * scale * w));
    }
    out
}

/// Turns every head of one row by its position.
pub(super) fn turn(row: &mut [f32], head_dim: usize, angles: &[(f32, f32)], neighbours: bool) {
    for head in row.chunks_exact_mut(head_dim) {
        if neighbours {
            for (pair, (sin, cos)) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                let [a, b] = *pair;
                *pair = [a * cos - b * sin, b * cos + a * sin];
            }
        } else {
            let (first, second) = head.split_at_mut(head_dim / 2);
            for ((a, b), (sin, cos)) in first.iter_mut().zip(second).zip(angles) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

/// Sines and cosines at a position.
pub(super) fn angles(frequencies: &[f32], position: usize) -> Vec<(f32, f32)> {
    frequencies
        .iter()
        .map(|f| (position as f32 * f).sin_cos())
        .collect()
}

/// The outputs of the heads for the last rows of a text.
///
/// `qkv` has the rows that `out` gets, each with its queries first and its keys and values behind them; the first of
/// them stands at position `start`, and `past` goes to the last.
///
/// # Errors
/// The tensor library's own, or a past that is too short.
pub(super) fn attend(
    shape: &Shape,
    start: usize,
    qkv: &[f32],
    past: &Past,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let Shape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = *shape;
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let width = queries + 2 * keys;
    if qkv.len() >= MANY * width {
        return together(shape, start, qkv, past, out);
    }
    for (i, (row, seen)) in qkv
        .chunks_exact(width)
        .zip(out.chunks_exact_mut(queries))
        .enumerate()
    {
        let sees = (start + i + 1) * keys;
        let (Some(k), Some(v)) = (past.keys.get(..sees), past.values.get(..sees)) else {
            return Err(BackendError::Job);
        };
        alone(row.split_at(queries).0, k, v, kv_heads, head_dim, seen);
    }
    Ok(())
}

fn together(
    shape: &Shape,
    start: usize,
    qkv: &[f32],
    past: &Past,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let Shape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = *shape;
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let width = queries + 2 * keys;
    let (count, length) = (qkv.len() / width, past.keys.len() / keys);
    let all = |numbers: &[f32]| Tensor::from_slice(numbers, (length, keys), &Device::Cpu);
    let (all_keys, all_values) = (all(&past.keys)?, all(&past.values)?);
    let group = queries / kv_heads;
    let piece = |head: usize, first: usize| -> Result<Piece, BackendError> {
        let rows = TOGETHER.min(count - first);
        let sees = start + first + rows;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mine = qkv.chunks_exact(width).skip(first).take(rows);
        let mine = mine.flat_map(|row| row.get(head * group..(head + 1) * group).unwrap_or_default());
        let query: Vec<f32> = mine.map(|x| x * scale).collect();
        let of_head = |all: &Tensor| all.narrow(0, 0, sees)?.narrow(1, head * head_dim, head_dim);
        let tall = query.len() / head_dim;
        let scores =
            Tensor::from_vec(query, (tall, head_dim), &Device::Cpu)?.matmul(&of_head(&all_keys)?.t()?)?;
        let mut shares = scores.flatten_all()?.to_vec1::<f32>()?;
        let mut sums = Vec::with_capacity(tall);
        for (i, row) in shares.chunks_exact_mut(sees).enumerate() {
            let (seen, hidden) = row.split_at_mut(start + first + i / (group / head_dim) + 1);
            sums.push(weigh(seen));
            hidden.fill(0.0);
        }
        let shares = Tensor::from_vec(shares, (tall, sees), &Device::Cpu)?;
        let mut seen = shares
            .matmul(&of_head(&all_values)?)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        for (head, sum) in seen.chunks_exact_mut(head_dim).zip(sums) {
            head.iter_mut().for_each(|v| *v /= sum);
        }
        Ok(Piece {
            head,
            first,
            rows,
            seen,
        })
    };
    let places: Vec<(usize, usize)> = (0..kv_heads)
        .flat_map(|head| (0..count).step_by(TOGETHER).map(move |first| (head, first)))
        .collect();
    let pieces: Vec<Piece> = if rayon::current_num_threads() > 1 {
        places
            .par_iter()
            .map(|(head, first)| piece(*head, *first))
            .collect::<Result<_, _>>()?
    } else {
        places
            .iter()
            .map(|(head, first)| piece(*head, *first))
            .collect::<Result<_, _>>()?
    };
    copy_pieces(pieces, queries, group, out);
    Ok(())
}

/// Copies the outputs of all heads into the rows of `out`, which are `queries` wide.
fn copy_pieces(pieces: Vec<Piece>, queries: usize, group: usize, out: &mut [f32]) {
    for Piece {
        head,
        first,
        rows,
        seen,
    } in pieces
    {
        let rows = out.chunks_exact_mut(queries).skip(first).take(rows);
        for (row, seen) in rows.zip(seen.chunks_exact(group)) {
            if let Some(mine) = row.get_mut(head * group..(head + 1) * group) {
                mine.copy_from_slice(seen);
            }
        }
    }
}

/// One row of queries over the keys and values of its own text.
///
/// `keys` and `values` hold `kv_heads · head_dim` numbers a position, up to and including the row's own.
fn alone(queries: &[f32], keys: &[f32], values: &[f32], kv_heads: usize, head_dim: usize, out: &mut [f32]) {
    let width = kv_heads * head_dim;
    let group = queries.len() / width;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut shares = Vec::with_capacity(keys.len() / width);
    for (head, (query, out)) in queries
        .chunks_exact(head_dim)
        .zip(out.chunks_exact_mut(head_dim))
        .enumerate()
    {
        let at = head / group * head_dim;
        shares.clear();
        shares.extend(
            keys.chunks_exact(width)
                .map(|row| dot(query, part(row, at, head_dim)) * scale),
        );
        let sum = weigh(&mut shares);
        out.fill(0.0);
        for (share, row) in shares.iter().zip(values.chunks_exact(width)) {
            for (o, v) in out.iter_mut().zip(part(row, at, head_dim)) {
                *o = share.mul_add(*v, *o);
            }
        }
        out.iter_mut().for_each(|o| *o /= sum);
    }
}

/// Scores to e to the score less the largest; gives their sum.
pub(super) fn weigh(scores: &mut [f32]) -> f32 {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = exp(*score - largest));
    let (chunks, rest) = scores.as_chunks::<REGISTER>();
    let mut sums = [0.0_f32; REGISTER];
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, share)| *sum += share);
    }
    sums.iter().chain(rest).sum()
}

fn part(row: &[f32], at: usize, length: usize) -> &[f32] {
    row.get(at..at + length).unwrap_or_default()
}

/// silu(gate) · up for rows that hold the gate and then the rest.
pub(super) fn gate(x: &[f32], ffn: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len() / 2);
    for row in x.chunks_exact(2 * ffn) {
        let (gate, up) = row.split_at(ffn);
        out.extend(gate.iter().zip(up).map(|(g, u)| g / (1.0 + exp(-g)) * u));
    }
    out
}

/// Rounds each head to eight bits with one scale.
pub(super) fn round_to_int8(row: &mut [f32], head_dim: usize) {
    for head in row.chunks_exact_mut(head_dim) {
        let scale = head.iter().fold(0.0_f32, |most, v| most.max(v.abs())) / 127.0;
        if scale > 0.0 {
            head.iter_mut().for_each(|v| *v = (*v / scale).round() * scale);
        }
    }
}

/// Rounds a row as an engine of that precision would.
pub(super) fn round(row: &mut [f32], rounding: Rounding) {
    match rounding {
        Rounding::F32 => {}
        Rounding::F16 => row.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
        Rounding::Bf16 => row.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
    }
}

/// Rounds rows to blocks of eight bits (q8_0), as a product with quantised weights rounds its input: what comes out is
/// what such a product multiplies with. The length is a whole number of blocks.
pub(super) fn round_to_q8_0(x: &mut [f32]) {
    for block in x.as_chunks_mut::<BLOCK>().0 {
        let scale = block.iter().fold(0.0_f32, |most, v| most.max(v.abs())) / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        // The scale is held in half precision; the numbers are divided by the exact one.
        let held = f16::from_f32(scale).to_f32();
        block.iter_mut().for_each(|v| *v = (*v * inverse).round() * held);
    }
}

pub(super) fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// The sum of products, in one order whatever else is in the batch.
pub(super) fn dot<W: Number>(a: &[W], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        let mut wide = [0.0; LANES];
        W::widen(a, &mut wide);
        for ((sum, a), b) in sums.iter_mut().zip(wide).zip(b) {
            *sum = a.mul_add(*b, *sum);
        }
    }
    let mut eight = [0.0_f32; REGISTER];
    for part in sums.as_chunks::<REGISTER>().0 {
        eight.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    let (a_chunks, a_rest) = a_rest.as_chunks::<REGISTER>();
    let (b_chunks, b_rest) = b_rest.as_chunks::<REGISTER>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        let mut wide = [0.0; REGISTER];
        W::widen(a, &mut wide);
        for ((sum, a), b) in eight.iter_mut().zip(wide).zip(b) {
            *sum = a.mul_add(*b, *sum);
        }
    }
    let mut wide = [0.0; REGISTER];
    let (last, _) = wide.split_at_mut(a_rest.len());
    W::widen(a_rest, last);
    let rest: f32 = last.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    let [a, b, c, d, e, f, g, h] = eight;
    ((a + e) + (c + g)) + ((b + f) + (d + h)) + rest
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{GgmlDType, QTensor};

    use super::*;
    use crate::model::Rope;

    #[test]
    fn equal_keys_give_the_mean_of_the_values() {
        let (queries, keys) = (vec![0.5; 8], vec![0.25; 12]);
        let values: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let mut out = vec![0.0; 8];
        alone(&queries, &keys, &values, 2, 2, &mut out);
        assert_eq!(out, [4.0, 5.0, 4.0, 5.0, 6.0, 7.0, 6.0, 7.0]);
    }

    #[test]
    fn turning_keeps_lengths_and_both_layouts_agree() {
        let angles = angles(&[1.0, 0.5], 3);
        let mut halves = [1.0, 2.0, 3.0, 4.0];
        let mut pairs = [1.0, 3.0, 2.0, 4.0];
        turn(&mut halves, 4, &angles, false);
        turn(&mut pairs, 4, &angles, true);
        assert_eq!([pairs[0], pairs[2], pairs[1], pairs[3]], halves);
        assert!((dot(&halves, &halves) - 30.0).abs() < 1e-4);
    }

    #[test]
    fn sums_are_right_for_every_remainder() {
        for n in 0..100_usize {
            let a: Vec<f32> = (0..n).map(|v| v as f32).collect();
            let exact = a.iter().map(|v| v * v).sum::<f32>();
            assert_eq!(dot(&a, &a), exact);
            let half: Vec<f16> = a.iter().map(|v| f16::from_f32(*v)).collect();
            let brain: Vec<bf16> = a.iter().map(|v| bf16::from_f32(*v)).collect();
            assert_eq!([dot(&half, &a), dot(&brain, &a)], [exact, exact]);
        }
    }

    #[test]
    fn the_exponential_is_one() {
        assert_eq!(exp(0.0), 1.0);
        for n in -87_000..88_000_i32 {
            let x = n as f32 / 1_000.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 2.4e-7, "{x}");
        }
        assert_eq!(exp(f32::NEG_INFINITY), exp(-87.0));
        assert!(exp(1_000.0).is_finite());
    }

    #[test]
    fn shares_add_up_and_the_far_ones_are_nothing() {
        let mut scores: Vec<f32> = (0..13).map(|v| v as f32).chain([f32::NEG_INFINITY]).collect();
        let sum = weigh(&mut scores);
        assert!((sum - scores.iter().sum::<f32>()).abs() < 1e-6);
        assert!(scores[12] == 1.0 && scores[13] < 1e-37);
    }

    #[test]
    fn halves_keep_what_they_can_hold() {
        let mut row = [1.0, 0.1, 65_536.0];
        round(&mut row, Rounding::F32);
        assert_eq!(row, [1.0, 0.1, 65_536.0]);
        round(&mut row, Rounding::Bf16);
        assert_eq!(row, [1.0, 0.100_097_656, 65_536.0]);
        let mut row = [1.0, 0.1, 65_536.0];
        round(&mut row, Rounding::F16);
        assert_eq!(row, [1.0, 0.099_975_586, f32::INFINITY]);
    }

    #[test]
    fn eight_bits_are_close_and_not_equal() {
        let mut row = [0.1, -0.77, 0.33, 1.0];
        let before = row;
        round_to_int8(&mut row, 4);
        assert_ne!(row, before);
        assert!(row.iter().zip(before).all(|(a, b)| (a - b).abs() <= 0.5 / 127.0));
    }

    #[test]
    fn blocks_of_eight_bits_are_those_of_the_tensor_library() {
        let mut row: Vec<f32> = (0..20_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 8) as f32 / 65_536.0 - 100.0)
            .chain([0.0; 32])
            .chain((0..32).map(|n| n as f32 * 127.0 / 62.0))
            .collect();
        row.truncate(row.len() / BLOCK * BLOCK);
        let tensor = Tensor::from_slice(&row, row.len(), &Device::Cpu).unwrap();
        let theirs = QTensor::quantize(&tensor, GgmlDType::Q8_0).unwrap();
        let theirs: Vec<f32> = theirs.dequantize(&Device::Cpu).unwrap().to_vec1().unwrap();
        round_to_q8_0(&mut row);
        assert_eq!(row, theirs);
    }

    #[test]
    fn many_rows_see_what_each_would_alone() {
        let shape = Shape {
            layers: 1,
            dim: 24,
            heads: 6,
            kv_heads: 2,
            head_dim: 4,
            ffn: 8,
            vocabulary: 10,
            context: 1000,
            eps: 1e-5,
            rope: Rope {
                frequencies: vec![1.0, 0.1],
                neighbours: false,
            },
            ends: vec![],
            begin: None,
        };
        let (queries, keys) = (24, 8);
        let number = |n: usize| (n * 31 % 97) as f32 / 48.0 - 1.0;
        for (start, count) in [(0, 1), (0, 9), (5, 70), (100, 2 * TOGETHER)] {
            let qkv: Vec<f32> = (0..count * (queries + 2 * keys)).map(number).collect();
            let length = (start + count) * keys;
            let past = Past {
                keys: (0..length).map(|n| number(3 * n)).collect(),
                values: (0..length).map(|n| number(7 * n)).collect(),
            };
            let mut many = vec![0.0; count * queries];
            together(&shape, start, &qkv, &past, &mut many).unwrap();
            for (i, (row, seen)) in qkv
                .chunks(queries + 2 * keys)
                .zip(many.chunks(queries))
                .enumerate()
            {
                let sees = (start + i + 1) * keys;
                let mut one = vec![0.0; queries];
                alone(
                    &row[..queries],
                    &past.keys[..sees],
                    &past.values[..sees],
                    2,
                    4,
                    &mut one,
                );
                assert!(
                    one.iter().zip(seen).all(|(a, b)| (a - b).abs() < 1e-5),
                    "{start} {i}"
                );
            }
        }
    }
}
