//! One collective of one group: the regions of its members, cut into parts, and how far it is.
//!
//! Whoever has time claims a part, which means the same part of every member's region, does the arithmetic
//! without the lock, and puts the part back.

use std::time::Instant;

use super::members::Members;
use super::reduce;
use crate::arena::Region;
use crate::comm::Operation;

/// Regions up to this size are not cut: the arithmetic takes less time than waking a thread.
/// (Smaller for Miri, so that its small regions are cut as well.)
const PART_BYTES: usize = if cfg!(miri) { 256 } else { 64 << 10 };

/// Parts of an all-reduce, at most.
const MAX_PARTS: usize = 8;

/// Parts begin at multiples of this many elements, a cache line.
const LINE: usize = 16;

/// A collective that some member has started and some member has not taken.
#[derive(Debug)]
pub(super) struct Collective {
    /// Its place in the order of the ranks' calls.
    pub(super) position: u64,
    pub(super) members: Members,
    pub(super) operation: Operation,
    /// Size of each member's whole region.
    pub(super) bytes: usize,
    pub(super) transport: Transport,
    /// Members that have started it.
    arrived: usize,
    /// Members that have taken their result.
    taken: usize,
    parts: Parts,
    claimed: usize,
    done: usize,
}

/// What the emulated links of its members do for a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Nothing: there are no links, or there is nobody to send to.
    Unneeded,
    /// They have not begun.
    Queued,
    /// They carry it until then.
    Until(Instant),
}

/// The memory of a collective, used again by another one after it.
#[derive(Debug)]
pub(super) struct Parts {
    /// Part `p` of the member at place `m` at `p * members + m`; absent before it arrives, while claimed, and
    /// after it is taken.
    regions: Vec<Option<Region>>,
    count: usize,
}

/// A part whose arithmetic is to be done by the claimant.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) position: u64,
    pub(super) members: Members,
    part: usize,
    operation: Operation,
}

impl Claim {
    /// Does the arithmetic on the part of each member.
    pub(super) fn work(&self, regions: &mut [Region]) {
        match self.operation {
            Operation::AllReduceSum => reduce::sum_in_rank_order(regions),
            Operation::AllGather => reduce::copy_from_rank(self.part, regions),
        }
    }
}

impl Parts {
    /// Room for any collective among `ranks`.
    pub(super) fn room(ranks: usize) -> Parts {
        Parts { regions: Vec::with_capacity(ranks * ranks.max(MAX_PARTS)), count: 0 }
    }

    /// Room for `count` parts of each of `members` regions.
    fn reset(&mut self, count: usize, members: usize) {
        self.regions.clear();
        self.regions.resize_with(count * members, || None);
        self.count = count;
    }
}

impl Collective {
    pub(super) fn new(
        position: u64,
        members: Members,
        operation: Operation,
        bytes: usize,
        transport: Transport,
        mut parts: Parts,
    ) -> Collective {
        let count = match operation {
            _ if members.size() == 1 => 1,
            Operation::AllReduceSum => (bytes / PART_BYTES).clamp(1, MAX_PARTS),
            Operation::AllGather => members.size(),
        };
        parts.reset(count, members.size());
        let (arrived, taken, claimed, done) = (0, 0, 0, 0);
        Collective { position, members, operation, bytes, transport, arrived, taken, parts, claimed, done }
    }

    /// How many parts it is cut into.
    pub(super) fn parts(&self) -> usize {
        self.parts.count
    }

    /// Whether all members have started it.
    pub(super) fn is_complete(&self) -> bool {
        self.arrived == self.members.size()
    }

    /// Whether nothing but the links holds it up.
    pub(super) fn waits_for_link(&self) -> bool {
        self.is_complete() && self.transport == Transport::Queued
    }

    /// Whether there is a part to do.
    pub(super) fn is_ready(&self) -> bool {
        self.is_complete() && self.claimed < self.parts.count
    }

    /// Whether the arithmetic of all parts is done.
    pub(super) fn is_done(&self) -> bool {
        self.done == self.parts.count
    }

    /// Whether all members have taken their results.
    pub(super) fn is_over(&self) -> bool {
        self.taken == self.members.size()
    }

    /// The memory, for the next collective.
    pub(super) fn into_parts(self) -> Parts {
        self.parts
    }

    /// Cuts the region of a member that starts it into parts.
    pub(super) fn put_whole(&mut self, rank: usize, region: Region) {
        let (place, members) = (self.members.place_of(rank), self.members.size());
        let len = region.len();
        let mut rest = region;
        let mut begin = 0;
        for part in 1..self.parts.count {
            let end = self.cut(part, len);
            let (head, tail) = rest.split_at(end - begin);
            self.parts.regions[(part - 1) * members + place] = Some(head);
            (rest, begin) = (tail, end);
        }
        self.parts.regions[(self.parts.count - 1) * members + place] = Some(rest);
        self.arrived += 1;
    }

    /// Where part `part` of `len` elements begins.
    fn cut(&self, part: usize, len: usize) -> usize {
        match self.operation {
            Operation::AllReduceSum => len * part / self.parts.count / LINE * LINE,
            Operation::AllGather => len / self.parts.count * part,
        }
    }

    /// Claims a part, moving every member's region of it to `into`.
    pub(super) fn claim(&mut self, into: &mut Vec<Region>) -> Claim {
        debug_assert!(self.is_ready());
        let part = self.claimed;
        self.claimed += 1;
        let regions = self.regions_of(part).iter_mut();
        into.extend(regions.map(|region| region.take().expect("a part is claimed once")));
        Claim { position: self.position, members: self.members, part, operation: self.operation }
    }

    /// Puts the regions of a claimed part back.
    pub(super) fn finish(&mut self, claim: &Claim, from: &mut Vec<Region>) {
        for (place, region) in self.regions_of(claim.part).iter_mut().zip(from.drain(..)) {
            *place = Some(region);
        }
        self.done += 1;
    }

    fn regions_of(&mut self, part: usize) -> &mut [Option<Region>] {
        let members = self.members.size();
        &mut self.parts.regions[part * members..][..members]
    }

    /// Joins a member's parts again.
    pub(super) fn take_whole(&mut self, rank: usize) -> Region {
        self.taken += 1;
        let (place, members) = (self.members.place_of(rank), self.members.size());
        let parts = self.parts.regions.iter_mut().skip(place).step_by(members);
        let mut parts = parts.map(|region| region.take().expect("a result is taken once"));
        let first = parts.next().expect("a collective has a part");
        parts.fold(first, Region::join)
    }
}
