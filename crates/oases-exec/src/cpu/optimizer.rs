//! AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2) and the gradient's norm.

use super::simd::{LANES, vectorized};

/// The constants of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// The learning rate of this step.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, multiplied by the learning rate.
    pub weight_decay: f32,
    /// The number of this update, from 1; it corrects the moments' bias towards zero.
    pub step: u32,
    /// What every gradient element is multiplied by first: clipping, averaging.
    pub gradient_scale: f32,
}

/// One update in a single pass: overwrites the weights `w`, the first moments `m` and the second moments `v`.
///
/// With g scaled: m = β₁m + (1−β₁)g; v = β₂v + (1−β₂)g²; w = w·(1 − lr·decay) − lr·m̂/(√v̂ + ε).
pub fn adamw(w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], update: &Update) {
    assert!(
        w.len() == g.len() && w.len() == m.len() && w.len() == v.len(),
        "the four arrays differ in length"
    );
    vectorized!(adamw_body(
        w: &'a mut [f32], g: &'a [f32], m: &'a mut [f32], v: &'a mut [f32], update: &'a Update,
    ));
}

#[inline(always)]
fn adamw_body(w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], update: &Update) {
    let Update { beta1, beta2, epsilon, gradient_scale, .. } = *update;
    let correction = |beta: f32| 1.0 - f64::from(beta).powi(update.step as i32);
    let rate = f64::from(update.learning_rate);
    let step_size = (rate / correction(beta1)) as f32;
    let root_scale = (1.0 / correction(beta2).sqrt()) as f32;
    let keep = (1.0 - rate * f64::from(update.weight_decay)) as f32;
    for (((w, &g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
        let g = g * gradient_scale;
        *m = beta1.mul_add(*m, (1.0 - beta1) * g);
        *v = beta2.mul_add(*v, (1.0 - beta2) * g * g);
        *w = (*w).mul_add(keep, -step_size * *m / v.sqrt().mul_add(root_scale, epsilon));
    }
}

/// Σ g², in f64; the order of the additions is fixed.
#[must_use]
pub fn sum_of_squares(g: &[f32]) -> f64 {
    vectorized!(sum_of_squares_body(g: &'a [f32]) -> f64)
}

#[inline(always)]
fn sum_of_squares_body(g: &[f32]) -> f64 {
    let (chunks, tail) = g.as_chunks::<LANES>();
    let mut lanes = [0.0_f64; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            let g = f64::from(chunk[i]);
            lanes[i] = g.mul_add(g, lanes[i]);
        }
    }
    let tail: f64 = tail.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
    lanes.iter().sum::<f64>() + tail
}

#[cfg(test)]
mod tests {
    use super::super::reference::{assert_close, random, to_f64};
    use super::*;

    #[test]
    fn adamw_against_f64_over_several_steps() {
        for length in [1, 15, 16, 50] {
            let mut w = random(1, length);
            let (mut m, mut v) = (vec![0.0; length], vec![0.0; length]);
            let mut w64 = to_f64(&w);
            let (mut m64, mut v64) = (vec![0.0; length], vec![0.0; length]);
            for step in 1..=5 {
                let g = random(10 + u64::from(step), length);
                let update = Update {
                    learning_rate: 0.01,
                    beta1: 0.9,
                    beta2: 0.95,
                    epsilon: 1e-8,
                    weight_decay: 0.1,
                    step,
                    gradient_scale: 0.5,
                };
                adamw(&mut w, &g, &mut m, &mut v, &update);
                for i in 0..length {
                    let g = f64::from(g[i]) * 0.5;
                    m64[i] = 0.9 * m64[i] + 0.1 * g;
                    v64[i] = 0.95 * v64[i] + 0.05 * g * g;
                    let m_hat = m64[i] / (1.0 - 0.9_f64.powi(step as i32));
                    let v_hat: f64 = v64[i] / (1.0 - 0.95_f64.powi(step as i32));
                    w64[i] -= 0.01 * 0.1 * w64[i];
                    w64[i] -= 0.01 * m_hat / (v_hat.sqrt() + 1e-8);
                }
                // β₂ = 0.95 in f32 is off by 1.3e-8, which the bias correction magnifies 20 times.
                assert_close(&w, &w64, 1e-6);
                assert_close(&m, &m64, 1e-6);
                assert_close(&v, &v64, 1e-6);
            }
        }
    }

    #[test]
    fn sum_of_squares_against_f64() {
        for length in [0, 1, 15, 16, 17, 1000] {
            let g = random(3, length);
            let expected: f64 = g.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
            assert!((sum_of_squares(&g) - expected).abs() <= 1e-13 * expected);
        }
    }
}
