//! Communicators: the collectives of a set of ranks, first in, first out, beside the computation.
//!
//! A rank hands a buffer to [`Communicator::start`], computes something else, and gets the buffer back from
//! [`Communicator::sync`]. All ranks of a communicator start the same collectives in the same order; if they do
//! not, or if one of them fails or stays away, every rank gets a [`CommunicatorError`] within a bounded time.
//!
//! A collective joins all ranks, or its [`Grouping`] cuts them into groups, each of which has a collective of
//! its own at that place of the order. Groups do not wait for each other: one may be several places ahead.
//!
//! [`local`] joins the threads of one process. Values of the host (losses, messages, file names) travel by a
//! [`HostGroup`] between the same ranks.

mod error;
mod host;
mod link;
pub mod local;
mod probe;

pub use error::{Call, CommunicatorError};
pub use host::{HostGroup, HostOperation};
pub use link::Link;
pub use probe::probe;

use std::fmt;

use oases_schedule::{CollectiveKind, Grouping};

/// What a collective does with the regions of a group's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every region becomes the sum over all members, added in rank order.
    AllReduceSum,
    /// A region holds one slot per member in rank order, all equal in size, and comes with the rank's own slot
    /// filled; afterwards every slot is.
    AllGather,
}

impl From<CollectiveKind> for Operation {
    fn from(kind: CollectiveKind) -> Operation {
        match kind {
            CollectiveKind::AllReduce => Operation::AllReduceSum,
            CollectiveKind::AllGather => Operation::AllGather,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::AllReduceSum => "all-reduce",
            Operation::AllGather => "all-gather",
        })
    }
}

/// A number by which the caller knows a collective again in an error, such as its index in the schedule. It
/// must be the same on all ranks: a collective under different tags means that the ranks disagree on the
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(pub u32);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The claim on a started collective's result: the call, and its position in the ranks' order.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a collective that is started must be synced"]
pub struct Ticket {
    position: u64,
    call: Call,
}

impl Ticket {
    /// For communicators: the ticket of collective number `position` in the ranks' order, counted from 0.
    pub fn new(position: u64, call: Call) -> Ticket {
        Ticket { position, call }
    }

    /// The collective's number in the ranks' order.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What was started.
    pub fn call(&self) -> Call {
        self.call
    }
}

/// One rank's end of a communicator. `R` is what the backend lends: [`Region`](crate::arena::Region) on the CPU.
pub trait Communicator<R> {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// The number of all ranks.
    fn ranks(&self) -> usize;

    /// Enqueues a collective on `region` between the ranks of this rank's group; never waits for another rank.
    ///
    /// # Panics
    /// If `grouping` does not fit the ranks, or the region of an all-gather is no whole number of slots.
    fn start(&mut self, operation: Operation, grouping: Grouping, tag: Tag, region: R) -> Ticket;

    /// Returns the region, once its result may be used.
    ///
    /// After an error the communicator is of no more use, and the regions in flight are lost.
    fn sync(&mut self, ticket: Ticket) -> Result<R, CommunicatorError>;

    /// Ends the communicator on every rank: each pending or later [`Communicator::sync`] names this rank and
    /// `reason`.
    fn abort(&mut self, reason: &str);
}
