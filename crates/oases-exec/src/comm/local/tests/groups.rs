//! Tests of collectives between some of the ranks.

use std::collections::VecDeque;
use std::sync::Barrier;

use oases_schedule::Grouping;

use super::*;

/// A collective of a test, and the elements of its regions.
type Collective = (Operation, Grouping, usize);

const PAIRS: Grouping = Grouping::Cut { size: 2, stride: 1 };
const FAR_PAIRS: Grouping = Grouping::Cut { size: 2, stride: 2 };

/// The group of `rank` where `grouping` cuts all `ranks`.
fn group_of(rank: usize, ranks: usize, grouping: Grouping) -> Group {
    Group::of_stage(0, ranks as u32, grouping, rank as u32)
}

/// Numbers without a pattern, but the same in every run.
fn scatter(a: usize, b: usize) -> usize {
    let mixed = (a as u64 * 1_000_003 + b as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) as usize >> 33
}

/// Large and small sums, a gather and a reduce-scatter for every way to cut `ranks` ranks, and as many collectives between all of
/// them, in mixed order.
fn collectives(ranks: usize) -> Vec<Collective> {
    let cuts: &[(u32, u32)] = match ranks {
        4 => &[(1, 1), (1, 2), (2, 1), (2, 2)],
        8 => &[(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)],
        _ => panic!("count them"),
    };
    let of_cut = |&(size, stride): &(u32, u32)| {
        let cut = Grouping::Cut { size, stride };
        let whole = Grouping::Whole;
        [
            (Operation::AllReduceSum, cut, LARGE),
            (Operation::AllReduceSum, cut, 19),
            (Operation::AllGather, cut, 17 * size as usize),
            (Operation::ReduceScatterSum, cut, LARGE / 8 * size as usize),
            (Operation::AllReduceSum, whole, LARGE / 2),
            (Operation::AllReduceSum, whole, 5),
            (Operation::AllGather, whole, 3 * ranks),
        ]
    };
    let mut collectives: Vec<_> = cuts.iter().flat_map(of_cut).enumerate().collect();
    collectives.sort_by_key(|(index, _)| scatter(*index, ranks));
    collectives.into_iter().map(|(_, collective)| collective).collect()
}

/// The ranks that `rank` meets, by definition: in a block of `size * stride` ranks, those `stride` apart.
fn met_by(rank: usize, grouping: Grouping, ranks: usize) -> Vec<usize> {
    let Grouping::Cut { size, stride } = grouping else { return (0..ranks).collect() };
    let (size, stride) = (size as usize, stride as usize);
    let block = size * stride;
    (0..ranks).filter(|peer| peer / block == rank / block && peer.abs_diff(rank) % stride == 0).collect()
}

/// What collective `index` leaves with `rank`, as far as that is specified.
fn expected(index: usize, collective: Collective, rank: usize, ranks: usize) -> Vec<f32> {
    let (operation, grouping, len) = collective;
    let met = met_by(rank, grouping, ranks);
    let slot = len / met.len();
    let sum =
        |i: usize| met[1..].iter().fold(value(met[0], i + index), |sum, peer| sum + value(*peer, i + index));
    match operation {
        Operation::AllGather => (0..len).map(|i| value(met[i / slot], i + index)).collect(),
        Operation::ReduceScatterSum => {
            let place = met.iter().position(|peer| *peer == rank).expect("a rank meets itself");
            (place * slot..(place + 1) * slot).map(sum).collect()
        }
        _ => (0..len).map(sum).collect(),
    }
}

/// Runs all of `collectives`, `in_flight` beside the newest, with irregular delays, and checks every element.
fn run_all(mut communicator: LocalCommunicator, collectives: &[Collective], in_flight: usize) {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let check = |communicator: &mut LocalCommunicator, (index, ticket): (usize, Ticket)| {
        let result = communicator.sync(ticket).unwrap();
        let collective = collectives[index];
        let specified = match collective.0 {
            Operation::ReduceScatterSum => {
                let members = group_of(rank, ranks, collective.1);
                let slot = result.len() / members.size();
                &result[members.place(rank).unwrap() * slot..][..slot]
            }
            _ => &result[..],
        };
        assert!(
            *specified == expected(index, collective, rank, ranks),
            "{collective:?}, rank {rank} of {ranks}"
        );
    };
    let mut pending = VecDeque::new();
    for (index, &(operation, grouping, len)) in collectives.iter().enumerate() {
        if scatter(index, rank).is_multiple_of(3) {
            thread::sleep(Duration::from_micros(scatter(rank, index) as u64 % 200));
        }
        let met = met_by(rank, grouping, ranks);
        let own = |i: usize| {
            let mine = operation != Operation::AllGather || met[i / (len / met.len())] == rank;
            if mine { value(rank, i + index) } else { f32::NAN }
        };
        let ticket = communicator.start(
            operation,
            group_of(rank, ranks, grouping),
            Tag(index as u32),
            region(len, own),
        );
        pending.push_back((index, ticket));
        if pending.len() > in_flight {
            check(&mut communicator, pending.pop_front().expect("one was pushed"));
        }
    }
    for started in pending {
        check(&mut communicator, started);
    }
}

