//! LayerNorm (Ba, Kiros and Hinton 2016, arXiv 1607.06450) and RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467).
//!
//! Shapes: n tokens, h hidden; `stats_n2` holds (mean, 1/σ) of each token, for RMSNorm (0, 1/rms).
//!
//! With x̂ = (x − mean)/σ and p = dy·gain, the input gradient is dx = (p − mean(p) − x̂·mean(p·x̂))/σ; RMSNorm lacks
//! the two means of x and p. The module's tests derive it again by finite differences.

use super::simd::{LANES, sum_lanes, sum_of, vectorized};
use crate::operators::Accumulate;

/// y = (x − mean)/σ·gain + shift. Overwrites `y_nh` and `stats_n2`, which the backward pass needs with `x_nh`.
pub fn layer_norm(
    x_nh: &[f32],
    gain_h: &[f32],
    shift_h: &[f32],
    epsilon: f32,
    y_nh: &mut [f32],
    stats_n2: &mut [f32],
) {
    check(x_nh, gain_h, y_nh, stats_n2.len() / 2);
    assert_eq!(shift_h.len(), gain_h.len());
    vectorized!(layer_norm_body(
        x_nh: &'a [f32], gain_h: &'a [f32], shift_h: &'a [f32], epsilon: f32, y_nh: &'a mut [f32],
        stats_n2: &'a mut [f32],
    ));
}

#[inline(always)]
fn layer_norm_body(
    x_nh: &[f32],
    gain_h: &[f32],
    shift_h: &[f32],
    epsilon: f32,
    y_nh: &mut [f32],
    stats_n2: &mut [f32],
) {
    let h = gain_h.len();
    let rows = x_nh.chunks_exact(h).zip(y_nh.chunks_exact_mut(h));
    for ((x_h, y_h), stats) in rows.zip(stats_n2.as_chunks_mut::<2>().0) {
        let mean = sum_of(x_h, |x| x) / h as f32;
        let variance = sum_of(x_h, |x| (x - mean) * (x - mean)) / h as f32;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        *stats = [mean, inverse];
        for (((y, &x), &gain), &shift) in y_h.iter_mut().zip(x_h).zip(gain_h).zip(shift_h) {
            *y = ((x - mean) * inverse).mul_add(gain, shift);
        }
    }
}

/// The backward pass of [`layer_norm`]: `dy_nh` becomes dx, in place; `dgain_h` and `dshift_h` are overwritten or
/// added to.
#[allow(clippy::too_many_arguments, reason = "each is an array of its own")]
pub fn layer_norm_backward(
    x_nh: &[f32],
    stats_n2: &[f32],
    gain_h: &[f32],
    dy_nh: &mut [f32],
    dgain_h: &mut [f32],
    dshift_h: &mut [f32],
    accumulate: Accumulate,
) {
    check(x_nh, gain_h, dy_nh, stats_n2.len() / 2);
    assert!(dgain_h.len() == gain_h.len() && dshift_h.len() == gain_h.len());
    if accumulate == Accumulate::Overwrite {
        dgain_h.fill(0.0);
        dshift_h.fill(0.0);
    }
    vectorized!(layer_norm_backward_body(
        x_nh: &'a [f32], stats_n2: &'a [f32], gain_h: &'a [f32], dy_nh: &'a mut [f32], dgain_h: &'a mut [f32],
        dshift_h: &'a mut [f32],
    ));
}

#[inline(always)]
fn layer_norm_backward_body(
    x_nh: &[f32],
    stats_n2: &[f32],
    gain_h: &[f32],
    dy_nh: &mut [f32],
    dgain_h: &mut [f32],
    dshift_h: &mut [f32],
) {
    let h = gain_h.len();
    let rows = x_nh.chunks_exact(h).zip(dy_nh.chunks_exact_mut(h));
    for ((x_h, dy_h), &[mean, inverse]) in rows.zip(stats_n2.as_chunks::<2>().0) {
        for ((dgain, dshift), (&x, &dy)) in dgain_h.iter_mut().zip(&mut *dshift_h).zip(x_h.iter().zip(&*dy_h))
        {
            *dgain = (dy * (x - mean)).mul_add(inverse, *dgain);
            *dshift += dy;
        }
        let (sum, sum_x) = projections(x_h, dy_h, gain_h, mean);
        let offset = sum / h as f32;
        let slope = sum_x * inverse * inverse / h as f32;
        for ((dy, &x), &gain) in dy_h.iter_mut().zip(x_h).zip(gain_h) {
            *dy = inverse * (x - mean).mul_add(-slope, dy.mul_add(gain, -offset));
        }
    }
}

