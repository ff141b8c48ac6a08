//! What happens around the all-reduce that ends a block: x[k+1] = x[k] + drop(sum + term), and its backward pass.
//!
//! Shapes: n tokens, h hidden, s positions, m any number of columns.

use oases_schedule::{Cut, Piece};

use super::simd::vectorized;
use crate::operators::{Accumulate, Dropout};
use crate::philox::philox4x32;

/// A row that is added before dropout: once, after the partial sums of all ranks are joined.
#[derive(Clone, Copy, Debug)]
pub enum RowTerm<'a> {
    /// Nothing.
    None,
    /// The block's output bias [h].
    Bias(&'a [f32]),
    /// Position embeddings [s, h]: row i gets the one of position i mod s.
    Positions(&'a [f32]),
    /// The same, and token types [t, h]: each row gets the one that `types` names.
    PositionsAndTypes {
        /// Position embeddings [s, h].
        positions: &'a [f32],
        /// The type of each row [n].
        types: &'a [u32],
        /// Token types [t, h].
        table: &'a [f32],
    },
}

/// Counters drawn at once: their arithmetic is done in vectors.
const COUNTERS: usize = 16;
/// Features that so many counters give.
const FEATURES: usize = 4 * COUNTERS;

impl Dropout {
    /// Calls `apply(range of features, factors)` with the factors, 0 or 1/(1 − rate), of a token's features.
    #[inline(always)]
    fn factors(&self, row: usize, hidden: usize, mut apply: impl FnMut(usize, &[f32; FEATURES])) {
        let sample = self.first_sample + (row / self.sequence) as u32;
        let first_counter = (row % self.sequence * hidden.div_ceil(4)) as u32;
        let threshold = (f64::from(self.rate) * 4_294_967_296.0) as u32;
        let kept = 1.0 / (1.0 - self.rate);
        for first in (0..hidden).step_by(FEATURES) {
            let mut factors = [0.0; FEATURES];
            for i in 0..COUNTERS {
                let counter = first_counter.wrapping_add((first / 4 + i) as u32);
                let words = philox4x32([counter, sample, self.site, self.step], self.key);
                for lane in 0..4 {
                    factors[4 * i + lane] = if words[lane] >= threshold { kept } else { 0.0 };
                }
            }
            apply(first, &factors);
        }
    }

    fn check(&self, tokens: usize) {
        assert!((0.0..1.0).contains(&self.rate), "a dropout rate of {}", self.rate);
        assert!(self.sequence > 0 && tokens.is_multiple_of(self.sequence), "dropout needs whole samples");
    }
}

/// Puts the rows of `x_nh` together, which lies in pieces by columns, one behind the other. `scratch_nh` is overwritten.
pub fn columns_to_rows(x_nh: &mut [f32], scratch_nh: &mut [f32], hidden: usize, pieces: u8) {
    scratch_nh.copy_from_slice(x_nh);
    let tokens = x_nh.len() / hidden;
    for piece in Piece::all(pieces, Cut::Columns) {
        let features = piece.range(hidden);
        let piece_nw = &scratch_nh[tokens * features.start..tokens * features.end];
        let rows = x_nh.chunks_exact_mut(hidden).map(|x_h| &mut x_h[features.clone()]);
        for (x_w, piece_w) in rows.zip(piece_nw.chunks_exact(features.len().max(1))) {
            x_w.copy_from_slice(piece_w);
        }
    }
}

/// x[k+1] = residual + drop(p + term): `out_nh` holds the reduced sum p and is overwritten.
pub fn join(
    out_nh: &mut [f32],
    hidden: usize,
    residual_nh: Option<&[f32]>,
    term: RowTerm<'_>,
    dropout: Option<Dropout>,
) {
    assert!(hidden > 0 && out_nh.len().is_multiple_of(hidden), "rows of {hidden}");
    if let Some(residual_nh) = residual_nh {
        assert_eq!(residual_nh.len(), out_nh.len());
    }
    match term {
        RowTerm::None => {}
        RowTerm::Bias(bias_h) => assert_eq!(bias_h.len(), hidden),
        RowTerm::Positions(rows) => check_rows(rows, hidden),
        RowTerm::PositionsAndTypes { positions, types, table } => {
            check_rows(positions, hidden);
            check_rows(table, hidden);
            assert_eq!(types.len(), out_nh.len() / hidden, "a type for each token");
        }
    }
    if let Some(dropout) = dropout {
        dropout.check(out_nh.len() / hidden);
    }
    vectorized!(join_body(
        out_nh: &'a mut [f32], hidden: usize, residual_nh: Option<&'a [f32]>, term: RowTerm<'a>,
        dropout: Option<Dropout>,
    ));
}

fn check_rows(rows: &[f32], hidden: usize) {
    assert!(!rows.is_empty() && rows.len().is_multiple_of(hidden), "rows of {hidden}");
}

#[inline(always)]
fn join_body(
    out_nh: &mut [f32],
    hidden: usize,
    residual_nh: Option<&[f32]>,
    term: RowTerm<'_>,
    dropout: Option<Dropout>,
) {
    for (row, out_h) in out_nh.chunks_exact_mut(hidden).enumerate() {
        let term_h = match term {
            RowTerm::None => None,
            RowTerm::Bias(bias_h) => Some(bias_h),
            RowTerm::Positions(positions_sh) | RowTerm::PositionsAndTypes { positions: positions_sh, .. } => {
                Some(&positions_sh[row * hidden % positions_sh.len()..][..hidden])
            }
        };
        if let RowTerm::PositionsAndTypes { types, table, .. } = term {
            add_row(out_h, &table[types[row] as usize * hidden..][..hidden]);
        }
        let residual_h = residual_nh.map(|residual_nh| &residual_nh[row * hidden..][..hidden]);
        match (term_h, residual_h, dropout) {
            // The usual case in one pass over the row.
            (Some(term_h), Some(residual_h), None) => {
                for ((out, &term), &residual) in out_h.iter_mut().zip(term_h).zip(residual_h) {
                    *out = residual + (*out + term);
                }
            }
            _ => {
                if let Some(term_h) = term_h {
                    add_row(out_h, term_h);
                }
                if let Some(dropout) = dropout {
                    dropout.factors(row, hidden, |first, factors| multiply(&mut out_h[first..], factors));
                }
                if let Some(residual_h) = residual_h {
                    add_row(out_h, residual_h);
                }
            }
        }
    }
}

/// The backward pass of [`join`]: first `g_nh` += `upstream_nh`, in place; then d = drop'(g), the gradient of p and
/// of the term, overwrites `d_nh`. Without dropout d equals g, and `d_nh` may be left out.
///
/// # Panics
/// If there is dropout and nowhere to put d.
pub fn join_gradient(
    g_nh: &mut [f32],
    hidden: usize,
    upstream_nh: Option<&[f32]>,
    d_nh: Option<&mut [f32]>,
    dropout: Option<Dropout>,
) {
    assert!(hidden > 0 && g_nh.len().is_multiple_of(hidden), "rows of {hidden}");
    assert!(d_nh.is_some() || dropout.is_none(), "dropout needs a place for its gradient");
    if let Some(dropout) = dropout {
        dropout.check(g_nh.len() / hidden);
    }
    if let Some(upstream_nh) = upstream_nh {
        add(g_nh, upstream_nh);
    }
    if let Some(d_nh) = d_nh {
        assert_eq!(d_nh.len(), g_nh.len());
        d_nh.copy_from_slice(g_nh);
        if let Some(dropout) = dropout {
            vectorized!(drop_body(d_nh: &'a mut [f32], hidden: usize, dropout: Dropout));
        }
    }
}

#[inline(always)]
fn drop_body(d_nh: &mut [f32], hidden: usize, dropout: Dropout) {
    for (row, d_h) in d_nh.chunks_exact_mut(hidden).enumerate() {
        dropout.factors(row, hidden, |first, factors| multiply(&mut d_h[first..], factors));
    }
}

#[inline(always)]
fn multiply(x: &mut [f32], factors: &[f32; FEATURES]) {
    for (x, factor) in x.iter_mut().zip(factors) {
        *x *= factor;
    }
}

#[inline(always)]
fn add_row(out: &mut [f32], x: &[f32]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out += x;
    }
}

/// out += x.
pub fn add(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len());
    vectorized!(add_row(out: &'a mut [f32], x: &'a [f32]));
}

/// db = the column sums of dy, added row by row in their order; `db_m` is overwritten or added to.
pub fn bias_gradient(dy_nm: &[f32], db_m: &mut [f32], accumulate: Accumulate) {
    assert!(!db_m.is_empty() && dy_nm.len().is_multiple_of(db_m.len()), "rows of {}", db_m.len());
    if accumulate == Accumulate::Overwrite {
        db_m.fill(0.0);
    }
    vectorized!(add_rows(dy_nm: &'a [f32], db_m: &'a mut [f32]));
}

/// The gradient of position embeddings: row i of `d_nh` is added to row i mod s of `dpositions_sh`, which is overwritten or
/// added to.
pub fn positions_gradient(d_nh: &[f32], dpositions_sh: &mut [f32], accumulate: Accumulate) {
    assert!(!dpositions_sh.is_empty() && d_nh.len().is_multiple_of(dpositions_sh.len()), "whole sequences");
    bias_gradient(d_nh, dpositions_sh, accumulate);
}

/// Adds four rows at a time, each element in the order of the rows.
#[inline(always)]
fn add_rows(rows_nm: &[f32], sum_m: &mut [f32]) {
    let m = sum_m.len();
    let fours = rows_nm.chunks_exact(4 * m);
    let rest = fours.remainder();
    for four in fours {
        let (r0, four) = four.split_at(m);
        let (r1, four) = four.split_at(m);
        let (r2, r3) = four.split_at(m);
        for ((((sum, &a), &b), &c), &d) in sum_m.iter_mut().zip(r0).zip(r1).zip(r2).zip(r3) {
            *sum = *sum + a + b + c + d;
        }
    }
    for row in rest.chunks_exact(m) {
        add_row(sum_m, row);
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{assert_close, random, to_f64};
    use super::*;

    fn dropout(rate: f32, first_sample: u32, sequence: usize) -> Dropout {
        Dropout { rate, key: [11, 12], site: 3, step: 7, first_sample, sequence }
    }

    /// The factor of one element, from the definition.
    fn factor(dropout: &Dropout, row: usize, j: usize, hidden: usize) -> f64 {
        let sample = dropout.first_sample + (row / dropout.sequence) as u32;
        let counter = row % dropout.sequence * hidden.div_ceil(4) + j / 4;
        let word = philox4x32([counter as u32, sample, dropout.site, dropout.step], dropout.key)[j % 4];
        let dropped = f64::from(word) < f64::from(dropout.rate) * 2.0_f64.powi(32);
        if dropped { 0.0 } else { 1.0 / (1.0 - f64::from(dropout.rate)) }
    }

    #[test]
    fn join_and_its_gradient_against_the_definition() {
        let s = 3;
        for h in [1, 3, 4, 17, 64, 130] {
            let n = 2 * s;
            let (p, residual, positions) = (random(1, n * h), random(2, n * h), random(3, s * h));
            for with_residual in [None, Some(&residual[..])] {
                let types = [1, 0, 0, 2, 2, 1];
                let with_types = RowTerm::PositionsAndTypes {
                    positions: &positions,
                    types: &types,
                    table: &residual[..3 * h],
                };
                for term in [
                    RowTerm::None,
                    RowTerm::Bias(&positions[..h]),
                    RowTerm::Positions(&positions),
                    with_types,
                ] {
                    for dropout in [None, Some(dropout(0.3, 5, s))] {
                        let at = |i: usize| {
                            let (row, j) = (i / h, i % h);
                            let term = match term {
                                RowTerm::None => 0.0,
                                RowTerm::Bias(bias) => bias[j],
                                RowTerm::Positions(positions) => positions[row % s * h + j],
                                RowTerm::PositionsAndTypes { positions, types, table } => {
                                    positions[row % s * h + j] + table[types[row] as usize * h + j]
                                }
                            };
                            let factor = dropout.map_or(1.0, |dropout| factor(&dropout, row, j, h));
                            with_residual.map_or(0.0, |residual| f64::from(residual[i]))
                                + factor * (f64::from(p[i]) + f64::from(term))
                        };
                        let mut out = p.clone();
                        join(&mut out, h, with_residual, term, dropout);
                        assert_close(&out, &(0..n * h).map(at).collect::<Vec<_>>(), 4e-7);
                    }
                }
            }
            let (g, upstream) = (random(4, n * h), random(5, n * h));
            let sum: Vec<f64> = g.iter().zip(&upstream).map(|(&g, &u)| f64::from(g) + f64::from(u)).collect();
            let dropout = dropout(0.3, 5, s);
            let mut dropped = sum.clone();
            (0..n * h).for_each(|i| dropped[i] *= factor(&dropout, i / h, i % h, h));
            let (mut actual, mut d) = (g.clone(), vec![9.0; n * h]);
            join_gradient(&mut actual, h, Some(&upstream), Some(&mut d), Some(dropout));
            assert_close(&actual, &sum, 3e-7);
            assert_close(&d, &dropped, 3e-7);
            join_gradient(&mut actual, h, None, Some(&mut d), None);
            assert_eq!(actual, d);
            assert_close(&d, &sum, 3e-7);
        }
    }

    #[test]
    fn the_mask_belongs_to_the_sample_wherever_the_batch_is_cut() {
        let (s, h) = (5, 70);
        let ones = vec![1.0; 4 * s * h];
        let mut whole = ones.clone();
        join(&mut whole, h, None, RowTerm::None, Some(dropout(0.5, 8, s)));
        for first in 0..4 {
            let mut part = ones[..s * h].to_vec();
            join(&mut part, h, None, RowTerm::None, Some(dropout(0.5, 8 + first as u32, s)));
            assert_eq!(part, whole[first * s * h..][..s * h]);
        }
        let mut other_step = ones.clone();
        join(&mut other_step, h, None, RowTerm::None, Some(Dropout { step: 8, ..dropout(0.5, 8, s) }));
        assert_ne!(other_step, whole);
    }

    #[test]
    fn the_rate_is_kept_and_features_are_independent() {
        for rate in [0.0, 0.1, 0.5, 0.9] {
            let (s, h) = (50, 400);
            let mut x = vec![1.0; 10 * s * h];
            join(&mut x, h, None, RowTerm::None, Some(dropout(rate, 0, s)));
            let count = x.len() as f64;
            let dropped = |x: f32| if x == 0.0 { 1.0 } else { 0.0 };
            let mean: f64 = x.iter().map(|&x| dropped(x)).sum::<f64>() / count;
            let both: f64 = x.windows(2).map(|x| dropped(x[0]) * dropped(x[1])).sum::<f64>() / count;
            let rate = f64::from(rate);
            // Five standard errors.
            let bound = 5.0 * (rate * (1.0 - rate) / count).sqrt();
            assert!((mean - rate).abs() <= bound, "rate {mean}, not {rate} ± {bound}");
            assert!((both - rate * rate).abs() <= 3.0 * bound, "neighbours {both}, not {}", rate * rate);
        }
    }

    #[test]
    fn sums_over_rows() {
        for n in [1, 2, 3, 4, 5, 11] {
            for m in [1, 7, 16, 37] {
                let dy = random(6, n * m);
                let expected: Vec<f64> =
                    (0..m).map(|j| to_f64(&dy).iter().skip(j).step_by(m).sum()).collect();
                let mut db = vec![9.0; m];
                bias_gradient(&dy, &mut db, Accumulate::Overwrite);
                assert_close(&db, &expected, 1e-6);
                bias_gradient(&dy, &mut db, Accumulate::Add);
                assert_close(&db, &expected.iter().map(|d| 2.0 * d).collect::<Vec<_>>(), 2e-6);
            }
        }
        let (s, h) = (3, 5);
        let d = random(7, 2 * s * h);
        let mut dpositions = vec![1.0; s * h];
        positions_gradient(&d, &mut dpositions, Accumulate::Add);
        let expected: Vec<f64> =
            (0..s * h).map(|i| 1.0 + f64::from(d[i]) + f64::from(d[s * h + i])).collect();
        assert_close(&dpositions, &expected, 1e-6);
    }

    #[test]
    fn sums_over_several_calls_have_the_bits_of_one() {
        let (n, m, s) = (13, 37, 3);
        // As many rows for a bias as sequences for the positions.
        let dy = random(8, n * s * m);
        let results = [&[13][..], &[4, 9], &[3, 4, 5, 1], &[1; 13]].map(|cut: &[usize]| {
            let (mut db, mut dpositions) = (vec![9.0; m], vec![9.0; s * m]);
            let (mut first, mut accumulate) = (0, Accumulate::Overwrite);
            for &rows in cut {
                bias_gradient(&dy[first * m..][..rows * m], &mut db, accumulate);
                positions_gradient(&dy[first * s * m..][..rows * s * m], &mut dpositions, accumulate);
                (first, accumulate) = (first + rows, Accumulate::Add);
            }
            (db, dpositions)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
