//! The non-linearities of perceptrons: GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415) in its tanh form (GPT-2) and by the error
//! function (BERT), and SwiGLU (Shazeer 2020, arXiv 2002.05202; LLaMA).
//!
//! The tanh form 0.5·u·(1 + tanh z) with z = √(2/π)·(u + 0.044715·u³) is u·σ(2z), which needs one exponential and no tanh, and loses
//! no digits where tanh is near −1.

use super::simd::{exp, vectorized};

/// 2·√(2/π).
const SLOPE: f32 = 1.595_769_2;
const CUBIC: f32 = 0.044_715;

/// a = gelu(u). Overwrites `a_nm`; the backward pass needs `u_nm`.
pub fn gelu(u_nm: &[f32], a_nm: &mut [f32]) {
    assert_eq!(u_nm.len(), a_nm.len());
    vectorized!(gelu_body(u_nm: &'a [f32], a_nm: &'a mut [f32]));
}

#[inline(always)]
fn gelu_body(u_nm: &[f32], a_nm: &mut [f32]) {
    for (a, &u) in a_nm.iter_mut().zip(u_nm) {
        *a = u * gates(u).0;
    }
}

/// In one pass `u_nm` becomes gelu(u), for the weight gradient of what follows, and `da_nm` becomes
/// du = da·gelu'(u).
pub fn gelu_backward(u_nm: &mut [f32], da_nm: &mut [f32]) {
    assert_eq!(u_nm.len(), da_nm.len());
    vectorized!(gelu_backward_body(u_nm: &'a mut [f32], da_nm: &'a mut [f32]));
}

#[inline(always)]
fn gelu_backward_body(u_nm: &mut [f32], da_nm: &mut [f32]) {
    for (u, da) in u_nm.iter_mut().zip(da_nm) {
        let (gate, rest) = gates(*u);
        let a = *u * gate;
        let slope = SLOPE * (3.0 * CUBIC * *u).mul_add(*u, 1.0);
        // d(u·σ)/du = σ + u·σ·(1 − σ)·2z'
        *da *= (a * rest).mul_add(slope, gate);
        *u = a;
    }
}

/// (σ(2z), 1 − σ(2z)): the second from the exponential, because a difference from 1 has few digits.
#[inline(always)]
fn gates(u: f32) -> (f32, f32) {
    // At 80 both are still finite, and u·σ is zero to any purpose.
    const CEILING: f32 = 80.0;
    let exponent = -SLOPE * u * (CUBIC * u).mul_add(u, 1.0);
    let e = exp(if exponent > CEILING { CEILING } else { exponent });
    let gate = 1.0 / (1.0 + e);
    (gate, e * gate)
}

/// a = gelu(u) by the error function: u·Φ(u). Overwrites `a_nm`; the backward pass needs `u_nm`.
pub fn gelu_erf(u_nm: &[f32], a_nm: &mut [f32]) {
    assert_eq!(u_nm.len(), a_nm.len());
    vectorized!(gelu_erf_body(u_nm: &'a [f32], a_nm: &'a mut [f32]));
}

#[inline(always)]
fn gelu_erf_body(u_nm: &[f32], a_nm: &mut [f32]) {
    for (a, &u) in a_nm.iter_mut().zip(u_nm) {
        *a = u * normal_distribution(u);
    }
}

/// In one pass `u_nm` becomes u·Φ(u), and `da_nm` becomes du = da·(Φ(u) + u·φ(u)).
pub fn gelu_erf_backward(u_nm: &mut [f32], da_nm: &mut [f32]) {
    assert_eq!(u_nm.len(), da_nm.len());
    vectorized!(gelu_erf_backward_body(u_nm: &'a mut [f32], da_nm: &'a mut [f32]));
}

#[inline(always)]
fn gelu_erf_backward_body(u_nm: &mut [f32], da_nm: &mut [f32]) {
    /// 1/√(2π).
    const DENSITY: f32 = 0.398_942_3;
    for (u, da) in u_nm.iter_mut().zip(da_nm) {
        let below = normal_distribution(*u);
        let density = DENSITY * exp(-0.5 * *u * *u);
        *da *= u.mul_add(density, below);
        *u *= below;
    }
}

