//! A collective under way: the lanes it consists of, and the sums between them.
//!
//! An all-reduce is a reduce-scatter and an all-gather: each member owns one slot of the region, gets the others' shares
//! of it, adds in rank order, and sends the sum back. Both halves go on at once, message by message. With `n` members and `S`
//! bytes each rank sends `2(n-1)/n · S`, the least that is possible, and the bits are those of ranks that are threads.

use std::ops::Range;

use super::lane::{Direction, Lane};
use super::raw::{Buffer, Library, MpiError};
use super::tags;
use crate::arena::Region;
use crate::comm::{Call, Group, Operation};

/// Elements that are summed at a time.
const TILE: usize = 1024;

/// More than any lane has.
const ALL: usize = usize::MAX;

/// A collective or a transfer that this rank has started.
#[derive(Debug)]
pub(super) struct Flow {
    /// The ticket's number.
    pub(super) number: u64,
    /// What was started.
    pub(super) call: Call,
    /// The other ranks that it joins, each with how many calls of this stream this rank had started before with it.
    pub(super) peers: Vec<(usize, u64)>,
    region: Buffer,
    sum: Option<Sum>,
    /// The own slot to every peer, and each peer's slot from it; or a transfer.
    gather: Vec<Lane>,
}

/// The first half of a collective with a sum.
#[derive(Debug)]
struct Sum {
    /// This rank's place among the members.
    place: usize,
    /// The elements of the region that this rank sums.
    slot: Range<usize>,
    /// The peers' shares of them, one behind the other.
    shares: Buffer,
    sends: Vec<Lane>,
    receives: Vec<Lane>,
    reduced: usize,
}

impl Flow {
    /// What world rank `rank` does for `call` on `region`. `peers` are the other members in rank order.
    pub(super) fn new(
        number: u64,
        call: Call,
        rank: usize,
        region: Region,
        peers: Vec<(usize, u64)>,
        scratch: Vec<f32>,
    ) -> Flow {
        let region = Buffer::lent(region);
        let (mut sum, mut gather) = (None, Vec::new());
        match call {
            Call::Collective { operation, group, .. } => {
                let slots = Slots { group, len: region.len() };
                if operation != Operation::AllGather {
                    sum = Some(Sum::new(slots, rank, scratch));
                }
                if operation != Operation::ReduceScatterSum {
                    for peer in slots.peers(rank) {
                        gather.push(Lane::new(Direction::Send, peer, tags::GATHER, slots.of(rank)));
                        gather.push(Lane::new(Direction::Receive, peer, tags::GATHER, slots.of(peer)));
                    }
                }
            }
            Call::Transfer { from, to, .. } => {
                let (direction, peer) =
                    if from == rank { (Direction::Send, to) } else { (Direction::Receive, from) };
                gather.push(Lane::new(direction, peer, tags::TRANSFER, 0..region.len()));
            }
            Call::Host(_) => unreachable!("a call for host values has no region"),
        }
        Flow { number, call, peers, region, sum, gather }
    }

    /// Moves on as far as it goes now.
    pub(super) fn advance(&mut self, library: &Library) -> Result<(), MpiError> {
        if let Some(sum) = &mut self.sum {
            sum.advance(library, &mut self.region)?;
        }
        for (index, lane) in self.gather.iter_mut().enumerate() {
            let allowed = match (&self.sum, lane.direction()) {
                (None, _) => ALL,
                (Some(sum), Direction::Send) => sum.reduced,
                // What this rank sends of the peer's slot must have left before the sum takes its place.
                (Some(sum), Direction::Receive) => sum.sends[index / 2].landed(),
            };
            lane.advance(library, &mut self.region, allowed)?;
        }
        Ok(())
    }

    /// Whether the next of its stream may begin: all of this one is in MPI's hands, in the order of the stream.
    pub(super) fn is_posted(&self) -> bool {
        self.lanes().all(Lane::is_posted)
    }

