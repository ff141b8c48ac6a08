//! Softmax attention in tiles, so that the matrix of scores never exists: FlashAttention-2 (Dao 2023, arXiv 2307.08691,
//! algorithms 1 and 2).
//!
//! Shapes: n tokens in `sequences` of s, q query heads and k key/value heads of d features each. `qkv_nf` is one row-major
//! array of f = (q + 2k)·d columns: the query heads, then the key heads, then the value heads. Query head i
//! uses key head i·k/q (Ainslie et al. 2023, arXiv 2305.13245).

use super::Accumulate;
use super::matmul::{Matrix, MatrixMut, matmul};
use super::simd::{LANES, exp, max_of, sum_lanes, vectorized};
pub use oases_schedule::Mask;

/// Query rows of a tile.
const QUERIES: usize = 64;
/// Keys of a tile.
const KEYS: usize = 256;

/// The shape of an attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Sequences, each of `length` tokens.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; it divides `heads`.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_size: usize,
    /// What a query may look at.
    pub mask: Mask,
}

/// A tile: where its query rows begin, and its keys, by their position in the sequence.
#[derive(Clone, Copy)]
struct Tile {
    first_query: usize,
    first_key: usize,
    keys: usize,
}

impl Attention {
    /// Columns of `qkv_nf`.
    #[must_use]
    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_size
    }

    /// Columns of `o_ne`.
    #[must_use]
    pub fn output_columns(&self) -> usize {
        self.heads * self.head_size
    }

    /// Tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.sequences * self.length
    }

    /// Elements of `lse`, the logarithm of the softmax denominator of each [sequence, head, query].
    #[must_use]
    pub fn lse_elements(&self) -> usize {
        self.tokens() * self.heads
    }

    /// Elements of workspace that [`attention`] needs.
    #[must_use]
    pub fn forward_workspace(&self) -> usize {
        QUERIES * (KEYS.min(self.length) + 2)
    }

    /// Elements of workspace that [`attention_backward`] needs.
    #[must_use]
    pub fn backward_workspace(&self) -> usize {
        QUERIES * (2 * KEYS.min(self.length) + 1)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_size as f32).sqrt()
    }

    fn key_head(&self, head: usize) -> usize {
        head * self.kv_heads / self.heads
    }

    /// Where the rows of a sequence begin, and the columns of a query head, of its keys and of its values.
    fn offsets(&self, sequence: usize, head: usize) -> (usize, usize, usize) {
        let row = sequence * self.length * self.columns();
        let kv = self.key_head(head);
        let column = |head: usize| row + head * self.head_size;
        (column(head), column(self.heads + kv), column(self.heads + self.kv_heads + kv))
    }

    fn query_tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let length = self.length;
        (0..length).step_by(QUERIES).map(move |first| (first, QUERIES.min(length - first)))
    }

    /// The tiles of some query rows, from the first key; those that are masked as a whole are left out.
    fn key_tiles(&self, first_query: usize, queries: usize) -> impl Iterator<Item = Tile> + use<> {
        let keys = match self.mask {
            Mask::Bidirectional => self.length,
            Mask::Causal => first_query + queries,
        };
        (0..keys).step_by(KEYS).map(move |first_key| Tile {
            first_query,
            first_key,
            keys: KEYS.min(keys - first_key),
        })
    }

    fn check(&self, qkv_nf: &[f32], o_ne: &[f32], lse: &[f32]) {
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "{} query heads cannot share {} key heads",
            self.heads,
            self.kv_heads
        );
        assert_eq!(qkv_nf.len(), self.tokens() * self.columns(), "the fused projections have another shape");
        assert_eq!(o_ne.len(), self.tokens() * self.output_columns(), "the output has another shape");
        assert_eq!(lse.len(), self.lse_elements(), "lse has another shape");
    }
}

impl Tile {
    /// How many keys of the tile the i-th query row may look at.
    #[inline(always)]
    fn visible(&self, mask: Mask, i: usize) -> usize {
        match mask {
            Mask::Bidirectional => self.keys,
            Mask::Causal => (self.first_query + i + 1).saturating_sub(self.first_key).min(self.keys),
        }
    }
}

