//! What a rank's thread and its communication thread share: requests one way, results the other.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::letter::Meeting;
use crate::arena::Region;
use crate::comm::{Call, CommunicatorError};

/// What the rank asks for.
#[derive(Debug)]
pub(super) enum Request {
    Start { number: u64, call: Call, region: Region },
    Meet { meeting: Meeting, value: Vec<u8> },
    Fail { reason: String },
}

/// What the communicator has failed of.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// A rank is gone.
    Peer { failed: usize, reason: String },
    /// Anything else.
    Error(CommunicatorError),
}

/// What the rank waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) since: Instant,
    pub(super) call: Call,
    /// The number of the ticket, of a collective.
    pub(super) number: Option<u64>,
}

/// All of it, under one lock.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) requests: Vec<Request>,
    pub(super) done: BTreeMap<u64, Region>,
    pub(super) met: Option<Vec<u8>>,
    pub(super) waiting: Option<Waiting>,
    pub(super) failure: Option<Failure>,
    /// How long a rank may keep the others waiting.
    pub(super) timeout: Duration,
}

/// The state and its two bells.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    for_engine: Condvar,
    for_rank: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between statements: nothing under the lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request over.
    pub(super) fn ask(&self, request: Request) {
        self.lock().requests.push(request);
        self.for_engine.notify_one();
    }

    /// Waits on the rank's thread until `take` finds what it looks for, or the communicator has failed. `call` and `number`
    /// say what for.
    pub(super) fn wait<T>(
        &self,
        rank: usize,
        call: Call,
        number: Option<u64>,
        take: impl Fn(&mut State) -> Option<T>,
    ) -> Result<T, CommunicatorError> {
        let mut state = self.lock();
        loop {
            if let Some(found) = take(&mut state) {
                state.waiting = None;
                return Ok(found);
            }
            if let Some(failure) = &state.failure {
                return Err(match failure.clone() {
                    Failure::Peer { failed, reason } => {
                        CommunicatorError::PeerFailed { failed, reason, rank, during: call }
                    }
                    Failure::Error(error) => error,
                });
            }
            if state.waiting.is_none() {
                state.waiting = Some(Waiting { since: Instant::now(), call, number });
                self.for_engine.notify_one();
            }
            state = self.for_rank.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes the rank's thread.
    pub(super) fn wake_rank(&self) {
        self.for_rank.notify_all();
    }

    /// Lets the communication thread sleep until there is something to do, or the pause is over.
    pub(super) fn pause(&self, pause: Duration) {
        let state = self.lock();
        if state.requests.is_empty() {
            drop(self.for_engine.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
