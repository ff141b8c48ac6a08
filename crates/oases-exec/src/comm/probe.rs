//! The start-up probe: sends real data through a communicator and checks what arrives.
//!
//! On some platforms copies between peers return success and deliver zeros. A run must not find that out from
//! its loss, so every communicator is probed before the first step.

use oases_schedule::{Grouping, Span};

use super::{Communicator, CommunicatorError, Operation, Tag};
use crate::arena::{Arena, Region};

/// Elements per segment: long enough to be cut into several parts, and no multiple of a cache line.
const SEGMENT: usize = if cfg!(miri) { 37 } else { 20_011 };

/// The tags of the probe's collectives.
const TAGS: [Tag; 2] = [Tag(u32::MAX - 1), Tag(u32::MAX)];

/// All-reduces and all-gathers data that differs on every rank, and checks every element for equality.
///
/// All ranks call it, with nothing else in flight. On a wrong result the error names the rank
/// that received and, where one alone is to blame, the rank that sent; the communicator is aborted.
pub fn probe(communicator: &mut impl Communicator<Region>) -> Result<(), CommunicatorError> {
    let outcome = probe_all_gather(communicator).and_then(|()| probe_all_reduce(communicator));
    if let Err(error @ CommunicatorError::WrongData { .. }) = &outcome {
        communicator.abort(&error.to_string());
    }
    outcome
}

/// Slot `r` is rank `r`'s alone, so a wrong element names the pair.
fn probe_all_gather(communicator: &mut impl Communicator<Region>) -> Result<(), CommunicatorError> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let operation = Operation::AllGather;
    let result = run(communicator, operation, TAGS[0], ranks, |segment, element| {
        if segment == rank { sample(rank, element) } else { 0.0 }
    })?;
    check(rank, operation, &result, |segment, element| (sample(segment, element), Some(segment)))
}

/// Segment `r` gets a contribution from rank `r` alone, which names the pair; the last segment from all
/// ranks, which checks that sums are sums.
fn probe_all_reduce(communicator: &mut impl Communicator<Region>) -> Result<(), CommunicatorError> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let operation = Operation::AllReduceSum;
    let result = run(communicator, operation, TAGS[1], ranks + 1, |segment, element| {
        if segment == rank || segment == ranks { sample(rank, element) } else { 0.0 }
    })?;
    check(rank, operation, &result, |segment, element| {
        if segment < ranks {
            (sample(segment, element), Some(segment))
        } else {
            ((0..ranks).map(|rank| sample(rank, element)).sum(), None)
        }
    })
}

/// What rank `rank` sends: a positive integer, small enough that sums are exact.
fn sample(rank: usize, element: usize) -> f32 {
    ((rank + 1) * 1009 + element % 997) as f32
}

/// One collective on an arena of its own: fills it by segment and element, returns what is in it afterwards.
fn run(
    communicator: &mut impl Communicator<Region>,
    operation: Operation,
    tag: Tag,
    segments: usize,
    fill: impl Fn(usize, usize) -> f32,
) -> Result<Region, CommunicatorError> {
    let span = Span { offset: 0, bytes: segments * SEGMENT * size_of::<f32>() };
    let mut arena = Arena::new(span.bytes).expect("the probe's few megabytes are available");
    for (index, value) in arena.write(span).iter_mut().enumerate() {
        *value = fill(index / SEGMENT, index % SEGMENT);
    }
    let ticket = communicator.start(operation, Grouping::Whole, tag, arena.lend(span));
    communicator.sync(ticket)
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
    use crate::comm::{Call, Ticket};

    /// Rank 1 of 3, alone: the other ranks' data is made here, and spoiled.
    struct Spoiled<S> {
        spoil: S,
        pending: Option<(Operation, Region)>,
        aborted: Option<String>,
    }

    impl<S: Fn(Operation, &mut [f32])> Communicator<Region> for Spoiled<S> {
        fn rank(&self) -> usize {
            1
        }

        fn ranks(&self) -> usize {
            3
        }

        fn start(&mut self, operation: Operation, grouping: Grouping, tag: Tag, region: Region) -> Ticket {
            let bytes = region.span().bytes;
            self.pending = Some((operation, region));
            Ticket::new(0, Call::Collective { operation, grouping, tag, bytes })
        }

        fn sync(&mut self, _ticket: Ticket) -> Result<Region, CommunicatorError> {
            let (operation, mut region) = self.pending.take().expect("something is started");
            for (index, value) in region.iter_mut().enumerate() {
                let (segment, element) = (index / SEGMENT, index % SEGMENT);
                *value = match segment {
                    3 => (0..3).map(|rank| sample(rank, element)).sum(),
                    _ => sample(segment, element),
                };
            }
            (self.spoil)(operation, &mut region);
            Ok(region)
        }

        fn abort(&mut self, reason: &str) {
            self.aborted = Some(reason.to_owned());
        }
    }

    fn probe_spoiled(spoil: impl Fn(Operation, &mut [f32])) -> Option<(Operation, Option<usize>, String)> {
        let mut communicator = Spoiled { spoil, pending: None, aborted: None };
        let error = probe(&mut communicator).err()?;
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
