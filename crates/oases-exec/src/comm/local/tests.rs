//! Tests of communicators between threads: results, order, the link's time, and every way to fail.

mod groups;
mod transfers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use oases_schedule::Span;

use super::*;
use crate::arena::Arena;
use crate::comm::{Call, CommunicatorError, HostGroup, HostOperation, probe};

/// Long enough that no test waits for it unless it wants to.
const PATIENT: Duration = Duration::from_secs(100);

/// Elements of a region that is cut into several parts.
const LARGE: usize = if cfg!(miri) { 200 } else { 100_000 };

fn options() -> LocalOptions {
    LocalOptions { timeout: PATIENT, communication_threads: Some(0), ..LocalOptions::default() }
}

/// Runs a function on a thread for each rank, and returns their results in rank order.
fn on_ranks<T: Send>(
    ranks: usize,
    options: LocalOptions,
    body: impl Fn(LocalCommunicator) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let spawn = |communicator| scope.spawn(|| body(communicator));
        let threads: Vec<_> = group(ranks, options).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

fn span(elements: usize) -> Span {
    Span { offset: 0, bytes: elements * size_of::<f32>() }
}

/// A region of its own arena, filled by element.
pub(in crate::comm::local) fn region(len: usize, fill: impl Fn(usize) -> f32) -> Region {
    let mut arena = Arena::new(span(len).bytes).unwrap();
    for (index, value) in arena.write(span(len)).iter_mut().enumerate() {
        *value = fill(index);
    }
    arena.lend(span(len))
}

/// Values whose sum depends on the order of addition.
fn value(rank: usize, element: usize) -> f32 {
    let bits = ((rank * 7919 + element + 1) as u32).wrapping_mul(2_654_435_761);
    (bits as f32 - 2e9) * [1.0, 1e-3, 1e4][(rank + element) % 3]
}

/// The serial reference.
fn sum(ranks: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (1..ranks).fold(value(0, i), |sum, rank| sum + value(rank, i))).collect()
}

fn all_reduce(communicator: &mut LocalCommunicator, len: usize) -> Result<Region, CommunicatorError> {
    let rank = communicator.rank();
    let ticket = communicator.start(
        Operation::AllReduceSum,
        Group::world(communicator.ranks()),
        Tag(0),
        region(len, |i| value(rank, i)),
    );
    communicator.sync(ticket)
}

/// Lengths around the borders of lines, parts and tiles.
fn lengths() -> Vec<usize> {
    match cfg!(miri) {
        true => vec![0, 1, 33, 300],
        false => vec![0, 1, 2, 15, 16, 17, 1000, 16_384, 32_768, 32_769, 50_001, 196_613, 700_001],
    }
}

fn group_sizes() -> Vec<usize> {
    if cfg!(miri) { vec![1, 3] } else { vec![1, 2, 3, 4, 7, 8, 16] }
}

#[test]
fn all_reduce_is_the_serial_sum_in_rank_order_bit_for_bit() {
    for ranks in group_sizes() {
        for threads in [0, 1, ranks] {
            let options = LocalOptions { communication_threads: Some(threads), ..options() };
            let results = on_ranks(ranks, options, |mut communicator| {
                let run = |len| all_reduce(&mut communicator, len).unwrap().to_vec();
                lengths().into_iter().map(run).collect::<Vec<_>>()
            });
            for (index, len) in lengths().into_iter().enumerate() {
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                let expected = bits(&sum(ranks, len));
                for result in &results {
                    assert!(
                        bits(&result[index]) == expected,
                        "{ranks} ranks, {threads} threads, {len} elements"
                    );
                }
            }
        }
    }
}

#[test]
fn all_gather_fills_every_slot() {
    for ranks in group_sizes() {
        for slot in [0, 1, 17, 4099] {
            let results = on_ranks(ranks, options(), |mut communicator| {
                let rank = communicator.rank();
                let own = |i: usize| if i / slot == rank { value(rank, i % slot) } else { f32::NAN };
                let ticket = communicator.start(
                    Operation::AllGather,
                    Group::world(communicator.ranks()),
                    Tag(3),
                    region(ranks * slot, own),
                );
                communicator.sync(ticket).unwrap().to_vec()
            });
            let expected: Vec<f32> = (0..ranks * slot).map(|i| value(i / slot, i % slot)).collect();
            assert!(results.iter().all(|result| *result == expected), "{ranks} ranks, slots of {slot}");
        }
    }
}

