//! The streams of a rank, which stands for all ranks of its stage.

use std::collections::VecDeque;

use oases_schedule::CollectiveId;

use crate::links::{Link, Members};
use crate::simulate::Charge;
use crate::time::{Interval, Nanoseconds};
use crate::timeline::CollectiveRun;

/// A collective that a rank has started.
#[derive(Clone, Debug)]
pub(crate) struct Started {
    pub run: CollectiveRun,
    /// When the rank came to it.
    pub since: Nanoseconds,
    /// How long it will be on the link.
    pub link: Nanoseconds,
    /// Whether it is on the link or has been: `run.on_link` is known.
    pub began: bool,
    pub members: Members,
}

/// A collective that has been started and not yet waited for.
struct InFlight {
    /// Its place in `started`.
    index: usize,
    collective: CollectiveId,
    arithmetic_left: Nanoseconds,
}

/// A rank on its way through its instructions.
pub(crate) struct Rank<'a> {
    charges: &'a [Charge],
    /// How many times longer computation takes under a collective.
    interference: f64,
    /// When the compute stream is free.
    pub now: Nanoseconds,
    pub link: Link,
    /// Group collectives that have not begun, oldest first, by their places in `started`.
    pub queue: VecDeque<usize>,
    pub started: Vec<Started>,
    pub exposed: Nanoseconds,
    pub instructions: Vec<Interval>,
    /// Oldest first.
    in_flight: Vec<InFlight>,
}

impl<'a> Rank<'a> {
    pub(crate) fn new(charges: &'a [Charge], interference: f64) -> Rank<'a> {
        Rank {
            charges,
            interference,
            now: Nanoseconds::ZERO,
            link: Link::default(),
            queue: VecDeque::new(),
            started: Vec::new(),
            exposed: Nanoseconds::ZERO,
            instructions: Vec::with_capacity(charges.len()),
            in_flight: Vec::new(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.instructions.len() == self.charges.len()
    }

    /// The collective that keeps it from going on: the next instruction waits for it, and it has not begun.
    pub(crate) fn blocked_by(&self) -> Option<CollectiveId> {
        let Charge::Sync(collective) = self.charges.get(self.instructions.len())? else { return None };
        (!self.started[self.in_flight[self.waited_for(*collective)].index].began).then_some(*collective)
    }

    /// Executes the next instruction. Returns the place in `started` of what it starts.
    pub(crate) fn advance(&mut self) -> Option<usize> {
        let (index, began, charges) = (self.instructions.len(), self.now, self.charges);
        let mut new = None;
        match &charges[index] {
            Charge::Compute(duration) => {
                let busy = self.busy_until() - self.now;
                self.now += stretched(*duration, busy, self.interference);
            }
            Charge::Start { collective, kind, bytes, time, members } => {
                let place = self.started.len();
                let in_flight =
                    InFlight { index: place, collective: *collective, arithmetic_left: time.host };
                self.in_flight.push(in_flight);
                let run = CollectiveRun {
                    collective: *collective,
                    kind: *kind,
                    bytes: *bytes,
                    start_instruction: index,
                    sync_instruction: index,
                    on_link: Interval::default(),
                };
                let (since, link, members) = (self.now, time.link, members.clone());
                self.started.push(Started { run, since, link, began: false, members });
                new = Some(place);
            }
            Charge::Sync(collective) => {
                let place = self.wait(*collective);
                self.started[place].run.sync_instruction = index;
                self.exposed += self.now - began;
            }
        }
        self.instructions.push(Interval { start: began, end: self.now });
        new
    }

    /// Puts a collective on the link, for as long as the slowest of its members takes.
    pub(crate) fn begin(&mut self, place: usize, on_link: Interval) {
        let started = &mut self.started[place];
        started.began = true;
        started.run.on_link = on_link;
    }

    /// Until when the link will be busy with what has begun and what only waits for that.
    fn busy_until(&self) -> Nanoseconds {
        let queued = self.queue.iter().map(|&place| &self.started[place]);
        let own = queued.take_while(|started| started.members == Members::Stage);
        own.fold(self.link.free(), |until, started| until.max(started.since) + started.link)
    }

    fn waited_for(&self, collective: CollectiveId) -> usize {
        let own = self.in_flight.iter().position(|entry| entry.collective == collective);
        own.unwrap_or_else(|| panic!("`sync {collective}` without its start was planned"))
    }

    /// Waits for a collective that has begun, and returns its place in `started`.
    fn wait(&mut self, collective: CollectiveId) -> usize {
        let own = self.waited_for(collective);
        let place = self.in_flight[own].index;
        let link_end = self.started[place].run.on_link.end;
        loop {
            let rest = link_end - self.now;
            let own_left = self.in_flight[own].arithmetic_left;
            if rest == Nanoseconds::ZERO && own_left == Nanoseconds::ZERO {
                break;
            }
            let oldest = self.in_flight.iter_mut().find(|entry| entry.arithmetic_left > Nanoseconds::ZERO);
            let Some(InFlight { arithmetic_left, .. }) = oldest else {
                self.now = link_end;
                break;
            };
            // Arithmetic of others only fills the wait; its own, and what stands before it, is needed in any case.
            let worked =
                if own_left == Nanoseconds::ZERO { rest.min(*arithmetic_left) } else { *arithmetic_left };
            *arithmetic_left = *arithmetic_left - worked;
            self.now += worked;
        }
        self.in_flight.remove(own);
        place
    }
}

/// What a computation of `duration` takes that begins while the communication stream is busy for `busy` more: until then it
/// advances `interference` times slower. What other stages start meanwhile does not count.
pub(crate) fn stretched(duration: Nanoseconds, busy: Nanoseconds, interference: f64) -> Nanoseconds {
    if busy == Nanoseconds::ZERO || interference <= 1.0 {
        return duration;
    }
    let under = duration.0 as f64 * interference;
    if under <= busy.0 as f64 {
        return Nanoseconds(under.round() as u64);
    }
    let advanced = Nanoseconds((busy.0 as f64 / interference).round() as u64);
    busy + (duration - advanced)
}
