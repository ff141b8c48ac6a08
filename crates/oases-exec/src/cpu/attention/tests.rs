//! Attention against an f64 reference that forms the whole matrix of scores, itself checked by finite differences.

use super::super::reference::{assert_close, gradient, inner, random, to_f64};
use super::*;

fn shape(sequences: usize, length: usize, heads: usize, kv_heads: usize, d: usize, mask: Mask) -> Attention {
    let (group, separate, first_head) = (heads / kv_heads, false, 0);
    Attention { sequences, length, heads, kv_heads, group, head_size: d, mask, separate, first_head }
}

/// Odd sizes, one token, grouped heads, more queries than a tile and more keys than a tile.
fn shapes() -> Vec<Attention> {
    let mut shapes = Vec::new();
    for mask in [Mask::Bidirectional, Mask::Causal, Mask::Sliding(4), Mask::Sliding(KEYS + 3)] {
        shapes.extend([
            shape(1, 1, 1, 1, 1, mask),
            shape(2, 5, 2, 1, 5, mask),
            shape(1, 7, 4, 2, 3, mask),
            shape(3, 17, 1, 1, 8, mask),
            shape(2, QUERIES + 1, 6, 2, 5, mask),
            shape(1, KEYS + QUERIES + 9, 2, 2, 16, mask),
            // Three key heads that every rank has; a rank with query heads 3 and 4 of 6, and one with 2 to 4.
            Attention { kv_heads: 3, group: 2, separate: true, first_head: 3, ..shape(2, 9, 2, 2, 5, mask) },
            Attention { kv_heads: 3, group: 2, separate: true, first_head: 2, ..shape(2, 9, 3, 3, 4, mask) },
        ]);
    }
    shapes
}

/// How many tokens of each sequence are no padding: none is said, or some.
fn lengths(shape: &Attention) -> Vec<u32> {
    if shape.mask != Mask::Bidirectional || shape.sequences == 1 {
        return Vec::new();
    }
    (0..shape.sequences).map(|sequence| (shape.length - sequence * shape.length / 2) as u32).collect()
}

/// Where an element of a query (part 0), key (1) or value (2) lies.
fn index(shape: &Attention, part: usize, sequence: usize, token: usize, head: usize, j: usize) -> usize {
    let kv = (shape.first_head + head) / shape.group;
    let row = sequence * shape.length + token;
    if shape.separate {
        let queries = shape.sequences * shape.length * shape.heads;
        let head = match part {
            0 => row * shape.heads + head,
            1 => queries + row * 2 * shape.kv_heads + kv,
            _ => queries + row * 2 * shape.kv_heads + shape.kv_heads + kv,
        };
        return head * shape.head_size + j;
    }
    let head = [head, shape.heads + kv, shape.heads + shape.kv_heads + kv][part];
    row * shape.columns() + head * shape.head_size + j
}

/// The softmax row of a query, and the logarithm of its denominator.
fn probabilities(shape: &Attention, qkv: &[f64], sequence: usize, head: usize, i: usize) -> (Vec<f64>, f64) {
    let length = lengths(shape).get(sequence).map_or(shape.length, |&length| length.max(1) as usize);
    let sees = |t: usize| match shape.mask {
        Mask::Bidirectional => t < length,
        Mask::Causal => t <= i,
        Mask::Sliding(window) => t <= i && i - t < window,
    };
    let scores = (0..shape.length).map(|t| {
        if !sees(t) {
            return f64::NEG_INFINITY;
        }
        let dot = (0..shape.head_size)
            .map(|j| qkv[index(shape, 0, sequence, i, head, j)] * qkv[index(shape, 1, sequence, t, head, j)]);
        dot.sum::<f64>() / (shape.head_size as f64).sqrt()
    });
    let scores: Vec<f64> = scores.collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    (scores.iter().map(|score| (score - max).exp() / sum).collect(), max + sum.ln())
}

fn every_row(shape: &Attention) -> impl Iterator<Item = (usize, usize, usize)> {
    let (heads, length) = (shape.heads, shape.length);
    (0..shape.sequences)
        .flat_map(move |sequence| (0..heads).map(move |head| (sequence, head)))
        .flat_map(move |(sequence, head)| (0..length).map(move |i| (sequence, head, i)))
}

fn reference(shape: &Attention, qkv: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut o = vec![0.0; shape.tokens() * shape.output_columns()];
    let mut lse = Vec::new();
    for (sequence, head, i) in every_row(shape) {
        let (p, log) = probabilities(shape, qkv, sequence, head, i);
        lse.push(log);
        for j in 0..shape.head_size {
            o[(sequence * shape.length + i) * shape.output_columns() + head * shape.head_size + j] =
                p.iter().enumerate().map(|(t, p)| p * qkv[index(shape, 2, sequence, t, head, j)]).sum();
        }
    }
    (o, lse)
}

