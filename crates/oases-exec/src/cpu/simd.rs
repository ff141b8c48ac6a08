//! What the kernels share: run-time choice of the instruction set, lanes, sums and `exp`.
//!
//! A kernel is an ordinary loop over slices. `vectorized!` compiles it once per instruction set and calls the
//! best that the machine has. Reductions keep [`LANES`] partial sums whatever the width of the registers is,
//! so that a result has the same bits on AVX2 and on AVX-512.

/// Partial sums that a reduction keeps: one AVX-512 register, two AVX2 ones.
pub(super) const LANES: usize = 16;

/// Calls `body(arguments…)`, an `#[inline(always)]` function, compiled for the instruction set of this machine.
///
/// The types are repeated because the arguments travel in a structure: a closure would do only if the
/// optimizer happened to inline it, and a body that is not inlined runs with the baseline instructions.
macro_rules! vectorized {
    ($body:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)?) => {{
        struct Call<'a> {
            $($argument: $type,)*
            lifetime: core::marker::PhantomData<&'a ()>,
        }
        impl<'a> pulp::WithSimd for Call<'a> {
            type Output = vectorized!(@output $($output)?);

            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, _simd: S) -> Self::Output {
                let _ = self.lifetime;
                $body($(self.$argument),*)
            }
        }
        pulp::Arch::new().dispatch(Call { $($argument,)* lifetime: core::marker::PhantomData })
    }};
    (@output) => { () };
    (@output $output:ty) => { $output };
}
pub(super) use vectorized;

/// The sum of the lanes, in the order of a binary tree.
#[inline(always)]
pub(super) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest of the lanes; a NaN may or may not survive.
#[inline(always)]
pub(super) fn max_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = larger(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// `max` as one instruction: `f32::max` has to treat NaN with care, which costs three.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The sum of `f(x)` over a slice; the tail is summed after the lanes.
#[inline(always)]
pub(super) fn sum_of(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += f(chunk[i]);
        }
    }
    tail.iter().fold(sum_lanes(lanes), |sum, &x| sum + f(x))
}

/// The inner product of two slices of one length.
#[inline(always)]
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let ((x, x_tail), (y, y_tail)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (x, y) in x.iter().zip(y) {
        for i in 0..LANES {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    x_tail.iter().zip(y_tail).fold(sum_lanes(lanes), |sum, (&x, &y)| x.mul_add(y, sum))
}

/// The largest element of a slice, negative infinity when it is empty.
#[inline(always)]
pub(super) fn max_of(x: &[f32]) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = larger(chunk[i], lanes[i]);
        }
    }
    tail.iter().fold(max_lanes(lanes), |max, &x| larger(x, max))
}

/// e^x to 1.5e-7 relative error, for loops that are to be vectorised.
///
/// x = n ln 2 + r with |r| ≤ (ln 2)/2, and e^r by the polynomial of Cephes' `expf` (Moshier). Results below the
/// smallest normal number are zero, and infinity begins at x = 88.37, a little before f32 ends. NaN stays NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.336_54;
    const HIGHEST: f32 = 88.37;
    // Adding 1.5·2^23 leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x.mul_add(core::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let p = (p * r).mul_add(r, r) + 1.0;
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    let value = if x > HIGHEST { f32::INFINITY } else { p * scale };
    if x < LOWEST { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_good_to_its_stated_error() {
        let mut worst = 0.0_f64;
        for i in 0..400_000 {
            let x = -87.3 + 175.6 * (i as f32 / 400_000.0);
            let exact = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - exact) / exact).abs());
        }
        assert!(worst < 1.5e-7, "relative error {worst:e}");
    }

    #[test]
    fn exp_at_the_ends() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn reductions_take_every_element_once() {
        for length in 0..70 {
            let x: Vec<f32> = (0..length).map(|i| i as f32).collect();
            assert_eq!(sum_of(&x, |x| x), x.iter().sum::<f32>());
            assert_eq!(dot(&x, &x), x.iter().map(|x| x * x).sum::<f32>());
            assert_eq!(max_of(&x), length as f32 - if length == 0 { f32::INFINITY } else { 1.0 });
        }
    }
}
