//! The matrix product's loops: blocked for the caches as in Goto and van de Geijn, "Anatomy of high-performance
//! matrix multiplication" (2008), around a register tile whose inner loop is nothing but fused multiply-adds.
//!
//! Both operands are copied before use, b in blocks and a in panels, so the inner loop reads memory in order and
//! without cache-set conflicts. The copies live in a buffer of this thread that grows to a fixed size and is kept: a
//! training step allocates nothing here, and no page is faulted in twice.

use super::matmul::{Matrix, MatrixMut};
use pulp::{Arch, Simd, WithSimd};
use std::cell::RefCell;

/// Elements of the inner dimension in one block; also where the chain of additions of an element is cut.
const DEPTH: usize = 512;
/// Columns of b in one block, which stays in the second-level cache.
const BLOCK_COLS: usize = 512;
/// Panels of a that are copied together, so that a transposed a is read in long pieces.
const PANELS: usize = 8;
/// A cache line in elements, to which the copies are aligned.
const LINE: usize = 16;
/// Distance between the rows of a panel that is stored by rows; not a power of two, so that they lie in different sets of
/// the first-level cache.
const STRIDE: usize = DEPTH + LINE;

thread_local! {
    static COPIES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// What an element of the product is added to.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    /// Nothing.
    Zero,
    /// What is there.
    Existing,
    /// An element of a row that is the same for all rows.
    Bias(&'a [f32]),
}

/// c = start + a·b.
pub(super) fn product(c: MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, start: Start<'_>) {
    assert!(
        c.rows == a.rows && c.cols == b.cols && a.cols == b.rows,
        "{} × {} times {} × {} is not {} × {}",
        a.rows,
        a.cols,
        b.rows,
        b.cols,
        c.rows,
        c.cols
    );
    if c.rows == 0 || c.cols == 0 {
        return;
    }
    COPIES.with_borrow_mut(|copies| Arch::new().dispatch(Product { c, a, b, start, copies }));
}

struct Product<'a> {
    c: MatrixMut<'a>,
    a: Matrix<'a>,
    b: Matrix<'a>,
    start: Start<'a>,
    copies: &'a mut Vec<f32>,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // As many accumulators as leave registers for a row of b and a broadcast element of a.
        match S::F32_LANES {
            16 => self.blocks::<S, 14, 2, 32>(simd),
            8 => self.blocks::<S, 6, 2, 16>(simd),
            4 => self.blocks::<S, 8, 3, 12>(simd),
            _ => self.blocks::<S, 4, 3, 3>(simd),
        }
    }
}

impl Product<'_> {
    /// The register tile has `ROWS` rows of `VECTORS` registers, which are `COLS` columns.
    #[inline(always)]
    fn blocks<S: Simd, const ROWS: usize, const VECTORS: usize, const COLS: usize>(mut self, simd: S) {
        let (m, n, k) = (self.a.rows, self.b.cols, self.a.cols);
        if k == 0 {
            return self.only_start();
        }
        let b_size = BLOCK_COLS.min(n).next_multiple_of(COLS) * DEPTH.min(k);
        let needed = b_size + PANELS * ROWS * STRIDE + 2 * LINE;
        if self.copies.len() < needed {
            self.copies.resize(needed, 0.0);
        }
        let (b_space, a_space) = self.copies.split_at_mut(b_size + LINE);
        let (b_space, a_space) = (aligned(b_space), aligned(a_space));
        for first_col in (0..n).step_by(BLOCK_COLS) {
            let cols = BLOCK_COLS.min(n - first_col);
            for first_k in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - first_k);
                let b_block = &mut b_space[..cols.next_multiple_of(COLS) * depth];
                by_columns::<COLS>(b_block.as_chunks_mut().0, self.b.t(), first_col, cols, first_k, depth);
                let start = if first_k == 0 { self.start } else { Start::Existing };
                for first_row in (0..m).step_by(PANELS * ROWS) {
                    let rows = (PANELS * ROWS).min(m - first_row);
                    if self.a.transposed {
                        by_columns::<ROWS>(
                            a_space.as_chunks_mut().0,
                            self.a,
                            first_row,
                            rows,
                            first_k,
                            depth,
                        );
                    } else {
                        by_rows(a_space.as_chunks_mut().0, self.a, first_row, rows, first_k, depth);
                    }
                    for panel in 0..rows.div_ceil(ROWS) {
                        let place = Place {
                            row: first_row + panel * ROWS,
                            rows: ROWS.min(rows - panel * ROWS),
                            col: first_col,
                            cols,
                        };
                        let c = &mut self.c;
                        if self.a.transposed {
                            let a = &a_space.as_chunks::<ROWS>().0[panel * depth..][..depth];
                            let a = |i: usize, k: usize| a[k][i];
                            sweep::<S, ROWS, VECTORS, COLS>(simd, c, place, b_block, depth, start, a);
                        } else {
                            let a = a_space.as_chunks::<STRIDE>().0[panel * ROWS..].first_chunk::<ROWS>();
                            let a = a.expect("space for a panel");
                            let a = |i: usize, k: usize| a[i][k];
                            sweep::<S, ROWS, VECTORS, COLS>(simd, c, place, b_block, depth, start, a);
                        }
                    }
                }
            }
        }
    }

    /// The product over an empty inner dimension.
    fn only_start(&mut self) {
        for row in self.c.data.chunks_mut(self.c.stride).take(self.c.rows) {
            match self.start {
                Start::Zero => row[..self.c.cols].fill(0.0),
                Start::Bias(bias) => row[..self.c.cols].copy_from_slice(bias),
                Start::Existing => {}
            }
        }
    }
}