fn reference_backward(shape: &Attention, qkv: &[f64], d_o: &[f32]) -> Vec<f64> {
    let d = shape.head_size;
    let mut dqkv = vec![0.0; qkv.len()];
    for (sequence, head, i) in every_row(shape) {
        let (p, _) = probabilities(shape, qkv, sequence, head, i);
        let d_o = &d_o[(sequence * shape.length + i) * shape.output_columns() + head * d..][..d];
        let at = |part, t, j| index(shape, part, sequence, t, head, j);
        let dp: Vec<f64> =
            (0..p.len()).map(|t| (0..d).map(|j| f64::from(d_o[j]) * qkv[at(2, t, j)]).sum()).collect();
        let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
        for t in 0..p.len() {
            let ds = p[t] * (dp[t] - delta) / (d as f64).sqrt();
            for j in 0..d {
                dqkv[at(2, t, j)] += p[t] * f64::from(d_o[j]);
                dqkv[at(0, i, j)] += ds * qkv[at(1, t, j)];
                dqkv[at(1, t, j)] += ds * qkv[at(0, i, j)];
            }
        }
    }
    dqkv
}

fn data(shape: &Attention) -> (Vec<f32>, Vec<f32>) {
    let qkv = random(1, shape.tokens() * shape.columns()).iter().map(|x| 2.0 * x).collect();
    (qkv, random(2, shape.tokens() * shape.output_columns()))
}

fn forward(shape: &Attention, qkv: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let mut o = vec![9.0; shape.tokens() * shape.output_columns()];
    let mut lse = vec![9.0; shape.lse_elements()];
    attention(shape, qkv, &lengths(shape), &mut o, &mut lse, &mut vec![f32::NAN; shape.forward_workspace()]);
    (o, lse)
}

fn backward(shape: &Attention, qkv: &[f32], d_o: &[f32]) -> Vec<f32> {
    let (o, lse) = forward(shape, qkv);
    let mut dqkv = vec![9.0; qkv.len()];
    let mut workspace = vec![f32::NAN; shape.backward_workspace()];
    attention_backward(shape, qkv, &lengths(shape), &o, &lse, d_o, &mut dqkv, &mut workspace);
    dqkv
}

#[test]
fn the_reference_gradient_against_finite_differences() {
    for shape in shapes().iter().filter(|shape| shape.tokens() * shape.columns() < 500) {
        let (qkv, d_o) = data(shape);
        let qkv = to_f64(&qkv);
        let numeric = gradient(&qkv, |qkv| inner(&reference(shape, qkv).0, &d_o));
        for (analytic, numeric) in reference_backward(shape, &qkv, &d_o).iter().zip(&numeric) {
            assert!((analytic - numeric).abs() < 1e-7, "{shape:?}: {analytic} is not {numeric}");
        }
    }
}

#[test]
fn forward_against_f64() {
    for shape in shapes() {
        let (qkv, _) = data(&shape);
        let (expected_o, expected_lse) = reference(&shape, &to_f64(&qkv));
        let (o, lse) = forward(&shape, &qkv);
        // Scores up to 8 rounded at 1e-6, and as much again in the exponentials' sum.
        assert_close(&o, &expected_o, 4e-6);
        assert_close(&lse, &expected_lse, 2e-6);
    }
}

#[test]
fn backward_against_f64() {
    for shape in shapes() {
        let (qkv, d_o) = data(&shape);
        let expected = reference_backward(&shape, &to_f64(&qkv), &d_o);
        assert_close(&backward(&shape, &qkv, &d_o), &expected, 1e-5);
    }
}

#[test]
fn a_sequence_does_not_depend_on_the_others() {
    let whole = shape(3, QUERIES + 6, 2, 1, 8, Mask::Causal);
    let one = Attention { sequences: 1, ..whole };
    let (qkv, d_o) = data(&whole);
    let (o, dqkv) = (forward(&whole, &qkv).0, backward(&whole, &qkv, &d_o));
    let (size, o_size) = (qkv.len() / 3, o.len() / 3);
    for i in 0..3 {
        let qkv = &qkv[i * size..][..size];
        assert_eq!(forward(&one, qkv).0, o[i * o_size..][..o_size]);
        assert_eq!(backward(&one, qkv, &d_o[i * o_size..][..o_size]), dqkv[i * size..][..size]);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let shape = shape(1, KEYS + 3, 1, 1, 2, Mask::Causal);
    let qkv: Vec<f32> = data(&shape).0.iter().map(|x| 20.0 * x).collect();
    let (o, _) = forward(&shape, &qkv);
    // Scores reach 2000: their rounding, 1e-4, is the relative error of a probability.
    assert_close(&o, &reference(&shape, &to_f64(&qkv)).0, 1e-2);
}