#[test]
fn several_collectives_in_flight_keep_their_order_and_their_regions() {
    let lens: [usize; 9] = [5, LARGE, 0, LARGE / 2, 7, LARGE * 3, 64, 1, LARGE];
    for ranks in [2, 3] {
        for threads in [0, ranks] {
            let options = LocalOptions { communication_threads: Some(threads), ..options() };
            on_ranks(ranks, options, |mut communicator| {
                let rank = communicator.rank();
                let mut arena = Arena::new(span(lens.iter().sum()).bytes).unwrap();
                for round in 0..3 {
                    let mut offset = 0;
                    let mut tickets = Vec::new();
                    for (index, len) in lens.into_iter().enumerate() {
                        let span = Span { offset, bytes: span(len).bytes };
                        offset += span.bytes;
                        arena.write::<f32>(span).fill((1 + rank + index + round) as f32);
                        let tag = Tag(index as u32);
                        tickets.push((
                            index,
                            span,
                            communicator.start(
                                Operation::AllReduceSum,
                                Group::world(communicator.ranks()),
                                tag,
                                arena.lend(span),
                            ),
                        ));
                    }
                    // The odd round takes the results in the opposite order.
                    if round == 1 {
                        tickets.reverse();
                    }
                    for (index, span, ticket) in tickets {
                        let region = communicator.sync(ticket).unwrap();
                        assert_eq!(region.span(), span);
                        arena.give_back(region);
                        let expected: usize = (0..ranks).map(|rank| 1 + rank + index + round).sum();
                        assert!(arena.read::<f32>(span).iter().all(|value| *value == expected as f32));
                    }
                }
            });
        }
    }
}

#[test]
fn a_result_does_not_wait_for_the_others_to_sync() {
    for (threads, len) in [(0, LARGE), (2, LARGE), (0, 3)] {
        let options = LocalOptions { communication_threads: Some(threads), ..options() };
        let (synced, wait_for_sync) = mpsc::channel();
        let wait_for_sync = Mutex::new(wait_for_sync);
        on_ranks(2, options, |mut communicator| {
            if communicator.rank() == 0 {
                let region = all_reduce(&mut communicator, len).unwrap();
                assert!(*region == sum(2, len));
                synced.send(()).unwrap();
            } else {
                // Rank 0 is asleep in its sync, most likely.
                thread::sleep(Duration::from_millis(5));
                let own = region(len, |i| value(1, i));
                let ticket = communicator.start(
                    Operation::AllReduceSum,
                    Group::world(communicator.ranks()),
                    Tag(0),
                    own,
                );
                wait_for_sync.lock().unwrap().recv().unwrap();
                assert!(*communicator.sync(ticket).unwrap() == sum(2, len));
            }
        });
    }
}

#[test]
fn the_link_takes_at_least_its_time_and_carries_one_collective_after_another() {
    let link = Link { bandwidth_bytes_per_s: 40e6, latency: Duration::from_micros(500) };
    let len = 10_000;
    let ends = on_ranks(2, LocalOptions { link: Some(link), ..options() }, |mut communicator| {
        communicator.host_group().barrier().unwrap();
        let begin = Instant::now();
        let [reduce, gather] =
            [(Operation::AllReduceSum, Tag(0)), (Operation::AllGather, Tag(1))].map(|(operation, tag)| {
                communicator.start(operation, Group::world(communicator.ranks()), tag, region(len, |_| 1.0))
            });
        communicator.sync(reduce).unwrap();
        let middle = begin.elapsed();
        communicator.sync(gather).unwrap();
        (middle, begin.elapsed())
    });
    // Over 2 ranks an all-reduce carries 40 kB in 1 ms and two hops, an all-gather half of both. A rank may
    // read its clock before the other has started, which only makes the time longer.
    let expected = Duration::from_micros(2000);
    assert_eq!(link.duration(Operation::AllReduceSum, 4 * len, 2), expected);
    for (middle, end) in ends {
        assert!(middle >= expected, "{middle:?}");
        assert!(end >= expected + expected / 2, "{end:?}");
    }
}

