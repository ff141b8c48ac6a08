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

/// The kinds at the peak of a training step: of a rank's weights alone and of all that outlives a step, and of the buffers
/// that are alive.
pub fn kinds([weights, statics]: [Bytes; 2], alive: &BTreeMap<BufferKind, Bytes>) -> Vec<MemoryKind> {
    let weights = weights.0;
    let mut kinds = vec![
        MemoryKind { kind: "weights", bytes: weights },
        MemoryKind { kind: "weight gradients", bytes: weights },
        MemoryKind { kind: "optimizer moments", bytes: 2 * weights },
        MemoryKind { kind: "tokens and losses", bytes: statics.0 - 4 * weights },
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
        let kinds = kinds([Bytes(100), Bytes(430)], &alive);
        let bytes: Vec<u64> = kinds.iter().map(|kind| kind.bytes).collect();
        assert_eq!(bytes[..6], [100, 100, 200, 30, 7, 5]);
        assert_eq!(bytes.iter().sum::<u64>(), 430 + 12);
    }
}
