//! The board of a local communicator: which collectives its ranks have started, which parts of them are done,
//! and when the emulated links let go of them. Plain bookkeeping, without threads and without a clock; it is
//! kept under the communicator's lock.
//!
//! All ranks make the same calls in the same [`Order`], but a collective stands on the board once for each
//! group, from the first member's start to the last one's taking. So groups that have no rank in common
//! advance at their own speed. In the steady state nothing here allocates: memory is used again.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use super::collective::{Claim, Collective, Parts, Transport};
use super::members::Members;
use super::order::Order;
use crate::arena::Region;
use crate::comm::{Call, CommunicatorError, Link};

/// Collectives under way at once, per pair of ranks, for which there is room from the beginning. (How many
/// there are depends on how far ranks are apart, so it could grow in any step.)
const IN_FLIGHT: usize = 32;

/// All collectives that a member has started and some member has not taken yet.
#[derive(Debug)]
pub(super) struct Board {
    ranks: usize,
    order: Order,
    /// By position in the order; at one position, groups have no rank in common.
    collectives: VecDeque<Collective>,
    spare: Vec<Parts>,
    link: Option<Link>,
    /// Per rank, when its link has carried all that it was given so far.
    link_free_at: Vec<Option<Instant>>,
}

/// How far a collective is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Some members have not started it.
    Missing,
    /// A link has to carry another one before, which some of its members have not started.
    Queued,
    /// It is on the links until then.
    OnLink(Instant),
    /// Its arithmetic is not finished.
    Working,
    /// Its results can be taken.
    Done,
}

/// What the start of a collective has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Started {
    /// Other members are yet to start it.
    Early,
    /// This was the last member.
    Complete {
        /// Parts to do.
        parts: usize,
    },
}

impl Board {
    pub(super) fn new(ranks: usize, link: Option<Link>) -> Board {
        let room = IN_FLIGHT * ranks.div_ceil(2);
        Board {
            ranks,
            order: Order::new(ranks),
            collectives: VecDeque::with_capacity(room),
            spare: (0..room).map(|_| Parts::room(ranks)).collect(),
            link,
            link_free_at: vec![None; ranks],
        }
    }

    /// Position of the collective that `rank` starts next.
    pub(super) fn next(&self, rank: usize) -> u64 {
        self.order.next(rank)
    }

    /// Puts a rank's region on the board. An error says that another rank has called something else.
    pub(super) fn start(
        &mut self,
        rank: usize,
        call: Call,
        region: Region,
        now: Instant,
    ) -> Result<Started, CommunicatorError> {
        let position = self.order.make(rank, call)?;
        let index = self.find(position, rank).unwrap_or_else(|| self.open(position, rank, call));
        let collective = &mut self.collectives[index];
        collective.put_whole(rank, region);
        if !collective.is_complete() {
            return Ok(Started::Early);
        }
        let parts = collective.parts();
        self.use_links(now);
        Ok(Started::Complete { parts })
    }

    /// Makes the collective of `rank`'s group at `position`.
    fn open(&mut self, position: u64, rank: usize, call: Call) -> usize {
        let Call::Collective { operation, grouping, bytes, .. } = call else {
            unreachable!("{call} is no collective")
        };
        let members = Members::of(rank, grouping, self.ranks);
        let transport = match self.link {
            Some(_) if members.size() > 1 => Transport::Queued,
            _ => Transport::Unneeded,
        };
        let parts = self.spare.pop().unwrap_or_else(|| Parts::room(self.ranks));
        let index = self.collectives.partition_point(|collective| collective.position <= position);
        let collective = Collective::new(position, members, operation, bytes, transport, parts);
        self.collectives.insert(index, collective);
        index
    }