#[test]
fn collectives_that_differ_are_an_error_on_all_ranks() {
    let run = |odd: (Operation, u32, usize)| {
        on_ranks(3, options(), move |mut communicator| {
            let usual = (Operation::AllReduceSum, 7, 30);
            let (operation, tag, len) = if communicator.rank() == 1 { odd } else { usual };
            let ticket = communicator.start(
                operation,
                Group::world(communicator.ranks()),
                Tag(tag),
                region(len, |_| 1.0),
            );
            communicator.sync(ticket).map(drop).unwrap_err()
        })
    };
    for odd in
        [(Operation::AllGather, 7, 30), (Operation::AllReduceSum, 8, 30), (Operation::AllReduceSum, 7, 33)]
    {
        let errors = run(odd);
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        let CommunicatorError::Mismatch { first_rank, second_rank, first, second } = errors[0] else {
            panic!("{errors:?}");
        };
        assert!((first_rank == 1) != (second_rank == 1), "{errors:?}");
        let text = errors[0].to_string();
        assert!(
            text.contains("rank 1") && text.contains("all-reduce #7 of 120 B over ranks 0 to 2"),
            "{text}"
        );
        assert_ne!(first, second);
    }
}

/// Rank 1 of 3 ends in some way, while rank 0 waits in a collective and rank 2 in a barrier.
fn ends_of_waiting_ranks(end: impl Fn(LocalCommunicator) + Sync) -> Vec<CommunicatorError> {
    let results = on_ranks(3, options(), |mut communicator| match communicator.rank() {
        0 => Some(all_reduce(&mut communicator, 5).map(drop).unwrap_err()),
        1 => {
            thread::sleep(Duration::from_millis(20));
            let _ = catch_unwind(AssertUnwindSafe(|| end(communicator)));
            None
        }
        _ => Some(communicator.host_group().barrier().unwrap_err()),
    });
    results.into_iter().flatten().collect()
}

fn assert_names_rank_1(errors: &[CommunicatorError], why: &str) {
    assert_eq!(errors.len(), 2);
    for error in errors {
        let CommunicatorError::PeerFailed { failed, reason, .. } = error else { panic!("{error:?}") };
        assert_eq!((*failed, reason.as_str()), (1, why), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_panics_or_aborts_ends_the_others() {
    let errors = ends_of_waiting_ranks(drop);
    assert_names_rank_1(&errors, "left the group");
    let text = "rank 1 failed (left the group) while rank 0 was in all-reduce #0 of 20 B over ranks 0 to 2";
    assert_eq!(errors[0].to_string(), text);
    let text = "rank 1 failed (left the group) while rank 2 was in host barrier";
    assert_eq!(errors[1].to_string(), text);

    // The communicator alone, while the host group's handle lives on.
    let errors = ends_of_waiting_ranks(|communicator| {
        let host = communicator.host_group();
        drop(communicator);
        assert!(host.barrier().is_err());
    });
    assert_names_rank_1(&errors, "left the group");

    let errors = ends_of_waiting_ranks(|_communicator| panic!("on purpose"));
    assert_names_rank_1(&errors, "panicked");

    // The handle of the host group alone, while the communicator lives on.
    let errors = ends_of_waiting_ranks(|communicator| {
        let host = communicator.host_group();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _host = host;
            panic!("on purpose");
        }));
        assert!(communicator.host_group().barrier().is_err());
    });
    assert_names_rank_1(&errors, "panicked");

    let errors = ends_of_waiting_ranks(|mut communicator| communicator.abort("no data"));
    assert_names_rank_1(&errors, "no data");

    let errors = ends_of_waiting_ranks(|communicator| communicator.abort_handle().abort("told to stop"));
    assert_names_rank_1(&errors, "told to stop");
}

#[test]
fn a_failed_group_refuses_every_later_call() {
    let mut ranks = group(2, options());
    let in_flight = ranks[0].start(Operation::AllReduceSum, Group::world(2), Tag(0), region(4, |_| 1.0));
    ranks[1].abort("done for");
    for ticket in
        [in_flight, ranks[0].start(Operation::AllReduceSum, Group::world(2), Tag(1), region(4, |_| 1.0))]
    {
        assert!(ranks[0].sync(ticket).unwrap_err().to_string().starts_with("rank 1 failed (done for)"));
    }
    assert!(ranks[0].host_group().barrier().is_err());
    assert!(ranks[1].host_group().gather(Vec::new()).is_err());
}

