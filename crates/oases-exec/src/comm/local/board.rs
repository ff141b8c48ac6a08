//! The board of a local communicator: which collectives its ranks have started, which parts of them are done,
//! and when the emulated links let go of them. Plain bookkeeping, without threads and without a clock; it is
//! kept under the communicator's lock.
//!
//! A collective stands on the board from its first member's start to its last one's taking. The members of a group
//! start its collectives in one order, so what a rank starts is the oldest of that group that it has not started. Hence
//! groups advance at their own speed. In the steady state nothing here allocates: memory is used again.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use super::collective::{Claim, Collective, Parts, Transport};
use super::links::Links;
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
    /// Per stage.
    orders: Vec<Order>,
    /// By number.
    collectives: VecDeque<Collective>,
    /// Number of the next one.
    next: u64,
    spare: Vec<Parts>,
    links: Option<Links>,
}

/// How far a collective is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Some members have not started it.
    Missing,
    /// The links have not begun to carry it. They next begin anything at this time, unless more is started before.
    Queued(Option<Instant>),
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
    /// For `stages` pipeline stages of as many neighbouring ranks each.
    pub(super) fn new(ranks: usize, stages: usize, link: Option<Link>) -> Board {
        let room = IN_FLIGHT * ranks.div_ceil(2);
        Board {
            ranks,
            orders: (0..stages).map(|_| Order::new(ranks / stages)).collect(),
            collectives: VecDeque::with_capacity(room),
            next: 0,
            spare: (0..room).map(|_| Parts::room(ranks)).collect(),
            links: link.map(|link| Links::new(link, ranks)),
        }
    }

    /// Puts a rank's region on the board. Returns the number of the collective; an error says that another rank has called
    /// something else.
    pub(super) fn start(
        &mut self,
        rank: usize,
        call: Call,
        region: Region,
        now: Instant,
    ) -> Result<(u64, Started), CommunicatorError> {
        let stage = rank / (self.ranks / self.orders.len());
        self.orders[stage].make(rank, call)?;
        let oldest =
            |collective: &Collective| same_stream(collective.call, call) && !collective.has_started(rank);
        let index = self.collectives.iter().position(oldest).unwrap_or_else(|| self.open(rank, call));
        let collective = &mut self.collectives[index];
        if collective.call != call {
            let (first_rank, first) = (collective.first_rank, collective.call);
            return Err(CommunicatorError::Mismatch { first_rank, first, second_rank: rank, second: call });
        }
        collective.put_whole(rank, region);
        let (number, complete, parts) = (collective.number, collective.is_complete(), collective.parts());
        if let Some(links) = &mut self.links
            && collective.transport != Transport::Unneeded
        {
            links.enqueue(rank, collective);
            if complete {
                collective.transport = Transport::Waiting(now);
                links.advance(&mut self.collectives, now);
            }
        }
        Ok((number, if complete { Started::Complete { parts } } else { Started::Early }))
    }

    /// Makes the collective that `rank` is the first to start, and returns its index.
    fn open(&mut self, rank: usize, call: Call) -> usize {
        let alone = call.group().is_some_and(|group| group.size == 1);
        let transport = if self.links.is_none() || alone { Transport::Unneeded } else { Transport::Early };
        let parts = self.spare.pop().unwrap_or_else(|| Parts::room(self.ranks));
        self.collectives.push_back(Collective::new(self.next, rank, call, transport, parts));
        self.next += 1;
        self.collectives.len() - 1
    }

    /// Claims the oldest part that has not been done, of any group, moving every member's region of it to
    /// `into`.
    pub(super) fn claim(&mut self, into: &mut Vec<Region>) -> Option<Claim> {
        self.collectives.iter_mut().find(|collective| collective.is_ready()).map(|ready| ready.claim(into))
    }

    /// Claims a part of one collective.
    pub(super) fn claim_of(&mut self, number: u64, into: &mut Vec<Region>) -> Option<Claim> {
        let index = self.index(number);
        let collective = &mut self.collectives[index];
        collective.is_ready().then(|| collective.claim(into))
    }

    /// Puts the regions of a claimed part back. Returns whether its collective is now done.
    pub(super) fn finish(&mut self, claim: &Claim, from: &mut Vec<Region>) -> bool {
        let index = self.index(claim.number);
        let collective = &mut self.collectives[index];
        collective.finish(claim, from);
        collective.is_done()
    }

    /// How far a collective is.
    pub(super) fn progress(&mut self, number: u64, now: Instant) -> Progress {
        if let Some(links) = &mut self.links {
            links.advance(&mut self.collectives, now);
        }
        let next_begin = || self.links.as_ref().and_then(|links| links.next_begin(&self.collectives));
        let collective = &self.collectives[self.index(number)];
        match collective.transport {
            _ if !collective.is_complete() => Progress::Missing,
            Transport::Waiting(_) => Progress::Queued(next_begin()),
            Transport::Until(ends) if now < ends => Progress::OnLink(ends),
            _ if !collective.is_done() => Progress::Working,
            _ => Progress::Done,
        }
    }

    /// The ranks that keep the members of a collective waiting: those that have not started it; if there are none, those that
    /// have not started what the links have to carry before.
    pub(super) fn missing(&self, number: u64) -> impl Iterator<Item = usize> {
        let mut index = self.index(number);
        // Ranks whose orders contradict each other would go round in a circle.
        for _ in 0..self.collectives.len() {
            let links = self.links.as_ref();
            let Some(before) = links.and_then(|links| links.before(&self.collectives[index])) else { break };
            index = self.index(before);
        }
        let collective = &self.collectives[index];
        collective.members.ranks().filter(|member| !collective.has_started(*member))
    }

    /// Takes a rank's whole region out of a collective that is done.
    pub(super) fn take(&mut self, rank: usize, number: u64) -> Region {
        let index = self.index(number);
        let collective = &mut self.collectives[index];
        let region = collective.take_whole(rank);
        if collective.is_over() {
            self.spare.extend(self.collectives.remove(index).map(Collective::into_parts));
        }
        region
    }

    /// Where a collective is that some member has not taken.
    fn index(&self, number: u64) -> usize {
        let found = self.collectives.binary_search_by_key(&number, |collective| collective.number);
        found.expect("a collective stays until its members have taken it")
    }
}

/// Whether the members make these two calls in one order: to one group, or from one rank to another.
fn same_stream(one: Call, other: Call) -> bool {
    match (one, other) {
        (Call::Collective { group, .. }, Call::Collective { group: other, .. }) => group == other,
        (Call::Transfer { from, to, .. }, Call::Transfer { from: other_from, to: other_to, .. }) => {
            (from, to) == (other_from, other_to)
        }
        _ => false,
    }
}
