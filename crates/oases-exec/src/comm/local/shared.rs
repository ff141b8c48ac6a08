//! What the threads of a local communicator share: the board under one lock, who waits for what, and whether
//! it has failed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::LocalOptions;
use super::board::{Board, Progress, Started};
use super::collective::Claim;
use super::host::HostBoard;
use crate::arena::Region;
use crate::comm::{Call, CommunicatorError, Group, Ticket};

/// A timeout that can be added to any time.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The number of what was not started, for the communicator has failed.
const NO_NUMBER: u64 = u64::MAX;

/// A communicator, shared by the handles of all its ranks and by its communication threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) ranks: usize,
    pub(super) timeout: Duration,
    state: Mutex<State>,
    /// One per rank, to wake exactly those that have something to do.
    rank_wakes: Vec<Condvar>,
    thread_wake: Condvar,
    host_wake: Condvar,
}

/// Everything under the lock.
#[derive(Debug)]
pub(super) struct State {
    board: Board,
    pub(super) host: HostBoard,
    /// Set once; from then on every call returns it.
    failure: Option<Failure>,
    /// Per rank, why its `sync` is asleep.
    asleep: Vec<Asleep>,
    /// Communication threads with nothing to do.
    idle_threads: usize,
    /// Ranks that will start no more collectives.
    left: Vec<bool>,
    /// Ranks that will make no more calls at all.
    pub(super) left_for_good: Vec<bool>,
}

/// Why a rank's `sync` is asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asleep {
    No,
    /// Until the collective of this number is started by all members, then until it is done.
    For(u64),
    /// Until the link begins to carry its collective.
    Queued,
    /// Until the link has carried its collective.
    OnLink,
}

/// Why a communicator is of no more use.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// A rank is gone.
    Peer { failed: usize, reason: String },
    /// Anything else, the same for every rank.
    Error(CommunicatorError),
}

type Guard<'a> = MutexGuard<'a, State>;

impl State {
    /// An error if the communicator has failed, as `rank` sees it.
    pub(super) fn alive(&self, rank: usize, during: Call) -> Result<(), CommunicatorError> {
        match self.failure.clone() {
            None => Ok(()),
            Some(Failure::Peer { failed, reason }) => {
                Err(CommunicatorError::PeerFailed { failed, reason, rank, during })
            }
            Some(Failure::Error(error)) => Err(error),
        }
    }
}

impl Shared {
    pub(super) fn new(ranks: usize, options: &LocalOptions) -> Shared {
        let state = State {
            board: Board::new(ranks, options.stages, options.link),
            host: HostBoard::new(ranks),
            failure: None,
            asleep: vec![Asleep::No; ranks],
            idle_threads: 0,
            left: vec![false; ranks],
            left_for_good: vec![false; ranks],
        };
        Shared {
            ranks,
            timeout: options.timeout.min(FOREVER),
            state: Mutex::new(state),
            rank_wakes: (0..ranks).map(|_| Condvar::new()).collect(),
            thread_wake: Condvar::new(),
            host_wake: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        // The state is as good after a panic under the lock as before: the panicking rank fails them all.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a collective on the board. The last member to start a small one does it on the spot, which takes
    /// less time than to wake another thread.
    pub(super) fn start(&self, rank: usize, call: Call, region: Region, work: &mut Vec<Region>) -> Ticket {
        let mut state = self.lock();
        if state.failure.is_some() {
            return Ticket::new(NO_NUMBER, call);
        }
        let (number, started) = match state.board.start(rank, call, region, Instant::now()) {
            Ok(started) => started,
            Err(mismatch) => {
                self.fail(&mut state, Failure::Error(mismatch));
                return Ticket::new(NO_NUMBER, call);
            }
        };
        if let Started::Complete { parts } = started {
            // Other collectives may have waited for the links behind this one.
            self.wake_ranks(&state, |asleep| asleep == Asleep::Queued);
            if parts == 1 {
                let claim = state.board.claim_of(number, work);
                drop(self.finish(state, claim.expect("nobody else knows of it yet"), work));
            } else {
                self.offer_work(&state, parts);
            }
        }
        Ticket::new(number, call)
    }

    /// Waits for a collective. A rank that would wait does parts of collectives meanwhile, its own or others.
    pub(super) fn sync(
        &self,
        rank: usize,
        ticket: &Ticket,
        work: &mut Vec<Region>,
    ) -> Result<Region, CommunicatorError> {
        let (number, call) = (ticket.number(), ticket.call());
        let give_up_at = Instant::now() + self.timeout;
        let mut state = self.lock();
        loop {
            state.alive(rank, call)?;
            let progress = state.board.progress(number, Instant::now());
            if progress == Progress::Done {
                return Ok(state.board.take(rank, number));
            }
            let worked;
            (state, worked) = self.work(state, work);
            if worked {
                continue;
            }
            state = match progress {
                Progress::Missing => {
                    self.wait_for_ranks(state, rank, ticket, give_up_at, (Asleep::For(number), give_up_at))
                }
                // Only the links are in the way.
                Progress::Queued(Some(next)) if state.board.missing(number).next().is_none() => {
                    self.sleep_until(state, rank, Asleep::Queued, next)
                }
                Progress::Queued(next) => {
                    let until = next.unwrap_or(give_up_at);
                    self.wait_for_ranks(state, rank, ticket, give_up_at, (Asleep::Queued, until))
                }
                Progress::OnLink(ends) => self.sleep_until(state, rank, Asleep::OnLink, ends),
                Progress::Working => {
                    let stuck = Instant::now() > give_up_at + self.timeout;
                    assert!(!stuck, "the arithmetic of {call} on another thread does not end");
                    self.sleep(state, rank, Asleep::For(number), self.timeout)
                }
                Progress::Done => unreachable!("returned above"),
            };
        }
    }

    /// Sleeps until other ranks have started what `rank` waits for, at most until a time, or fails the communicator if they
    /// will not.
    fn wait_for_ranks<'a>(
        &'a self,
        mut state: Guard<'a>,
        rank: usize,
        ticket: &Ticket,
        give_up_at: Instant,
        (why, until): (Asleep, Instant),
    ) -> Guard<'a> {
        let gone = state.board.missing(ticket.number()).find(|peer| state.left[*peer]);
        if let Some(failed) = gone {
            self.fail_rank(&mut state, failed, "left the group");
        } else if Instant::now() >= give_up_at {
            let mut waiting_for: Vec<usize> = state.board.missing(ticket.number()).collect();
            if waiting_for.is_empty() {
                // All have started it, but in orders that contradict each other.
                let members = ticket.call().group().into_iter().flat_map(Group::ranks);
                waiting_for.extend(members.filter(|member| *member != rank));
            }
            self.time_out(&mut state, rank, ticket.call(), waiting_for);
        } else {
            state = self.sleep_until(state, rank, why, until.min(give_up_at));
        }
        state
    }

