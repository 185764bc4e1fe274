//! The parts of a Llama between its products: norms, rotary positions, attention, the gate. Plain loops that the compiler
//! turns into vector instructions; sums in one order, whatever else is in the batch.

use half::{bf16, f16};

use super::Rounding;

const LANES: usize = 8;

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

/// One row of queries over the keys and values of its own text.
///
/// `keys` and `values` hold `kv_heads · head_dim` numbers a position, up to and including the row's own.
pub(super) fn attend(
    queries: &[f32],
    keys: &[f32],
    values: &[f32],
    kv_heads: usize,
    head_dim: usize,
    out: &mut [f32],
) {
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
        let largest = shares.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for share in &mut shares {
            *share = (*share - largest).exp();
            sum += *share;
        }
        out.fill(0.0);
        for (share, row) in shares.iter().zip(values.chunks_exact(width)) {
            for (o, v) in out.iter_mut().zip(part(row, at, head_dim)) {
                *o = share.mul_add(*v, *o);
            }
        }
        out.iter_mut().for_each(|o| *o /= sum);
    }
}

fn part(row: &[f32], at: usize, length: usize) -> &[f32] {
    row.get(at..at + length).unwrap_or_default()
}

/// silu(gate) · up for rows that hold the gate and then the rest.
pub(super) fn gate(x: &[f32], ffn: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len() / 2);
    for row in x.chunks_exact(2 * ffn) {
        let (gate, up) = row.split_at(ffn);
        out.extend(gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u));
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

/// What an engine of that precision would pass on.
pub(super) fn round(row: &mut [f32], rounding: Rounding) {
    match rounding {
        Rounding::F32 => {}
        Rounding::F16 => row.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
        Rounding::Bf16 => row.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
    }
}

pub(super) fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Eight sums side by side.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = a.mul_add(*b, *sum);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h)) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_give_the_mean_of_the_values() {
        let (queries, keys) = (vec![0.5; 8], vec![0.25; 12]);
        let values: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let mut out = vec![0.0; 8];
        attend(&queries, &keys, &values, 2, 2, &mut out);
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
        for n in 0..40_usize {
            let a: Vec<f32> = (0..n).map(|v| v as f32).collect();
            assert_eq!(dot(&a, &a), a.iter().map(|v| v * v).sum::<f32>());
        }
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
}
