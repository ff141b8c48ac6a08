//! The board of a local group: which collectives its ranks have started, which parts of them are done, and
//! when the emulated link lets go of them. Plain bookkeeping, without threads; the group keeps it under its
//! lock.
//!
//! A collective is cut into parts. Whoever has time claims a part of it, which means the same part of every
//! rank's region, does the arithmetic without the lock, and puts the part back. In the steady state nothing
//! here allocates: entries are used again.

use std::collections::VecDeque;
use std::time::Instant;

use super::reduce;
use crate::arena::Region;
use crate::comm::{Call, CommunicatorError, Link, Operation, Tag};

/// Regions up to this size are not cut: the arithmetic takes less time than waking a thread.
/// (Smaller for Miri, so that its small regions are cut as well.)
const PART_BYTES: usize = if cfg!(miri) { 256 } else { 64 << 10 };

/// Parts of an all-reduce, at most.
const MAX_PARTS: usize = 8;

/// Collectives under way at once for which there is room from the beginning.
const IN_FLIGHT: usize = 32;

/// Parts begin at multiples of this many elements, a cache line.
const LINE: usize = 16;

/// All collectives that a rank has started and some rank has not taken yet.
#[derive(Debug)]
pub(super) struct Board {
    ranks: usize,
    link: Option<Link>,
    /// When the link has carried all that it was given so far.
    link_free_at: Option<Instant>,
    entries: VecDeque<Entry>,
    /// Position of `entries[0]` in the group's order.
    first: u64,
    /// Per rank, how many collectives it has started.
    started: Vec<u64>,
    spare: Vec<Entry>,
}

/// One collective.
#[derive(Debug)]
struct Entry {
    call: Call,
    operation: Operation,
    first_rank: usize,
    /// Ranks that have started it.
    arrived: usize,
    /// Ranks that have taken their result.
    taken: usize,
    /// Part `p` of rank `r` at `p * ranks + r`; absent before it arrives, while claimed, and after it is
    /// taken.
    regions: Vec<Option<Region>>,
    parts: usize,
    claimed: usize,
    done: usize,
    /// When the link has carried it, once all ranks have started it.
    ends: Option<Instant>,
}

/// A part whose arithmetic is to be done by the claimant.
#[derive(Debug)]
pub(super) struct Claim {
    position: u64,
    part: usize,
    operation: Operation,
}

impl Claim {
    /// Does the arithmetic on the part of each rank.
    pub(super) fn work(&self, regions: &mut [Region]) {
        match self.operation {
            Operation::AllReduceSum => reduce::sum_in_rank_order(regions),
            Operation::AllGather => reduce::copy_from_rank(self.part, regions),
        }
    }
}

/// How far a collective is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Some ranks have not started it.
    Missing,
    /// It is on the link until then.
    OnLink(Instant),
    /// Its arithmetic is not finished.
    Working,
    /// Its results can be taken.
    Done,
}

/// What the start of a collective has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Started {
    /// Other ranks are yet to start it.
    Early,
    /// This was the last rank.
    Complete {
        /// Parts to do.
        parts: usize,
    },
}

impl Board {
    pub(super) fn new(ranks: usize, link: Option<Link>) -> Board {
        // How many are under way at once depends on how far ranks are apart, so it could grow in any step.
        let spare = (0..IN_FLIGHT).map(|_| Entry::spare(ranks)).collect();
        let entries = VecDeque::with_capacity(IN_FLIGHT);
        Board { ranks, link, link_free_at: None, entries, first: 0, started: vec![0; ranks], spare }
    }

    /// Position of the collective that `rank` starts next.
    pub(super) fn next(&self, rank: usize) -> u64 {
        self.started[rank]
    }

    /// Puts a rank's region on the board. An error says that another rank has called something else.
    pub(super) fn start(
        &mut self,
        rank: usize,
        call: Call,
        region: Region,
    ) -> Result<Started, CommunicatorError> {
        let Call::Collective { operation, .. } = call else { unreachable!("{call} is no collective") };
        let position = self.started[rank];
        let index = (position - self.first) as usize;
        if index == self.entries.len() {
            let entry = self.spare.pop().unwrap_or_else(|| Entry::new(call, operation));
            self.entries.push_back(entry.reset(rank, call, operation, region.len(), self.ranks));
        }
        let entry = &mut self.entries[index];
        if entry.call != call {
            let (first_rank, first) = (entry.first_rank, entry.call);
            return Err(CommunicatorError::Mismatch { first_rank, first, second_rank: rank, second: call });
        }
        self.started[rank] += 1;
        entry.put_whole(rank, self.ranks, region);
        entry.arrived += 1;
        if entry.arrived < self.ranks {
            return Ok(Started::Early);
        }
        let parts = entry.parts;
        if let (Some(link), Call::Collective { operation, bytes, .. }) = (self.link, call) {
            let now = Instant::now();
            let begins = self.link_free_at.map_or(now, |free| free.max(now));
            self.link_free_at = Some(begins + link.duration(operation, bytes, self.ranks));
            entry.ends = self.link_free_at;
        }
        Ok(Started::Complete { parts })
    }