#[test]
fn groups_sum_and_gather_among_themselves() {
    let link = Link { bandwidth_bytes_per_s: 1e10, latency: Duration::from_micros(20) };
    for ranks in if cfg!(miri) { vec![4] } else { vec![4, 8] } {
        let collectives = collectives(ranks);
        for link in [None, Some(link)] {
            for threads in if cfg!(miri) { vec![1] } else { vec![0, 1, ranks] } {
                let options = LocalOptions { link, communication_threads: Some(threads), ..options() };
                on_ranks(ranks, options, |communicator| {
                    run_all(communicator, &collectives, threads.min(3));
                });
            }
        }
    }
}

/// Starts and syncs a small all-reduce on the calling thread, for ranks that are all there.
fn sum_between(ranks: &mut [LocalCommunicator], members: &[usize], grouping: Grouping) {
    let world = ranks[0].ranks();
    let tickets: Vec<Ticket> = members
        .iter()
        .map(|&rank| {
            let own = region(5, |i| value(rank, i));
            ranks[rank].start(Operation::AllReduceSum, group_of(rank, world, grouping), Tag(0), own)
        })
        .collect();
    let sum = |i| members[1..].iter().fold(value(members[0], i), |sum, rank| sum + value(*rank, i));
    for (rank, ticket) in members.iter().zip(tickets) {
        assert_eq!(*ranks[*rank].sync(ticket).unwrap(), [0, 1, 2, 3, 4].map(sum));
    }
}

#[test]
fn a_group_is_done_before_another_has_begun() {
    let link = Link { bandwidth_bytes_per_s: 1e9, latency: Duration::ZERO };
    for link in [None, Some(link)] {
        let mut ranks = group(4, LocalOptions { link, ..options() });
        let far = if cfg!(miri) { 3 } else { 100 };
        for _ in 0..far {
            sum_between(&mut ranks, &[0, 1], PAIRS);
        }
        for _ in 0..far {
            sum_between(&mut ranks, &[2, 3], PAIRS);
        }
        sum_between(&mut ranks, &[1, 3], FAR_PAIRS);
        sum_between(&mut ranks, &[0, 2], FAR_PAIRS);
        sum_between(&mut ranks, &[0, 1, 2, 3], Grouping::Whole);
        // Alone: nobody to wait for.
        for rank in [2, 0, 3, 1] {
            sum_between(&mut ranks, &[rank], Grouping::Cut { size: 1, stride: 1 });
        }
    }
}

#[test]
fn groupings_that_differ_are_an_error_on_all_ranks() {
    for (usual, odd) in [(Grouping::Whole, PAIRS), (PAIRS, FAR_PAIRS), (FAR_PAIRS, Grouping::Whole)] {
        let errors = on_ranks(4, options(), |mut communicator| {
            let grouping = if communicator.rank() == 1 { odd } else { usual };
            // The group without rank 1 may get through the first one, but not through the second.
            let mut run = |grouping, tag| {
                let members = group_of(communicator.rank(), 4, grouping);
                let ticket =
                    communicator.start(Operation::AllReduceSum, members, Tag(tag), region(3, |_| 1.0));
                communicator.sync(ticket).map(drop)
            };
            run(grouping, 0).and_then(|()| run(Grouping::Whole, 1)).unwrap_err()
        });
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        let CommunicatorError::Mismatch { first_rank, second_rank, first, second } = errors[0] else {
            panic!("{errors:?}");
        };
        assert!((first_rank == 1) != (second_rank == 1), "{errors:?}");
        let of_rank_1 = if first_rank == 1 { first } else { second };
        assert!(
            matches!(of_rank_1, Call::Collective { group, tag: Tag(0), .. } if group == group_of(1, 4, odd))
        );
    }
    // The ranks of one group alone cannot know of each other's mistake; the other group finds it.
    let mut ranks = group(4, options());
    sum_between(&mut ranks, &[0, 2], FAR_PAIRS);
    let ticket = ranks[3].start(Operation::AllReduceSum, Group::pair(2, 3), Tag(0), region(5, |_| 1.0));
    let error = ranks[3].sync(ticket).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ranks disagree: rank 0 called all-reduce #0 of 20 B over ranks 0 and 2, \
         rank 3 called all-reduce #0 of 20 B over ranks 2 and 3"
    );
}

#[test]
#[should_panic(expected = "all-reduce #4 of 8 B over ranks 1 and 4: there are 4 ranks")]
fn groups_must_fit_the_ranks() {
    let mut ranks = group(4, options());
    let _ = ranks[1].start(Operation::AllReduceSum, Group::pair(1, 4), Tag(4), region(2, |_| 1.0));
}

