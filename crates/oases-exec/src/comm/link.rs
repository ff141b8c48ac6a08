//! An emulated network link: how long a collective or a transfer would take on it.

use std::time::Duration;

use super::Operation;

/// The network link of each rank, to emulate a slow one in shared memory.
///
/// A collective takes the time that the ring algorithm needs on links of this kind. With `t` members and `S`
/// bytes,
///
/// - all-reduce: `2(t-1)/t · S / bandwidth + 2(t-1) · latency` (a reduce-scatter, then an all-gather),
/// - all-gather and reduce-scatter: `(t-1)/t · S / bandwidth + (t-1) · latency`, where `S` counts all slots,
/// - transfer: `S / bandwidth + latency`,
///
/// nothing with one member. (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
/// Operations in MPICH", 2005, sections 4.1 and 4.5, without the terms of the local arithmetic, which happens
/// within that time here.)
///
/// The link is full duplex: each rank has an outgoing and an incoming direction, and each of them carries one thing at
/// a time. A collective occupies both directions of every member, a transfer the outgoing one of its sender and the
/// incoming one of its receiver. It begins once all members have started it, what they have started before it in
/// the same stream has begun, and these directions are free; where several could begin, the one that has waited
/// longest does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// What one rank can send, while it also receives as much.
    pub bandwidth_bytes_per_s: f64,
    /// From the start of a send to the arrival of its first byte.
    pub latency: Duration,
}

impl Link {
    /// How long a collective occupies the links of its `members`, or a transfer those of its two ends. `bytes` is the
    /// size of each whole region.
    ///
    /// # Panics
    /// If the bandwidth is not positive.
    pub fn duration(&self, operation: Operation, bytes: usize, members: usize) -> Duration {
        assert!(self.bandwidth_bytes_per_s > 0.0, "a link needs a positive bandwidth, not {self:?}");
        let hops = members.saturating_sub(1);
        let one_way_s = hops as f64 / members as f64 * bytes as f64 / self.bandwidth_bytes_per_s;
        let one_way = Duration::from_secs_f64(one_way_s) + self.latency * hops as u32;
        match operation {
            Operation::AllReduceSum => 2 * one_way,
            Operation::AllGather | Operation::ReduceScatterSum => one_way,
            Operation::Send | Operation::Receive => {
                Duration::from_secs_f64(bytes as f64 / self.bandwidth_bytes_per_s) + self.latency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { bandwidth_bytes_per_s: 1e9, latency: Duration::from_micros(10) };

    #[test]
    fn all_reduce_is_twice_the_all_gather() {
        // 3/4 of 4 MB at 1 GB/s is 3 ms; three hops of 10 µs.
        let one_way = Duration::from_micros(3_030);
        assert_eq!(LINK.duration(Operation::AllGather, 4_000_000, 4), one_way);
        assert_eq!(LINK.duration(Operation::ReduceScatterSum, 4_000_000, 4), one_way);
        assert_eq!(LINK.duration(Operation::AllReduceSum, 4_000_000, 4), 2 * one_way);
    }

    #[test]
    fn a_transfer_carries_all_of_it_once() {
        // 4 MB at 1 GB/s is 4 ms; one hop.
        for operation in [Operation::Send, Operation::Receive] {
            assert_eq!(LINK.duration(operation, 4_000_000, 2), Duration::from_micros(4_010));
        }
    }

    #[test]
    fn one_rank_or_no_data() {
        assert_eq!(LINK.duration(Operation::AllReduceSum, 4_000_000, 1), Duration::ZERO);
        assert_eq!(LINK.duration(Operation::AllReduceSum, 0, 3), Duration::from_micros(40));
    }

    #[test]
    #[should_panic(expected = "positive bandwidth")]
    fn no_bandwidth() {
        Link { bandwidth_bytes_per_s: 0.0, ..LINK }.duration(Operation::AllGather, 1, 2);
    }
}