/// A panel of a times all of a block of b, with a tile that is no higher than it has to be.
#[inline(always)]
fn sweep<S: Simd, const ROWS: usize, const VECTORS: usize, const COLS: usize>(
    simd: S,
    c: &mut MatrixMut<'_>,
    place: Place,
    b_block: &[f32],
    depth: usize,
    start: Start<'_>,
    a: impl Fn(usize, usize) -> f32 + Copy,
) {
    match place.rows {
        0..=2 => tiles::<S, 2, VECTORS, COLS>(simd, c, place, b_block, depth, start, a),
        3..=4 => tiles::<S, 4, VECTORS, COLS>(simd, c, place, b_block, depth, start, a),
        5..=8 if ROWS > 8 => tiles::<S, 8, VECTORS, COLS>(simd, c, place, b_block, depth, start, a),
        _ => tiles::<S, ROWS, VECTORS, COLS>(simd, c, place, b_block, depth, start, a),
    }
}

/// A part of c.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

/// The part of a slice that begins at a cache line.
#[inline(always)]
fn aligned(space: &mut [f32]) -> &mut [f32] {
    let skip = space.as_ptr().align_offset(LINE * size_of::<f32>());
    &mut space[skip.min(LINE)..]
}

/// Copies `rows` rows of x from `row`, `depth` columns from `first_k`, to panels of `WIDTH` rows that are stored by columns, one panel
/// after the other. What lies behind the last row stays: the results that it leads to are not stored.
#[inline(always)]
fn by_columns<const WIDTH: usize>(
    panels: &mut [[f32; WIDTH]],
    x: Matrix<'_>,
    row: usize,
    rows: usize,
    first_k: usize,
    depth: usize,
) {
    if x.transposed {
        for k in 0..depth {
            let (whole, rest) = x.data[(first_k + k) * x.stride + row..][..rows].as_chunks::<WIDTH>();
            for (panel, from) in whole.iter().enumerate() {
                panels[panel * depth + k] = *from;
            }
            if !rest.is_empty() {
                panels[whole.len() * depth + k][..rest.len()].copy_from_slice(rest);
            }
        }
        return;
    }
    for (panel, first) in panels.chunks_mut(depth).zip((0..rows).step_by(WIDTH)) {
        // A line of each row at a time: a whole row would write to more lines than the first-level cache has.
        let count = WIDTH.min(rows - first);
        for (out, first_k) in panel.chunks_mut(LINE).zip((first_k..).step_by(LINE)) {
            let length = out.len();
            let from = |i: usize| &x.data[(row + first + i) * x.stride + first_k..][..length];
            let mut i = 0;
            while i + 4 <= count {
                transpose_four(out, i, [from(i), from(i + 1), from(i + 2), from(i + 3)]);
                i += 4;
            }
            for i in i..count {
                for (out, &x) in out.iter_mut().zip(&x.data[(row + first + i) * x.stride + first_k..]) {
                    out[i] = x;
                }
            }
        }
    }
}

/// Columns i to i + 3 of the output are four rows. Written so that the optimizer sees four-by-four transpositions in registers.
#[inline(always)]
fn transpose_four<const WIDTH: usize>(out: &mut [[f32; WIDTH]], i: usize, rows: [&[f32]; 4]) {
    let rows = rows.map(|row| row.as_chunks::<4>());
    let (fours, rest) = out.as_chunks_mut::<4>();
    for (k, out) in fours.iter_mut().enumerate() {
        let [a, b, c, d] = rows.map(|(fours, _)| fours[k]);
        for (j, out) in out.iter_mut().enumerate() {
            out[i..i + 4].copy_from_slice(&[a[j], b[j], c[j], d[j]]);
        }
    }
    for (k, out) in rest.iter_mut().enumerate() {
        for (out, (_, rest)) in out[i..].iter_mut().zip(rows) {
            *out = rest[k];
        }
    }
}

