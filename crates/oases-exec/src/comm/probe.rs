//! The start-up probe: sends real data through a communicator and checks what arrives.
//!
//! On some platforms copies between peers return success and deliver zeros. A run must not find that out from
//! its loss, so every communicator is probed before the first step.

use oases_schedule::Span;

use super::{Communicator, CommunicatorError, Group, Operation, Tag, Ticket};
use crate::arena::{Arena, Region};

/// Elements per segment: long enough to be cut into several parts, and no multiple of a cache line.
const SEGMENT: usize = if cfg!(miri) { 37 } else { 20_011 };

/// The tag of the probe's collectives.
const TAG: Tag = Tag(u32::MAX);

/// Gathers, sums and sends data that differs on every rank, and checks every element for equality: collectives of the whole
/// world, and transfers round its pipeline `stages`, each between ranks in the same place of neighbouring stages.
///
/// All ranks call it, with nothing else in flight. On a wrong result the error names the rank
/// that received and, where one alone is to blame, the rank that sent; the communicator is aborted.
pub fn probe(communicator: &mut impl Communicator<Region>, stages: usize) -> Result<(), CommunicatorError> {
    let outcome = probe_all_gather(communicator)
        .and_then(|()| probe_all_reduce(communicator))
        .and_then(|()| probe_reduce_scatter(communicator))
        .and_then(|()| probe_transfers(communicator, stages));
    if let Err(error @ CommunicatorError::WrongData { .. }) = &outcome {
        communicator.abort(&error.to_string());
    }
    outcome
}

/// Slot `r` is rank `r`'s alone, so a wrong element names the pair.
fn probe_all_gather(communicator: &mut impl Communicator<Region>) -> Result<(), CommunicatorError> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let operation = Operation::AllGather;
    let ticket = start(communicator, operation, Group::world(ranks), ranks, |segment, element| {
        if segment == rank { sample(rank, element) } else { 0.0 }
    });
    let result = communicator.sync(ticket)?;
    check(rank, operation, &result, |segment, element| (sample(segment, element), Some(segment)))
}

/// Segment `r` gets a contribution from rank `r` alone, which names the pair; the last segment from all
/// ranks, which checks that sums are sums.
fn probe_all_reduce(communicator: &mut impl Communicator<Region>) -> Result<(), CommunicatorError> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let operation = Operation::AllReduceSum;
    let ticket = start(communicator, operation, Group::world(ranks), ranks + 1, |segment, element| {
        if segment == rank || segment == ranks { sample(rank, element) } else { 0.0 }
    });
    let result = communicator.sync(ticket)?;
    check(rank, operation, &result, |segment, element| {
        if segment < ranks {
            (sample(segment, element), Some(segment))
        } else {
            ((0..ranks).map(|rank| sample(rank, element)).sum(), None)
        }
    })
}

/// Sums of all ranks, of which each has its own slot.
fn probe_reduce_scatter(communicator: &mut impl Communicator<Region>) -> Result<(), CommunicatorError> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let operation = Operation::ReduceScatterSum;
    let world = Group::world(ranks);
    let ticket = start(communicator, operation, world, ranks, |_, element| sample(rank, element));
    let result = communicator.sync(ticket)?;
    let own = &result[rank * SEGMENT..(rank + 1) * SEGMENT];
    check(rank, operation, own, |_, element| ((0..ranks).map(|rank| sample(rank, element)).sum(), None))
}

/// Every rank sends to the next stage and receives from the one before.
fn probe_transfers(
    communicator: &mut impl Communicator<Region>,
    stages: usize,
) -> Result<(), CommunicatorError> {
    if stages == 1 {
        return Ok(());
    }
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let (next, before) = ((rank + ranks / stages) % ranks, (rank + ranks - ranks / stages) % ranks);
    let pair = |other: usize| Group::pair(rank as u32, other as u32);
    let sent = start(communicator, Operation::Send, pair(next), 1, |_, element| sample(rank, element));
    let received = start(communicator, Operation::Receive, pair(before), 1, |_, _| 0.0);
    communicator.sync(sent)?;
    let result = communicator.sync(received)?;
    check(rank, Operation::Receive, &result, |_, element| (sample(before, element), Some(before)))
}

/// What rank `rank` sends: a positive integer, small enough that sums are exact.
fn sample(rank: usize, element: usize) -> f32 {
    ((rank + 1) * 1009 + element % 997) as f32
}

/// Starts one collective on an arena of its own, filled by segment and element.
fn start(
    communicator: &mut impl Communicator<Region>,
    operation: Operation,
    group: Group,
    segments: usize,
    fill: impl Fn(usize, usize) -> f32,
) -> Ticket {
    let span = Span { offset: 0, bytes: segments * SEGMENT * size_of::<f32>() };
    let mut arena = Arena::new(span.bytes).expect("the probe's few megabytes are available");
    for (index, value) in arena.write(span).iter_mut().enumerate() {
        *value = fill(index / SEGMENT, index % SEGMENT);
    }
    communicator.start(operation, group, TAG, arena.lend(span))
}

