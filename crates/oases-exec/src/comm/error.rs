//! What can go wrong between ranks: always which rank, and in which call.

use std::fmt;
use std::time::Duration;

use super::{Group, HostOperation, Operation, Tag};

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

/// A call that all members of a group must make, each at the same place in the order of its calls to that group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A collective on device memory.
    Collective {
        /// What is done.
        operation: Operation,
        /// Which ranks it joins.
        group: Group,
        /// The caller's name for it.
        tag: Tag,
        /// Size of each member's region.
        bytes: usize,
    },
    /// A transfer of device memory from one rank to another: the same for the send and for the receive.
    Transfer {
        /// The world rank that sends.
        from: usize,
        /// The world rank that receives.
        to: usize,
        /// The caller's name for it.
        tag: Tag,
        /// Size of the region.
        bytes: usize,
    },
    /// A call for values of the host, by all ranks of the world.
    Host(HostOperation),
}

impl Call {
    /// What world rank `rank` calls by starting `operation` on a region of so many bytes.
    ///
    /// # Panics
    /// If the rank, one of `ranks`, cannot start that; see [`Communicator::start`](super::Communicator::start).
    pub fn starting(
        rank: usize,
        ranks: usize,
        operation: Operation,
        group: Group,
        tag: Tag,
        bytes: usize,
    ) -> Call {
        let sound = group.check(rank, ranks);
        let call = match operation {
            Operation::Send | Operation::Receive if sound.is_ok() => {
                assert_eq!(group.size, 2, "{operation} {tag}: a transfer has two ends, not {group}");
                let peer = group.ranks().find(|member| *member != rank).expect("two ranks that differ");
                let (from, to) = if operation == Operation::Send { (rank, peer) } else { (peer, rank) };
                Call::Transfer { from, to, tag, bytes }
            }
            _ => Call::Collective { operation, group, tag, bytes },
        };
        if let Err(why) = sound {
            panic!("{call}: {why}");
        }
        let elements = bytes / size_of::<f32>();
        let slots = !operation.has_slots() || elements.is_multiple_of(group.size());
        assert!(slots, "{call}: {elements} elements are not {} equal slots", group.size());
        call
    }

    /// The group whose members must all make it; all ranks make a call for values of the host.
    pub fn group(self) -> Option<Group> {
        match self {
            Call::Collective { group, .. } => Some(group),
            Call::Transfer { from, to, .. } => Some(Group::pair(from as u32, to as u32)),
            Call::Host(_) => None,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Collective { operation, group, tag, bytes } => {
                write!(f, "{operation} {tag} of {bytes} B over {group}")
            }
            Call::Transfer { from, to, tag, bytes } => {
                write!(f, "transfer {tag} of {bytes} B from rank {from} to rank {to}")
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
