//! Softmax attention in tiles, so that the matrix of scores never exists: FlashAttention-2 (Dao 2023, arXiv 2307.08691,
//! algorithms 1 and 2).
//!
//! Shapes: n tokens in `sequences` of s, q query heads and k key/value heads of d features each. `qkv_nf` is one row-major
//! array of f = (q + 2k)·d columns: the query heads, then the key heads, then the value heads; or two arrays one behind the other
//! (see [`Attention`]). Some neighbouring query heads use one key head (Ainslie et al. 2023, arXiv 2305.13245). `lengths` says how
//! many tokens of each sequence are no padding, which no query sees; it is empty where there is none.

use std::ops::Range;

use super::matmul::{Matrix, MatrixMut, matmul};
use super::simd::{LANES, dot, exp, max_of, sum_lanes, sum_of, vectorized};
use crate::operators::{Accumulate, Attention};
use oases_schedule::Mask;

/// Query rows of a tile.
const QUERIES: usize = 64;
/// Keys of a tile.
const KEYS: usize = 256;

/// A tile: where its query rows begin, and its keys, by their position in the sequence.
#[derive(Clone, Copy)]
struct Tile {
    first_query: usize,
    first_key: usize,
    keys: usize,
    /// Whether its rows see no keys before these.
    first: bool,
    /// Whether its rows see no keys besides these.
    only: bool,
}

impl Attention {
    /// Elements of workspace that [`attention`] needs: a tile of scores, its rows' maxima and sums, and the transposed keys
    /// of a head.
    #[must_use]
    pub fn forward_workspace(&self) -> usize {
        self.tile_elements() + 2 * QUERIES + self.head_elements()
    }

    /// Elements of workspace that [`attention_backward`] needs: two tiles, a number for each row, and of a head the
    /// transposed keys and values and the gradients of both.
    #[must_use]
    pub fn backward_workspace(&self) -> usize {
        2 * self.tile_elements() + QUERIES + 4 * self.head_elements()
    }

    fn tile_elements(&self) -> usize {
        QUERIES * KEYS.min(self.length)
    }

    /// Elements of the keys, or of the values, of one head in one sequence.
    fn head_elements(&self) -> usize {
        self.length * self.head_size
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_size as f32).sqrt()
    }

    /// Where the rows of a sequence begin, and the columns of a query head, of its keys and of its values.
    fn offsets(&self, sequence: usize, head: usize) -> (usize, usize, usize) {
        let (row, (query_stride, key_stride)) = (sequence * self.length, self.strides());
        let keys = self.first_key() + row * key_stride + self.key_head(head) * self.head_size;
        (row * query_stride + head * self.head_size, keys, keys + self.kv_heads * self.head_size)
    }

    /// Whether a query head is the first of this rank's that uses its keys, and whether the last.
    fn ends_of_group(&self, head: usize) -> (bool, bool) {
        let differs = |other: usize| self.key_head(other) != self.key_head(head);
        (head == 0 || differs(head - 1), head + 1 == self.heads || differs(head + 1))
    }

    fn query_tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let length = self.length;
        (0..length).step_by(QUERIES).map(move |first| (first, QUERIES.min(length - first)))
    }

    /// The tiles of some query rows of a sequence of `length` tokens, from the first key; those that are masked as a whole are left out.
    fn key_tiles(
        &self,
        first_query: usize,
        queries: usize,
        length: usize,
    ) -> impl Iterator<Item = Tile> + use<> {
        let keys = match self.mask {
            Mask::Bidirectional => 0..length,
            Mask::Causal => 0..first_query + queries,
            Mask::Sliding(window) => (first_query + 1).saturating_sub(window)..first_query + queries,
        };
        keys.clone().step_by(KEYS).map(move |first_key| Tile {
            first_query,
            first_key,
            keys: KEYS.min(keys.end - first_key),
            first: first_key == keys.start,
            only: keys.len() <= KEYS,
        })
    }

    /// How many tokens of a sequence can be seen: one at least, so that every row has a softmax.
    fn length_of(&self, lengths: &[u32], sequence: usize) -> usize {
        lengths.get(sequence).map_or(self.length, |&length| (length as usize).clamp(1, self.length))
    }

    fn check(&self, qkv_nf: &[f32], o_ne: &[f32], lse: &[f32]) {
        assert!(
            self.kv_heads > 0 && self.key_head(self.heads - 1) < self.kv_heads,
            "{} query heads, {} to a key head, cannot share {} key heads",
            self.heads,
            self.group,
            self.kv_heads
        );
        assert_eq!(qkv_nf.len(), self.tokens() * self.columns(), "the fused projections have another shape");
        assert_eq!(o_ne.len(), self.tokens() * self.output_columns(), "the output has another shape");
        assert_eq!(lse.len(), self.lse_elements(), "lse has another shape");
    }
}

