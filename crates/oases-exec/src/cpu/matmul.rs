//! Matrix products on strided, possibly transposed views.
//!
//! y = x·Wᵀ + b, dX = dY·W and dW += dYᵀ·X are all `matmul` with a view transposed by [`Matrix::t`].
//!
//! An element of the product is one chain of fused multiply-adds over the inner dimension, cut at fixed places
//! ([`gemm`](super::gemm)): its bits depend neither on the number of rows nor on the width of the registers.

use super::gemm::{Start, product};
use crate::operators::Accumulate;

/// A read-only row-major matrix, or the transpose of one.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
    pub(super) transposed: bool,
}

impl<'a> Matrix<'a> {
    /// A matrix whose rows lie one after the other.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// A matrix whose rows begin `row_stride` elements apart.
    #[must_use]
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride);
        Self { data, rows, cols, stride: row_stride, transposed: false }
    }

    /// The transpose: the same elements, seen the other way.
    #[must_use]
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }
}

/// A row-major matrix to write to.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// A matrix whose rows lie one after the other.
    #[must_use]
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// A matrix whose rows begin `row_stride` elements apart; what lies between them stays as it is.
    #[must_use]
    pub fn strided(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride);
        Self { data, rows, cols, stride: row_stride }
    }
}

fn check(length: usize, rows: usize, cols: usize, stride: usize) {
    let needed = if rows == 0 { 0 } else { (rows - 1) * stride + cols };
    assert!(
        stride >= cols && length >= needed,
        "a {rows} × {cols} matrix of row stride {stride} needs {needed} elements, not {length}"
    );
}

/// c = a·b, or c += a·b.
///
/// # Panics
/// If the shapes do not fit together.
pub fn matmul(c: MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, accumulate: Accumulate) {
    let start = match accumulate {
        Accumulate::Overwrite => Start::Zero,
        Accumulate::Add => Start::Existing,
    };
    product(c, a, b, start);
}

/// c = a·b + bias, the same bias for every row; c is overwritten.
///
/// # Panics
/// If the shapes do not fit together.
pub fn matmul_bias(c: MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, bias: &[f32]) {
    assert_eq!(bias.len(), c.cols, "the bias has another width than the product");
    product(c, a, b, Start::Bias(bias));
}

#[cfg(test)]
mod tests {
    use super::super::reference::{assert_close, random};
    use super::*;

    /// The element (row, col) of a view.
    fn at(x: Matrix<'_>, row: usize, col: usize) -> f64 {
        let index = if x.transposed { col * x.stride + row } else { row * x.stride + col };
        f64::from(x.data[index])
    }

    fn expected(a: Matrix<'_>, b: Matrix<'_>, c: &[f32], stride: usize) -> Vec<f64> {
        let mut out: Vec<f64> = c.iter().map(|&c| f64::from(c)).collect();
        for i in 0..a.rows {
            for j in 0..b.cols {
                out[i * stride + j] += (0..a.cols).map(|k| at(a, i, k) * at(b, k, j)).sum::<f64>();
            }
        }
        out
    }

    /// Partial sums of k products grow as √k, and so does the sum of their roundings: k·ε with a factor below 0.1, of which the
    /// worst of 100 000 elements shows five times as much.
    fn tolerance(k: usize) -> f64 {
        f64::from(f32::EPSILON) * (4.0 + k as f64 / 2.0)
    }

