//! The host group between threads: a meeting point for each call, under the lock of the collectives' group.

use std::sync::Arc;
use std::time::Instant;

use super::Member;
use super::shared::Failure;
use crate::comm::{Call, CommunicatorError, HostGroup, HostOperation};

/// One rank's end of a host group between threads.
#[derive(Debug)]
pub struct LocalHostGroup {
    pub(super) member: Arc<Member>,
}

/// The host call that the ranks are meeting for.
#[derive(Debug)]
pub(super) struct HostBoard {
    /// Calls that are complete.
    round: u64,
    arrived: Vec<bool>,
    first: Option<(usize, HostOperation)>,
    /// What the ranks have passed, for odd and even rounds: the next round may begin while some rank
    /// has yet to read this one's, but the one after that may not.
    values: [Vec<Vec<u8>>; 2],
}

impl HostBoard {
    pub(super) fn new(ranks: usize) -> HostBoard {
        let values = [vec![Vec::new(); ranks], vec![Vec::new(); ranks]];
        HostBoard { round: 0, arrived: vec![false; ranks], first: None, values }
    }

    /// A rank comes to the meeting. Returns its round, or what two ranks disagree on.
    fn enter(
        &mut self,
        rank: usize,
        operation: HostOperation,
        value: Vec<u8>,
    ) -> Result<u64, CommunicatorError> {
        assert!(!self.arrived[rank], "rank {rank} makes two host calls at once");
        let (first_rank, first) = *self.first.get_or_insert((rank, operation));
        if first != operation {
            let (first, second) = (Call::Host(first), Call::Host(operation));
            return Err(CommunicatorError::Mismatch { first_rank, first, second_rank: rank, second });
        }
        let round = self.round;
        self.values[(round % 2) as usize][rank] = value;
        self.arrived[rank] = true;
        if self.missing().next().is_none() {
            self.arrived.fill(false);
            self.first = None;
            self.round += 1;
        }
        Ok(round)
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        self.arrived.iter().enumerate().filter(|(_, arrived)| !**arrived).map(|(rank, _)| rank)
    }
}

impl LocalHostGroup {
    /// Meets all other ranks, then reads what they have passed.
    fn meet<T>(
        &self,
        operation: HostOperation,
        value: Vec<u8>,
        read: impl FnOnce(&mut Vec<Vec<u8>>) -> T,
    ) -> Result<T, CommunicatorError> {
        let Member { shared, rank } = &*self.member;
        let call = Call::Host(operation);
        let give_up_at = Instant::now() + shared.timeout;
        let mut state = shared.lock();
        state.alive(*rank, call)?;
        let round = match state.host.enter(*rank, operation, value) {
            Ok(round) => round,
            Err(mismatch) => {
                shared.fail(&mut state, Failure::Error(mismatch.clone()));
                return Err(mismatch);
            }
        };
        if state.host.round > round {
            shared.wake_host();
        }
        while state.host.round == round {
            state.alive(*rank, call)?;
            let gone = state.host.missing().find(|peer| state.left_for_good[*peer]);
            let patience = give_up_at.saturating_duration_since(Instant::now());
            if let Some(failed) = gone {
                shared.fail_rank(&mut state, failed, "left the group");
            } else if patience.is_zero() {
                let waiting_for = state.host.missing().collect();
                shared.time_out(&mut state, *rank, call, waiting_for);
            } else {
                state = shared.sleep_for_host(state, patience);
            }
        }
        Ok(read(&mut state.host.values[(round % 2) as usize]))
    }
}

impl Drop for LocalHostGroup {
    fn drop(&mut self) {
        self.member.fail_in_panic();
    }
}

impl HostGroup for LocalHostGroup {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn ranks(&self) -> usize {
        self.member.shared.ranks
    }

    fn gather(&self, bytes: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, CommunicatorError> {
        let rank = self.member.rank;
        self.meet(HostOperation::Gather, bytes, |values| {
            (rank == 0).then(|| values.iter_mut().map(std::mem::take).collect())
        })
    }

    fn broadcast(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, CommunicatorError> {
        let bytes = match self.member.rank {
            0 => bytes.expect("rank 0 has the bytes to broadcast"),
            _ => Vec::new(),
        };
        self.meet(HostOperation::Broadcast, bytes, |values| values[0].clone())
    }

    fn barrier(&self) -> Result<(), CommunicatorError> {
        self.meet(HostOperation::Barrier, Vec::new(), |_| ())
    }
}
