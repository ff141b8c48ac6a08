//! How long a collective occupies a link: the ring algorithm.

use oases_schedule::{Bytes, CollectiveKind};

use crate::time::Nanoseconds;

/// A link between the ranks of a group, on which collectives run in a ring.
///
/// With `t` ranks and `S` bytes in each rank's whole buffer,
///
/// - all-reduce: `2(t-1)/t · S / bandwidth + 2(t-1) · latency` (a reduce-scatter, then an all-gather),
/// - all-gather and reduce-scatter: `(t-1)/t · S / bandwidth + (t-1) · latency`, where `S` counts all slots,
/// - from one rank to another: `S / bandwidth + latency`.
///
/// Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.1 and
/// 4.5, without the terms of the local arithmetic. The formula is exact for every size, so nothing is interpolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ring {
    /// What one rank can send while it also receives as much.
    pub bandwidth_bytes_per_s: f64,
    /// From the start of a send to the arrival of its first byte.
    pub latency_s: f64,
}

impl Ring {
    /// How long a collective occupies the link; `None` if that is beyond [`Nanoseconds::LONGEST`].
    pub fn duration(&self, kind: CollectiveKind, bytes: Bytes, ranks: u32) -> Option<Nanoseconds> {
        if ranks <= 1 {
            return Some(Nanoseconds::ZERO);
        }
        let hops = f64::from(ranks - 1);
        let carried = hops / f64::from(ranks) * bytes.0 as f64;
        let one_way = carried / self.bandwidth_bytes_per_s + hops * self.latency_s;
        Nanoseconds::from_seconds(match kind {
            CollectiveKind::AllReduce => 2.0 * one_way,
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter => one_way,
            CollectiveKind::Send | CollectiveKind::Recv => {
                bytes.0 as f64 / self.bandwidth_bytes_per_s + self.latency_s
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reduce_is_twice_the_all_gather() {
        let ring = Ring { bandwidth_bytes_per_s: 1e9, latency_s: 10e-6 };
        // 3/4 of 4 MB at 1 GB/s is 3 ms; three hops of 10 µs.
        let time = |kind, ranks| ring.duration(kind, Bytes(4_000_000), ranks);
        assert_eq!(time(CollectiveKind::AllGather, 4), Some(Nanoseconds(3_030_000)));
        assert_eq!(time(CollectiveKind::ReduceScatter, 4), Some(Nanoseconds(3_030_000)));
        assert_eq!(time(CollectiveKind::AllReduce, 4), Some(Nanoseconds(6_060_000)));
        assert_eq!(time(CollectiveKind::Send, 2), Some(Nanoseconds(4_010_000)));
        assert_eq!(time(CollectiveKind::Recv, 2), Some(Nanoseconds(4_010_000)));
        assert_eq!(time(CollectiveKind::AllReduce, 1), Some(Nanoseconds::ZERO));
        let dead = Ring { bandwidth_bytes_per_s: 0.0, ..ring };
        assert_eq!(dead.duration(CollectiveKind::AllReduce, Bytes(1), 2), None);
    }
}
