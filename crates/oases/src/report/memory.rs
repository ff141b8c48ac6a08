//! What fills a rank's memory, by kind.

use std::collections::BTreeMap;

use oases_schedule::{BufferKind, Bytes};
use serde::Serialize;

/// Bytes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryKind {
    /// What they hold.
    pub kind: &'static str,
    /// How many.
    pub bytes: u64,
}

/// The kinds at the peak of a training step: of a rank's weights, of one of its two moments and of all that outlives a step, and
/// of the buffers that are alive.
pub fn kinds([weights, moment, statics]: [Bytes; 3], alive: &BTreeMap<BufferKind, Bytes>) -> Vec<MemoryKind> {
    let [weights, moments] = [weights.0, 2 * moment.0];
    let mut kinds = vec![
        MemoryKind { kind: "weights", bytes: weights },
        MemoryKind { kind: "weight gradients", bytes: weights },
        MemoryKind { kind: "optimizer moments", bytes: moments },
        MemoryKind { kind: "tokens and losses", bytes: statics.0 - 2 * weights - moments },
    ];
    kinds.extend(
        BufferKind::ALL.iter().map(|kind| MemoryKind {
            kind: kind.name(),
            bytes: alive.get(kind).copied().unwrap_or_default().0,
        }),
    );
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_counted_twice_or_left_out() {
        let alive = BTreeMap::from([(BufferKind::ALL[0], Bytes(7)), (BufferKind::ALL[1], Bytes(5))]);
        // Whole moments, and moments of which a rank has a share.
        for (moment, statics) in [(100, 430), (60, 350)] {
            let kinds = kinds([Bytes(100), Bytes(moment), Bytes(statics)], &alive);
            let bytes: Vec<u64> = kinds.iter().map(|kind| kind.bytes).collect();
            assert_eq!(bytes[..6], [100, 100, 2 * moment, 30, 7, 5]);
            assert_eq!(bytes.iter().sum::<u64>(), statics + 12);
        }
    }
}