#[test]
fn a_rank_may_leave_before_the_others_have_taken_their_results() {
    let mut ranks = group(2, options());
    let mut one = ranks.pop().unwrap();
    let mut zero = ranks.pop().unwrap();
    let first = zero.start(Operation::AllReduceSum, Group::world(2), Tag(0), region(LARGE, |_| 1.0));
    let other = one.start(Operation::AllReduceSum, Group::world(2), Tag(0), region(LARGE, |_| 2.0));
    drop(one.sync(other).unwrap());
    drop(one);
    assert!(zero.sync(first).unwrap().iter().all(|value| *value == 3.0));
    let second = zero.start(Operation::AllReduceSum, Group::world(2), Tag(1), region(1, |_| 1.0));
    assert!(zero.sync(second).unwrap_err().to_string().contains("rank 1 failed (left the group)"));
}

#[test]
fn ranks_that_stay_away_end_in_a_timeout() {
    let timeout = Duration::from_millis(30);
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let late = |communicator: LocalCommunicator| {
        // Still a member, and still busy elsewhere.
        let _ = held.lock().unwrap().recv();
        communicator.host_group().barrier().unwrap_err()
    };
    let results =
        on_ranks(4, LocalOptions { timeout, ..options() }, |mut communicator| match communicator.rank() {
            0 => {
                let begin = Instant::now();
                let error = all_reduce(&mut communicator, 3).map(drop).unwrap_err();
                let waited = begin.elapsed();
                let _ = (release.send(()), release.send(()));
                let own = matches!(error, CommunicatorError::TimedOut { rank: 0, .. });
                assert!(!own || waited >= timeout, "{waited:?}");
                error
            }
            1 => all_reduce(&mut communicator, 3).map(drop).unwrap_err(),
            _ => late(communicator),
        });
    for error in results {
        let CommunicatorError::TimedOut { rank, waiting_for, .. } = &error else { panic!("{error:?}") };
        assert!(*rank < 2);
        // A waiter that is woken very late may find that the other has not even begun.
        assert!(waiting_for.ends_with(&[2, 3]), "{error}");
        assert!(
            error.to_string().contains("in all-reduce #0 of 12 B over ranks 0 to 3, waiting for ranks"),
            "{error}"
        );
    }
}

#[test]
fn a_host_group_meets_in_every_call() {
    for ranks in group_sizes() {
        on_ranks(ranks, options(), |communicator| {
            let host = communicator.host_group();
            let rank = host.rank();
            for round in 0..10_u8 {
                let own = vec![rank as u8; round as usize];
                let all = host.gather(own).unwrap();
                let expected = || (0..ranks).map(|rank| vec![rank as u8; round as usize]).collect::<Vec<_>>();
                assert_eq!(all, (rank == 0).then(expected));
                let sent = host.broadcast((rank == 0).then(|| vec![round, 1]));
                assert_eq!(sent.unwrap(), [round, 1]);
                host.barrier().unwrap();
            }
        });
    }
}

#[test]
fn host_calls_that_differ_or_lack_a_rank_are_errors() {
    let errors = on_ranks(2, options(), |communicator| {
        let host = communicator.host_group();
        match host.rank() {
            0 => host.barrier().unwrap_err(),
            _ => host.gather(Vec::new()).map(drop).unwrap_err(),
        }
    });
    for error in errors {
        let CommunicatorError::Mismatch { first, second, .. } = error else { panic!("{error:?}") };
        assert!([first, second].contains(&Call::Host(HostOperation::Barrier)) && first != second);
    }
    let options = LocalOptions { timeout: Duration::from_millis(5), ..options() };
    let ranks = group(3, options);
    let error = ranks[1].host_group().barrier().unwrap_err();
    assert_eq!(error.to_string(), "rank 1 timed out after 5ms in host barrier, waiting for ranks 0, 2");
}

#[test]
fn the_probe_passes() {
    for (ranks, stages) in [(1, 1), (2, 1), (3, 1), (5, 1), (2, 2), (3, 3), (6, 2), (6, 3)] {
        let options = LocalOptions { stages, ..options() };
        on_ranks(ranks, options, |mut communicator| probe(&mut communicator, stages).unwrap());
    }
}

#[test]
#[should_panic(expected = "all-gather #0 of 12 B over ranks 0 and 1: 3 elements are not 2 equal slots")]
fn slots_must_be_equal() {
    let mut ranks = group(2, options());
    let _ = ranks[0].start(Operation::AllGather, Group::world(2), Tag(0), region(3, |_| 1.0));
}