#[test]
#[should_panic(expected = "all-reduce #4 of 8 B over ranks 1 and 3: rank 2 is no member")]
fn only_members_start_a_collective() {
    let mut ranks = group(4, options());
    let _ = ranks[2].start(Operation::AllReduceSum, Group::pair(1, 3), Tag(4), region(2, |_| 1.0));
}

#[test]
#[should_panic(expected = "reduce-scatter #0 of 12 B over ranks 0 and 1: 3 elements are not 2 equal slots")]
fn slots_of_a_group_must_be_equal() {
    let mut ranks = group(4, options());
    let _ = ranks[0].start(Operation::ReduceScatterSum, Group::pair(0, 1), Tag(0), region(3, |_| 1.0));
}

#[test]
fn a_failure_in_one_group_ends_the_others() {
    let errors = on_ranks(4, options(), |mut communicator| match communicator.rank() {
        // Rank 1, whom rank 0 waits for, is in the barrier.
        0 => {
            let ticket =
                communicator.start(Operation::AllReduceSum, Group::pair(0, 1), Tag(9), region(5, |_| 1.0));
            Some(communicator.sync(ticket).map(drop).unwrap_err())
        }
        3 => {
            thread::sleep(Duration::from_millis(20));
            communicator.abort("no data");
            None
        }
        _ => Some(communicator.host_group().barrier().unwrap_err()),
    });
    assert_eq!(
        errors[0].as_ref().unwrap().to_string(),
        "rank 3 failed (no data) while rank 0 was in all-reduce #9 of 20 B over ranks 0 and 1"
    );
    assert!(errors[1].is_some() && errors[2].is_some());
}

#[test]
fn a_rank_that_leaves_is_missed_by_its_own_group_only() {
    let mut ranks = group(4, options());
    drop(ranks.pop());
    sum_between(&mut ranks, &[0, 1], PAIRS);
    let ticket = ranks[2].start(Operation::AllReduceSum, Group::pair(2, 3), Tag(0), region(5, |_| 1.0));
    let error = ranks[2].sync(ticket).unwrap_err();
    let text = "rank 3 failed (left the group) while rank 2 was in all-reduce #0 of 20 B over ranks 2 and 3";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_timeout_names_members_of_the_own_group() {
    let options = LocalOptions { timeout: Duration::from_millis(5), ..options() };
    let mut ranks = group(8, options);
    let quads = Grouping::Cut { size: 4, stride: 2 };
    let [_, _, _, ticket] = [4, 7, 2, 0].map(|rank| {
        ranks[rank].start(Operation::AllGather, group_of(rank, 8, quads), Tag(1), region(8, |_| 1.0))
    });
    assert_eq!(
        ranks[0].sync(ticket).unwrap_err().to_string(),
        "rank 0 timed out after 5ms in all-gather #1 of 32 B over ranks 0 to 6, 2 apart, waiting for rank 6"
    );
}

#[test]
fn a_rank_behind_a_link_is_waited_for_and_wakes_the_others() {
    let link = Some(Link { bandwidth_bytes_per_s: 1e9, latency: Duration::from_micros(1) });
    let start = |rank: &mut LocalCommunicator, grouping, tag| {
        let members = group_of(rank.rank(), 4, grouping);
        rank.start(Operation::AllReduceSum, members, Tag(tag), region(1, |_| 1.0))
    };
    // Rank 0's link has to carry the first collective before the second, of which rank 1 is no member.
    let short = LocalOptions { link, timeout: Duration::from_millis(5), ..options() };
    let mut ranks = group(4, short);
    let _ = [0, 2, 3].map(|rank| start(&mut ranks[rank], PAIRS, 0));
    let [ticket, _] = [0, 2].map(|rank| start(&mut ranks[rank], FAR_PAIRS, 1));
    assert_eq!(
        ranks[0].sync(ticket).unwrap_err().to_string(),
        "rank 0 timed out after 5ms in all-reduce #1 of 4 B over ranks 0 and 2, waiting for rank 1"
    );

    let begin = Instant::now();
    // A rank that leaves would wake the others as well.
    let end = Barrier::new(4);
    on_ranks(4, LocalOptions { link, ..options() }, |mut communicator| {
        if communicator.rank() == 1 {
            // The others are asleep in their second sync, most likely.
            thread::sleep(Duration::from_millis(20));
        }
        let [first, second] =
            [(PAIRS, 0), (FAR_PAIRS, 1)].map(|(grouping, tag)| start(&mut communicator, grouping, tag));
        for ticket in [second, first] {
            assert_eq!(*communicator.sync(ticket).unwrap(), [2.0]);
        }
        end.wait();
    });
    assert!(begin.elapsed() < PATIENT, "nobody woke a rank");
}
