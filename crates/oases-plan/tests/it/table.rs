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

use oases_schedule::{Bytes, CollectiveKind, Operation};

use crate::support::{ELEMENTS, Rule, build, request, simulate};

/// Forward of a block on a full batch.
const F: u64 = 1_000_000;
/// Sequences of a full batch.
const BATCH: u32 = 4;

/// Step time of a chain where a full batch's all-reduce takes `c`.
fn step(variant: &str, layers: u32, c: u64) -> u64 {
    let costs = Rule {
        compute: |operation: Operation, sequences: u32| {
            let full_batch = match operation {
                Operation::Forward(..) | Operation::Recompute(..) => F,
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
    simulate(&build(variant, &request(layers, 1, 2, BATCH)), &costs).step.0
}

/// What one more block adds to the step of a long chain.
fn per_block(variant: &str, c: u64) -> f64 {
    let [short, long] = [20, 40].map(|layers| step(variant, layers, c));
    // 20 more layers have 40 more blocks, and their gains and shifts make `g.0` longer: 40 · 2 · 16 floats.
    let gradients = c as f64 * (40 * 2 * 16) as f64 / (u64::from(BATCH) * ELEMENTS) as f64;
    ((long - short) as f64 - gradients) / 40.0 / F as f64
}

#[test]
fn chains_take_the_time_that_follows_by_hand() {
    for ratio in [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0] {
        let c = (ratio * F as f64) as u64;
        for (variant, expected) in [
            ("megatron", 4.0 + 3.0 * ratio),
            ("none", 3.0 + 2.0 * ratio),
            ("cross-pass", 2.0 * f64::max(1.0, ratio) + f64::max(2.0, ratio)),
            ("oases", f64::max(1.0, ratio) + f64::max(3.0, ratio)),
        ] {
            let found = per_block(variant, c);
            assert!(
                (found - expected).abs() < 1e-3,
                "{variant} at c = {ratio} f: {found} instead of {expected}"
            );
        }
    }
}
