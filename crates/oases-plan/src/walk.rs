//! The walk of all stages through a step, event by event: a rank goes on to its next instruction, or a collective begins.

use std::collections::{BTreeMap, VecDeque};

use oases_schedule::CollectiveId;

use crate::error::Error;
use crate::links::Members;
use crate::rank::{Rank, Started};
use crate::time::{Interval, Nanoseconds};

/// Takes all ranks to their ends. Fails where none can go on.
pub(crate) fn walk(ranks: Vec<Rank<'_>>) -> Result<Vec<Rank<'_>>, Error> {
    let mut walk = Walk { ranks, channels: BTreeMap::new() };
    loop {
        let rank = walk.next_rank();
        // What could begin at the same time as a rank goes on began without it.
        match (walk.next_collective()?, rank) {
            (Some(ready), Some(stage)) if walk.ranks[stage].now < ready.begin => walk.advance(stage),
            (Some(ready), _) => walk.begin(ready),
            (None, Some(stage)) => walk.advance(stage),
            (None, None) => break,
        }
    }
    if walk.ranks.iter().all(Rank::is_done) { Ok(walk.ranks) } else { Err(walk.deadlock()) }
}

struct Walk<'a> {
    /// One for each stage.
    ranks: Vec<Rank<'a>>,
    /// Transfers that have not begun, by sender and receiver.
    channels: BTreeMap<[u32; 2], Channel>,
}

/// Transfers from one stage to another that have not begun, oldest first, by their places in `started` of the rank.
#[derive(Default)]
struct Channel {
    sent: VecDeque<usize>,
    received: VecDeque<usize>,
}

/// A collective that all of its stages have started and that is first in its queues.
struct Ready {
    /// When it can begin.
    begin: Nanoseconds,
    /// Since when it waits for a link.
    since: Nanoseconds,
    members: Members,
    /// Stage and place in `started` of each of its members; a sender before its receiver.
    places: Vec<(usize, usize)>,
}

impl Walk<'_> {
    /// The rank that goes on next.
    fn next_rank(&self) -> Option<usize> {
        let can = |stage: &usize| !self.ranks[*stage].is_done() && self.ranks[*stage].blocked_by().is_none();
        (0..self.ranks.len()).filter(can).min_by_key(|&stage| self.ranks[stage].now)
    }

    fn advance(&mut self, stage: usize) {
        let rank = &mut self.ranks[stage];
        let Some(place) = rank.advance() else { return };
        match rank.started[place].members {
            Members::Stage | Members::Stages(_) => rank.queue.push_back(place),
            Members::Transfer { from, to } => {
                let channel = self.channels.entry([from, to]).or_default();
                let end = if from as usize == stage { &mut channel.sent } else { &mut channel.received };
                end.push_back(place);
            }
        }
    }

    /// The collective that begins next, if none is started before: the earliest; of several, the one that has waited longest.
    fn next_collective(&self) -> Result<Option<Ready>, Error> {
        let queued = (0..self.ranks.len()).filter_map(|stage| self.queued(stage));
        let transfers =
            self.channels.iter().filter_map(|(ends, channel)| self.transfer(*ends, channel).transpose());
        let ready = transfers.collect::<Result<Vec<Ready>, Error>>()?;
        Ok(queued.chain(ready).min_by_key(|ready| (ready.begin, ready.since)))
    }

    /// The oldest group collective of a stage, if all its stages have come to it. One over several stages is the first one's.
    fn queued(&self, stage: usize) -> Option<Ready> {
        let first = self.oldest(stage)?;
        let members = first.members.clone();
        let stages = match &members {
            Members::Stages(stages) => stages.iter().map(|&stage| stage as usize).collect(),
            _ => vec![stage],
        };
        let joined = |&other: &usize| {
            self.oldest(other).is_some_and(|started| started.run.collective == first.run.collective)
        };
        if stages[0] != stage || !stages.iter().all(joined) {
            return None;
        }
        let places: Vec<(usize, usize)> =
            stages.iter().map(|&stage| (stage, self.ranks[stage].queue[0])).collect();
        let free = stages.iter().map(|&stage| self.ranks[stage].link.free()).max()?;
        Some(self.ready(members, places, free))
    }

    fn oldest(&self, stage: usize) -> Option<&Started> {
        self.ranks[stage].queue.front().map(|&place| &self.ranks[stage].started[place])
    }

    /// The oldest transfer of a channel, if both ends have started it.
    fn transfer(&self, [from, to]: [u32; 2], channel: &Channel) -> Result<Option<Ready>, Error> {
        let (Some(&sent), Some(&received)) = (channel.sent.front(), channel.received.front()) else {
            return Ok(None);
        };
        let places = vec![(from as usize, sent), (to as usize, received)];
        let [sends, receives] = [0, 1].map(|end| self.started(places[end]).run.collective);
        if sends != receives {
            return Err(Error::Deadlock {
                what: format!("stage {from} sends `{sends}` where stage {to} receives `{receives}`"),
            });
        }
        let free = self.ranks[from as usize].link.outgoing.max(self.ranks[to as usize].link.incoming);
        Ok(Some(self.ready(Members::Transfer { from, to }, places, free)))
    }

    fn started(&self, (stage, place): (usize, usize)) -> &Started {
        &self.ranks[stage].started[place]
    }

    fn ready(&self, members: Members, places: Vec<(usize, usize)>, free: Nanoseconds) -> Ready {
        let since = places.iter().map(|&place| self.started(place).since).max().unwrap_or_default();
        Ready { begin: since.max(free), since, members, places }
    }

    /// Puts a collective on the links of its members.
    fn begin(&mut self, Ready { begin, members, places, .. }: Ready) {
        let link = places.iter().map(|&place| self.started(place).link).max().unwrap_or_default();
        let on_link = Interval { start: begin, end: begin + link };
        for &(stage, place) in &places {
            self.ranks[stage].begin(place, on_link);
        }
        if let Members::Transfer { from, to } = members {
            self.ranks[from as usize].link.outgoing = on_link.end;
            self.ranks[to as usize].link.incoming = on_link.end;
            let channel = self.channels.get_mut(&[from, to]).expect("it comes from this channel");
            channel.sent.pop_front();
            channel.received.pop_front();
            return;
        }
        for (stage, _) in places {
            self.ranks[stage].link.occupy(on_link.end);
            self.ranks[stage].queue.pop_front();
        }
    }

    fn deadlock(&self) -> Error {
        let waits = self.ranks.iter().enumerate().filter_map(|(stage, rank)| {
            rank.blocked_by()
                .map(|collective: CollectiveId| format!("stage {stage} waits for `{collective}`"))
        });
        Error::Deadlock { what: waits.collect::<Vec<_>>().join(", ") }
    }
}