impl Tile {
    /// Which keys of the tile the i-th query row may look at.
    #[inline(always)]
    fn visible(&self, mask: Mask, i: usize) -> Range<usize> {
        let query = self.first_query + i;
        let end = (query + 1).saturating_sub(self.first_key).min(self.keys);
        match mask {
            Mask::Bidirectional => 0..self.keys,
            Mask::Causal => 0..end,
            Mask::Sliding(window) => (query + 1).saturating_sub(window + self.first_key)..end,
        }
    }
}

/// `o_ne` = softmax(q·kᵀ/√d, masked)·v of every head. Overwrites `o_ne` and `lse`; the backward pass needs both and `qkv_nf`.
pub fn attention(
    shape: &Attention,
    qkv_nf: &[f32],
    lengths: &[u32],
    o_ne: &mut [f32],
    lse: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(qkv_nf, o_ne, lse);
    let ((f, f_kv), e, d) = (shape.strides(), shape.output_columns(), shape.head_size);
    let (scores, rest) = workspace.split_at_mut(shape.tile_elements());
    let (max, rest) = rest.split_at_mut(QUERIES);
    let (sum, rest) = rest.split_at_mut(QUERIES);
    let keys_ds = &mut rest[..shape.head_elements()];
    for sequence in 0..shape.sequences {
        let length = shape.length_of(lengths, sequence);
        for head in 0..shape.heads {
            let (q, k, v) = shape.offsets(sequence, head);
            if shape.ends_of_group(head).0 {
                transpose(&qkv_nf[k..], f_kv, d, keys_ds);
            }
            for (first_query, queries) in shape.query_tiles() {
                let q_td = Matrix::strided(&qkv_nf[q + first_query * f..], queries, d, f);
                let out = (sequence * shape.length + first_query) * e + head * d;
                let o_td = &mut o_ne[out..];
                max.fill(f32::NEG_INFINITY);
                sum.fill(0.0);
                for tile in shape.key_tiles(first_query, queries, length) {
                    let keys = tile.keys;
                    let k_dk = Matrix::strided(&keys_ds[tile.first_key..], d, keys, shape.length);
                    let v_kd = Matrix::strided(&qkv_nf[v + tile.first_key * f_kv..], keys, d, f_kv);
                    let p = &mut scores[..queries * keys];
                    matmul(MatrixMut::new(p, queries, keys), q_td, k_dk, Accumulate::Overwrite);
                    online_softmax(p, tile, shape, max, sum, o_td, e);
                    let accumulate = if tile.first { Accumulate::Overwrite } else { Accumulate::Add };
                    matmul(
                        MatrixMut::strided(o_td, queries, d, e),
                        Matrix::new(p, queries, keys),
                        v_kd,
                        accumulate,
                    );
                }
                let first_lse = (sequence * shape.heads + head) * shape.length + first_query;
                for ((lse, max), sum) in lse[first_lse..][..queries].iter_mut().zip(&*max).zip(&*sum) {
                    *lse = max + sum.ln();
                }
                divide_rows(o_td, e, d, &sum[..queries]);
            }
        }
    }
}

/// Overwrites `out_ds` with the transpose of a head's rows, which begin `stride` elements apart.
fn transpose(rows: &[f32], stride: usize, d: usize, out_ds: &mut [f32]) {
    const BLOCK: usize = 16;
    let length = out_ds.len() / d;
    for first in (0..length).step_by(BLOCK) {
        for j in 0..d {
            let out = &mut out_ds[j * length + first..][..BLOCK.min(length - first)];
            for (i, out) in out.iter_mut().enumerate() {
                *out = rows[(first + i) * stride + j];
            }
        }
    }
}

/// Divides the i-th row of d elements by `divisors[i]`.
fn divide_rows(rows: &mut [f32], stride: usize, d: usize, divisors: &[f32]) {
    vectorized!(divide_rows_body(rows: &'a mut [f32], stride: usize, d: usize, divisors: &'a [f32]));
}

#[inline(always)]
fn divide_rows_body(rows: &mut [f32], stride: usize, d: usize, divisors: &[f32]) {
    for (row, divisor) in rows.chunks_mut(stride).zip(divisors) {
        let inverse = 1.0 / divisor;
        row[..d].iter_mut().for_each(|x| *x *= inverse);
    }
}

/// Turns a tile of q·kᵀ into exp(score − running maximum), with zeros where it is masked, and rescales what was summed under
/// the maximum before.
fn online_softmax(
    p: &mut [f32],
    tile: Tile,
    shape: &Attention,
    max: &mut [f32],
    sum: &mut [f32],
    o: &mut [f32],
    o_stride: usize,
) {
    vectorized!(online_softmax_body(
        p: &'a mut [f32], tile: Tile, shape: &'a Attention, max: &'a mut [f32], sum: &'a mut [f32], o: &'a mut [f32],
        o_stride: usize,
    ));
}