    #[test]
    fn every_transposition_and_edge_against_f64() {
        let sizes = [1, 2, 3, 5, 7, 13, 14, 15, 16, 17, 31, 32, 33, 50];
        for (case, &m) in sizes.iter().enumerate() {
            for n in [1, 4, 17, 32, 45, 70] {
                for k in [0, 1, 3, 64, 300] {
                    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
                        let pad = case % 3;
                        let (a_rows, a_cols) = if ta { (k, m) } else { (m, k) };
                        let (b_rows, b_cols) = if tb { (n, k) } else { (k, n) };
                        let a_data = random(1, a_rows * (a_cols + pad));
                        let b_data = random(2, b_rows * (b_cols + pad));
                        let mut a = Matrix::strided(&a_data, a_rows, a_cols, a_cols + pad);
                        let mut b = Matrix::strided(&b_data, b_rows, b_cols, b_cols + pad);
                        if ta {
                            a = a.t();
                        }
                        if tb {
                            b = b.t();
                        }
                        let stride = n + pad;
                        let before = random(3, m * stride);

                        let mut c = before.clone();
                        matmul(MatrixMut::strided(&mut c, m, n, stride), a, b, Accumulate::Add);
                        assert_close(&c, &expected(a, b, &before, stride), tolerance(k));

                        let bias = random(4, n);
                        let mut base = before.clone();
                        for row in base.chunks_mut(stride) {
                            row[..n].copy_from_slice(&bias);
                        }
                        let mut c = before.clone();
                        matmul_bias(MatrixMut::strided(&mut c, m, n, stride), a, b, &bias);
                        assert_close(&c, &expected(a, b, &base, stride), tolerance(k));

                        for row in base.chunks_mut(stride) {
                            row[..n].fill(0.0);
                        }
                        let mut c = before.clone();
                        matmul(MatrixMut::strided(&mut c, m, n, stride), a, b, Accumulate::Overwrite);
                        assert_close(&c, &expected(a, b, &base, stride), tolerance(k));
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_beyond_every_block_against_f64() {
        let (m, n, k) = (125, 545, 530);
        let (a_data, b_data) = (random(7, m * k), random(8, n * k));
        for (ta, tb) in [(false, true), (true, false)] {
            let a = if ta { Matrix::new(&a_data, k, m).t() } else { Matrix::new(&a_data, m, k) };
            let b = if tb { Matrix::new(&b_data, n, k).t() } else { Matrix::new(&b_data, k, n) };
            let mut c = vec![9.0; m * n];
            matmul(MatrixMut::new(&mut c, m, n), a, b, Accumulate::Overwrite);
            assert_close(&c, &expected(a, b, &vec![0.0; m * n], n), tolerance(k));
        }
    }

    /// Rows from `first` of a matrix or of the transpose of one.
    fn rows_of(x: Matrix<'_>, first: usize, rows: usize) -> Matrix<'_> {
        let data = &x.data[if x.transposed { first } else { first * x.stride }..];
        Matrix { data, rows, ..x }
    }

    /// The product in one of the three ways to begin it: with zero, with what is there, with a bias.
    fn begun(start: usize, c: MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, bias: &[f32]) {
        match start {
            0 => matmul(c, a, b, Accumulate::Overwrite),
            1 => matmul(c, a, b, Accumulate::Add),
            _ => matmul_bias(c, a, b, bias),
        }
    }

    #[test]
    fn an_element_does_not_depend_on_the_other_rows_and_columns() {
        let (m, n, k) = (133, 523, 700);
        let (a_data, b_data, before) = (random(5, m * k), random(6, n * k), random(7, m * n));
        let bias = random(8, n);
        for case in 0..12 {
            let (start, ta, tb) = (case / 4, case % 2 == 1, case % 4 >= 2);
            let a = if ta { Matrix::new(&a_data, k, m).t() } else { Matrix::new(&a_data, m, k) };
            let b = if tb { Matrix::new(&b_data, n, k).t() } else { Matrix::new(&b_data, k, n) };
            let mut whole = before.clone();
            begun(start, MatrixMut::new(&mut whole, m, n), a, b, &bias);
            for (first, rows) in [(0, 1), (13, 40), (132, 1), (48, 85)] {
                let mut part = before[first * n..][..rows * n].to_vec();
                let c = MatrixMut::new(&mut part, rows, n);
                begun(start, c, rows_of(a, first, rows), b, &bias);
                assert_eq!(part, whole[first * n..][..rows * n], "rows from {first} in case {case}");
            }
            for (first, cols) in [(0, 1), (31, 50), (522, 1), (256, 267)] {
                let mut parts = before.clone();
                let c = MatrixMut::strided(&mut parts[first..], m, cols, n);
                begun(start, c, a, rows_of(b.t(), first, cols).t(), &bias[first..][..cols]);
                for (part, whole) in parts.chunks(n).zip(whole.chunks(n)) {
                    let range = first..first + cols;
                    assert_eq!(part[range.clone()], whole[range], "columns from {first} in case {case}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "needs 12 elements, not 11")]
    fn a_matrix_that_does_not_fit_is_refused() {
        let _ = Matrix::new(&[0.0; 11], 3, 4);
    }
}
