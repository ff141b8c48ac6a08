//! One collective of one group, or one transfer: the regions of its members, cut into parts, and how far it is.
//!
//! Whoever has time claims a part, which means the same part of every member's region, does the arithmetic
//! without the lock, and puts the part back.

use std::time::Instant;

use super::reduce;
use crate::arena::Region;
use crate::comm::{Call, Group, Operation};

/// Regions up to this size are not cut: the arithmetic takes less time than waking a thread.
/// (Smaller for Miri, so that its small regions are cut as well.)
const PART_BYTES: usize = if cfg!(miri) { 256 } else { 64 << 10 };

/// Parts of an all-reduce or a transfer, at most.
const MAX_PARTS: usize = 8;

/// Parts begin at multiples of this many elements, a cache line.
const LINE: usize = 16;

/// A collective that some member has started and some member has not taken.
#[derive(Debug)]
pub(super) struct Collective {
    /// Its number on the board, in the order in which first members have started.
    pub(super) number: u64,
    /// What all members call.
    pub(super) call: Call,
    pub(super) members: Group,
    pub(super) transport: Transport,
    /// The member that has started it first.
    pub(super) first_rank: usize,
    work: Work,
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
    /// Some members have not started it.
    Early,
    /// They have not begun. All members have started it at this time.
    Waiting(Instant),
    /// They carry it until then.
    Until(Instant),
}

/// The arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Sum,
    /// Part `p` is the slot of the member at place `p`, and becomes the sum there.
    SumSlots,
    /// Part `p` is the slot of the member at place `p`, and goes to the others.
    Gather,
    /// Every part goes from the member at this place to the other.
    Copy(usize),
}

impl Work {
    fn of(call: Call) -> Work {
        match call {
            Call::Collective { operation, .. } => match operation {
                Operation::AllReduceSum => Work::Sum,
                Operation::ReduceScatterSum => Work::SumSlots,
                Operation::AllGather => Work::Gather,
                Operation::Send | Operation::Receive => unreachable!("{call} is a transfer"),
            },
            Call::Transfer { from, to, .. } => Work::Copy(usize::from(from > to)),
            Call::Host(_) => unreachable!("{call} is not for the board"),
        }
    }
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
    pub(super) number: u64,
    pub(super) members: Group,
    part: usize,
    work: Work,
}

impl Claim {
    /// Does the arithmetic on the part of each member.
    pub(super) fn work(&self, regions: &mut [Region]) {
        match self.work {
            Work::Sum => reduce::sum_in_rank_order(regions),
            Work::SumSlots => reduce::sum_in_rank_order_at(self.part, regions),
            Work::Gather => reduce::copy_from_rank(self.part, regions),
            Work::Copy(source) => reduce::copy_from_rank(source, regions),
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
    /// What nobody has started yet; `rank` is about to be the first.
    pub(super) fn new(
        number: u64,
        rank: usize,
        call: Call,
        transport: Transport,
        mut parts: Parts,
    ) -> Collective {
        let (members, bytes) = match call {
            Call::Collective { group, bytes, .. } => (group, bytes),
            Call::Transfer { from, to, bytes, .. } => (Group::pair(from as u32, to as u32), bytes),
            Call::Host(_) => unreachable!("{call} is not for the board"),
        };
        let work = Work::of(call);
        let count = match work {
            _ if members.size() == 1 => 1,
            Work::Sum | Work::Copy(_) => (bytes / PART_BYTES).clamp(1, MAX_PARTS),
            Work::SumSlots | Work::Gather => members.size(),
        };
        parts.reset(count, members.size());
        Collective {
            number,
            call,
            members,
            transport,
            first_rank: rank,
            work,
            arrived: 0,
            taken: 0,
            parts,
            claimed: 0,
            done: 0,
        }
    }

    /// How many parts it is cut into.
    pub(super) fn parts(&self) -> usize {
        self.parts.count
    }

    /// Whether all members have started it.
    pub(super) fn is_complete(&self) -> bool {
        self.arrived == self.members.size()
    }

    /// Whether a member has started it.
    pub(super) fn has_started(&self, rank: usize) -> bool {
        let place = self.members.place(rank);
        self.is_complete() || place.is_some_and(|place| self.parts.regions[place].is_some())
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
        let (place, members) = (self.place(rank), self.members.size());
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
        match self.work {
            Work::Sum | Work::Copy(_) => len * part / self.parts.count / LINE * LINE,
            Work::SumSlots | Work::Gather => len / self.parts.count * part,
        }
    }

    /// Claims a part, moving every member's region of it to `into`.
    pub(super) fn claim(&mut self, into: &mut Vec<Region>) -> Claim {
        debug_assert!(self.is_ready());
        let part = self.claimed;
        self.claimed += 1;
        let regions = self.regions_of(part).iter_mut();
        into.extend(regions.map(|region| region.take().expect("a part is claimed once")));
        Claim { number: self.number, members: self.members, part, work: self.work }
    }

    /// Puts the regions of a claimed part back.
    pub(super) fn finish(&mut self, claim: &Claim, from: &mut Vec<Region>) {
        for (place, region) in self.regions_of(claim.part).iter_mut().zip(from.drain(..)) {
            *place = Some(region);
        }
        self.done += 1;
    }

    fn place(&self, rank: usize) -> usize {
        self.members.place(rank).expect("only members start and take it")
    }

    fn regions_of(&mut self, part: usize) -> &mut [Option<Region>] {
        let members = self.members.size();
        &mut self.parts.regions[part * members..][..members]
    }

    /// Joins a member's parts again.
    pub(super) fn take_whole(&mut self, rank: usize) -> Region {
        self.taken += 1;
        let (place, members) = (self.place(rank), self.members.size());
        let parts = self.parts.regions.iter_mut().skip(place).step_by(members);
        let mut parts = parts.map(|region| region.take().expect("a result is taken once"));
        let first = parts.next().expect("a collective has a part");
        parts.fold(first, Region::join)
    }
}
