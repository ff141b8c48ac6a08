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
const DEPTH: usize = 384;
/// Columns of b in one block, which stays in the second-level cache.
const BLOCK_COLS: usize = 768;
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
        let needed = b_size + ROWS * STRIDE + 2 * LINE;
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
                for (panel, col) in b_block.chunks_exact_mut(depth * COLS).zip((0..cols).step_by(COLS)) {
                    let panel = panel.as_chunks_mut::<COLS>().0;
                    by_columns(panel, self.b.t(), first_col + col, COLS.min(cols - col), first_k);
                }
                let start = if first_k == 0 { self.start } else { Start::Existing };
                for row in (0..m).step_by(ROWS) {
                    let rows = ROWS.min(m - row);
                    let (c, place) = (&mut self.c, Place { row, rows, col: first_col, cols });
                    if self.a.transposed {
                        let panel = a_space.as_chunks_mut::<ROWS>().0;
                        let panel = &mut panel[..depth];
                        by_columns(panel, self.a, row, rows, first_k);
                        let panel = &*panel;
                        sweep::<S, ROWS, VECTORS, COLS>(simd, c, place, b_block, depth, start, |i, k| panel[k][i]);
                    } else {
                        let panel = a_space.as_chunks_mut::<STRIDE>().0;
                        let panel = panel.first_chunk_mut::<ROWS>().expect("space for the panel");
                        by_rows(panel, self.a, row, rows, first_k, depth);
                        let panel = &*panel;
                        sweep::<S, ROWS, VECTORS, COLS>(simd, c, place, b_block, depth, start, |i, k| panel[i][k]);
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
        ..=2 => tiles::<S, 2, VECTORS, COLS>(simd, c, place, b_block, depth, start, a),
        ..=4 => tiles::<S, 4, VECTORS, COLS>(simd, c, place, b_block, depth, start, a),
        ..=8 if ROWS > 8 => tiles::<S, 8, VECTORS, COLS>(simd, c, place, b_block, depth, start, a),
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

/// Copies `rows` rows of x from `row`, columns from `first_k`, to a panel that is stored by columns. What lies behind
/// the last row stays: the results that it leads to are not stored.
#[inline(always)]
fn by_columns<const WIDTH: usize>(
    panel: &mut [[f32; WIDTH]],
    x: Matrix<'_>,
    row: usize,
    rows: usize,
    first_k: usize,
) {
    if x.transposed {
        for (k, out) in panel.iter_mut().enumerate() {
            let from = &x.data[(first_k + k) * x.stride + row..];
            match from.first_chunk::<WIDTH>() {
                Some(from) if rows == WIDTH => *out = *from,
                _ => out[..rows].copy_from_slice(&from[..rows]),
            }
        }
    } else {
        for i in 0..rows.min(WIDTH) {
            let from = &x.data[(row + i) * x.stride + first_k..][..panel.len()];
            for (out, &x) in panel.iter_mut().zip(from) {
                out[i] = x;
            }
        }
    }
}

/// Copies `rows` rows of x from `row`, `depth` columns from `first_k`, to a panel that is stored by rows.
#[inline(always)]
fn by_rows(panel: &mut [[f32; STRIDE]], x: Matrix<'_>, row: usize, rows: usize, first_k: usize, depth: usize) {
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
        store(simd, c, Place { col, cols, ..place }, &sum, start);
    }
}

/// Writes a tile, or the part of it that is inside c.
#[inline(always)]
fn store<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    c: &mut MatrixMut<'_>,
    place: Place,
    tile: &[[S::f32s; VECTORS]; ROWS],
    start: Start<'_>,
) {
    for (i, tile) in tile.iter().enumerate().take(place.rows) {
        let out = &mut c.data[(place.row + i) * c.stride + place.col..][..place.cols];
        let out_vectors = S::as_mut_simd_f32s(out).0;
        let Some(out_vectors) = out_vectors.first_chunk_mut::<VECTORS>() else {
            store_edge::<S, VECTORS>(out, tile, start, place.col);
            continue;
        };
        match start {
            Start::Zero => *out_vectors = *tile,
            Start::Existing => {
                for (out, &sum) in out_vectors.iter_mut().zip(tile) {
                    *out = simd.add_f32s(*out, sum);
                }
            }
            Start::Bias(bias) => {
                let bias = S::as_simd_f32s(&bias[place.col..]).0;
                for ((out, &sum), &bias) in out_vectors.iter_mut().zip(tile).zip(bias) {
                    *out = simd.add_f32s(bias, sum);
                }
            }
        }
    }
}

/// One row of a tile that reaches over the right edge of c.
#[inline(always)]
fn store_edge<S: Simd, const VECTORS: usize>(
    out: &mut [f32],
    tile: &[S::f32s; VECTORS],
    start: Start<'_>,
    col: usize,
) {
    let tile: &[f32] = pulp::bytemuck::cast_slice(tile);
    match start {
        Start::Zero => out.copy_from_slice(&tile[..out.len()]),
        Start::Existing => out.iter_mut().zip(tile).for_each(|(out, sum)| *out += sum),
        Start::Bias(bias) => {
            out.iter_mut().zip(tile.iter().zip(&bias[col..])).for_each(|(out, (sum, bias))| *out = bias + sum);
        }
    }
}
