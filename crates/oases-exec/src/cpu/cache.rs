//! Keys and values of the tokens before, for a model that goes on token by token.
//!
//! The schedule is that of a sequence of one token. Two operators behave otherwise while there is a cache: attention takes the token's
//! key and value in and looks at all that are there, and a learned position is that of the token in its text. Both follow from the position, so
//! nothing else has to know.

use oases_schedule::Mask;

use super::simd::{dot, exp, vectorized};
use crate::operators::Attention;

/// Keys and values of all layers, from the first token of a context on.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// Of each layer keys and values, `[tokens, kv_heads·d]` each.
    layers: Vec<[Vec<f32>; 2]>,
    /// The layer whose attention comes next.
    layer: usize,
    /// The token at hand, counted from the beginning of the context.
    position: usize,
    scores: Vec<f32>,
}

impl Cache {
    /// Begins the token at a position; what is kept from there on is forgotten.
    pub fn begin(&mut self, position: usize) {
        self.position = position;
        self.layer = 0;
    }

    /// The token at hand.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Attention of the one token of `qkv_f` over those before it and itself, into `o_e`. Layers come in their order.
    pub(crate) fn attend(&mut self, shape: &Attention, qkv_f: &[f32], o_e: &mut [f32]) {
        assert!(shape.tokens() == 1 && !shape.separate, "one token at a time, on one rank");
        assert_eq!(qkv_f.len(), shape.columns(), "the projections have another shape");
        let (d, row) = (shape.head_size, shape.kv_heads * shape.head_size);
        let (queries, fresh) = qkv_f.split_at(shape.output_columns());
        if self.layer == self.layers.len() {
            self.layers.push(Default::default());
        }
        let [keys, values] = &mut self.layers[self.layer];
        self.layer += 1;
        for (kept, fresh) in [&mut *keys, &mut *values].into_iter().zip(fresh.chunks_exact(row)) {
            assert!(kept.len() >= self.position * row, "a token before this one was left out");
            kept.truncate(self.position * row);
            kept.extend_from_slice(fresh);
        }
        let first = match shape.mask {
            Mask::Causal | Mask::Bidirectional => 0,
            Mask::Sliding(window) => (self.position + 1).saturating_sub(window),
        };
        let scale = 1.0 / (d as f32).sqrt();
        for (head, (q_d, o_d)) in queries.chunks_exact(d).zip(o_e.chunks_exact_mut(d)).enumerate() {
            let at = shape.key_head(head) * d;
            let rows = first..self.position + 1;
            self.scores.clear();
            self.scores
                .extend(rows.clone().map(|token| scale * product(q_d, &keys[token * row + at..][..d])));
            let max = self.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for score in &mut self.scores {
                *score = exp(*score - max);
                sum += *score;
            }
            o_d.fill(0.0);
            for (token, &score) in rows.zip(&self.scores) {
                add_scaled(o_d, &values[token * row + at..][..d], score / sum);
            }
        }
    }
}

fn product(x: &[f32], y: &[f32]) -> f32 {
    vectorized!(dot(x: &'a [f32], y: &'a [f32]) -> f32)
}

fn add_scaled(out: &mut [f32], x: &[f32], factor: f32) {
    vectorized!(add_scaled_body(out: &'a mut [f32], x: &'a [f32], factor: f32));
}

#[inline(always)]
fn add_scaled_body(out: &mut [f32], x: &[f32], factor: f32) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = x.mul_add(factor, *out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::attention::attention;
    use super::super::reference::random;
    use super::*;

    /// Token by token, out of the same projections as the kernel for whole sequences; some tokens are taken back and come again.
    #[test]
    fn token_by_token_is_the_whole_sequence() {
        for mask in [Mask::Causal, Mask::Sliding(3)] {
            let one = Attention {
                sequences: 1,
                length: 1,
                heads: 4,
                kv_heads: 2,
                group: 2,
                head_size: 6,
                mask,
                separate: false,
                first_head: 0,
            };
            let whole = Attention { length: 9, ..one };
            let layers = [random(1, 9 * whole.columns()), random(2, 9 * whole.columns())];
            let expected = layers.each_ref().map(|qkv| {
                let mut o = vec![0.0; 9 * whole.output_columns()];
                let (mut lse, mut room) =
                    (vec![0.0; whole.lse_elements()], vec![0.0; whole.forward_workspace()]);
                attention(&whole, qkv, &[], &mut o, &mut lse, &mut room);
                o
            });
            let mut cache = Cache::default();
            for token in [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8] {
                cache.begin(token);
                for (qkv, expected) in layers.iter().zip(&expected) {
                    let mut o = vec![9.0; one.output_columns()];
                    cache.attend(&one, &qkv[token * one.columns()..][..one.columns()], &mut o);
                    let expected = &expected[token * o.len()..][..o.len()];
                    let close =
                        o.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
                    assert!(close, "{mask:?}, token {token}: {o:?} instead of {expected:?}");
                }
            }
        }
    }
}
