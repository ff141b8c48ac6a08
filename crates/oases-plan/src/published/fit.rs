//! What a block of a transformer layer takes where no table has it: a fit to the published one.
//!
//! With m tokens, hidden size h, TMP degree t, e bytes an element, x = e·m·h bytes of a residual stream, σ bytes of
//! attention scores on the rank, P(f) the time of a matrix product of f operations, C that of one of the two products of
//! an attention core, W the memory bandwidth times [`BANDWIDTH_SHARE`] and L the fixed time of one operator:
//!
//! ```text
//! attention forward    P(qkv) + P(out)      + 2 C + (6.7 σ + 8/3 · 3e·mh/t + 10.4 x) / W + 20 L
//! attention backward   2 P(qkv) + 2 P(out)  + 4 C + (8.4 σ +   3 · 3e·mh/t + 11.6 x) / W + 30 L
//! MLP forward          P(up) + P(down)      +       (        4 · 4e·mh/t + 10.4 x) / W + 10 L
//! MLP backward         2 P(up) + 2 P(down)  +       (        5 · 4e·mh/t + 11.6 x) / W + 15 L
//! ```
//!
//! The constants are a robust least-squares fit to the logarithms of the 88 rows of the table whose MLP forward takes
//! more than 0.8 ms, median error 2 %. They belong together, so they stand here and not in a machine description, whose
//! own model counts traffic differently. Their meaning: 6.7 and 8.4 are the passes of an unfused softmax with dropout over
//! the scores; x is not divided by t, for normalisation, dropout and residual are replicated on all ranks of a TMP group.

use oases_schedule::Family;

use crate::machine::Device;

/// Share of the peak memory bandwidth that element-wise operators reach.
const BANDWIDTH_SHARE: f64 = 0.85;
/// Fixed time of one operator.
const LAUNCH_MS: f64 = 6.2e-3;
/// Share of the plateau that a product reaches, by GFLOP on a device of [`RAMP_TFLOPS`]; between sizes linear in the
/// logarithm of the size. On another device it holds for products that take as long at the peak rate.
const RAMP: [[f64; 2]; 4] = [[2.0, 0.60], [8.0, 0.76], [32.0, 0.93], [128.0, 1.00]];
/// Peak rate of the device of the table, NVIDIA's figure for GeForce RTX 3090.
const RAMP_TFLOPS: f64 = 35.6;
/// Share of the plateau that the many small products of an attention core reach.
const CORE_SHARE: f64 = 0.536;
/// Passes over the residual stream, forward and backward.
const STREAM_PASSES: [f64; 2] = [10.4, 11.6];
/// Passes over the attention scores.
const SCORE_PASSES: [f64; 2] = [6.7, 8.4];
/// Passes over queries, keys and values, which are 3h wide.
const QKV_PASSES: [f64; 2] = [8.0 / 3.0, 3.0];
/// Passes over the inside of an MLP, which is 4h wide.
const FFN_PASSES: [f64; 2] = [4.0, 5.0];

/// The size of a block and what it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Attention heads, of all ranks.
    pub heads: u32,
    /// Tokens of a sequence.
    pub sequence: u32,
    /// TMP degree.
    pub degree: u32,
    /// Sequences.
    pub batch: u32,
}

/// A block's forward by its parts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockParts {
    /// The column-parallel product.
    pub first_ms: f64,
    /// The attention core: scores, softmax, dropout, and the values weighted with them. Nothing in an MLP.
    pub core_ms: f64,
    /// The row-parallel product, behind which the all-reduce stands.
    pub last_ms: f64,
    /// Everything else: normalisation, dropout, residual, non-linearity, fixed times.
    pub rest_ms: f64,
}

impl BlockParts {
    /// The whole forward.
    pub fn sum_ms(&self) -> f64 {
        self.first_ms + self.core_ms + self.last_ms + self.rest_ms
    }
}

/// The fit on a device: its peak rate, the plateau of its efficiency, and its memory bandwidth.
#[derive(Clone, Copy, Debug)]
pub struct BlockFit<'a> {
    device: &'a Device,
}