/// `o_ne` = softmax(q·kᵀ/√d, masked)·v of every head. Overwrites `o_ne` and `lse`; the backward pass needs both and `qkv_nf`.
pub fn attention(
    shape: &Attention,
    qkv_nf: &[f32],
    o_ne: &mut [f32],
    lse: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(qkv_nf, o_ne, lse);
    let (f, e, d) = (shape.columns(), shape.output_columns(), shape.head_size);
    let (scores, rest) = workspace.split_at_mut(QUERIES * KEYS.min(shape.length));
    let (max, rest) = rest.split_at_mut(QUERIES);
    let sum = &mut rest[..QUERIES];
    for sequence in 0..shape.sequences {
        for head in 0..shape.heads {
            let (q, k, v) = shape.offsets(sequence, head);
            for (first_query, queries) in shape.query_tiles() {
                let q_td = Matrix::strided(&qkv_nf[q + first_query * f..], queries, d, f);
                let out = (sequence * shape.length + first_query) * e + head * d;
                let o_td = &mut o_ne[out..];
                max.fill(f32::NEG_INFINITY);
                sum.fill(0.0);
                for tile in shape.key_tiles(first_query, queries) {
                    let keys = tile.keys;
                    let k_kd = Matrix::strided(&qkv_nf[k + tile.first_key * f..], keys, d, f);
                    let v_kd = Matrix::strided(&qkv_nf[v + tile.first_key * f..], keys, d, f);
                    let p = &mut scores[..queries * keys];
                    matmul(MatrixMut::new(p, queries, keys), q_td, k_kd.t(), Accumulate::Overwrite);
                    online_softmax(p, tile, shape, max, sum, o_td, e);
                    let accumulate =
                        if tile.first_key == 0 { Accumulate::Overwrite } else { Accumulate::Add };
                    matmul(
                        MatrixMut::strided(o_td, queries, d, e),
                        Matrix::new(p, queries, keys),
                        v_kd,
                        accumulate,
                    );
                }
                let first_lse = (sequence * shape.heads + head) * shape.length + first_query;
                for (i, lse) in lse[first_lse..][..queries].iter_mut().enumerate() {
                    *lse = max[i] + sum[i].ln();
                    let inverse = 1.0 / sum[i];
                    o_td[i * e..][..d].iter_mut().for_each(|o| *o *= inverse);
                }
            }
        }
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
        let (visible, masked) = row.split_at_mut(tile.visible(shape.mask, i));
        masked.fill(0.0);
        if visible.is_empty() {
            continue;
        }
        let new_max = max[i].max(scale * max_of(visible));
        let correction = exp(max[i] - new_max);
        sum[i] = sum[i] * correction + exponentials(visible, scale, new_max);
        max[i] = new_max;
        if tile.first_key > 0 {
            o[i * o_stride..][..shape.head_size].iter_mut().for_each(|o| *o *= correction);
        }
    }
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
pub fn attention_backward(
    shape: &Attention,
    qkv_nf: &[f32],
    o_ne: &[f32],
    lse: &[f32],
    do_ne: &[f32],
    dqkv_nf: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(qkv_nf, o_ne, lse);
    assert!(do_ne.len() == o_ne.len() && dqkv_nf.len() == qkv_nf.len(), "a gradient has another shape");
    let (f, e, d) = (shape.columns(), shape.output_columns(), shape.head_size);
    let tile_size = QUERIES * KEYS.min(shape.length);
    let (scores, rest) = workspace.split_at_mut(tile_size);
    let (dscores, rest) = rest.split_at_mut(tile_size);
    let deltas = &mut rest[..QUERIES];
    // The gradients of keys and values are sums over the query tiles.
    for row in dqkv_nf.chunks_exact_mut(f) {
        row[shape.heads * d..].fill(0.0);
    }
    for sequence in 0..shape.sequences {
        for head in 0..shape.heads {
            let (q, k, v) = shape.offsets(sequence, head);
            for (first_query, queries) in shape.query_tiles() {
                let q_at = q + first_query * f;
                let q_td = Matrix::strided(&qkv_nf[q_at..], queries, d, f);
                let out = (sequence * shape.length + first_query) * e + head * d;
                let do_td = Matrix::strided(&do_ne[out..], queries, d, e);
                let first_lse = (sequence * shape.heads + head) * shape.length + first_query;
                let lse = &lse[first_lse..][..queries];
                for (i, delta) in deltas[..queries].iter_mut().enumerate() {
                    let (o_d, do_d) = (&o_ne[out + i * e..][..d], &do_ne[out + i * e..][..d]);
                    *delta = o_d.iter().zip(do_d).map(|(o, d)| o * d).sum();
                }
                for tile in shape.key_tiles(first_query, queries) {
                    let keys = tile.keys;
                    let (k_at, v_at) = (k + tile.first_key * f, v + tile.first_key * f);
                    let k_kd = Matrix::strided(&qkv_nf[k_at..], keys, d, f);
                    let v_kd = Matrix::strided(&qkv_nf[v_at..], keys, d, f);
                    let p = &mut scores[..queries * keys];
                    let dp = &mut dscores[..queries * keys];
                    matmul(MatrixMut::new(p, queries, keys), q_td, k_kd.t(), Accumulate::Overwrite);
                    matmul(MatrixMut::new(dp, queries, keys), do_td, v_kd.t(), Accumulate::Overwrite);
                    score_gradient(p, dp, tile, shape, lse, deltas);
                    let (p, ds) = (Matrix::new(p, queries, keys), Matrix::new(dp, queries, keys));
                    let dv_kd = MatrixMut::strided(&mut dqkv_nf[v_at..], keys, d, f);
                    matmul(dv_kd, p.t(), do_td, Accumulate::Add);
                    let dk_kd = MatrixMut::strided(&mut dqkv_nf[k_at..], keys, d, f);
                    matmul(dk_kd, ds.t(), q_td, Accumulate::Add);
                    let accumulate =
                        if tile.first_key == 0 { Accumulate::Overwrite } else { Accumulate::Add };
                    matmul(MatrixMut::strided(&mut dqkv_nf[q_at..], queries, d, f), ds, k_kd, accumulate);
                }
            }
        }
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
        p[visible..].fill(0.0);
        dp[visible..].fill(0.0);
        for (p, dp) in p[..visible].iter_mut().zip(&mut dp[..visible]) {
            *p = exp(p.mul_add(scale, -lse));
            *dp = *p * (*dp - delta) * scale;
        }
    }
}

#[cfg(test)]
mod tests;
