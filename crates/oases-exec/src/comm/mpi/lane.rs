//! One direction between two ranks for one collective: consecutive elements of a buffer, in small messages, in order.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;

use super::raw::{Buffer, Flight, Library, MpiError};

/// Elements of a message, 32 KiB. Libraries send messages of this size at once. Longer ones they announce first, and the
/// answer to an announcement waits behind the data that the kernel already holds for the same connection: with 512 KiB a 4 MiB
/// all-reduce at 1 Gbit/s takes 49 to 67 ms instead of 35 (`docs/LOG.md`).
pub(super) const MESSAGE: usize = 8 << 10;

/// Messages under way at a time.
const WINDOW: usize = 32;

/// Whether a lane brings elements or takes them away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Receive,
}

/// A part of a buffer on its way to, or from, one peer.
#[derive(Debug)]
pub(super) struct Lane {
    direction: Direction,
    /// The other rank.
    pub(super) peer: usize,
    tag: c_int,
    elements: Range<usize>,
    posted: usize,
    landed: usize,
    flights: VecDeque<Flight>,
}

impl Lane {
    pub(super) fn new(direction: Direction, peer: usize, tag: c_int, elements: Range<usize>) -> Lane {
        Lane {
            direction,
            peer,
            tag,
            elements,
            posted: 0,
            landed: 0,
            flights: VecDeque::with_capacity(WINDOW),
        }
    }

    /// Which way.
    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    /// How many elements, from the first, are done.
    pub(super) fn landed(&self) -> usize {
        self.landed
    }

    /// Whether every message has been handed to MPI.
    pub(super) fn is_posted(&self) -> bool {
        self.posted == self.elements.len()
    }

    /// Whether every message is done.
    pub(super) fn is_done(&self) -> bool {
        self.landed == self.elements.len()
    }

    /// Sees what is done, and posts what may be posted: the first `allowed` elements, which is a number of whole messages
    /// or at least all.
    pub(super) fn advance(
        &mut self,
        library: &Library,
        buffer: &mut Buffer,
        allowed: usize,
    ) -> Result<(), MpiError> {
        while let Some(flight) = self.flights.front() {
            if !buffer.landed(library, flight) {
                break;
            }
            self.flights.pop_front();
            self.landed = (self.landed + MESSAGE).min(self.elements.len());
        }
        let allowed = allowed.min(self.elements.len());
        while self.posted < allowed && self.flights.len() < WINDOW {
            let end = (self.posted + MESSAGE).min(self.elements.len());
            let elements = self.elements.start + self.posted..self.elements.start + end;
            let flight = match self.direction {
                Direction::Send => buffer.send(library, elements, self.peer, self.tag)?,
                Direction::Receive => buffer.receive(library, elements, self.peer, self.tag)?,
            };
            self.flights.push_back(flight);
            self.posted = end;
        }
        Ok(())
    }
}