/// Φ(u) = erfc(−u/√2)/2. erfc is the Chebyshev fit of Press et al., "Numerical Recipes", section 6.2, good to 1.2e-7 of itself.
#[inline(always)]
fn normal_distribution(u: f32) -> f32 {
    const COEFFICIENTS: [f32; 9] = [
        -0.822_152_2,
        1.488_515_9,
        -1.135_204,
        0.278_868_1,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.265_512_2,
    ];
    let z = u.abs() * core::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.5, 1.0);
    let mut p = 0.170_872_77_f32;
    for coefficient in COEFFICIENTS {
        p = p.mul_add(t, coefficient);
    }
    let half = 0.5 * t * exp(z.mul_add(-z, p));
    if u > 0.0 { 1.0 - half } else { half }
}

/// a = silu(gate)·up. A row of `u_ng` is the gate [f], then what it gates [f]; `a_nf` is overwritten, and the backward pass needs `u_ng`.
pub fn swiglu(u_ng: &[f32], a_nf: &mut [f32], width: usize) {
    check_gated(u_ng, width);
    assert_eq!(u_ng.len(), 2 * a_nf.len());
    for (u, a) in u_ng.chunks_exact(2 * width).zip(a_nf.chunks_exact_mut(width)) {
        let (gate, up) = u.split_at(width);
        vectorized!(swiglu_row(gate: &'a [f32], up: &'a [f32], a: &'a mut [f32]));
    }
}

#[inline(always)]
fn swiglu_row(gate: &[f32], up: &[f32], a: &mut [f32]) {
    for ((a, &gate), &up) in a.iter_mut().zip(gate).zip(up) {
        *a = gate * sigmoid(gate) * up;
    }
}

/// The backward pass of [`swiglu`]. The first half of `da_ng` holds da `[n, f]`, and all of it becomes du `[n, 2f]`; the first half of
/// `u_ng` becomes a `[n, f]`.
pub fn swiglu_backward(u_ng: &mut [f32], da_ng: &mut [f32], width: usize) {
    check_gated(u_ng, width);
    assert_eq!(u_ng.len(), da_ng.len());
    // From the last row on, no row of du covers a row of da that is still to be read.
    for row in (0..u_ng.len() / (2 * width)).rev() {
        let (gate, up) = u_ng[2 * row * width..][..2 * width].split_at(width);
        let (before, from_here) = da_ng.split_at_mut(2 * row * width);
        let (dgate, rest) = from_here.split_at_mut(width);
        let dup = &mut rest[..width];
        if row > 0 {
            dgate.copy_from_slice(&before[row * width..][..width]);
        }
        vectorized!(swiglu_backward_row(
            gate: &'a [f32], up: &'a [f32], dgate: &'a mut [f32], dup: &'a mut [f32],
        ));
    }
    for row in 0..u_ng.len() / (2 * width) {
        let (before, from_here) = u_ng.split_at_mut(2 * row * width);
        let (gate, up) = from_here[..2 * width].split_at_mut(width);
        vectorized!(gated_in_place(gate: &'a mut [f32], up: &'a [f32]));
        if row > 0 {
            before[row * width..][..width].copy_from_slice(gate);
        }
    }
}

/// `dgate` holds da.
#[inline(always)]
fn swiglu_backward_row(gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    for (((dgate, dup), &gate), &up) in dgate.iter_mut().zip(dup).zip(gate).zip(up) {
        let (da, open) = (*dgate, sigmoid(gate));
        *dup = da * gate * open;
        *dgate = da * up * open * gate.mul_add(1.0 - open, 1.0);
    }
}

#[inline(always)]
fn gated_in_place(gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = *gate * sigmoid(*gate) * up;
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    // From here on it is zero, or one, to any purpose, and the exponential is finite.
    const CEILING: f32 = 80.0;
    let exponent = if -x > CEILING { CEILING } else { -x };
    1.0 / (1.0 + exp(exponent))
}

fn check_gated(u_ng: &[f32], width: usize) {
    assert!(width > 0 && u_ng.len().is_multiple_of(2 * width), "rows of two times {width}");
}

#[cfg(test)]
mod tests {
    use super::super::reference::assert_close;
    use super::*;

    /// The definition, with tanh.
    fn reference(u: f64) -> f64 {
        let z = (2.0 / core::f64::consts::PI).sqrt() * (u + 0.044_715 * u.powi(3));
        0.5 * u * (1.0 + z.tanh())
    }

    fn derivative(u: f64) -> f64 {
        (reference(u + 1e-6) - reference(u - 1e-6)) / 2e-6
    }

    /// An odd number of inputs from −12 to 12, and far ones.
    fn inputs() -> Vec<f32> {
        (0..2401).map(|i| (i as f32 - 1200.0) / 100.0).chain([-1e4, -100.0, 100.0, 1e4]).collect()
    }

    #[test]
    fn gelu_against_f64() {
        let u = inputs();
        let expected: Vec<f64> = u.iter().map(|&u| reference(f64::from(u))).collect();
        let mut a = vec![9.0; u.len()];
        gelu(&u, &mut a);
        // Relative to max(1, |gelu|): four roundings.
        assert_close(&a, &expected, 3e-7);
    }

    /// u·Φ(u), Φ by Simpson's rule.
    fn erf_reference(u: f64) -> f64 {
        const STEPS: u32 = 2000;
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * core::f64::consts::PI).sqrt();
        // From the far end where Φ is small, so that it keeps its digits.
        let (far, width) = (-12.0_f64, u.clamp(-12.0, 12.0) + 12.0);
        let weight = |i: u32| if i == 0 || i == STEPS { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        let at = |i: u32| far + width * f64::from(i) / f64::from(STEPS);
        let sum: f64 = (0..=STEPS).map(|i| weight(i) * density(at(i))).sum();
        u * sum * width / f64::from(STEPS) / 3.0
    }

    #[test]
    fn gelu_by_the_error_function_against_f64() {
        let u: Vec<f32> = (0..241).map(|i| (i as f32 - 120.0) / 10.0).collect();
        let expected: Vec<f64> = u.iter().map(|&u| erf_reference(f64::from(u))).collect();
        let mut a = vec![9.0; u.len()];
        gelu_erf(&u, &mut a);
        assert_close(&a, &expected, 4e-7);
        // Where it is small it has digits of its own.
        for (&a, &expected) in a.iter().zip(&expected).filter(|(_, expected)| expected.abs() > 1e-20) {
            assert!((f64::from(a) / expected - 1.0).abs() < 1e-5, "{a} is not {expected}");
        }
        let da: Vec<f32> = (0..u.len()).map(|i| (i % 7) as f32 / 4.0 - 0.75).collect();
        let slope = |u: f64| (erf_reference(u + 1e-5) - erf_reference(u - 1e-5)) / 2e-5;
        let expected: Vec<f64> =
            u.iter().zip(&da).map(|(&u, &da)| f64::from(da) * slope(f64::from(u))).collect();
        let (mut u, mut du) = (u, da);
        gelu_erf_backward(&mut u, &mut du);
        assert_eq!(u, a, "the recomputed activation has other bits");
        assert_close(&du, &expected, 1e-6);
    }

    #[test]
    fn swiglu_against_f64_and_finite_differences() {
        use super::super::reference::{gradient, inner, random, to_f64};
        let reference = |u: &[f64], width: usize| -> Vec<f64> {
            let rows = u.chunks(2 * width);
            let gated = |u: &[f64]| -> Vec<f64> {
                (0..width).map(|j| u[j] / (1.0 + (-u[j]).exp()) * u[width + j]).collect()
            };
            rows.flat_map(gated).collect()
        };
        for (n, width) in [(1, 1), (1, 17), (2, 5), (5, 3), (7, 33)] {
            let u: Vec<f32> = random(1, 2 * n * width).iter().map(|x| 4.0 * x).collect();
            let da = random(2, n * width);
            let mut a = vec![9.0; n * width];
            swiglu(&u, &mut a, width);
            assert_close(&a, &reference(&to_f64(&u), width), 1e-6);
            let expected = gradient(&to_f64(&u), |u| inner(&reference(u, width), &da));
            let mut du = [da, vec![9.0; n * width]].concat();
            let mut u = u;
            swiglu_backward(&mut u, &mut du, width);
            assert_close(&du, &expected, 1e-6);
            assert_eq!(u[..n * width], a, "the recomputed activation has other bits");
        }
        let mut a = [9.0; 2];
        swiglu(&[-1e4, 1e4, 1.0, 1.0], &mut a, 2);
        assert!(a[0].abs() < 1e-30 && a[1] == 1e4, "{a:?}");
    }

    #[test]
    fn gelu_backward_against_finite_differences() {
        let u = inputs();
        let da: Vec<f32> = (0..u.len()).map(|i| (i % 7) as f32 / 4.0 - 0.75).collect();
        let expected: Vec<f64> =
            u.iter().zip(&da).map(|(&u, &da)| f64::from(da) * derivative(f64::from(u))).collect();
        let mut a = vec![0.0; u.len()];
        gelu(&u, &mut a);
        let (mut u, mut du) = (u, da);
        gelu_backward(&mut u, &mut du);
        assert_eq!(u, a, "the recomputed activation has other bits");
        assert_close(&du, &expected, 1e-6);
    }
}
