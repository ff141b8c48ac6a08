//! What a rank knows of the others: what each has started, when it was heard last, and whom it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::engine::Stream;
use super::shared::Failure;
use crate::comm::{Call, CommunicatorError};

/// The calls that this rank and a peer have started in one stream, compared in order.
#[derive(Debug, Default)]
struct Calls {
    mine: u64,
    theirs: u64,
    /// Those that only one of the two has started.
    ahead: VecDeque<Call>,
}

#[derive(Debug)]
struct Peer {
    heard: Instant,
    waits_for: Option<usize>,
    last: Option<Call>,
}

/// All other ranks.
#[derive(Debug)]
pub(super) struct Peers {
    rank: usize,
    peers: Vec<Peer>,
    calls: BTreeMap<(usize, Stream), Calls>,
}

impl Peers {
    pub(super) fn new(rank: usize, ranks: usize) -> Peers {
        let peer = |_| Peer { heard: Instant::now(), waits_for: None, last: None };
        Peers { rank, peers: (0..ranks).map(peer).collect(), calls: BTreeMap::new() }
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.peers.len()).filter(move |peer| *peer != rank)
    }

    /// This rank starts a call with a peer. Returns how many it had started before, or what the two disagree on.
    pub(super) fn start(&mut self, stream: Stream, peer: usize, call: Call) -> Result<u64, Failure> {
        let calls = self.calls.entry((peer, stream)).or_default();
        let before = calls.mine;
        calls.mine += 1;
        if calls.mine > calls.theirs {
            calls.ahead.push_back(call);
            return Ok(before);
        }
        let theirs = calls.ahead.pop_front().expect("the peer is ahead by what stands here");
        self.agree(peer, theirs, call).map(|()| before)
    }

    /// A peer has started a call with this rank.
    pub(super) fn started(&mut self, stream: Stream, peer: usize, call: Call) -> Result<(), Failure> {
        self.peers[peer].last = Some(call);
        let calls = self.calls.entry((peer, stream)).or_default();
        calls.theirs += 1;
        if calls.theirs > calls.mine {
            calls.ahead.push_back(call);
            return Ok(());
        }
        let mine = calls.ahead.pop_front().expect("this rank is ahead by what stands here");
        self.agree(peer, call, mine)
    }

    fn agree(&self, peer: usize, theirs: Call, mine: Call) -> Result<(), Failure> {
        if theirs == mine {
            return Ok(());
        }
        let error = CommunicatorError::Mismatch {
            first_rank: self.rank,
            first: mine,
            second_rank: peer,
            second: theirs,
        };
        Err(Failure::Error(error))
    }

    /// Whether all these have started a call, given how many this rank had started with each before it.
    pub(super) fn have_started(&self, stream: Stream, peers: &[(usize, u64)]) -> bool {
        peers.iter().all(|peer| self.has_started(stream, peer))
    }

    /// Which of them have not.
    pub(super) fn not_started(&self, stream: Stream, peers: &[(usize, u64)]) -> Vec<usize> {
        peers.iter().filter(|peer| !self.has_started(stream, peer)).map(|(peer, _)| *peer).collect()
    }

    fn has_started(&self, stream: Stream, (peer, before): &(usize, u64)) -> bool {
        self.calls.get(&(*peer, stream)).is_some_and(|calls| calls.theirs > *before)
    }

    /// Whether some peer has started what this rank has not.
    pub(super) fn are_ahead(&self) -> bool {
        self.calls.values().any(|calls| calls.theirs > calls.mine)
    }

    pub(super) fn hear(&mut self, peer: usize) {
        self.peers[peer].heard = Instant::now();
    }

    pub(super) fn waits_for(&mut self, peer: usize, waits_for: Option<usize>) {
        self.peers[peer].waits_for = waits_for.filter(|rank| *rank < self.peers.len());
    }

    /// A rank that has not been heard for too long.
    pub(super) fn silent(&self, now: Instant, too_long: Duration) -> Option<Failure> {
        let silent_for = |peer: usize| now.saturating_duration_since(self.peers[peer].heard);
        let failed = self.others().find(|peer| silent_for(*peer) > too_long)?;
        let last = match self.peers[failed].last {
            Some(call) => format!("it had last started {call}"),
            None => "it had started nothing".to_owned(),
        };
        let after = silent_for(failed).as_secs_f64();
        let reason = format!("silent for {after:.1} s: killed, frozen or cut off; {last}");
        Some(Failure::Peer { failed, reason })
    }

    /// Of ranks that keep this one waiting, the one that keeps them waiting in turn.
    pub(super) fn to_blame(&self, waiting_for: Vec<usize>) -> Vec<usize> {
        let Some(first) = waiting_for.first() else { return waiting_for };
        let (mut last, mut steps) = (*first, 0);
        while let Some(next) = self.peers[last].waits_for.filter(|next| *next != self.rank) {
            last = next;
            steps += 1;
            if steps > self.peers.len() {
                // They wait for each other.
                return waiting_for;
            }
        }
        if steps == 0 { waiting_for } else { vec![last] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::{Group, Operation, Tag};

    fn call(tag: u32) -> Call {
        let group = Group { first: 0, size: 2, stride: 1 };
        Call::Collective { operation: Operation::AllReduceSum, group, tag: Tag(tag), bytes: 4 }
    }

    #[test]
    fn calls_are_compared_in_order_whoever_is_ahead() {
        let mut peers = Peers::new(0, 2);
        assert_eq!(peers.start(Stream::Groups, 1, call(5)).unwrap(), 0);
        assert_eq!(peers.start(Stream::Groups, 1, call(6)).unwrap(), 1);
        assert_eq!(peers.not_started(Stream::Groups, &[(1, 0)]), [1]);
        peers.started(Stream::Groups, 1, call(5)).unwrap();
        assert!(peers.have_started(Stream::Groups, &[(1, 0)]));
        assert!(!peers.have_started(Stream::Groups, &[(1, 1)]));
        peers.started(Stream::Groups, 1, call(6)).unwrap();
        peers.started(Stream::Groups, 1, call(7)).unwrap();
        assert!(peers.are_ahead());
        let Err(Failure::Error(error)) = peers.start(Stream::Groups, 1, call(8)) else {
            panic!("they differ")
        };
        assert_eq!(
            error.to_string(),
            "ranks disagree: rank 0 called all-reduce #8 of 4 B over ranks 0 and 1, \
             rank 1 called all-reduce #7 of 4 B over ranks 0 and 1"
        );
    }

    #[test]
    fn blame_goes_to_the_end_of_the_chain() {
        let mut peers = Peers::new(0, 4);
        peers.waits_for(2, Some(3));
        assert_eq!(peers.to_blame(vec![2]), [3]);
        assert_eq!(peers.to_blame(vec![1]), [1]);
        // A circle, and a chain that leads back here.
        peers.waits_for(3, Some(2));
        assert_eq!(peers.to_blame(vec![2]), [2]);
        peers.waits_for(3, Some(0));
        assert_eq!(peers.to_blame(vec![3]), [3]);
    }
}