impl<'a> BlockFit<'a> {
    /// The fit on a device of a machine that has been checked.
    pub fn new(device: &'a Device) -> BlockFit<'a> {
        BlockFit { device }
    }

    /// One matrix product of so many floating-point operations.
    pub fn product_ms(&self, flops: f64) -> f64 {
        flops / (self.plateau_flops_per_ms() * ramp(flops / 1e9 * RAMP_TFLOPS / self.device.peak_tflops))
    }

    /// The column-parallel and the row-parallel product of a block, in floating-point operations.
    pub fn products(family: Family, size: BlockSize) -> [f64; 2] {
        let square = 2.0 * size.tokens() * f64::from(size.hidden).powi(2) / f64::from(size.degree);
        match family {
            Family::Attn => [3.0 * square, square],
            Family::Mlp => [4.0 * square; 2],
            Family::Embed | Family::Head => panic!("only layers are fitted"),
        }
    }

    /// The forward of a block, by its parts.
    pub fn forward(&self, family: Family, size: BlockSize) -> BlockParts {
        let [first_ms, last_ms] = Self::products(family, size).map(|flops| self.product_ms(flops));
        let core_ms = if family == Family::Attn { self.core_ms(size) } else { 0.0 };
        BlockParts { first_ms, core_ms, last_ms, rest_ms: self.rest_ms(family, size, 0) }
    }

    /// The backward of a block, without recomputation: two products for each of forward's.
    pub fn backward_ms(&self, family: Family, size: BlockSize) -> f64 {
        let products: f64 = Self::products(family, size).iter().map(|flops| self.product_ms(*flops)).sum();
        let core = match family {
            Family::Attn => {
                4.0 * self.core_product_ms(size) + self.traffic_ms(SCORE_PASSES[1] * self.score_bytes(size))
            }
            _ => 0.0,
        };
        2.0 * products + core + self.rest_ms(family, size, 1)
    }

    /// What normalisation, dropout and residual of a block take forward (`[0]`) and backward (`[1]`).
    pub fn residual_ms(&self, size: BlockSize) -> [f64; 2] {
        STREAM_PASSES.map(|passes| self.traffic_ms(passes * self.stream_bytes(size)))
    }

    /// One operator that copies the residual stream: a pass to read and one to write.
    pub fn copy_ms(&self, size: BlockSize) -> f64 {
        self.traffic_ms(2.0 * self.stream_bytes(size)) + LAUNCH_MS
    }

    /// The optimizer's step over so many parameters of a rank: `passes` of 32 bits each over all of them.
    pub fn step_ms(&self, parameters: f64, passes: f64) -> f64 {
        self.traffic_ms(passes * 4.0 * parameters)
    }

    fn plateau_flops_per_ms(&self) -> f64 {
        let plateau = self.device.efficiency.last().map_or(1.0, |[_, share]| *share);
        self.device.peak_tflops * plateau * 1e9
    }

    /// `bytes` through the memory.
    fn traffic_ms(&self, bytes: f64) -> f64 {
        bytes / (self.device.bandwidth_gb_s * BANDWIDTH_SHARE * 1e6)
    }

    fn stream_bytes(&self, size: BlockSize) -> f64 {
        self.device.element_bytes as f64 * size.tokens() * f64::from(size.hidden)
    }

    fn score_bytes(&self, size: BlockSize) -> f64 {
        self.device.element_bytes as f64 * size.scores()
    }

    fn core_ms(&self, size: BlockSize) -> f64 {
        2.0 * self.core_product_ms(size) + self.traffic_ms(SCORE_PASSES[0] * self.score_bytes(size))
    }

    /// A multiply-add for each score and feature of a head.
    fn core_product_ms(&self, size: BlockSize) -> f64 {
        let flops = 2.0 * size.scores() * f64::from(size.hidden) / f64::from(size.heads);
        flops / (self.plateau_flops_per_ms() * CORE_SHARE)
    }

    /// Element-wise operators and fixed times, in forward (`pass` 0) or backward (1).
    fn rest_ms(&self, family: Family, size: BlockSize, pass: usize) -> f64 {
        let (width, passes, operators) = match family {
            Family::Attn => (3.0, QKV_PASSES[pass], [20.0, 30.0][pass]),
            _ => (4.0, FFN_PASSES[pass], [10.0, 15.0][pass]),
        };
        let inside = passes * width * self.stream_bytes(size) / f64::from(size.degree);
        self.traffic_ms(inside) + self.residual_ms(size)[pass] + operators * LAUNCH_MS
    }
}

impl BlockSize {
    fn tokens(self) -> f64 {
        f64::from(self.batch) * f64::from(self.sequence)
    }

