//! Communicators: collectives of the ranks of a world, beside the computation.
//!
//! A rank hands a buffer to [`Communicator::start`], computes something else, and gets the buffer back from
//! [`Communicator::sync`]. The members of a [`Group`] start the same collectives of that group in the same order; if
//! they do not, or if one of them fails or stays away, every rank of the world gets a [`CommunicatorError`] within a
//! bounded time. Groups do not wait for each other: one may be many collectives ahead.
//!
//! What a rank starts runs first in, first out, in one stream for its group collectives and one for its transfers
//! to or from each other rank. A transfer is a rendezvous: it begins once both ends have started it.
//!
//! [`local`] joins the threads of one process, `mpi` (cargo feature) processes on one host or many. Values of the host (losses, messages, file names) travel by a
//! [`HostGroup`] between the same ranks.

mod error;
mod group;
mod host;
mod link;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
mod probe;

pub use error::{Call, CommunicatorError};
pub use group::Group;
pub use host::{HostGroup, HostOperation};
pub use link::Link;
pub use probe::probe;

use std::fmt;

use oases_schedule::CollectiveKind;

/// What a collective does with the regions of a group's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every region becomes the sum over all members, added in rank order.
    AllReduceSum,
    /// A region holds one slot per member in rank order, all equal in size, and comes with the rank's own slot
    /// filled; afterwards every slot is.
    AllGather,
    /// A region holds one slot per member in rank order, all equal in size; afterwards the rank's own slot holds the
    /// sum over all members, with the bits of an all-reduce. What the other slots hold then is not specified.
    ReduceScatterSum,
    /// The region goes to the other rank of a pair, which calls [`Operation::Receive`].
    Send,
    /// The region becomes what the other rank of a pair passes to [`Operation::Send`].
    Receive,
}

impl Operation {
    /// Whether regions hold one slot per member.
    pub fn has_slots(self) -> bool {
        matches!(self, Operation::AllGather | Operation::ReduceScatterSum)
    }

    /// Whether it is one end of a transfer between two ranks.
    pub fn is_transfer(self) -> bool {
        matches!(self, Operation::Send | Operation::Receive)
    }
}

impl From<CollectiveKind> for Operation {
    fn from(kind: CollectiveKind) -> Operation {
        match kind {
            CollectiveKind::AllReduce => Operation::AllReduceSum,
            CollectiveKind::AllGather => Operation::AllGather,
            CollectiveKind::ReduceScatter => Operation::ReduceScatterSum,
            CollectiveKind::Send => Operation::Send,
            CollectiveKind::Recv => Operation::Receive,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::AllReduceSum => "all-reduce",
            Operation::AllGather => "all-gather",
            Operation::ReduceScatterSum => "reduce-scatter",
            Operation::Send => "send",
            Operation::Receive => "receive",
        })
    }
}

/// A number by which the caller knows a collective again in an error, such as its index in the schedule. It
/// must be the same on all members: a collective under different tags means that they disagree on the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(pub u32);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The claim on a started collective's result.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a collective that is started must be synced"]
pub struct Ticket {
    number: u64,
    call: Call,
}

impl Ticket {
    /// For communicators: a ticket under a number by which they find the collective again.
    pub fn new(number: u64, call: Call) -> Ticket {
        Ticket { number, call }
    }

    /// The communicator's number for it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What was started.
    pub fn call(&self) -> Call {
        self.call
    }
}

/// One rank's end of a communicator. `R` is what the backend lends: [`Region`](crate::arena::Region) on the CPU.
pub trait Communicator<R> {
    /// This rank's number in the world, from 0.
    fn rank(&self) -> usize;

    /// The number of all ranks of the world.
    fn ranks(&self) -> usize;

    /// Enqueues a collective on `region` between the ranks of `group`, of which this rank is one; never waits for another
    /// rank. The group of a transfer is the pair of its ends.
    ///
    /// # Panics
    /// If this rank is no member of `group`, the world does not have all its ranks, or the region does not fall into one
    /// equal slot per member where the operation needs that.
    fn start(&mut self, operation: Operation, group: Group, tag: Tag, region: R) -> Ticket;

    /// Returns the region, once its result may be used (or, of a send, once it may be overwritten).
    ///
    /// After an error the communicator is of no more use, and the regions in flight are lost.
    fn sync(&mut self, ticket: Ticket) -> Result<R, CommunicatorError>;

    /// Ends the communicator on every rank: each pending or later [`Communicator::sync`] names this rank and
    /// `reason`.
    fn abort(&mut self, reason: &str);
}
