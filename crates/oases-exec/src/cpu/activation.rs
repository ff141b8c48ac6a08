//! GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415): the activation of GPT-2 and BERT's MLP.
//!
//! 0.5·u·(1 + tanh z) with z = √(2/π)·(u + 0.044715·u³) is u·σ(2z), which needs one exponential and no tanh, and loses
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