    /// Scores on one rank: one for each query, key and head, masked ones included.
    fn scores(self) -> f64 {
        self.tokens() * f64::from(self.sequence) * f64::from(self.heads) / f64::from(self.degree)
    }
}

fn ramp(gflop: f64) -> f64 {
    let above = RAMP.iter().position(|[size, _]| *size > gflop);
    match above {
        Some(0) => RAMP[0][1],
        Some(above) => {
            let ([low, left], [high, right]) = (RAMP[above - 1], RAMP[above]);
            left + (right - left) * (gflop / low).ln() / (high / low).ln()
        }
        None => RAMP[RAMP.len() - 1][1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Dtype;
    use crate::published::PublishedTable;

    const TABLE: &str = include_str!("../../../../data/oases-paper/oases_3090_profile.csv");

    fn device(peak_tflops: f64, plateau: f64) -> Device {
        Device {
            name: "GeForce RTX 3090".to_owned(),
            memory_gb: 24.0,
            peak_tflops,
            dtype: Dtype::F32,
            element_bytes: 4,
            bandwidth_gb_s: 936.0,
            launch_us: 6.2,
            efficiency: vec![[1.0, 0.1], [100.0, plateau]],
            score_passes: [0.0; 2],
            unfused: [1.0; 2],
            interference: 1.0,
            estimates: Vec::new(),
            estimate: false,
        }
    }

    #[test]
    fn it_is_within_a_few_per_cent_of_the_table() {
        let device = device(35.6, 1.0);
        let fit = BlockFit::new(&device);
        let mut errors: Vec<f64> = Vec::new();
        let mut rows = 0;
        let table = PublishedTable::parse(TABLE).unwrap();
        for ([hidden, degree, batch], times) in
            table.measured().filter(|(_, times)| times.mlp_forward_ms > 0.8)
        {
            rows += 1;
            let size = BlockSize { hidden, heads: hidden / 64, sequence: 1024, degree, batch };
            for family in [Family::Attn, Family::Mlp] {
                errors.push((fit.forward(family, size).sum_ms() / times.forward_ms(family) - 1.0).abs());
                errors.push((fit.backward_ms(family, size) / times.backward_ms(family) - 1.0).abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        let quantile = |share: f64| errors[(share * (errors.len() - 1) as f64) as usize];
        assert_eq!(rows, 88);
        assert!(quantile(0.5) < 0.025, "median {}", quantile(0.5));
        assert!(quantile(0.9) < 0.06, "90 % {}", quantile(0.9));
        assert!(quantile(1.0) < 0.10, "worst {}", quantile(1.0));
    }

    /// One sequence of 1024 tokens, hidden 8192, degree 8: two products of 2 · 1024 · 8192 · 4096 = 68.72 GFLOP at a share of
    /// 0.93 + 0.07 · ln(68.72/32) / ln 4 of 35.6 TFLOPS; x is 33.55 MB, the inside of the MLP 16.78 MB: 4 passes forward, and
    /// 10.4 of x, at 795.6 GB/s; 10 operators of 6.2 µs.
    #[test]
    fn an_mlp_by_hand() {
        let device = device(35.6, 1.0);
        let size = BlockSize { hidden: 8192, heads: 128, sequence: 1024, degree: 8, batch: 1 };
        let share = 0.93 + 0.07 * (68.719_476_736f64 / 32.0).ln() / 4f64.ln();
        let product = 68.719_476_736 / (35.6 * share);
        let rest = (4.0 * 16.777_216 + 10.4 * 33.554_432) / 795.6 + 0.062;
        let fit = BlockFit::new(&device);
        let copy = 2.0 * 33.554_432 / 795.6 + 0.0062;
        assert!((fit.copy_ms(size) - copy).abs() < 1e-9, "{} {copy}", fit.copy_ms(size));
        let parts = fit.forward(Family::Mlp, size);
        let expected = BlockParts { first_ms: product, core_ms: 0.0, last_ms: product, rest_ms: rest };
        for (found, expected) in [
            (parts.first_ms, expected.first_ms),
            (parts.last_ms, expected.last_ms),
            (parts.core_ms, 0.0),
            (parts.rest_ms, expected.rest_ms),
            (parts.sum_ms(), 2.0 * product + rest),
        ] {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }

    /// Half the peak rate: a product of half the operations takes the same time. Half the plateau: each takes twice as long.
    #[test]
    fn the_ramp_is_over_the_time_at_the_peak_rate() {
        let (fast, slow, low) = (device(35.6, 1.0), device(17.8, 1.0), device(35.6, 0.5));
        for gflop in [1.0, 2.0, 5.0, 20.0, 100.0, 500.0] {
            let time = BlockFit::new(&fast).product_ms(gflop * 1e9);
            assert!((BlockFit::new(&slow).product_ms(gflop * 0.5e9) / time - 1.0).abs() < 1e-12);
            assert!((BlockFit::new(&low).product_ms(gflop * 1e9) / time - 2.0).abs() < 1e-12);
        }
        // 16 GFLOP is half way between 8 and 32 in the logarithm.
        let time = BlockFit::new(&fast).product_ms(16e9);
        assert!((time - 16.0 / 35.6 / 0.845).abs() < 1e-9, "{time}");
    }
}
