//! The order of calls on which the ranks of one pipeline stage agree, whichever groups they form: they all run the
//! same schedule.

use std::collections::VecDeque;

use crate::comm::{Call, CommunicatorError, Operation, Tag};

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
    /// Per rank of the stage, how many calls it has made.
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
    pub(super) fn new(stage_ranks: usize) -> Order {
        Order { calls: VecDeque::with_capacity(CALLS_APART), first: 0, made: vec![0; stage_ranks] }
    }

    /// A rank makes its next call. An error says that another rank of the stage has made another call there.
    pub(super) fn make(&mut self, rank: usize, call: Call) -> Result<(), CommunicatorError> {
        let rank_in_stage = rank % self.made.len();
        let index = (self.made[rank_in_stage] - self.first) as usize;
        if index == self.calls.len() {
            self.calls.push_back(FirstCall { rank, call, callers: 0 });
        }
        let known = &mut self.calls[index];
        if instruction(known.rank, known.call) != instruction(rank, call) {
            let (first_rank, first) = (known.rank, known.call);
            return Err(CommunicatorError::Mismatch { first_rank, first, second_rank: rank, second: call });
        }
        known.callers += 1;
        self.made[rank_in_stage] += 1;
        // Each rank makes its calls in order, so the oldest is the first that all have made.
        if known.callers == self.made.len() {
            self.calls.pop_front();
            self.first += 1;
        }
        Ok(())
    }
}

/// What is the same in the calls that the ranks of a stage make by one instruction: the operation and the shape of its
/// groups, or in which stages, that is at which distance, the two ends of a transfer are.
fn instruction(rank: usize, call: Call) -> (Option<Operation>, [i64; 2], Tag, usize) {
    let distance = |other: usize| other as i64 - rank as i64;
    match call {
        Call::Collective { operation, group, tag, bytes } => {
            (Some(operation), [group.size.into(), group.stride.into()], tag, bytes)
        }
        Call::Transfer { from, to, tag, bytes } => (None, [distance(from), distance(to)], tag, bytes),
        Call::Host(_) => unreachable!("{call} is not for the board"),
    }
}