    /// Gives the links what they can carry: each its collectives in order, one at a time, and each of those
    /// once all its members have started it.
    fn use_links(&mut self, now: Instant) {
        let Some(link) = self.link else { return };
        for index in 0..self.collectives.len() {
            let collective = &self.collectives[index];
            if !collective.waits_for_link() || self.queued_before(index).is_some() {
                continue;
            }
            let (members, collective) = (collective.members, &mut self.collectives[index]);
            let begins = members.ranks().filter_map(|rank| self.link_free_at[rank]).fold(now, Instant::max);
            let ends = begins + link.duration(collective.operation, collective.bytes, members.size());
            collective.transport = Transport::Until(ends);
            for rank in members.ranks() {
                self.link_free_at[rank] = Some(ends);
            }
        }
    }

    /// The first collective that a link has to carry before the one at `index`, if it has not begun.
    fn queued_before(&self, index: usize) -> Option<usize> {
        let members = self.collectives[index].members;
        self.collectives.iter().take(index).position(|collective| {
            collective.transport == Transport::Queued && collective.members.overlap(members)
        })
    }

    /// Claims the oldest part that has not been done, of any group, moving every member's region of it to
    /// `into`.
    pub(super) fn claim(&mut self, into: &mut Vec<Region>) -> Option<Claim> {
        self.collectives.iter_mut().find(|collective| collective.is_ready()).map(|ready| ready.claim(into))
    }

    /// Claims a part of the collective of `rank`'s group at `position`.
    pub(super) fn claim_at(&mut self, position: u64, rank: usize, into: &mut Vec<Region>) -> Option<Claim> {
        let index = self.index(position, rank);
        let collective = &mut self.collectives[index];
        collective.is_ready().then(|| collective.claim(into))
    }

    /// Puts the regions of a claimed part back. Returns whether its collective is now done.
    pub(super) fn finish(&mut self, claim: &Claim, from: &mut Vec<Region>) -> bool {
        let of_claim = |collective: &&mut Collective| {
            collective.position == claim.position && collective.members == claim.members
        };
        let collective =
            self.collectives.iter_mut().find(of_claim).expect("it is not over without this part");
        collective.finish(claim, from);
        collective.is_done()
    }

    /// How far the collective of `rank`'s group at `position` is.
    pub(super) fn progress(&self, position: u64, rank: usize, now: Instant) -> Progress {
        let collective = &self.collectives[self.index(position, rank)];
        match collective.transport {
            _ if !collective.is_complete() => Progress::Missing,
            Transport::Queued => Progress::Queued,
            Transport::Until(ends) if now < ends => Progress::OnLink(ends),
            _ if !collective.is_done() => Progress::Working,
            _ => Progress::Done,
        }
    }

    /// The ranks that keep `rank` waiting at `position`: members of its group there that have not started the
    /// collective; if there are none, members of the one for which the links wait.
    pub(super) fn missing(&self, position: u64, rank: usize) -> impl Iterator<Item = usize> {
        let mut index = self.index(position, rank);
        // Each step goes to an older one, so this ends.
        while self.collectives[index].waits_for_link()
            && let Some(before) = self.queued_before(index)
        {
            index = before;
        }
        let Collective { position, members, .. } = self.collectives[index];
        members.ranks().filter(move |member| !self.order.has_made(*member, position))
    }

    /// Takes a rank's whole region out of a collective that is done.
    pub(super) fn take(&mut self, rank: usize, position: u64) -> Region {
        let index = self.index(position, rank);
        let collective = &mut self.collectives[index];
        let region = collective.take_whole(rank);
        if collective.is_over() {
            self.spare.extend(self.collectives.remove(index).map(Collective::into_parts));
        }
        region
    }

    /// Where the collective of `rank`'s group at `position` is.
    fn find(&self, position: u64, rank: usize) -> Option<usize> {
        self.collectives
            .iter()
            .position(|collective| collective.position == position && collective.members.contains(rank))
    }

    /// Like [`Board::find`], for a collective that `rank` has started and not taken.
    fn index(&self, position: u64, rank: usize) -> usize {
        self.find(position, rank).expect("a collective stays until its members have taken it")
    }
}
