//! Softmax cross-entropy on a shard of the vocabulary: three numbers a token travel between the ranks, never the logits.
//!
//! Shapes: n tokens, v columns of this shard's logits, of which only the first `valid` are real (the rest is
//! padding), t ranks. `first_row` is the vocabulary index of column 0. The split of the sum follows Shoeybi et al.,
//! "Megatron-LM" (arXiv 1909.08053, §3).

use crate::operators::{IGNORE, VocabularyShard};

use super::simd::{LANES, exp, larger, max_of, sum_lanes, vectorized};

/// Numbers per token in the statistics: local maximum, local Σ exp(z − maximum), the target's logit or 0.
pub const STATISTICS: usize = 3;

impl VocabularyShard {
    /// The column of a target, if it is one of this shard's.
    #[inline(always)]
    fn column(&self, target: u32) -> Option<usize> {
        let column = target.checked_sub(self.first_row)? as usize;
        (column < self.valid && target != IGNORE).then_some(column)
    }

    fn check(&self, logits_nv: &[f32], targets_n: &[u32]) {
        assert!(self.valid <= self.width, "{} valid columns of {}", self.valid, self.width);
        assert_eq!(logits_nv.len(), targets_n.len() * self.width, "logits and targets do not fit together");
    }
}

/// Overwrites `stats_n3` with this shard's statistics of each token; without a valid column (−∞, 0, 0).
pub fn statistics(logits_nv: &[f32], shard: VocabularyShard, targets_n: &[u32], stats_n3: &mut [f32]) {
    shard.check(logits_nv, targets_n);
    assert_eq!(stats_n3.len(), targets_n.len() * STATISTICS);
    vectorized!(statistics_body(
        logits_nv: &'a [f32], shard: VocabularyShard, targets_n: &'a [u32], stats_n3: &'a mut [f32],
    ));
}

#[inline(always)]
fn statistics_body(logits_nv: &[f32], shard: VocabularyShard, targets_n: &[u32], stats_n3: &mut [f32]) {
    if shard.width == 0 {
        stats_n3.as_chunks_mut::<STATISTICS>().0.fill([f32::NEG_INFINITY, 0.0, 0.0]);
        return;
    }
    let rows = logits_nv.chunks_exact(shard.width).zip(targets_n);
    for ((row_v, &target), stats) in rows.zip(stats_n3.as_chunks_mut::<STATISTICS>().0) {
        let row_v = &row_v[..shard.valid];
        let max = max_of(row_v);
        let target = shard.column(target).map_or(0.0, |column| row_v[column]);
        *stats = [max, sum_of_exp(row_v, max), target];
    }
}

/// Σ exp(z − max).
#[inline(always)]
fn sum_of_exp(z: &[f32], max: f32) -> f32 {
    let (chunks, tail) = z.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += exp(chunk[i] - max);
        }
    }
    tail.iter().fold(sum_lanes(lanes), |sum, &z| sum + exp(z - max))
}

/// Joins the statistics of all ranks: overwrites `lse_n` with log Σ exp(z) over the whole vocabulary, and returns the
/// sum of lse − z(target) over the tokens that have a target. The same on every rank, bit for bit.
#[must_use]
pub fn combine(stats_tn3: &[f32], targets_n: &[u32], lse_n: &mut [f32]) -> f64 {
    let n = targets_n.len();
    assert_eq!(lse_n.len(), n);
    assert!(stats_tn3.len().is_multiple_of((n * STATISTICS).max(1)), "statistics of a part of the tokens");
    let stats = stats_tn3.as_chunks::<STATISTICS>().0;
    let mut loss = 0.0;
    for (token, (&target, lse)) in targets_n.iter().zip(lse_n).enumerate() {
        let ranks = || stats.iter().skip(token).step_by(n);
        let max = ranks().fold(f32::NEG_INFINITY, |max, &[local, ..]| larger(local, max));
        let sum: f64 = ranks().map(|&[local, sum, _]| f64::from(sum) * f64::from(local - max).exp()).sum();
        let exact = f64::from(max) + sum.ln();
        *lse = exact as f32;
        if target != IGNORE {
            loss += exact - ranks().map(|&[.., z]| f64::from(z)).sum::<f64>();
        }
    }
    loss
}

/// `logits_nv` becomes its gradient, scale·(softmax − onehot), in place; zero for ignored tokens and padded columns.
pub fn cross_entropy_backward(
    logits_nv: &mut [f32],
    shard: VocabularyShard,
    lse_n: &[f32],
    targets_n: &[u32],
    scale: f32,
) {
    shard.check(logits_nv, targets_n);
    assert_eq!(lse_n.len(), targets_n.len());
    vectorized!(backward_body(
        logits_nv: &'a mut [f32], shard: VocabularyShard, lse_n: &'a [f32], targets_n: &'a [u32], scale: f32,
    ));
}

