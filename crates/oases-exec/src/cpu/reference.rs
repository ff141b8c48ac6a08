//! What the kernels' tests share: f64 references written plainly, random data, comparison, finite differences.

use crate::philox::{block, unit_f32};

/// Uniform numbers in [-1, 1).
pub(super) fn random(stream: u64, length: usize) -> Vec<f32> {
    (0..length).map(|i| 2.0 * unit_f32(block([1, 2], stream, i as u64)[0]) - 1.0).collect()
}

pub(super) fn to_f64(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Every element within `tolerance`, relative for expectations above 1.
#[track_caller]
pub(super) fn assert_close(actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "lengths differ");
    for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let actual = f64::from(actual);
        let error = (actual - expected).abs() / expected.abs().max(1.0);
        assert!(
            error <= tolerance || actual == expected,
            "element {i}: {actual} is not {expected} ± {tolerance:e}"
        );
    }
}

/// The gradient of a scalar function by central differences; with f64 and this step good to about 1e-8.
pub(super) fn gradient(x: &[f64], mut loss: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let at = x[i];
            x[i] = at + STEP;
            let above = loss(&x);
            x[i] = at - STEP;
            let below = loss(&x);
            x[i] = at;
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

/// The inner product, by which a test turns an output into a scalar loss.
pub(super) fn inner(x: &[f64], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&x, &y)| x * f64::from(y)).sum()
}
