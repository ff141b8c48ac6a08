//! What occupies the links between pipeline stages: who joins a collective, and which directions of whose link it needs.
//!
//! The link of a rank is full duplex. A group collective occupies both directions of all its members; a transfer the outgoing one
//! of the sender and the incoming one of the receiver. The group collectives of a rank begin in the order in which it starts them,
//! and so do the transfers from one rank to another; between these queues there is no order but that of time.

use crate::time::Nanoseconds;

/// Whose ranks a collective joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// Ranks of the stage that starts it, which all come to it at the same time.
    Stage,
    /// Ranks of these stages.
    Stages(Vec<u32>),
    /// A rank of each of two stages.
    Transfer {
        /// The stage that sends.
        from: u32,
        /// The stage that receives.
        to: u32,
    },
}

/// Until when the directions of a rank's link are occupied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub outgoing: Nanoseconds,
    pub incoming: Nanoseconds,
}

impl Link {
    /// When both directions are free.
    pub(crate) fn free(self) -> Nanoseconds {
        self.outgoing.max(self.incoming)
    }

    /// Occupies both directions.
    pub(crate) fn occupy(&mut self, until: Nanoseconds) {
        *self = Link { outgoing: until, incoming: until };
    }
}
