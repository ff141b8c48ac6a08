//! The one order of collectives on which all ranks agree, whichever groups they form.

use std::collections::VecDeque;

use crate::comm::{Call, CommunicatorError};

/// Calls for which there is room from the beginning. Groups that have no member in common may be as far apart
/// as the program has collectives between two that join all ranks; a call takes little room.
const CALLS_APART: usize = 1024;

/// What the ranks have called so far: of each position in their order, the call that some rank has made there
/// and some rank has not.
#[derive(Debug)]
pub(super) struct Order {
    calls: VecDeque<FirstCall>,
    /// Position of `calls[0]`.
    first: u64,
    /// Per rank, how many calls it has made.
    made: Vec<u64>,
}

/// The call at a position, as the rank made it that came there first.
#[derive(Debug)]
struct FirstCall {
    rank: usize,
    call: Call,
    /// Ranks that have made it.
    callers: usize,
}

impl Order {
    pub(super) fn new(ranks: usize) -> Order {
        Order { calls: VecDeque::with_capacity(CALLS_APART), first: 0, made: vec![0; ranks] }
    }

    /// Position of the call that `rank` makes next.
    pub(super) fn next(&self, rank: usize) -> u64 {
        self.made[rank]
    }

    /// Whether `rank` has made its call at `position`.
    pub(super) fn has_made(&self, rank: usize, position: u64) -> bool {
        self.made[rank] > position
    }

    /// A rank makes its next call. Returns its position, or that another rank has made another call there.
    pub(super) fn make(&mut self, rank: usize, call: Call) -> Result<u64, CommunicatorError> {
        let position = self.made[rank];
        let index = (position - self.first) as usize;
        if index == self.calls.len() {
            self.calls.push_back(FirstCall { rank, call, callers: 0 });
        }
        let known = &mut self.calls[index];
        if known.call != call {
            let (first_rank, first) = (known.rank, known.call);
            return Err(CommunicatorError::Mismatch { first_rank, first, second_rank: rank, second: call });
        }
        known.callers += 1;
        self.made[rank] += 1;
        // Each rank makes its calls in order, so the oldest is the first that all have made.
        if known.callers == self.made.len() {
            self.calls.pop_front();
            self.first += 1;
        }
        Ok(position)
    }
}