    /// Whether the result is there.
    pub(super) fn is_done(&self) -> bool {
        let summed = self.sum.as_ref().is_none_or(|sum| sum.reduced == sum.slot.len());
        summed && self.lanes().all(Lane::is_done)
    }

    /// The ranks whose messages are missing.
    pub(super) fn missing(&self) -> Vec<usize> {
        let mut missing: Vec<usize> =
            self.lanes().filter(|lane| !lane.is_done()).map(|lane| lane.peer).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// The region, and room for the next.
    ///
    /// # Panics
    /// Unless it is done.
    pub(super) fn into_region(self) -> (Region, Vec<f32>) {
        assert!(self.is_done(), "{} is given back before it is done", self.call);
        let room = self.sum.map_or_else(Vec::new, |sum| sum.shares.into_scratch());
        (self.region.into_region(), room)
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        let halves = self.sum.iter().flat_map(|sum| sum.sends.iter().chain(&sum.receives));
        halves.chain(&self.gather)
    }
}

impl Sum {
    fn new(slots: Slots, rank: usize, mut scratch: Vec<f32>) -> Sum {
        let slot = slots.of(rank);
        let share = |index: usize| index * slot.len()..(index + 1) * slot.len();
        let lanes = |lane: &dyn Fn((usize, usize)) -> Lane| slots.peers(rank).enumerate().map(lane).collect();
        let sends: Vec<Lane> =
            lanes(&|(_, peer)| Lane::new(Direction::Send, peer, tags::SCATTER, slots.of(peer)));
        let receives =
            lanes(&|(index, peer)| Lane::new(Direction::Receive, peer, tags::SCATTER, share(index)));
        let room = slot.len() * sends.len();
        if scratch.len() < room {
            scratch.resize(room, 0.0);
        }
        let place = slots.place(rank);
        Sum { place, slot, shares: Buffer::scratch(scratch), sends, receives, reduced: 0 }
    }

    fn advance(&mut self, library: &Library, region: &mut Buffer) -> Result<(), MpiError> {
        for lane in &mut self.receives {
            lane.advance(library, &mut self.shares, ALL)?;
        }
        for lane in &mut self.sends {
            lane.advance(library, region, ALL)?;
        }
        let arrived = self.receives.iter().map(Lane::landed).min().unwrap_or(self.slot.len());
        while self.reduced < arrived {
            let end = (self.reduced + TILE).min(arrived);
            self.add(region, self.reduced..end);
            self.reduced = end;
        }
        Ok(())
    }

    /// Sums a tile of the slot over all members, in rank order.
    fn add(&mut self, region: &mut Buffer, tile: Range<usize>) {
        let own = region.write(self.slot.start + tile.start..self.slot.start + tile.end);
        let share = |index: usize| {
            let start = index * self.slot.len();
            self.shares.read(start + tile.start..start + tile.end)
        };
        if self.receives.len() == 1 {
            // With two terms the order does not matter.
            return own.iter_mut().zip(share(0)).for_each(|(own, share)| *own += share);
        }
        let mut room = [0.0; TILE];
        let sum = &mut room[..tile.len()];
        for place in 0..=self.receives.len() {
            let term = match place.cmp(&self.place) {
                std::cmp::Ordering::Less => share(place),
                std::cmp::Ordering::Equal => &*own,
                std::cmp::Ordering::Greater => share(place - 1),
            };
            if place == 0 {
                sum.copy_from_slice(term);
            } else {
                sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
            }
        }
        own.copy_from_slice(sum);
    }
}

/// How a region is shared out among the members of a group.
#[derive(Clone, Copy, Debug)]
struct Slots {
    group: Group,
    len: usize,
}

impl Slots {
    fn place(self, rank: usize) -> usize {
        self.group.place(rank).expect("a rank starts collectives of its own groups")
    }

    fn of(self, rank: usize) -> Range<usize> {
        let (place, size) = (self.place(rank), self.group.size());
        self.len * place / size..self.len * (place + 1) / size
    }

    fn peers(self, rank: usize) -> impl Iterator<Item = usize> {
        self.group.ranks().filter(move |peer| *peer != rank)
    }
}
