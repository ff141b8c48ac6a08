//! What an instruction costs, as a question that measured and described machines answer.

use oases_schedule::{Bytes, CollectiveId, CollectiveKind, Grouping, Operation};

use crate::error::Error;
use crate::time::Nanoseconds;

/// How long a collective takes, by what it takes it from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectiveTime {
    /// On the communication stream, from the moment at which all ranks have started it.
    pub link: Nanoseconds,
    /// The arithmetic that a rank does on the compute stream: inside the wait for the link where it waits, besides it
    /// where the link is done already. Nothing where the communication stream does it all, as on a GPU.
    pub host: Nanoseconds,
}

/// Which ranks a collective joins: how many, and how far they are apart. All groups of equal reach run their collectives
/// side by side, so a machine with several servers can tell from it which links are crossed, and by how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Ranks of one group.
    pub ranks: u32,
    /// From one rank of a group to the next.
    pub stride: u32,
    /// How many neighbours it takes to hold one group; groups fall into whole runs of so many.
    pub span: u32,
}

impl Reach {
    /// Ranks that are next to each other.
    pub fn neighbours(ranks: u32) -> Reach {
        Reach::apart(ranks, 1)
    }

    /// Ranks that are `stride` apart, in runs without gaps. The greatest span where it cannot be counted.
    pub fn apart(ranks: u32, stride: u32) -> Reach {
        Reach { ranks, stride, span: ranks.saturating_mul(stride) }
    }

    /// Of a grouping of an axis of `ranks`.
    pub fn of(grouping: Grouping, ranks: u32) -> Reach {
        Reach::apart(grouping.size(ranks), grouping.stride())
    }

    /// Between the ranks at the same places of two different stages of `group` ranks each, out of `count` stages. Servers hold a
    /// power of two of stages, or all of them.
    pub fn between([left, right]: [u32; 2], count: u32, group: u32) -> Reach {
        let stages = 1_u32.checked_shl(u32::BITS - (left ^ right).leading_zeros()).unwrap_or(count);
        let span = group.saturating_mul(stages.min(count));
        Reach { ranks: 2, stride: group.saturating_mul(left.abs_diff(right)), span }
    }
}

/// Answers what instructions cost. What is not known is an error, never zero.
pub trait Costs {
    /// Duration of a compute instruction on one rank: `sequences` is the rank's share of the part (0 for what works on no part
    /// of the batch), `tensor` the TMP degree of the block; for `step` and `norm`, a degree that all blocks have.
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error>;

    /// Duration of a collective; `bytes` is the size of each rank's whole buffer.
    fn collective(&self, kind: CollectiveKind, bytes: Bytes, reach: Reach) -> Result<CollectiveTime, Error>;

    /// Duration of this very collective of a step: that of any other of its kind and size, unless it belongs to something
    /// that costs nothing or goes elsewhere.
    fn named_collective(
        &self,
        _: CollectiveId,
        kind: CollectiveKind,
        bytes: Bytes,
        reach: Reach,
    ) -> Result<CollectiveTime, Error> {
        self.collective(kind, bytes, reach)
    }

    /// How many times longer a compute instruction takes while a collective runs, with which it shares memory bandwidth
    /// and, on a GPU, processors; at least 1. Durations that were measured beside running collectives hold it already, so
    /// it is 1 unless a machine description says otherwise.
    fn interference(&self) -> f64 {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six stages of 4 ranks: 0-3, 4-7, …, 20-23. Servers of 8 hold two stages, servers of 16 four.
    #[test]
    fn stages_of_one_server_are_reached_inside_it() {
        let reach = |left, right| {
            let Reach { ranks, stride, span } = Reach::between([left, right], 6, 4);
            (ranks, stride, span)
        };
        assert_eq!(reach(0, 1), (2, 4, 8));
        assert_eq!(reach(3, 2), (2, 4, 8));
        // Ranks 4 and 8 are in different servers of 8, but in one of 16.
        assert_eq!(reach(1, 2), (2, 4, 16));
        // Ranks 12 and 16 are in different servers of 16; all stages are 24 ranks.
        assert_eq!(reach(3, 4), (2, 4, 24));
        assert_eq!(reach(5, 0), (2, 20, 24));
    }
}
