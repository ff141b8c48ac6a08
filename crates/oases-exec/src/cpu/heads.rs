//! What happens to the heads of queries and keys before they meet: rotation by position (Su et al. 2021, arXiv 2104.09864) and RMS
//! normalisation (Qwen3).
//!
//! Shapes: d features of a head, s positions. Queries, keys and values lie as [`Attention`] says.

use super::norm::{rms_norm, rms_norm_backward};
use super::simd::vectorized;
use crate::operators::{Accumulate, Attention, Rotation};

impl Attention {
    /// Where the query heads of a token begin, and its key heads.
    fn heads_of(&self, token: usize) -> [(usize, usize); 2] {
        let (queries, keys) = self.strides();
        [(token * queries, self.heads), (self.first_key() + token * keys, self.kv_heads)]
    }
}

/// Turns all heads of queries and keys in place: with the pair (a, b) = (x[i], x[i + d/2]) and the angle of its position,
/// (a cos − b sin, b cos + a sin); backward by the opposite angle. `table_sd` has the cosines [d/2], then the sines, of each position.
pub fn rotate(shape: &Attention, qkv_nf: &mut [f32], table_sd: &[f32], direction: Rotation) {
    let d = shape.head_size;
    assert!(d.is_multiple_of(2), "heads of {d} features have no pairs");
    assert_eq!(table_sd.len(), shape.length * d, "the table has other positions");
    assert_eq!(qkv_nf.len(), shape.tokens() * shape.columns(), "the projections have another shape");
    let sign = if direction == Rotation::Forward { 1.0 } else { -1.0 };
    for token in 0..shape.tokens() {
        let angles_d = &table_sd[token % shape.length * d..][..d];
        for (first, heads) in shape.heads_of(token) {
            let heads_hd = &mut qkv_nf[first..][..heads * d];
            vectorized!(rotate_heads(heads_hd: &'a mut [f32], angles_d: &'a [f32], sign: f32));
        }
    }
}

#[inline(always)]
fn rotate_heads(heads_hd: &mut [f32], angles_d: &[f32], sign: f32) {
    let (cosines, sines) = angles_d.split_at(angles_d.len() / 2);
    for head in heads_hd.chunks_exact_mut(angles_d.len()) {
        let (first, second) = head.split_at_mut(cosines.len());
        for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            let sin = sign * sin;
            (*a, *b) = (a.mul_add(cos, -*b * sin), b.mul_add(cos, *a * sin));
        }
    }
}

/// `out_nf` is `qkv_nf` with every query head and every key head normalised; `gains` are those of queries and keys, [d] each.
pub fn norm_heads(shape: &Attention, qkv_nf: &[f32], gains: [&[f32]; 2], epsilon: f32, out_nf: &mut [f32]) {
    assert_eq!(qkv_nf.len(), shape.tokens() * shape.columns(), "the projections have another shape");
    out_nf.copy_from_slice(qkv_nf);
    let mut stats = [0.0; 2];
    for token in 0..shape.tokens() {
        for ((first, heads), gain_d) in shape.heads_of(token).into_iter().zip(gains) {
            for at in (first..).step_by(shape.head_size).take(heads) {
                let place = at..at + shape.head_size;
                rms_norm(&qkv_nf[place.clone()], gain_d, epsilon, &mut out_nf[place], &mut stats);
            }
        }
    }
}

