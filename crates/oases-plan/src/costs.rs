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
}

impl Reach {
    /// Ranks that are next to each other.
    pub fn neighbours(ranks: u32) -> Reach {
        Reach { ranks, stride: 1 }
    }

    /// Of a grouping of an axis of `ranks`.
    pub fn of(grouping: Grouping, ranks: u32) -> Reach {
        Reach { ranks: grouping.size(ranks), stride: grouping.stride() }
    }

    /// How many neighbours it takes to hold one group; groups fall into whole runs of so many. The greatest number where
    /// they cannot be counted.
    pub fn span(self) -> u32 {
        self.ranks.saturating_mul(self.stride)
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