/// Compares with the expected value of each element and the rank that alone contributed it.
fn check(
    rank: usize,
    operation: Operation,
    result: &[f32],
    expect: impl Fn(usize, usize) -> (f32, Option<usize>),
) -> Result<(), CommunicatorError> {
    for (element, &found) in result.iter().enumerate() {
        let (expected, from) = expect(element / SEGMENT, element % SEGMENT);
        if found != expected {
            return Err(CommunicatorError::WrongData { rank, from, operation, element, expected, found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Call;

    /// Rank 1 of 3 that are a stage each, alone: the other ranks' data is made here, and spoiled.
    struct Spoiled<S> {
        spoil: S,
        pending: Vec<Region>,
        aborted: Option<String>,
    }

    impl<S: Fn(Operation, &mut [f32])> Communicator<Region> for Spoiled<S> {
        fn rank(&self) -> usize {
            1
        }

        fn ranks(&self) -> usize {
            3
        }

        fn start(&mut self, operation: Operation, group: Group, tag: Tag, mut region: Region) -> Ticket {
            let call = Call::starting(1, 3, operation, group, tag, region.span().bytes);
            for (index, value) in region.iter_mut().enumerate() {
                let (segment, element) = (index / SEGMENT, index % SEGMENT);
                *value = match (operation, segment) {
                    (Operation::ReduceScatterSum, 0 | 2) => f32::NAN,
                    (Operation::Send, _) => continue,
                    (Operation::Receive, _) => sample(0, element),
                    (Operation::ReduceScatterSum, _) | (_, 3) => {
                        (0..3).map(|rank| sample(rank, element)).sum()
                    }
                    _ => sample(segment, element),
                };
            }
            (self.spoil)(operation, &mut region);
            self.pending.push(region);
            Ticket::new(0, call)
        }

        fn sync(&mut self, _ticket: Ticket) -> Result<Region, CommunicatorError> {
            Ok(self.pending.remove(0))
        }

        fn abort(&mut self, reason: &str) {
            self.aborted = Some(reason.to_owned());
        }
    }

    fn probe_spoiled(spoil: impl Fn(Operation, &mut [f32])) -> Option<(Operation, Option<usize>, String)> {
        let mut communicator = Spoiled { spoil, pending: Vec::new(), aborted: None };
        let error = probe(&mut communicator, 3).err()?;
        let CommunicatorError::WrongData { rank: 1, from, operation, .. } = error else { panic!("{error}") };
        assert_eq!(communicator.aborted, Some(error.to_string()));
        Some((operation, from, error.to_string()))
    }

    #[test]
    fn finds_what_is_wrong_and_names_the_pair() {
        assert_eq!(probe_spoiled(|_, _| ()), None);

        // A peer's copy that delivers zeros.
        let zeros = |_, data: &mut [f32]| data[2 * SEGMENT..3 * SEGMENT].fill(0.0);
        let (operation, from, text) = probe_spoiled(zeros).unwrap();
        assert_eq!((operation, from), (Operation::AllGather, Some(2)));
        let start = "rank 1 got wrong data from rank 2 in the probe's all-gather: element ";
        assert!(text.starts_with(start) && text.ends_with(" is 0 instead of 3027"), "{text}");

        // One element of one rank's contribution.
        let one = |operation, data: &mut [f32]| {
            if operation == Operation::AllReduceSum {
                data[5] += 1.0;
            }
        };
        let (operation, from, _) = probe_spoiled(one).unwrap();
        assert_eq!((operation, from), (Operation::AllReduceSum, Some(0)));

        // A transfer that brings what another rank has sent, and a sum without one rank.
        let (operation, from, text) = probe_spoiled(|operation, data| {
            if operation == Operation::Receive {
                data[7] = sample(2, 7);
            }
        })
        .unwrap();
        assert_eq!((operation, from), (Operation::Receive, Some(0)));
        assert!(text.ends_with("the probe's receive: element 7 is 3034 instead of 1016"), "{text}");
        let lacking = |operation, data: &mut [f32]| {
            if operation == Operation::ReduceScatterSum {
                data[SEGMENT + 3] -= sample(2, 3);
            }
        };
        let (operation, from, _) = probe_spoiled(lacking).unwrap();
        assert_eq!((operation, from), (Operation::ReduceScatterSum, None));

        // A sum that is none.
        let last = |operation, data: &mut [f32]| {
            if operation == Operation::AllReduceSum {
                *data.last_mut().unwrap() = sample(1, SEGMENT - 1);
            }
        };
        let (operation, from, text) = probe_spoiled(last).unwrap();
        assert_eq!((operation, from), (Operation::AllReduceSum, None));
        assert!(text.starts_with("rank 1 got wrong data from some rank in the probe's all-reduce"), "{text}");
    }
}