#[inline(always)]
fn online_softmax_body(
    p: &mut [f32],
    tile: Tile,
    shape: &Attention,
    max: &mut [f32],
    sum: &mut [f32],
    o: &mut [f32],
    o_stride: usize,
) {
    let scale = shape.scale();
    for (i, row) in p.chunks_exact_mut(tile.keys).enumerate() {
        let Some(visible) = visible_lanes(row, tile.visible(shape.mask, i), f32::NEG_INFINITY) else {
            continue;
        };
        let new_max = max[i].max(scale * max_of(visible));
        let correction = exp(max[i] - new_max);
        sum[i] = sum[i] * correction + exponentials(visible, scale, new_max);
        max[i] = new_max;
        if !tile.first {
            o[i * o_stride..][..shape.head_size].iter_mut().for_each(|o| *o *= correction);
        }
    }
}

/// Cuts a row of scores behind the visible ones and sets the rest to zero, but leaves whole vectors, filled up with `masked`, whose
/// exponential is zero: elements behind the last whole vector cost 16 times as much. None if nothing is visible.
#[inline(always)]
fn visible_lanes(row: &mut [f32], visible: Range<usize>, masked: f32) -> Option<&mut [f32]> {
    if visible.is_empty() {
        row.fill(0.0);
        return None;
    }
    let (lanes, rest) = row.split_at_mut(visible.end.next_multiple_of(LANES).min(row.len()));
    rest.fill(0.0);
    lanes[visible.end..].fill(masked);
    lanes[..visible.start].fill(masked);
    Some(lanes)
}

/// z becomes exp(scale·z − max); returns the sum.
#[inline(always)]
fn exponentials(z: &mut [f32], scale: f32, max: f32) -> f32 {
    let (chunks, tail) = z.as_chunks_mut::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i].mul_add(scale, -max));
            lanes[i] += chunk[i];
        }
    }
    let mut sum = sum_lanes(lanes);
    for z in tail {
        *z = exp(z.mul_add(scale, -max));
        sum += *z;
    }
    sum
}

/// The backward pass of [`attention`]: overwrites `dqkv_nf` with the gradients of all queries, keys and values, recomputing each
/// tile of the scores from `lse`.
#[allow(clippy::too_many_arguments, reason = "each is an array of its own")]
pub fn attention_backward(
    shape: &Attention,
    qkv_nf: &[f32],
    lengths: &[u32],
    o_ne: &[f32],
    lse: &[f32],
    do_ne: &[f32],
    dqkv_nf: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(qkv_nf, o_ne, lse);
    assert!(do_ne.len() == o_ne.len() && dqkv_nf.len() == qkv_nf.len(), "a gradient has another shape");
    let ((f, f_kv), e, d) = (shape.strides(), shape.output_columns(), shape.head_size);
    if shape.separate {
        // No query of this rank may read some of the keys.
        dqkv_nf[shape.first_key()..].fill(0.0);
    }
    let (scores, rest) = workspace.split_at_mut(shape.tile_elements());
    let (dscores, rest) = rest.split_at_mut(shape.tile_elements());
    let (deltas, rest) = rest.split_at_mut(QUERIES);
    let (keys_ds, rest) = rest.split_at_mut(shape.head_elements());
    let (values_ds, rest) = rest.split_at_mut(shape.head_elements());
    // Sums over the query tiles, and over the query heads that share them.
    let (dkeys_sd, rest) = rest.split_at_mut(shape.head_elements());
    let dvalues_sd = &mut rest[..shape.head_elements()];
    for sequence in 0..shape.sequences {
        let length = shape.length_of(lengths, sequence);
        for head in 0..shape.heads {
            let (q, k, v) = shape.offsets(sequence, head);
            let (first_of_group, last_of_group) = shape.ends_of_group(head);
            if first_of_group {
                transpose(&qkv_nf[k..], f_kv, d, keys_ds);
                transpose(&qkv_nf[v..], f_kv, d, values_ds);
                dkeys_sd.fill(0.0);
                dvalues_sd.fill(0.0);
            }
            for (first_query, queries) in shape.query_tiles() {
                let q_at = q + first_query * f;
                let q_td = Matrix::strided(&qkv_nf[q_at..], queries, d, f);
                let out = (sequence * shape.length + first_query) * e + head * d;
                let do_td = Matrix::strided(&do_ne[out..], queries, d, e);
                let first_lse = (sequence * shape.heads + head) * shape.length + first_query;
                let lse = &lse[first_lse..][..queries];
                let deltas = &mut deltas[..queries];
                row_products(&o_ne[out..], &do_ne[out..], e, d, deltas);
                for tile in shape.key_tiles(first_query, queries, length) {
                    let (keys, first) = (tile.keys, tile.first_key);
                    let k_dk = Matrix::strided(&keys_ds[first..], d, keys, shape.length);
                    let v_dk = Matrix::strided(&values_ds[first..], d, keys, shape.length);
                    let p = &mut scores[..queries * keys];
                    let dp = &mut dscores[..queries * keys];
                    matmul(MatrixMut::new(p, queries, keys), q_td, k_dk, Accumulate::Overwrite);
                    matmul(MatrixMut::new(dp, queries, keys), do_td, v_dk, Accumulate::Overwrite);
                    score_gradient(p, dp, tile, shape, lse, deltas);
                    let (p, ds) = (Matrix::new(p, queries, keys), Matrix::new(dp, queries, keys));
                    let dv_kd = MatrixMut::new(&mut dvalues_sd[first * d..], keys, d);
                    matmul(dv_kd, p.t(), do_td, Accumulate::Add);
                    let dk_kd = MatrixMut::new(&mut dkeys_sd[first * d..], keys, d);
                    matmul(dk_kd, ds.t(), q_td, Accumulate::Add);
                    let k_kd = Matrix::strided(&qkv_nf[k + first * f_kv..], keys, d, f_kv);
                    let accumulate = if tile.first { Accumulate::Overwrite } else { Accumulate::Add };
                    matmul(MatrixMut::strided(&mut dqkv_nf[q_at..], queries, d, f), ds, k_kd, accumulate);
                }
            }
            if last_of_group {
                copy_rows(dkeys_sd, d, &mut dqkv_nf[k..], f_kv);
                copy_rows(dvalues_sd, d, &mut dqkv_nf[v..], f_kv);
            }
        }
    }
}