/// (Σ p, Σ p·(x − mean)) with p = dy·gain.
#[inline(always)]
fn projections(x_h: &[f32], dy_h: &[f32], gain_h: &[f32], mean: f32) -> (f32, f32) {
    let mut sum = [0.0; LANES];
    let mut sum_x = [0.0; LANES];
    let ((x, x_tail), (dy, dy_tail)) = (x_h.as_chunks::<LANES>(), dy_h.as_chunks::<LANES>());
    let (gain, gain_tail) = gain_h.as_chunks::<LANES>();
    for ((x, dy), gain) in x.iter().zip(dy).zip(gain) {
        for i in 0..LANES {
            let p = dy[i] * gain[i];
            sum[i] += p;
            sum_x[i] = p.mul_add(x[i] - mean, sum_x[i]);
        }
    }
    let (mut sum, mut sum_x) = (sum_lanes(sum), sum_lanes(sum_x));
    for ((&x, &dy), &gain) in x_tail.iter().zip(dy_tail).zip(gain_tail) {
        sum += dy * gain;
        sum_x = (dy * gain).mul_add(x - mean, sum_x);
    }
    (sum, sum_x)
}

/// y = x/rms·gain with rms² = mean(x²) + ε. Overwrites `y_nh` and `stats_n2`, which the backward pass needs with `x_nh`.
pub fn rms_norm(x_nh: &[f32], gain_h: &[f32], epsilon: f32, y_nh: &mut [f32], stats_n2: &mut [f32]) {
    check(x_nh, gain_h, y_nh, stats_n2.len() / 2);
    vectorized!(rms_norm_body(
        x_nh: &'a [f32], gain_h: &'a [f32], epsilon: f32, y_nh: &'a mut [f32], stats_n2: &'a mut [f32],
    ));
}

#[inline(always)]
fn rms_norm_body(x_nh: &[f32], gain_h: &[f32], epsilon: f32, y_nh: &mut [f32], stats_n2: &mut [f32]) {
    let h = gain_h.len();
    let rows = x_nh.chunks_exact(h).zip(y_nh.chunks_exact_mut(h));
    for ((x_h, y_h), stats) in rows.zip(stats_n2.as_chunks_mut::<2>().0) {
        let inverse = 1.0 / (sum_of(x_h, |x| x * x) / h as f32 + epsilon).sqrt();
        *stats = [0.0, inverse];
        for ((y, &x), &gain) in y_h.iter_mut().zip(x_h).zip(gain_h) {
            *y = x * inverse * gain;
        }
    }
}

/// The backward pass of [`rms_norm`]: `dy_nh` becomes dx, in place; `dgain_h` is overwritten or added to.
pub fn rms_norm_backward(
    x_nh: &[f32],
    stats_n2: &[f32],
    gain_h: &[f32],
    dy_nh: &mut [f32],
    dgain_h: &mut [f32],
    accumulate: Accumulate,
) {
    check(x_nh, gain_h, dy_nh, stats_n2.len() / 2);
    assert_eq!(dgain_h.len(), gain_h.len());
    if accumulate == Accumulate::Overwrite {
        dgain_h.fill(0.0);
    }
    vectorized!(rms_norm_backward_body(
        x_nh: &'a [f32], stats_n2: &'a [f32], gain_h: &'a [f32], dy_nh: &'a mut [f32], dgain_h: &'a mut [f32],
    ));
}

