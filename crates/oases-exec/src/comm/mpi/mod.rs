//! A communicator between processes, on one host or many, by the MPI library that this program was built with.
//!
//! MPI carries the messages; what is done with them is here. Its own collectives cannot be had in the background: nothing moves
//! unless the library is called, a call that blocks takes the processor from the computation, and Open MPI's immediate
//! all-reduce in place sends everything twice. So one communication thread per process
//! owns the library, cuts each collective into small messages, and sleeps between looks (`engine`). Sums are in
//! rank order (`flow`), so the results are those of ranks that are threads, bit for bit.
//!
//! **Faults.** Each rank tells the members of a collective that it has started it, so that ranks that disagree are told so, and
//! a rank that others wait for is known. Communication threads tell each other regularly that they live and whom their
//! rank waits for: a rank that is silent for the timeout, or that lets others wait that long, ends the run on all ranks, with its name.
//! A rank that does not come back from its computation then is ended with the whole job by `MPI_Abort`.

mod engine;
mod flow;
mod lane;
mod letter;
mod meeting;
mod peers;
mod raw;
mod shared;

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::engine::Engine;
use self::letter::Meeting;
use self::raw::Library;
use self::shared::{Request, Shared};
use super::{Call, Communicator, CommunicatorError, Group, HostGroup, HostOperation, Operation, Tag, Ticket};
use crate::arena::Region;

/// What messages are told apart by.
mod tags {
    use super::c_int;

    pub(super) const LETTER: c_int = 1;
    pub(super) const SCATTER: c_int = 2;
    pub(super) const GATHER: c_int = 3;
    pub(super) const TRANSFER: c_int = 4;
}

/// MPI could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot start MPI: {reason}")]
pub struct StartError {
    /// Why not, in the library's words.
    pub reason: String,
}

/// Joins this process to the ranks that it was started with. Once per process. `timeout` is how long a rank may keep the others
/// waiting.
pub fn join(timeout: Duration) -> Result<MpiCommunicator, StartError> {
    let shared = Arc::new(Shared::default());
    shared.lock().timeout = timeout;
    let (told, tells) = channel();
    let thread = {
        let shared = Arc::clone(&shared);
        move || match Library::initialize() {
            Ok(library) => {
                // The rank waits for this below.
                let _ = told.send(Ok((library.rank, library.ranks)));
                Engine::new(library, shared).run();
            }
            Err(error) => drop(told.send(Err(StartError { reason: error.to_string() }))),
        }
    };
    let failed = |reason: String| StartError { reason };
    let thread = thread::Builder::new()
        .name("communication".to_owned())
        .spawn(thread)
        .map_err(|error| failed(error.to_string()))?;
    let (rank, ranks) = tells.recv().map_err(|_| failed("its thread has ended".to_owned()))??;
    let member = Arc::new(Member { shared: Some(shared), rank, ranks, thread: Some(thread) });
    Ok(MpiCommunicator { member, next: 0 })
}

/// This process's membership. Dropped after a run that went well, it waits for the others and ends MPI.
#[derive(Debug)]
struct Member {
    /// Taken when it is dropped.
    shared: Option<Arc<Shared>>,
    rank: usize,
    ranks: usize,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    fn shared(&self) -> &Shared {
        self.shared.as_ref().expect("it is there until the drop")
    }

    fn fail_in_panic(&self) {
        if thread::panicking() {
            self.shared().ask(Request::Fail { reason: "panicked".to_owned() });
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        if shared.lock().failure.is_none() {
            shared.ask(Request::Meet { meeting: Meeting::End, value: Vec::new() });
            let call = Call::Host(HostOperation::Barrier);
            // Where another rank fails now, that rank says so.
            let _ = shared.wait(self.rank, call, None, |state| state.met.take());
        }
        // After a failure the thread sees by this that it may end.
        drop(shared);
        // A panic there has been told by its message.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// This process's end of the communicator.
///
/// Dropped in a panic, it fails the communicator on all ranks.
#[derive(Debug)]
pub struct MpiCommunicator {
    member: Arc<Member>,
    next: u64,
}

impl MpiCommunicator {
    /// A host group of the same ranks. The two fail together.
    pub fn host_group(&self) -> MpiHostGroup {
        MpiHostGroup { member: Arc::clone(&self.member) }
    }
}

impl Communicator<Region> for MpiCommunicator {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn ranks(&self) -> usize {
        self.member.ranks
    }

    fn start(&mut self, operation: Operation, group: Group, tag: Tag, region: Region) -> Ticket {
        let bytes = size_of_val::<[f32]>(&region);
        let call = Call::starting(self.rank(), self.ranks(), operation, group, tag, bytes);
        let number = self.next;
        self.next += 1;
        self.member.shared().ask(Request::Start { number, call, region });
        Ticket::new(number, call)
    }

    fn sync(&mut self, ticket: Ticket) -> Result<Region, CommunicatorError> {
        let (number, call) = (ticket.number(), ticket.call());
        let take = |state: &mut shared::State| state.done.remove(&number);
        self.member.shared().wait(self.member.rank, call, Some(number), take)
    }

    fn abort(&mut self, reason: &str) {
        self.member.shared().ask(Request::Fail { reason: reason.to_owned() });
    }
}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        self.member.fail_in_panic();
    }
}

/// This process's end of the host group.
#[derive(Debug)]
pub struct MpiHostGroup {
    member: Arc<Member>,
}

impl MpiHostGroup {
    /// From here on a rank may keep the others waiting so long.
    pub fn set_timeout(&self, timeout: Duration) {
        self.member.shared().lock().timeout = timeout;
    }

    /// Like [`Communicator::abort`] of this rank.
    pub fn abort(&self, reason: &str) {
        self.member.shared().ask(Request::Fail { reason: reason.to_owned() });
    }

    fn meet(&self, operation: HostOperation, value: Vec<u8>) -> Result<Vec<u8>, CommunicatorError> {
        let (shared, call) = (self.member.shared(), Call::Host(operation));
        shared.ask(Request::Meet { meeting: Meeting::Call(operation), value });
        shared.wait(self.member.rank, call, None, |state| state.met.take())
    }
}

impl HostGroup for MpiHostGroup {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn ranks(&self) -> usize {
        self.member.ranks
    }

    fn gather(&self, bytes: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, CommunicatorError> {
        let all = self.meet(HostOperation::Gather, bytes)?;
        Ok((self.member.rank == 0).then(|| meeting::unpack(&all)))
    }

    fn broadcast(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, CommunicatorError> {
        let bytes = match self.member.rank {
            0 => bytes.expect("rank 0 has the bytes to broadcast"),
            _ => Vec::new(),
        };
        self.meet(HostOperation::Broadcast, bytes)
    }

    fn barrier(&self) -> Result<(), CommunicatorError> {
        self.meet(HostOperation::Barrier, Vec::new()).map(drop)
    }
}

impl Drop for MpiHostGroup {
    fn drop(&mut self) {
        self.member.fail_in_panic();
    }
}