    /// Claims the oldest part that has not been done, moving every rank's region of it to `into`.
    pub(super) fn claim(&mut self, into: &mut Vec<Region>) -> Option<Claim> {
        let index = self.entries.iter().position(|entry| entry.is_ready(self.ranks))?;
        self.claim_at(self.first + index as u64, into)
    }

    /// Claims a part of the collective at `position`.
    pub(super) fn claim_at(&mut self, position: u64, into: &mut Vec<Region>) -> Option<Claim> {
        let entry = &mut self.entries[(position - self.first) as usize];
        if !entry.is_ready(self.ranks) {
            return None;
        }
        let part = entry.claimed;
        entry.claimed += 1;
        let regions = &mut entry.regions[part * self.ranks..][..self.ranks];
        into.extend(regions.iter_mut().map(|region| region.take().expect("a part is claimed once")));
        Some(Claim { position, part, operation: entry.operation })
    }

    /// Puts the regions of a claimed part back. Returns the position of its collective, if that is now done.
    pub(super) fn finish(&mut self, claim: &Claim, from: &mut Vec<Region>) -> Option<u64> {
        let entry = &mut self.entries[(claim.position - self.first) as usize];
        let regions = &mut entry.regions[claim.part * self.ranks..][..self.ranks];
        for (place, region) in regions.iter_mut().zip(from.drain(..)) {
            *place = Some(region);
        }
        entry.done += 1;
        (entry.done == entry.parts).then_some(claim.position)
    }

    /// How far the collective at `position` is.
    pub(super) fn progress(&self, position: u64) -> Progress {
        let entry = self.entry(position);
        if entry.arrived < self.ranks {
            return Progress::Missing;
        }
        match entry.ends.filter(|ends| Instant::now() < *ends) {
            Some(ends) => Progress::OnLink(ends),
            None if entry.done < entry.parts => Progress::Working,
            None => Progress::Done,
        }
    }

    /// The ranks that have not started the collective at `position`.
    pub(super) fn missing(&self, position: u64) -> impl Iterator<Item = usize> {
        (0..self.ranks).filter(move |rank| self.started[*rank] <= position)
    }

    /// Takes a rank's whole region out of a collective that is done.
    pub(super) fn take(&mut self, rank: usize, position: u64) -> Region {
        let index = (position - self.first) as usize;
        let entry = &mut self.entries[index];
        let region = entry.take_whole(rank, self.ranks);
        entry.taken += 1;
        while self.entries.front().is_some_and(|entry| entry.taken == self.ranks) {
            self.spare.extend(self.entries.pop_front());
            self.first += 1;
        }
        region
    }

    fn entry(&self, position: u64) -> &Entry {
        &self.entries[(position - self.first) as usize]
    }
}

impl Entry {
    fn new(call: Call, operation: Operation) -> Entry {
        let (first_rank, arrived, taken, parts, claimed, done) = (0, 0, 0, 0, 0, 0);
        let regions = Vec::new();
        Entry { call, operation, first_rank, arrived, taken, regions, parts, claimed, done, ends: None }
    }

    /// One with room for any collective.
    fn spare(ranks: usize) -> Entry {
        let operation = Operation::AllReduceSum;
        let call = Call::Collective { operation, tag: Tag(0), bytes: 0 };
        let regions = Vec::with_capacity(ranks * ranks.max(MAX_PARTS));
        Entry { regions, ..Entry::new(call, operation) }
    }

    fn reset(self, first_rank: usize, call: Call, operation: Operation, len: usize, ranks: usize) -> Entry {
        let parts = match operation {
            _ if ranks == 1 => 1,
            Operation::AllReduceSum => (len * size_of::<f32>() / PART_BYTES).clamp(1, MAX_PARTS),
            Operation::AllGather => ranks,
        };
        let mut regions = self.regions;
        regions.clear();
        // Room for any collective, so that an entry allocates the first time only.
        regions.reserve(ranks * ranks.max(MAX_PARTS));
        regions.resize_with(parts * ranks, || None);
        Entry { regions, parts, first_rank, ..Entry::new(call, operation) }
    }

    /// Whether there is a part to do.
    fn is_ready(&self, ranks: usize) -> bool {
        self.arrived == ranks && self.claimed < self.parts
    }

    /// Cuts a rank's region into the entry's parts.
    fn put_whole(&mut self, rank: usize, ranks: usize, region: Region) {
        let len = region.len();
        let mut rest = region;
        let mut begin = 0;
        for part in 1..self.parts {
            let end = self.cut(part, len);
            let (head, tail) = rest.split_at(end - begin);
            self.regions[(part - 1) * ranks + rank] = Some(head);
            (rest, begin) = (tail, end);
        }
        self.regions[(self.parts - 1) * ranks + rank] = Some(rest);
    }

    /// Where part `part` of `len` elements begins.
    fn cut(&self, part: usize, len: usize) -> usize {
        match self.operation {
            Operation::AllReduceSum => len * part / self.parts / LINE * LINE,
            Operation::AllGather => len / self.parts * part,
        }
    }

    /// Joins a rank's parts again.
    fn take_whole(&mut self, rank: usize, ranks: usize) -> Region {
        let parts = self.regions.iter_mut().skip(rank).step_by(ranks);
        let mut parts = parts.map(|region| region.take().expect("a result is taken once"));
        let first = parts.next().expect("a collective has a part");
        parts.fold(first, Region::join)
    }
}
