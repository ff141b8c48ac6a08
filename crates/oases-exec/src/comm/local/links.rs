//! The emulated links of all ranks: what they carry, and from when to when. Times are given, so that it needs no clock.

use std::collections::VecDeque;
use std::time::Instant;

use super::collective::{Collective, Transport};
use crate::comm::{Call, Link, Operation};

/// Collectives of a rank at once for which there is room from the beginning.
const QUEUED: usize = 64;

/// The links, as [`Link`] defines them.
#[derive(Debug)]
pub(super) struct Links {
    link: Link,
    ranks: Vec<RankLink>,
}

/// The link of one rank.
#[derive(Debug)]
struct RankLink {
    /// When the direction has carried all that it was given; nothing was given if there is no time.
    outgoing_free_at: Option<Instant>,
    incoming_free_at: Option<Instant>,
    /// Numbers of the group collectives that the rank has started and the links have not begun, in order.
    queue: VecDeque<u64>,
}

impl Links {
    pub(super) fn new(link: Link, ranks: usize) -> Links {
        let rank = || RankLink {
            outgoing_free_at: None,
            incoming_free_at: None,
            queue: VecDeque::with_capacity(QUEUED),
        };
        Links { link, ranks: (0..ranks).map(|_| rank()).collect() }
    }

    /// A rank starts something that the links have to carry.
    pub(super) fn enqueue(&mut self, rank: usize, collective: &Collective) {
        // A transfer needs no queue: those of one stream need the same directions, and have waited less.
        if let Call::Collective { .. } = collective.call {
            self.ranks[rank].queue.push_back(collective.number);
        }
    }

    /// Lets begin what can begin by `now`, in order of time.
    pub(super) fn advance(&mut self, collectives: &mut VecDeque<Collective>, now: Instant) {
        while let Some((begins, index)) = self.next(collectives)
            && begins <= now
        {
            self.carry(&mut collectives[index], begins);
        }
    }

    /// What begins next, if nothing else is started before: when, and its index. Of several, the one that has waited longest.
    fn next(&self, collectives: &VecDeque<Collective>) -> Option<(Instant, usize)> {
        let waiting = collectives.iter().enumerate().filter_map(|(index, collective)| {
            let Transport::Waiting(since) = collective.transport else { return None };
            Some((self.can_begin(collective, since)?, since, index))
        });
        waiting.min().map(|(begins, _, index)| (begins, index))
    }

    /// When anything begins next, if nothing else is started before.
    pub(super) fn next_begin(&self, collectives: &VecDeque<Collective>) -> Option<Instant> {
        self.next(collectives).map(|(begins, _)| begins)
    }

    /// When the directions it needs are free, unless something before it in a member's stream has not begun.
    fn can_begin(&self, collective: &Collective, since: Instant) -> Option<Instant> {
        let free_at = |at: Option<Instant>| at.unwrap_or(since);
        match collective.call {
            Call::Transfer { from, to, .. } => {
                let (from, to) = (&self.ranks[from], &self.ranks[to]);
                Some(since.max(free_at(from.outgoing_free_at)).max(free_at(to.incoming_free_at)))
            }
            _ => {
                let mut members = collective.members.ranks().map(|rank| &self.ranks[rank]);
                members.try_fold(since, |begins, member| {
                    let first = member.queue.front() == Some(&collective.number);
                    let free = free_at(member.outgoing_free_at).max(free_at(member.incoming_free_at));
                    first.then_some(begins.max(free))
                })
            }
        }
    }

    fn carry(&mut self, collective: &mut Collective, begins: Instant) {
        let duration = |operation, bytes| self.link.duration(operation, bytes, collective.members.size());
        let ends = match collective.call {
            Call::Transfer { from, to, bytes, .. } => {
                let ends = begins + duration(Operation::Send, bytes);
                self.ranks[from].outgoing_free_at = Some(ends);
                self.ranks[to].incoming_free_at = Some(ends);
                ends
            }
            Call::Collective { operation, bytes, .. } => {
                let ends = begins + duration(operation, bytes);
                for rank in collective.members.ranks() {
                    let member = &mut self.ranks[rank];
                    (member.outgoing_free_at, member.incoming_free_at) = (Some(ends), Some(ends));
                    member.queue.pop_front();
                }
                ends
            }
            Call::Host(_) => unreachable!("{} is not for the links", collective.call),
        };
        collective.transport = Transport::Until(ends);
    }

    /// The number of a collective that has to begin before a waiting one, by the order of some member.
    pub(super) fn before(&self, collective: &Collective) -> Option<u64> {
        if !matches!(
            (collective.call, collective.transport),
            (Call::Collective { .. }, Transport::Waiting(_))
        ) {
            return None;
        }
        let firsts = collective.members.ranks().filter_map(|rank| self.ranks[rank].queue.front().copied());
        firsts.into_iter().find(|first| *first != collective.number)
    }
}
