//! The ranks that a collective joins: all of the communicator, or one of the groups that it is cut into.

use oases_schedule::Grouping;

/// One group of a grouping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Members {
    grouping: Grouping,
    group: u32,
    size: usize,
}

impl Members {
    /// The group of `rank`, one of `ranks`.
    pub(super) fn of(rank: usize, grouping: Grouping, ranks: usize) -> Members {
        let size = grouping.size(ranks as u32) as usize;
        Members { grouping, group: grouping.group_of(rank as u32), size }
    }

    /// How many.
    pub(super) fn size(self) -> usize {
        self.size
    }

    /// The place of one of them among them, from 0.
    pub(super) fn place_of(self, rank: usize) -> usize {
        self.grouping.position(rank as u32) as usize
    }

    /// Whether `rank` is one of them.
    pub(super) fn contains(self, rank: usize) -> bool {
        self.grouping.group_of(rank as u32) == self.group
    }

    /// Whether some rank is in both groups.
    pub(super) fn overlap(self, other: Members) -> bool {
        self.ranks().any(|rank| other.contains(rank))
    }

    /// Their numbers in the communicator, in order of place, which is rank order.
    pub(super) fn ranks(self) -> impl Iterator<Item = usize> {
        (0..self.size as u32).map(move |place| self.grouping.member(self.group, place) as usize)
    }
}