#[inline(always)]
fn rms_norm_backward_body(
    x_nh: &[f32],
    stats_n2: &[f32],
    gain_h: &[f32],
    dy_nh: &mut [f32],
    dgain_h: &mut [f32],
) {
    let h = gain_h.len();
    let rows = x_nh.chunks_exact(h).zip(dy_nh.chunks_exact_mut(h));
    for ((x_h, dy_h), &[_, inverse]) in rows.zip(stats_n2.as_chunks::<2>().0) {
        for ((dgain, &x), &dy) in dgain_h.iter_mut().zip(x_h).zip(&*dy_h) {
            *dgain = (dy * x).mul_add(inverse, *dgain);
        }
        let (_, sum_x) = projections(x_h, dy_h, gain_h, 0.0);
        let slope = sum_x * inverse * inverse / h as f32;
        for ((dy, &x), &gain) in dy_h.iter_mut().zip(x_h).zip(gain_h) {
            *dy = inverse * x.mul_add(-slope, *dy * gain);
        }
    }
}

fn check(x_nh: &[f32], gain_h: &[f32], y_nh: &[f32], tokens: usize) {
    assert!(!gain_h.is_empty(), "a row needs at least one element");
    assert_eq!(x_nh.len(), tokens * gain_h.len(), "the statistics or the gain do not fit the input");
    assert_eq!(x_nh.len(), y_nh.len(), "input and output differ in length");
}

#[cfg(test)]
mod tests {
    use super::super::reference::{assert_close, gradient, inner, random, to_f64};
    use super::*;

    const EPSILON: f32 = 1e-5;
    const SIZES: [(usize, usize); 8] = [(1, 1), (1, 5), (3, 8), (2, 16), (4, 17), (5, 33), (2, 70), (7, 128)];
    /// Rounding of sums of up to 128 terms of size 1, with 1/σ of about 2.
    const TOLERANCE: f64 = 4e-6;

    /// Either norm in f64: LayerNorm takes the mean out, RMSNorm does not and has no shift.
    fn reference(x: &[f64], gain: &[f64], shift: Option<&[f64]>) -> Vec<f64> {
        let h = gain.len();
        let mut y = Vec::new();
        for x in x.chunks(h) {
            let mean = if shift.is_some() { x.iter().sum::<f64>() / h as f64 } else { 0.0 };
            let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / h as f64;
            let deviation = (square + f64::from(EPSILON)).sqrt();
            y.extend(
                (0..h).map(|j| (x[j] - mean) / deviation * gain[j] + shift.map_or(0.0, |shift| shift[j])),
            );
        }
        y
    }

    #[test]
    fn layer_norm_against_f64_and_finite_differences() {
        for (n, h) in SIZES {
            let (x, gain, shift) = (random(1, n * h), random(2, h), random(3, h));
            let (x64, gain64, shift64) = (to_f64(&x), to_f64(&gain), to_f64(&shift));
            let (mut y, mut stats) = (vec![9.0; n * h], vec![9.0; 2 * n]);
            layer_norm(&x, &gain, &shift, EPSILON, &mut y, &mut stats);
            assert_close(&y, &reference(&x64, &gain64, Some(&shift64)), TOLERANCE);

            let dy = random(4, n * h);
            let dx = gradient(&x64, |x| inner(&reference(x, &gain64, Some(&shift64)), &dy));
            let dgain = gradient(&gain64, |gain| inner(&reference(&x64, gain, Some(&shift64)), &dy));
            let dshift = gradient(&shift64, |shift| inner(&reference(&x64, &gain64, Some(shift)), &dy));
            let (mut actual, mut actual_gain, mut actual_shift) = (dy.clone(), vec![9.0; h], vec![9.0; h]);
            let (overwrite, add) = (Accumulate::Overwrite, Accumulate::Add);
            layer_norm_backward(
                &x,
                &stats,
                &gain,
                &mut actual,
                &mut actual_gain,
                &mut actual_shift,
                overwrite,
            );
            assert_close(&actual, &dx, 2.0 * TOLERANCE);
            assert_close(&actual_gain, &dgain, TOLERANCE);
            assert_close(&actual_shift, &dshift, TOLERANCE);
            layer_norm_backward(&x, &stats, &gain, &mut dy.clone(), &mut actual_gain, &mut actual_shift, add);
            assert_close(&actual_gain, &dgain.iter().map(|d| 2.0 * d).collect::<Vec<_>>(), 2.0 * TOLERANCE);
            assert_close(&actual_shift, &dshift.iter().map(|d| 2.0 * d).collect::<Vec<_>>(), 2.0 * TOLERANCE);
        }
    }