/// Writes rows of d elements to rows that begin `stride` elements apart.
fn copy_rows(from: &[f32], d: usize, out: &mut [f32], stride: usize) {
    for (from, out) in from.chunks_exact(d).zip(out.chunks_mut(stride)) {
        out[..d].copy_from_slice(from);
    }
}

/// The inner product of each row of x with that of y.
fn row_products(x: &[f32], y: &[f32], stride: usize, d: usize, out: &mut [f32]) {
    vectorized!(row_products_body(x: &'a [f32], y: &'a [f32], stride: usize, d: usize, out: &'a mut [f32]));
}

#[inline(always)]
fn row_products_body(x: &[f32], y: &[f32], stride: usize, d: usize, out: &mut [f32]) {
    for ((x, y), out) in x.chunks(stride).zip(y.chunks(stride)).zip(out) {
        *out = dot(&x[..d], &y[..d]);
    }
}

/// A tile of q·kᵀ becomes p = softmax, and a tile of do·vᵀ becomes ds = p·(dp − Σ o·do)/√d.
fn score_gradient(p: &mut [f32], dp: &mut [f32], tile: Tile, shape: &Attention, lse: &[f32], deltas: &[f32]) {
    vectorized!(score_gradient_body(
        p: &'a mut [f32], dp: &'a mut [f32], tile: Tile, shape: &'a Attention, lse: &'a [f32], deltas: &'a [f32],
    ));
}

#[inline(always)]
fn score_gradient_body(
    p: &mut [f32],
    dp: &mut [f32],
    tile: Tile,
    shape: &Attention,
    lse: &[f32],
    deltas: &[f32],
) {
    let scale = shape.scale();
    let rows = p.chunks_exact_mut(tile.keys).zip(dp.chunks_exact_mut(tile.keys));
    for (i, ((p, dp), (&lse, &delta))) in rows.zip(lse.iter().zip(deltas)).enumerate() {
        let visible = tile.visible(shape.mask, i);
        let (Some(p), Some(dp)) =
            (visible_lanes(p, visible.clone(), f32::NEG_INFINITY), visible_lanes(dp, visible, 0.0))
        else {
            continue;
        };
        for (p, dp) in p.iter_mut().zip(dp.iter_mut()) {
            *p = exp(p.mul_add(scale, -lse));
            *dp -= delta;
        }
        // A row of ds sums to zero in exact arithmetic, and the gradient of a key bias is nothing but these sums. Where the whole
        // row is at hand, what the rounding of o has left in its mean is taken out as well.
        let mean = if tile.only { dot(p, dp) / sum_of(p, |p| p) } else { 0.0 };
        for (p, dp) in p.iter().zip(dp) {
            *dp = *p * (*dp - mean) * scale;
        }
    }
}

#[cfg(test)]
mod tests;
