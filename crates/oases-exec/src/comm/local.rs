//! A communicator whose ranks are threads of one process.
//!
//! Ranks put their regions on a shared board. Once all members of a group have started a collective, its parts
//! can be done, and whoever has time does them, in the group or not: a rank whose [`sync`](Communicator::sync)
//! would wait, a communication thread on a processor to spare, or, for a small collective, the member that
//! started it last. An emulated [`Link`] of each rank adds a time before which `sync` does not return; threads
//! that wait for it do the arithmetic meanwhile.
//!
//! There is no communication thread for every rank, because the arithmetic needs a processor wherever it is
//! done. With as many ranks as processors such a thread would take one from a rank that computes: measured
//! (`examples/all_reduce.rs`), it saves nothing. The overlap does not depend on it, for the link's time
//! passes while ranks compute. Neither do results: sums are in rank order, element by element.

mod board;
mod collective;
mod host;
mod links;
mod order;
mod reduce;
mod shared;
#[cfg(test)]
mod tests;

pub use host::LocalHostGroup;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::shared::Shared;
use super::{Call, Communicator, CommunicatorError, Group, Link, Operation, Tag, Ticket};
use crate::arena::Region;

/// How a local communicator behaves.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// A network to emulate; without one, collectives are as fast as memory.
    pub link: Option<Link>,
    /// How long a rank waits for the others to make the same call before all of them fail.
    pub timeout: Duration,
    /// Threads that do arithmetic beside the ranks' own; by default one for each processor that no rank
    /// needs, at most one per rank.
    pub communication_threads: Option<usize>,
    /// Into how many pipeline stages of neighbouring ranks the world falls. The ranks of a stage run one schedule, so that
    /// any difference between their calls is an error at once.
    pub stages: usize,
}

impl Default for LocalOptions {
    fn default() -> LocalOptions {
        LocalOptions { link: None, timeout: Duration::from_secs(60), communication_threads: None, stages: 1 }
    }
}

impl LocalOptions {
    fn threads_for(&self, ranks: usize) -> usize {
        let spare =
            || thread::available_parallelism().map_or(0, |processors| processors.get().saturating_sub(ranks));
        match ranks {
            1 => 0,
            _ => self.communication_threads.unwrap_or_else(spare).min(ranks),
        }
    }
}

/// Makes a communicator between `ranks` ranks: one end for each rank's thread, in rank order.
///
/// # Panics
/// If `ranks` is 0, or does not fall into the stages.
pub fn group(ranks: usize, options: LocalOptions) -> Vec<LocalCommunicator> {
    assert!(ranks > 0, "a communicator has at least one rank");
    let stages = options.stages;
    assert!(ranks.is_multiple_of(stages), "{ranks} ranks do not fall into {stages} stages of one size");
    let shared = Arc::new(Shared::new(ranks, &options));
    let threads = 0..options.threads_for(ranks);
    let threads = Arc::new(threads.filter_map(|index| CommunicationThread::spawn(index, &shared)).collect());
    let communicator = |rank| LocalCommunicator {
        member: Arc::new(Member { shared: Arc::clone(&shared), rank }),
        work: Vec::with_capacity(ranks),
        _threads: Arc::clone(&threads),
    };
    (0..ranks).map(communicator).collect()
}

/// One rank's end of a local communicator.
///
/// Dropped in a panic, it fails the communicator. Dropped otherwise, it leaves: what it has started stays valid for
/// the others, and what it has not started is an error for them.
#[derive(Debug)]
pub struct LocalCommunicator {
    member: Arc<Member>,
    /// Room for the regions of a part, so that a collective allocates nothing.
    work: Vec<Region>,
    /// Joined by the last rank.
    _threads: Arc<Vec<CommunicationThread>>,
}

impl LocalCommunicator {
    /// This rank's end of a host group between the same ranks. The two fail together.
    pub fn host_group(&self) -> LocalHostGroup {
        LocalHostGroup { member: Arc::clone(&self.member) }
    }

    /// Lets a supervisor end the communicator in this rank's name.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { shared: Arc::clone(&self.member.shared), rank: self.member.rank }
    }
}

impl Communicator<Region> for LocalCommunicator {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn ranks(&self) -> usize {
        self.member.shared.ranks
    }

    fn start(&mut self, operation: Operation, group: Group, tag: Tag, region: Region) -> Ticket {
        let Member { shared, rank } = &*self.member;
        let bytes = size_of_val::<[f32]>(&region);
        let call = Call::starting(*rank, shared.ranks, operation, group, tag, bytes);
        shared.start(*rank, call, region, &mut self.work)
    }

    fn sync(&mut self, ticket: Ticket) -> Result<Region, CommunicatorError> {
        self.member.shared.sync(self.member.rank, &ticket, &mut self.work)
    }

    fn abort(&mut self, reason: &str) {
        self.abort_handle().abort(reason);
    }
}

impl Drop for LocalCommunicator {
    fn drop(&mut self) {
        self.member.fail_in_panic();
        self.member.shared.leave(self.member.rank);
    }
}

/// Ends a communicator on all ranks, from any thread.
#[derive(Clone, Debug)]
pub struct AbortHandle {
    shared: Arc<Shared>,
    rank: usize,
}

impl AbortHandle {
    /// Like [`Communicator::abort`] of the rank whose handle this is.
    pub fn abort(&self, reason: &str) {
        self.shared.fail_rank(&mut self.shared.lock(), self.rank, reason);
    }
}

/// A rank's membership, which ends when its last handle is dropped.
#[derive(Debug)]
struct Member {
    shared: Arc<Shared>,
    rank: usize,
}

impl Member {
    /// Fails the communicator if a handle is dropped because its thread panics.
    fn fail_in_panic(&self) {
        if thread::panicking() {
            self.shared.fail_rank(&mut self.shared.lock(), self.rank, "panicked");
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.leave_for_good(self.rank);
    }
}

/// A thread that does parts of collectives until the communicator ends, when dropping it waits for it.
#[derive(Debug)]
struct CommunicationThread(Option<JoinHandle<()>>);

impl CommunicationThread {
    fn spawn(index: usize, shared: &Arc<Shared>) -> Option<CommunicationThread> {
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().name(format!("communication {index}"));
        // Without it the ranks do its share.
        let thread = thread.spawn(move || shared.work_until_the_end()).ok()?;
        Some(CommunicationThread(Some(thread)))
    }
}

impl Drop for CommunicationThread {
    fn drop(&mut self) {
        // All ranks have left, so nobody is left to hear of a panic in it.
        let _ = self.0.take().map(JoinHandle::join);
    }
}