#[inline(always)]
fn backward_body(
    logits_nv: &mut [f32],
    shard: VocabularyShard,
    lse_n: &[f32],
    targets_n: &[u32],
    scale: f32,
) {
    if shard.width == 0 {
        return;
    }
    for ((row_v, &lse), &target) in logits_nv.chunks_exact_mut(shard.width).zip(lse_n).zip(targets_n) {
        if target == IGNORE {
            row_v.fill(0.0);
            continue;
        }
        let (row_v, padding) = row_v.split_at_mut(shard.valid);
        padding.fill(0.0);
        for z in row_v.iter_mut() {
            *z = scale * exp(*z - lse);
        }
        if let Some(column) = shard.column(target) {
            row_v[column] -= scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{assert_close, gradient, random, to_f64};
    use super::*;

    const VOCABULARY: usize = 45;

    /// Σ (lse − z(target)), in f64, over a whole unpadded vocabulary.
    fn reference(logits: &[f64], targets: &[u32]) -> f64 {
        let mut loss = 0.0;
        for (z, &target) in logits.chunks(VOCABULARY).zip(targets) {
            if target != IGNORE {
                loss += z.iter().map(|z| z.exp()).sum::<f64>().ln() - z[target as usize];
            }
        }
        loss
    }

    /// Cuts the logits into shards of `width` columns, the last padded with large values that nobody may see.
    fn shards(logits: &[f32], width: usize, ranks: usize) -> Vec<(VocabularyShard, Vec<f32>)> {
        (0..ranks)
            .map(|rank| {
                let first = rank * width;
                let valid = VOCABULARY.saturating_sub(first).min(width);
                let mut part = Vec::new();
                for row in logits.chunks(VOCABULARY) {
                    part.extend_from_slice(&row[first.min(VOCABULARY)..][..valid]);
                    part.resize(part.len() + width - valid, 1e30);
                }
                (VocabularyShard { first_row: first as u32, width, valid }, part)
            })
            .collect()
    }

    #[test]
    fn loss_and_gradient_over_shards_against_f64() {
        let targets = [3, 44, IGNORE, 0, 17, 16];
        let n = targets.len();
        let logits: Vec<f32> = random(1, n * VOCABULARY).iter().map(|z| 20.0 * z).collect();
        let logits64 = to_f64(&logits);
        let scale = 0.25;
        let expected = gradient(&logits64, |z| f64::from(scale) * reference(z, &targets));
        // Whole; two even parts with padding; a last rank that holds padding only.
        for (width, ranks) in [(45, 1), (48, 1), (24, 2), (17, 4), (1, 45)] {
            let mut parts = shards(&logits, width, ranks);
            let mut stats = Vec::new();
            for (shard, part) in &parts {
                let mut local = vec![9.0; n * STATISTICS];
                statistics(part, *shard, &targets, &mut local);
                stats.extend(local);
            }
            let mut lse = vec![9.0; n];
            let loss = combine(&stats, &targets, &mut lse);
            let exact = reference(&logits64, &targets);
            assert!((loss - exact).abs() < 1e-6 * exact, "loss {loss}, not {exact}");
            for (shard, part) in &mut parts {
                cross_entropy_backward(part, *shard, &lse, &targets, scale);
                for (row, z) in part.chunks(width).enumerate() {
                    let first = row * VOCABULARY + shard.first_row as usize;
                    let valid = shard.valid;
                    let expected = if valid == 0 { &[] } else { &expected[first..first + valid] };
                    // lse is near 20 and rounded to 1e-6, and so is z − lse.
                    assert_close(&z[..valid], expected, 1e-6);
                    assert!(z[valid..].iter().all(|&z| z == 0.0), "padding has a gradient");
                }
            }
        }
    }

    #[test]
    fn statistics_without_a_valid_column() {
        let shard = VocabularyShard { first_row: 8, width: 2, valid: 0 };
        let mut stats = [9.0; 6];
        statistics(&[1.0; 4], shard, &[8, IGNORE], &mut stats);
        assert_eq!(stats, [f32::NEG_INFINITY, 0.0, 0.0, f32::NEG_INFINITY, 0.0, 0.0]);
        let empty = VocabularyShard { width: 0, ..shard };
        statistics(&[], empty, &[8, IGNORE], &mut stats);
        cross_entropy_backward(&mut [], empty, &[0.0; 2], &[8, IGNORE], 1.0);
    }

    #[test]
    fn logits_that_overflow_exp_are_fine_and_nan_is_not_hidden() {
        let shard = VocabularyShard { first_row: 0, width: 3, valid: 3 };
        let (mut stats, mut lse) = ([0.0; 3], [0.0]);
        statistics(&[1000.0, 999.0, -1000.0], shard, &[1], &mut stats);
        let loss = combine(&stats, &[1], &mut lse);
        assert!((loss - (1.0 + (1.0 + (-1.0_f64).exp()).ln())).abs() < 1e-6, "{loss}");
        for position in 0..3 {
            let mut logits = [1.0, 2.0, 3.0];
            logits[position] = f32::NAN;
            statistics(&logits, shard, &[0], &mut stats);
            assert!(combine(&stats, &[0], &mut lse).is_nan(), "NaN at {position} vanished");
        }
    }
}