    #[test]
    fn rms_norm_against_f64_and_finite_differences() {
        for (n, h) in SIZES {
            let (x, gain) = (random(1, n * h), random(2, h));
            let (x64, gain64) = (to_f64(&x), to_f64(&gain));
            let (mut y, mut scale) = (vec![9.0; n * h], vec![9.0; 2 * n]);
            rms_norm(&x, &gain, EPSILON, &mut y, &mut scale);
            assert_close(&y, &reference(&x64, &gain64, None), TOLERANCE);

            let dy = random(4, n * h);
            let dx = gradient(&x64, |x| inner(&reference(x, &gain64, None), &dy));
            let dgain = gradient(&gain64, |gain| inner(&reference(&x64, gain, None), &dy));
            let (mut actual, mut actual_gain) = (dy.clone(), vec![9.0; h]);
            rms_norm_backward(&x, &scale, &gain, &mut actual, &mut actual_gain, Accumulate::Overwrite);
            assert_close(&actual, &dx, 2.0 * TOLERANCE);
            assert_close(&actual_gain, &dgain, TOLERANCE);
            rms_norm_backward(&x, &scale, &gain, &mut dy.clone(), &mut actual_gain, Accumulate::Add);
            assert_close(&actual_gain, &dgain.iter().map(|d| 2.0 * d).collect::<Vec<_>>(), 2.0 * TOLERANCE);
        }
    }

    /// Where the rows are cut, from nowhere to everywhere.
    const CUTS: [&[usize]; 4] = [&[11], &[4, 7], &[1, 8, 2], &[1; 11]];

    #[test]
    fn gradients_over_several_calls_have_the_bits_of_one() {
        let (n, h) = (11, 37);
        let (x, gain, shift, dy) = (random(6, n * h), random(7, h), random(8, h), random(9, n * h));
        let (mut y, mut stats, mut scale) = (vec![0.0; n * h], vec![0.0; 2 * n], vec![0.0; 2 * n]);
        layer_norm(&x, &gain, &shift, EPSILON, &mut y, &mut stats);
        rms_norm(&x, &gain, EPSILON, &mut y, &mut scale);
        let results = CUTS.map(|cut| {
            let (mut dx, mut dgain, mut dshift) = (dy.clone(), vec![9.0; h], vec![9.0; h]);
            let (mut rms_dx, mut rms_dgain) = (dy.clone(), vec![9.0; h]);
            let (mut first, mut accumulate) = (0, Accumulate::Overwrite);
            for &rows in cut {
                let (features, tokens) = (first * h..(first + rows) * h, 2 * first..2 * (first + rows));
                let (x, stats) = (&x[features.clone()], &stats[tokens.clone()]);
                let part = &mut dx[features.clone()];
                layer_norm_backward(x, stats, &gain, part, &mut dgain, &mut dshift, accumulate);
                let part = &mut rms_dx[features];
                rms_norm_backward(x, &scale[tokens], &gain, part, &mut rms_dgain, accumulate);
                (first, accumulate) = (first + rows, Accumulate::Add);
            }
            (dx, dgain, dshift, rms_dx, rms_dgain)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }

    #[test]
    fn a_large_mean_does_not_cost_the_variance() {
        let x: Vec<f32> = random(5, 64).iter().map(|x| 1000.0 + x).collect();
        let (gain, shift) = (vec![1.0; 64], vec![0.0; 64]);
        let (mut y, mut stats) = (vec![0.0; 64], vec![0.0; 2]);
        layer_norm(&x, &gain, &shift, EPSILON, &mut y, &mut stats);
        // The mean itself is rounded to 6e-5.
        assert_close(&y, &reference(&to_f64(&x), &to_f64(&gain), Some(&to_f64(&shift))), 2e-4);
    }
}
