//! Meetings of all ranks at rank 0, for values of the host and for the end.

use super::letter::Meeting;
use super::shared::Failure;
use crate::comm::{Call, CommunicatorError, HostOperation};

/// The meeting at hand. On rank 0 it knows who has come; on the others, whether this rank waits.
#[derive(Debug)]
pub(super) struct Meetings {
    come: Vec<Option<Vec<u8>>>,
    first: Option<(usize, Meeting)>,
    /// On another rank than 0: what it has come for.
    own: Option<Meeting>,
    over: bool,
}

impl Meetings {
    pub(super) fn new(ranks: usize) -> Meetings {
        Meetings { come: vec![None; ranks], first: None, own: None, over: false }
    }

    /// On rank 0: a rank has come.
    pub(super) fn come(&mut self, rank: usize, meeting: Meeting, value: Vec<u8>) -> Result<(), Failure> {
        let (first_rank, first) = *self.first.get_or_insert((rank, meeting));
        if rank == 0 {
            self.own = Some(meeting);
        }
        self.come[rank] = Some(value);
        match (first, meeting) {
            _ if first == meeting => Ok(()),
            (Meeting::Call(first), Meeting::Call(second)) => {
                let (first, second) = (Call::Host(first), Call::Host(second));
                let error = CommunicatorError::Mismatch { first_rank, first, second_rank: rank, second };
                Err(Failure::Error(error))
            }
            (Meeting::End, _) => Err(left(first_rank)),
            (_, Meeting::End) => Err(left(rank)),
        }
    }

    /// On another rank than 0: it has come.
    pub(super) fn wait_for(&mut self, meeting: Meeting) {
        self.own = Some(meeting);
    }

    /// On rank 0: once all have come, what each gets, in rank order.
    pub(super) fn answers(&mut self) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        if self.come.iter().any(Option::is_none) {
            return Ok(None);
        }
        let Some((_, meeting)) = self.first.take() else { return Ok(None) };
        let ranks = self.come.len();
        let mut values: Vec<Vec<u8>> = self.come.iter_mut().filter_map(Option::take).collect();
        Ok(Some(match meeting {
            Meeting::Call(HostOperation::Gather) => {
                let mut answers = vec![Vec::new(); ranks];
                answers[0] = pack(&values);
                answers
            }
            Meeting::Call(HostOperation::Broadcast) => vec![values.swap_remove(0); ranks],
            Meeting::Call(HostOperation::Barrier) | Meeting::End => vec![Vec::new(); ranks],
        }))
    }

    /// The meeting that this rank had come to is over.
    pub(super) fn met(&mut self) {
        self.over = self.own.take() == Some(Meeting::End);
    }

    /// Whether all ranks have come to the end.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// The ranks that the meeting waits for, as far as this rank knows.
    pub(super) fn missing(&self) -> Vec<usize> {
        match self.first {
            Some(_) => {
                let missing = self.come.iter().enumerate().filter(|(_, value)| value.is_none());
                missing.map(|(rank, _)| rank).collect()
            }
            None => vec![0],
        }
    }
}

fn left(failed: usize) -> Failure {
    Failure::Peer { failed, reason: "left the group".to_owned() }
}

/// Values behind each other, each with its length before it.
fn pack(values: &[Vec<u8>]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(values.iter().map(|value| 8 + value.len()).sum());
    for value in values {
        packed.extend((value.len() as u64).to_le_bytes());
        packed.extend(value);
    }
    packed
}

/// Undoes [`pack`].
pub(super) fn unpack(mut packed: &[u8]) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    while let Some((length, rest)) = packed.split_first_chunk() {
        let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
        values.push(value.to_vec());
        packed = rest;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out() {
        let values = vec![b"one".to_vec(), Vec::new(), vec![0; 300]];
        assert_eq!(unpack(&pack(&values)), values);
        assert!(unpack(&pack(&[])).is_empty());
    }

    #[test]
    fn a_meeting_is_over_when_all_have_come() {
        let gather = Meeting::Call(HostOperation::Gather);
        let mut meetings = Meetings::new(2);
        meetings.come(1, gather, b"b".to_vec()).unwrap();
        assert_eq!((meetings.answers().unwrap(), meetings.missing()), (None, vec![0]));
        meetings.come(0, gather, b"a".to_vec()).unwrap();
        let answers = meetings.answers().unwrap().unwrap();
        assert_eq!(unpack(&answers[0]), [b"a", b"b"]);
        meetings.met();
        assert!(!meetings.is_over());
        meetings.come(1, Meeting::End, Vec::new()).unwrap();
        let Err(Failure::Peer { failed: 1, .. }) = meetings.come(0, gather, Vec::new()) else {
            panic!("rank 1 has left")
        };
    }
}
