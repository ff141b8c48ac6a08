//! What can go wrong between ranks: always which rank, and in which call.

use std::fmt;
use std::time::Duration;

use oases_schedule::Grouping;

use super::{HostOperation, Operation, Tag};

/// A failure of a communicator. It is final: every later call on every rank returns it too.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommunicatorError {
    /// A rank gave up, panicked, or left.
    #[error("rank {failed} failed ({reason}) while rank {rank} was in {during}")]
    PeerFailed {
        /// The rank that failed.
        failed: usize,
        /// What it said, or what became of it.
        reason: String,
        /// The rank that reports this.
        rank: usize,
        /// What the reporting rank was waiting for.
        during: Call,
    },
    /// Some ranks did not come in time.
    #[error("rank {rank} timed out after {after:?} in {during}, waiting for {}", Ranks(waiting_for))]
    TimedOut {
        /// The rank that waited.
        rank: usize,
        /// What it waited in.
        during: Call,
        /// How long.
        after: Duration,
        /// The ranks that had not started it.
        waiting_for: Vec<usize>,
    },
    /// Ranks disagree on what the next call is.
    #[error("ranks disagree: rank {first_rank} called {first}, rank {second_rank} called {second}")]
    Mismatch {
        /// The rank that called first.
        first_rank: usize,
        /// Its call.
        first: Call,
        /// A rank whose call differs.
        second_rank: usize,
        /// That call.
        second: Call,
    },
    /// The start-up probe found that data does not arrive as it was sent.
    #[error(
        "rank {rank} got wrong data from {} in the probe's {operation}: \
         element {element} is {found} instead of {expected}",
        Senders(*from)
    )]
    WrongData {
        /// The rank that received.
        rank: usize,
        /// The rank that sent, where one alone is to blame.
        from: Option<usize>,
        /// The collective that was probed.
        operation: Operation,
        /// The first wrong element of the region.
        element: usize,
        /// What it should be.
        expected: f32,
        /// What it is.
        found: f32,
    },
}

/// A call that all ranks must make, each at the same place in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A collective on device memory.
    Collective {
        /// What is done.
        operation: Operation,
        /// Which ranks it joins.
        grouping: Grouping,
        /// The caller's name for it.
        tag: Tag,
        /// Size of each rank's region.
        bytes: usize,
    },
    /// A call for values of the host.
    Host(HostOperation),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Collective { operation, grouping, tag, bytes } => {
                write!(f, "{operation} {tag} of {bytes} B")?;
                match grouping {
                    Grouping::Whole => Ok(()),
                    Grouping::Cut { size, stride: 1 } => write!(f, " over groups of {size}"),
                    Grouping::Cut { size, stride } => write!(f, " over groups of {size}, {stride} apart"),
                }
            }
            Call::Host(operation) => operation.fmt(f),
        }
    }
}

/// Prints `rank 2` or `ranks 0, 2`.
struct Ranks<'a>(&'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (index, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Prints `rank 2` or `some rank`.
struct Senders(Option<usize>);

impl fmt::Display for Senders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "rank {rank}"),
            None => f.write_str("some rank"),
        }
    }
}