    /// What a communication thread does until the communicator ends: parts of collectives.
    pub(super) fn work_until_the_end(&self) {
        let mut work = Vec::with_capacity(self.ranks);
        let mut state = self.lock();
        while state.failure.is_none() && state.left.contains(&false) {
            let worked;
            (state, worked) = self.work(state, &mut work);
            if !worked {
                state.idle_threads += 1;
                state = self.thread_wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle_threads -= 1;
            }
        }
    }

    /// Does one part of a collective, without the lock, if there is one to do.
    fn work<'a>(&'a self, mut state: Guard<'a>, regions: &mut Vec<Region>) -> (Guard<'a>, bool) {
        match state.board.claim(regions) {
            Some(claim) => (self.finish(state, claim, regions), true),
            None => (state, false),
        }
    }

    /// Does the arithmetic of a part without the lock, and puts the part back.
    fn finish<'a>(&'a self, state: Guard<'a>, claim: Claim, regions: &mut Vec<Region>) -> Guard<'a> {
        drop(state);
        claim.work(regions);
        let mut state = self.lock();
        if state.board.finish(&claim, regions) {
            for member in claim.members.ranks() {
                if state.asleep[member] == Asleep::For(claim.number) {
                    self.rank_wakes[member].notify_one();
                }
            }
        }
        state
    }

    /// Wakes those who can do the parts of a collective that has just become complete.
    fn offer_work(&self, state: &State, parts: usize) {
        self.wake_ranks(state, |asleep| asleep != Asleep::No);
        for _ in 0..parts.min(state.idle_threads) {
            self.thread_wake.notify_one();
        }
    }

    fn wake_ranks(&self, state: &State, which: impl Fn(Asleep) -> bool) {
        for (asleep, wake) in state.asleep.iter().zip(&self.rank_wakes) {
            if which(*asleep) {
                wake.notify_one();
            }
        }
    }

    fn sleep<'a>(&'a self, mut state: Guard<'a>, rank: usize, why: Asleep, at_most: Duration) -> Guard<'a> {
        state.asleep[rank] = why;
        let slept = self.rank_wakes[rank].wait_timeout(state, at_most);
        let (mut state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        state.asleep[rank] = Asleep::No;
        state
    }

    fn sleep_until<'a>(&'a self, state: Guard<'a>, rank: usize, why: Asleep, until: Instant) -> Guard<'a> {
        let rest = until.saturating_duration_since(Instant::now());
        self.sleep(state, rank, why, rest)
    }

    /// Waits for a host call to change.
    pub(super) fn sleep_for_host<'a>(&'a self, state: Guard<'a>, at_most: Duration) -> Guard<'a> {
        self.host_wake.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all who wait in a host call.
    pub(super) fn wake_host(&self) {
        self.host_wake.notify_all();
    }

    /// Fails the communicator; the first failure stays.
    pub(super) fn fail(&self, state: &mut State, failure: Failure) {
        state.failure.get_or_insert(failure);
        self.wake_all(state);
    }

    /// Fails the communicator because of one rank.
    pub(super) fn fail_rank(&self, state: &mut State, failed: usize, reason: &str) {
        self.fail(state, Failure::Peer { failed, reason: reason.to_owned() });
    }

    /// Fails the communicator because some ranks did not come.
    pub(super) fn time_out(&self, state: &mut State, rank: usize, during: Call, waiting_for: Vec<usize>) {
        let after = self.timeout;
        self.fail(state, Failure::Error(CommunicatorError::TimedOut { rank, during, after, waiting_for }));
    }

    /// Notes that a rank starts no more collectives; those it has started stay valid.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.left[rank] = true;
        self.wake_all(&state);
    }

    /// Notes that a rank makes no more calls at all.
    pub(super) fn leave_for_good(&self, rank: usize) {
        let mut state = self.lock();
        state.left_for_good[rank] = true;
        self.wake_all(&state);
    }

    fn wake_all(&self, state: &State) {
        self.wake_ranks(state, |_| true);
        self.thread_wake.notify_all();
        self.host_wake.notify_all();
    }
}
