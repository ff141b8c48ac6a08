//! Communicators: the collectives of a group of ranks, first in, first out, beside the computation.
//!
//! A rank hands a buffer to [`Communicator::start`], computes something else, and gets the buffer back from
//! [`Communicator::sync`]. All ranks of a group start the same collectives in the same order; if they do not,
//! or if one of them fails or stays away, every rank gets a [`CommunicatorError`] within a bounded time.
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

use oases_schedule::CollectiveKind;

/// What a collective does with the regions of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every region becomes the sum over all ranks, added in rank order.
    AllReduceSum,
    /// A region holds one slot per rank, all equal in size, and comes with the rank's own slot filled;
    /// afterwards every slot is.
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

/// The claim on a started collective's result: the call, and its position in the group's order.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a collective that is started must be synced"]
pub struct Ticket {
    position: u64,
    call: Call,
}

impl Ticket {
    /// For communicators: the ticket of the group's collective number `position`, counted from 0.
    pub fn new(position: u64, call: Call) -> Ticket {
        Ticket { position, call }
    }

    /// The collective's number in the group's order.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What was started.
    pub fn call(&self) -> Call {
        self.call
    }
}

/// One rank's end of a group. `R` is what the backend lends: [`Region`](crate::arena::Region) on the CPU.
pub trait Communicator<R> {
    /// This rank's number in the group, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks in the group.
    fn ranks(&self) -> usize;

    /// Enqueues a collective on `region`; never waits for another rank.
    fn start(&mut self, operation: Operation, tag: Tag, region: R) -> Ticket;

    /// Returns the region, once its result may be used.
    ///
    /// After an error the group is of no more use, and the regions in flight are lost.
    fn sync(&mut self, ticket: Ticket) -> Result<R, CommunicatorError>;

    /// Ends the group on every rank: each pending or later [`Communicator::sync`] names this rank and
    /// `reason`.
    fn abort(&mut self, reason: &str);
}
