//! Which ranks of the world a collective joins.

use std::fmt;

use oases_schedule::Grouping;

/// The ranks `first`, `first + stride`, … of the world: those that one collective joins, in rank order. The
/// two ends of a transfer are a group of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// The lowest world rank.
    pub first: u32,
    /// How many ranks, at least 1.
    pub size: u32,
    /// From one rank to the next, at least 1.
    pub stride: u32,
}

impl Group {
    /// All of a world of `ranks` ranks.
    pub fn world(ranks: usize) -> Group {
        Group { first: 0, size: ranks as u32, stride: 1 }
    }

    /// The group of rank `rank_in_stage` where `grouping` cuts the `ranks` neighbours that begin at `first`.
    pub fn of_stage(first: u32, ranks: u32, grouping: Grouping, rank_in_stage: u32) -> Group {
        let lowest = grouping.member(grouping.group_of(rank_in_stage), 0);
        Group { first: first + lowest, size: grouping.size(ranks), stride: grouping.stride() }
    }

    /// Two ranks, in any order.
    pub fn pair(one: u32, other: u32) -> Group {
        Group { first: one.min(other), size: 2, stride: one.abs_diff(other) }
    }

    /// How many ranks.
    pub fn size(self) -> usize {
        self.size as usize
    }

    /// The world rank at a place, counted from 0.
    pub fn rank(self, place: usize) -> usize {
        self.first as usize + place * self.stride as usize
    }

    /// All world ranks, in order of place.
    pub fn ranks(self) -> impl Iterator<Item = usize> {
        (0..self.size()).map(move |place| self.rank(place))
    }

    /// The place of a world rank, if it is a member.
    pub fn place(self, rank: usize) -> Option<usize> {
        let distance = rank.checked_sub(self.first as usize)?;
        let place = distance / self.stride as usize;
        (distance.is_multiple_of(self.stride as usize) && place < self.size()).then_some(place)
    }

    /// Whether a world rank is a member.
    pub fn contains(self, rank: usize) -> bool {
        self.place(rank).is_some()
    }

    /// Whether some rank is in both groups.
    pub fn overlaps(self, other: Group) -> bool {
        self.ranks().any(|rank| other.contains(rank))
    }

    /// Why `rank`, one of `ranks`, cannot start a collective of this group.
    pub fn check(self, rank: usize, ranks: usize) -> Result<(), String> {
        if self.size == 0 || self.stride == 0 {
            return Err("no such group".to_owned());
        }
        if self.rank(self.size() - 1) >= ranks {
            return Err(format!("there are {ranks} ranks"));
        }
        if !self.contains(rank) {
            return Err(format!("rank {rank} is no member"));
        }
        Ok(())
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first;
        let last = self.rank(self.size().saturating_sub(1));
        match (self.size, self.stride) {
            (1, _) => write!(f, "rank {first}"),
            (2, _) => write!(f, "ranks {first} and {last}"),
            (_, 1) => write!(f, "ranks {first} to {last}"),
            (_, stride) => write!(f, "ranks {first} to {last}, {stride} apart"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_knows_its_ranks() {
        let group = Group { first: 9, size: 3, stride: 4 };
        assert_eq!(group.ranks().collect::<Vec<_>>(), [9, 13, 17]);
        let places: Vec<_> =
            (8..23).filter_map(|rank| group.place(rank).map(|place| (rank, place))).collect();
        assert_eq!(places, [(9, 0), (13, 1), (17, 2)]);
        assert!(group.overlaps(Group { first: 13, size: 1, stride: 1 }));
        assert!(!group.overlaps(Group { first: 10, size: 3, stride: 4 }));
        assert_eq!(group.to_string(), "ranks 9 to 17, 4 apart");
    }

    #[test]
    fn groups_of_a_stage_and_pairs() {
        // Ranks 8 to 15 in pairs that are 4 apart: rank 14 stands third in the first half of the second pair.
        let far = Grouping::Cut { size: 2, stride: 4 };
        assert_eq!(Group::of_stage(8, 8, far, 6), Group { first: 10, size: 2, stride: 4 });
        assert_eq!(Group::of_stage(8, 8, Grouping::Whole, 6), Group { first: 8, size: 8, stride: 1 });
        assert_eq!(Group::pair(7, 3), Group { first: 3, size: 2, stride: 4 });
        assert_eq!(Group::pair(3, 7).to_string(), "ranks 3 and 7");
    }

    #[test]
    fn a_group_that_is_not_there_is_refused() {
        let group = Group { first: 1, size: 2, stride: 2 };
        assert_eq!(group.check(3, 4), Ok(()));
        assert_eq!(group.check(2, 4), Err("rank 2 is no member".to_owned()));
        assert_eq!(group.check(1, 3), Err("there are 3 ranks".to_owned()));
        assert!(Group::pair(2, 2).check(2, 4).is_err() && Group { size: 0, ..group }.check(1, 4).is_err());
    }
}