/// Copies `rows` rows of x from `row`, `depth` columns from `first_k`, to a panel that is stored by rows.
#[inline(always)]
fn by_rows(
    panel: &mut [[f32; STRIDE]],
    x: Matrix<'_>,
    row: usize,
    rows: usize,
    first_k: usize,
    depth: usize,
) {
    for (i, out) in panel.iter_mut().enumerate().take(rows) {
        out[..depth].copy_from_slice(&x.data[(row + i) * x.stride + first_k..][..depth]);
    }
}

/// The tiles of some rows: for each panel of b its product with a, of which element (i, k) is `a(i, k)`, goes to c.
#[inline(always)]
fn tiles<S: Simd, const ROWS: usize, const VECTORS: usize, const COLS: usize>(
    simd: S,
    c: &mut MatrixMut<'_>,
    place: Place,
    b_block: &[f32],
    depth: usize,
    start: Start<'_>,
    a: impl Fn(usize, usize) -> f32,
) {
    for (j, b_panel) in b_block.chunks_exact(depth * COLS).enumerate() {
        let b_panel = S::as_simd_f32s(b_panel).0.as_chunks::<VECTORS>().0;
        let mut sum = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        for (k, b) in b_panel.iter().enumerate().take(STRIDE) {
            for (i, sum) in sum.iter_mut().enumerate() {
                let a = simd.splat_f32s(a(i, k));
                for (sum, &b) in sum.iter_mut().zip(b) {
                    *sum = simd.mul_add_f32s(a, b, *sum);
                }
            }
        }
        let col = place.col + j * COLS;
        let cols = COLS.min(place.cols - j * COLS);
        let out = &mut c.data[place.row * c.stride + col..];
        if cols == COLS {
            // Constant indices only, so that the sums go from the registers to c.
            for i in 0..ROWS {
                if i >= place.rows {
                    break;
                }
                let out = S::as_mut_simd_f32s(&mut out[i * c.stride..][..COLS]).0;
                for j in 0..VECTORS {
                    out[j] = match start {
                        Start::Zero => sum[i][j],
                        Start::Existing => simd.add_f32s(out[j], sum[i][j]),
                        Start::Bias(bias) => {
                            simd.add_f32s(S::as_simd_f32s(&bias[col..][..COLS]).0[j], sum[i][j])
                        }
                    };
                }
            }
        } else {
            let sums = sum;
            for (row, sums) in out.chunks_mut(c.stride).zip(&sums).take(place.rows) {
                store_part(&mut row[..cols], pulp::bytemuck::cast_slice(sums), start, col);
            }
        }
    }
}

/// The part of a tile's row that is inside c.
#[inline(always)]
fn store_part(out: &mut [f32], sums: &[f32], start: Start<'_>, col: usize) {
    match start {
        Start::Zero => out.copy_from_slice(&sums[..out.len()]),
        Start::Existing => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        Start::Bias(bias) => {
            out.iter_mut()
                .zip(sums.iter().zip(&bias[col..]))
                .for_each(|(out, (sum, bias))| *out = bias + sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::random;
    use super::*;

    /// c = bias + a·b with one instruction set.
    fn with<S: Simd>(simd: S, a: Matrix<'_>, b: Matrix<'_>, bias: &[f32]) -> Vec<f32> {
        let mut c = vec![9.0; a.rows * b.cols];
        let start = Start::Bias(bias);
        let c_view = MatrixMut::new(&mut c, a.rows, b.cols);
        simd.vectorize(Product { c: c_view, a, b, start, copies: &mut Vec::new() });
        c
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let (m, n, k) = (33, 75, DEPTH + 9);
        let (a, b, bias) = (random(1, m * k), random(2, n * k), random(3, n));
        let transposed = (Matrix::new(&a, k, m).t(), Matrix::new(&b, k, n));
        let plain = (Matrix::new(&a, m, k), Matrix::new(&b, n, k).t());
        for (a, b) in [transposed, plain] {
            let mut c = vec![9.0; m * n];
            product(MatrixMut::new(&mut c, m, n), a, b, Start::Bias(&bias));
            assert_eq!(with(pulp::Scalar, a, b, &bias), c);
            #[cfg(target_arch = "x86_64")]
            if let Some(simd) = pulp::x86::V3::try_new() {
                assert_eq!(with(simd, a, b, &bias), c);
            }
        }
    }
}
