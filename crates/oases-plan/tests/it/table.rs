//! The step times per block that follow from the method by hand, reproduced by simulation of long chains.
//!
//! With a block's forward f, backward 2f, recomputation f, and c for the all-reduce of a full batch, in two sub-batches:
//!
//! | schedule | per block | why |
//! |---|---|---|
//! | `megatron` | 4f + 3c | nothing overlaps: forward, recomputation and backward, each with its all-reduce |
//! | `none` | 3f + 2c | the same without recomputation |
//! | `cross-pass` | max(f, c) + max(f, c) + max(2f, c) | in each pass, one sub-batch computes while the other reduces |
//! | `oases` | max(f, c) + max(3f, c) | recomputation has no all-reduce and runs under that of backward |
//! | the same with everything kept, `domino` | max(f, c) + max(2f, c) | without recomputation |
//! | `merak` | max(f, c) + half of a layer's recomputation and backward | see [`merak`] |
//! | `decomposed` | 5f/2 + 3 times a product in k pieces | see [`piecewise`] |
//! | `oases-dual` | max(4f, 2c) for each micro-batch between the first and the last | both streams are busy |

use oases_schedule::{Bytes, CollectiveKind, Keep, Operation, Request, Scope};

use crate::support::{ELEMENTS, Rule, build, request, simulate};

/// Forward of a block on a full batch.
const F: u64 = 1_000_000;
/// Sequences of a full batch.
const BATCH: u32 = 4;
/// Pieces of a product.
const PIECES: u8 = 4;

/// Costs where a full batch's all-reduce takes `c`, and the product before it half a forward.
fn step(variant: &str, request: &Request, c: u64) -> u64 {
    let costs = Rule {
        compute: |operation: Operation, sequences: u32| {
            let full_batch = match operation {
                Operation::Tail(_, _, of, _) => F / 2 / u64::from(of),
                Operation::Forward(_, extent) | Operation::Recompute(_, extent)
                    if extent == oases_schedule::Extent::Body =>
                {
                    F / 2
                }
                Operation::Forward(..)
                | Operation::Recompute(..)
                | Operation::Backward(_, Scope::Input | Scope::Weight) => F,
                Operation::Backward(_, Scope::Body) => 3 * F / 2,
                Operation::Backward(..) => 2 * F,
                _ => 0,
            };
            full_batch * u64::from(sequences) / u64::from(BATCH)
        },
        collective: |_: CollectiveKind, bytes: Bytes| {
            let full_batch = u64::from(BATCH) * ELEMENTS * 4;
            (c * bytes.0 / full_batch, 0)
        },
    };
    simulate(&build(variant, request), &costs).step.0
}

/// What one more block adds to the step of a long chain.
fn per_block(variant: &str, sub_batches: u32, keep: Option<Keep>, c: u64) -> f64 {
    let [short, long] = [20, 40].map(|layers| {
        let plain = request(layers, 1, sub_batches, BATCH);
        step(variant, &Request { keep: keep.into(), pieces: PIECES, ..plain }, c)
    });
    // 20 more layers have 40 more blocks, and their gains and shifts make `g.0` longer: 40 · 2 · 16 floats.
    let gradients = c as f64 * (40 * 2 * 16) as f64 / (u64::from(BATCH) * ELEMENTS) as f64;
    ((long - short) as f64 - gradients) / 40.0 / F as f64
}

/// In units of f, at c = r f. A pass over a layer is two blocks in two sub-batches, whose computation takes p in all: either it
/// ends with a last all-reduce that nothing hides, or all-reduces follow each other after the first quarter of it.
fn merak(r: f64) -> f64 {
    let of_layer = |p: f64| f64::max(p + r / 2.0, p / 4.0 + 2.0 * r);
    f64::max(1.0, r) + of_layer(2.0) / 2.0 + of_layer(4.0) / 2.0
}

/// A product of f/2 in k pieces, and their all-reduces: the first piece has none to hide, the last all-reduce nothing to hide under.
fn piecewise(r: f64) -> f64 {
    let k = f64::from(PIECES);
    0.5 / k + (k - 1.0) * f64::max(0.5, r) / k + r / k
}

#[test]
fn chains_take_the_time_that_follows_by_hand() {
    for r in [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0] {
        let c = (r * F as f64) as u64;
        let kept = f64::max(1.0, r) + f64::max(2.0, r);
        for (variant, sub_batches, keep, expected) in [
            ("megatron", 2, None, 4.0 + 3.0 * r),
            ("none", 2, None, 3.0 + 2.0 * r),
            ("merak", 2, None, merak(r)),
            ("decomposed", 1, None, 2.5 + 3.0 * piecewise(r)),
            ("cross-pass", 2, None, 2.0 * f64::max(1.0, r) + f64::max(2.0, r)),
            ("oases", 2, None, f64::max(1.0, r) + f64::max(3.0, r)),
            ("oases", 2, Some(Keep::All), kept),
            ("domino", 2, None, kept),
        ] {
            let found = per_block(variant, sub_batches, keep, c);
            assert!((found - expected).abs() < 1e-3, "{variant} at c = {r} f: {found} instead of {expected}");
        }
    }
}

#[test]
fn interleaved_micro_batches_keep_both_streams_busy() {
    for r in [0.5, 1.0, 1.5, 2.0, 3.0] {
        let c = (r * F as f64) as u64;
        let [few, many] =
            [4, 8].map(|micro_batches| step("oases-dual", &request(20, micro_batches, 2, BATCH), c));
        // 40 blocks; embedding and head take 3f each, with an all-reduce each.
        let found = (many - few) as f64 / 4.0 / F as f64;
        let expected = f64::max(40.0 * 4.0 + 6.0, (80.0 + 2.0) * r);
        assert!((found / expected - 1.0).abs() < 0.02, "at c = {r} f: {found} instead of {expected}");
    }
}