/// The backward pass of [`norm_heads`]: `dqkv_nf` becomes the gradient of what it read. `gains` are the gains of queries and keys, each
/// with its gradient, which is overwritten or added to.
pub fn norm_heads_backward(
    shape: &Attention,
    qkv_nf: &[f32],
    gains: [(&[f32], &mut [f32]); 2],
    epsilon: f32,
    dqkv_nf: &mut [f32],
    accumulate: Accumulate,
) {
    assert_eq!(qkv_nf.len(), shape.tokens() * shape.columns(), "the projections have another shape");
    assert_eq!(qkv_nf.len(), dqkv_nf.len());
    for (part, (gain_d, dgain_d)) in gains.into_iter().enumerate() {
        assert!(gain_d.len() == shape.head_size && dgain_d.len() == shape.head_size, "a gain per feature");
        if accumulate == Accumulate::Overwrite {
            dgain_d.fill(0.0);
        }
        for token in 0..shape.tokens() {
            let (first, heads) = shape.heads_of(token)[part];
            for at in (first..).step_by(shape.head_size).take(heads) {
                let place = at..at + shape.head_size;
                let x_d = &qkv_nf[place.clone()];
                // The sum of squares again is cheaper than a place for it.
                let squares: f32 = super::simd::sum_of(x_d, |x| x * x);
                let inverse = 1.0 / (squares / shape.head_size as f32 + epsilon).sqrt();
                let dx_d = &mut dqkv_nf[place];
                rms_norm_backward(x_d, &[0.0, inverse], gain_d, dx_d, dgain_d, Accumulate::Add);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use oases_schedule::{Mask, Rotary};

    use super::super::reference::{assert_close, gradient, inner, random, to_f64};
    use super::*;

    fn shapes() -> [Attention; 3] {
        let fused = Attention {
            sequences: 2,
            length: 5,
            heads: 4,
            kv_heads: 2,
            group: 2,
            head_size: 6,
            mask: Mask::Causal,
            separate: false,
            first_head: 0,
        };
        let separate = Attention { separate: true, heads: 1, first_head: 2, ..fused };
        [fused, separate, Attention { kv_heads: 4, group: 1, ..fused }]
    }

    /// Each head of queries and keys through `f`, by position and by whether it is a key; values as they are.
    fn map_heads(shape: &Attention, qkv: &[f64], f: impl Fn(usize, bool, &[f64]) -> Vec<f64>) -> Vec<f64> {
        let (d, q, k) = (shape.head_size, shape.heads, shape.kv_heads);
        let mut out = qkv.to_vec();
        for token in 0..shape.tokens() {
            for head in 0..q + k {
                let at = match (shape.separate, head < q) {
                    (false, _) => (token * (q + 2 * k) + head) * d,
                    (true, true) => (token * q + head) * d,
                    (true, false) => (shape.tokens() * q + token * 2 * k + head - q) * d,
                };
                out[at..at + d].copy_from_slice(&f(token % shape.length, head >= q, &qkv[at..at + d]));
            }
        }
        out
    }

    #[test]
    fn rotation_against_f64_and_its_transpose() {
        for shape in shapes() {
            let rotary = Rotary::new(100.0);
            let (d, table) = (shape.head_size, rotary.table(shape.head_size, shape.length));
            let qkv = random(1, shape.tokens() * shape.columns());
            let reference = |qkv: &[f64]| {
                map_heads(&shape, qkv, |position, _, head| {
                    let angle =
                        |i: usize| position as f64 * 100_f64.powf(-2.0 * (i % (d / 2)) as f64 / d as f64);
                    let other = |i: usize| if i < d / 2 { -head[i + d / 2] } else { head[i - d / 2] };
                    (0..d).map(|i| head[i] * angle(i).cos() + other(i) * angle(i).sin()).collect()
                })
            };
            let mut turned = qkv.clone();
            rotate(&shape, &mut turned, &table, Rotation::Forward);
            assert_close(&turned, &reference(&to_f64(&qkv)), 3e-7);
            let mut dqkv = random(2, qkv.len());
            let expected = gradient(&to_f64(&qkv), |qkv| inner(&reference(qkv), &dqkv));
            rotate(&shape, &mut dqkv, &table, Rotation::Backward);
            assert_close(&dqkv, &expected, 1e-6);
        }
    }

    #[test]
    fn normalised_heads_against_f64_and_finite_differences() {
        const EPSILON: f32 = 1e-5;
        for shape in shapes() {
            let d = shape.head_size;
            let (qkv, gains) = (random(1, shape.tokens() * shape.columns()), random(2, 2 * d));
            let reference = |qkv: &[f64], gains: &[f64]| {
                map_heads(&shape, qkv, |_, key, head| {
                    let square = head.iter().map(|x| x * x).sum::<f64>() / d as f64;
                    let gain = &gains[if key { d } else { 0 }..][..d];
                    let rms = (square + f64::from(EPSILON)).sqrt();
                    head.iter().zip(gain).map(|(x, gain)| x / rms * gain).collect()
                })
            };
            let mut out = vec![9.0; qkv.len()];
            norm_heads(&shape, &qkv, [&gains[..d], &gains[d..]], EPSILON, &mut out);
            let (qkv64, gains64) = (to_f64(&qkv), to_f64(&gains));
            assert_close(&out, &reference(&qkv64, &gains64), 2e-6);

            let dy = random(3, qkv.len());
            let dqkv = gradient(&qkv64, |qkv| inner(&reference(qkv, &gains64), &dy));
            let dgains = gradient(&gains64, |gains| inner(&reference(&qkv64, gains), &dy));
            let mut found = [vec![9.0; d], vec![9.0; d]];
            for (accumulate, times) in [(Accumulate::Overwrite, 1.0), (Accumulate::Add, 2.0)] {
                let mut actual = dy.clone();
                let [query, key] = &mut found;
                let pairs = [(&gains[..d], &mut query[..]), (&gains[d..], &mut key[..])];
                norm_heads_backward(&shape, &qkv, pairs, EPSILON, &mut actual, accumulate);
                assert_close(&actual, &dqkv, 1e-5);
                let expected: Vec<f64> = dgains.iter().map(|dgain| times * dgain).collect();
                assert_close(&found.concat(), &expected, 1e-5);
            }
        }
    }
}
