//! Tests of transfers between stages, and of what stages do beside them.

use super::*;

/// As many stages as ranks.
fn stages(ranks: usize) -> LocalOptions {
    LocalOptions { stages: ranks, ..options() }
}

fn send(communicator: &mut LocalCommunicator, to: usize, tag: u32, data: Region) -> Ticket {
    let pair = Group::pair(communicator.rank() as u32, to as u32);
    communicator.start(Operation::Send, pair, Tag(tag), data)
}

fn receive(communicator: &mut LocalCommunicator, from: usize, tag: u32, len: usize) -> Ticket {
    let pair = Group::pair(communicator.rank() as u32, from as u32);
    communicator.start(Operation::Receive, pair, Tag(tag), region(len, |_| f32::NAN))
}

#[test]
fn transfers_that_cross_bring_what_was_sent_in_order() {
    let link = Link { bandwidth_bytes_per_s: 1e10, latency: Duration::from_micros(20) };
    for link in [None, Some(link)] {
        for threads in [0, 1] {
            let options = LocalOptions { link, communication_threads: Some(threads), ..stages(2) };
            on_ranks(2, options, |mut communicator| {
                let (rank, other) = (communicator.rank(), 1 - communicator.rank());
                // Both send all before they receive, and the one takes its results in the opposite order.
                let lens = [LARGE, 0, 7, LARGE / 3];
                let sent: Vec<Ticket> = (0..)
                    .zip(lens)
                    .map(|(tag, len)| {
                        send(&mut communicator, other, tag, region(len, |i| value(rank, i + len)))
                    })
                    .collect();
                let tickets =
                    (0..).zip(lens).map(|(tag, len)| (len, receive(&mut communicator, other, tag, len)));
                let mut tickets: Vec<_> = tickets.collect();
                if rank == 1 {
                    tickets.reverse();
                }
                for (len, ticket) in tickets {
                    let expected: Vec<f32> = (0..len).map(|i| value(other, i + len)).collect();
                    assert!(*communicator.sync(ticket).unwrap() == expected, "{len} elements to rank {rank}");
                }
                for (ticket, len) in sent.into_iter().zip(lens) {
                    let expected: Vec<f32> = (0..len).map(|i| value(rank, i + len)).collect();
                    assert!(*communicator.sync(ticket).unwrap() == expected, "a send changes nothing");
                }
            });
        }
    }
}

#[test]
fn stages_sum_among_themselves_while_they_send_to_each_other() {
    // Two stages of two ranks: each rank sends what its stage has summed to its own place of the next stage, which is in
    // another part of its program, and all four sum at the end.
    let rounds = if cfg!(miri) { 2 } else { 50 };
    let link = Link { bandwidth_bytes_per_s: 1e10, latency: Duration::from_micros(3) };
    for link in [None, Some(link)] {
        let options = LocalOptions { link, stages: 2, ..options() };
        on_ranks(4, options, |mut communicator| {
            let rank = communicator.rank();
            let pair = Group { first: rank as u32 / 2 * 2, size: 2, stride: 1 };
            for round in 0..rounds {
                if rank < 2 {
                    let own = region(3, |i| (rank + i + round) as f32);
                    let ticket = communicator.start(Operation::AllReduceSum, pair, Tag(1), own);
                    let summed = communicator.sync(ticket).unwrap();
                    let ticket = send(&mut communicator, rank + 2, 9, summed);
                    // More of its own before the other stage has come.
                    let own = region(4, |_| 1.0);
                    let other = communicator.start(Operation::AllGather, pair, Tag(3), own);
                    communicator.sync(other).unwrap();
                    communicator.sync(ticket).unwrap();
                } else {
                    let ticket = receive(&mut communicator, rank - 2, 9, 3);
                    let received = communicator.sync(ticket).unwrap();
                    let expected = [0, 1, 2].map(|i| (1 + 2 * (i + round)) as f32);
                    assert_eq!(*received, expected);
                    let ticket = communicator.start(Operation::AllReduceSum, pair, Tag(2), received);
                    assert_eq!(*communicator.sync(ticket).unwrap(), expected.map(|value| 2.0 * value));
                }
            }
            let ticket =
                communicator.start(Operation::AllReduceSum, Group::world(4), Tag(0), region(1, |_| 1.0));
            assert_eq!(*communicator.sync(ticket).unwrap(), [4.0]);
        });
    }
}

#[test]
fn a_send_waits_for_its_receive() {
    let mut ranks = group(2, stages(2));
    let first = send(&mut ranks[0], 1, 4, region(2, |i| i as f32));
    let second = send(&mut ranks[0], 1, 5, region(1, |_| 7.0));
    let timeout = LocalOptions { timeout: Duration::from_millis(5), ..stages(2) };
    // Each end in turn alone.
    let mut alone = group(2, timeout.clone());
    let ticket = send(&mut alone[0], 1, 4, region(2, |_| 0.0));
    let text = "rank 0 timed out after 5ms in transfer #4 of 8 B from rank 0 to rank 1, waiting for rank 1";
    assert_eq!(alone[0].sync(ticket).unwrap_err().to_string(), text);
    let mut alone = group(2, timeout);
    let ticket = receive(&mut alone[1], 0, 4, 2);
    let text = "rank 1 timed out after 5ms in transfer #4 of 8 B from rank 0 to rank 1, waiting for rank 0";
    assert_eq!(alone[1].sync(ticket).unwrap_err().to_string(), text);

    let third = receive(&mut ranks[1], 0, 4, 2);
    let fourth = receive(&mut ranks[1], 0, 5, 1);
    assert_eq!(*ranks[0].sync(second).unwrap(), [7.0]);
    assert_eq!(*ranks[1].sync(third).unwrap(), [0.0, 1.0]);
    assert_eq!(*ranks[1].sync(fourth).unwrap(), [7.0]);
    ranks[0].sync(first).unwrap();
}

#[test]
fn a_rank_that_dies_ends_who_receives_from_it_and_all_others() {
    for leaves in [false, true] {
        let errors = on_ranks(3, stages(3), |mut communicator| match communicator.rank() {
            0 => {
                let ticket = receive(&mut communicator, 1, 6, 5);
                Some(communicator.sync(ticket).map(drop).unwrap_err())
            }
            1 => {
                thread::sleep(Duration::from_millis(20));
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    let _communicator = communicator;
                    assert!(leaves, "on purpose");
                }));
                assert_eq!(panicked.is_ok(), leaves);
                None
            }
            _ => {
                let data = region(2, |_| 1.0);
                let ticket = send(&mut communicator, 1, 7, data);
                Some(communicator.sync(ticket).map(drop).unwrap_err())
            }
        });
        let what = if leaves { "left the group" } else { "panicked" };
        let texts: Vec<String> = errors.iter().flatten().map(CommunicatorError::to_string).collect();
        assert_eq!(
            texts,
            [
                format!(
                    "rank 1 failed ({what}) while rank 0 was in transfer #6 of 20 B from rank 1 to rank 0"
                ),
                format!(
                    "rank 1 failed ({what}) while rank 2 was in transfer #7 of 8 B from rank 2 to rank 1"
                ),
            ]
        );
    }
}

#[test]
fn ends_of_a_transfer_that_differ_are_an_error_on_all_ranks() {
    for (tag, len) in [(1, 5), (2, 4)] {
        let mut ranks = group(3, stages(3));
        let sent = send(&mut ranks[2], 0, 1, region(4, |_| 1.0));
        let received = receive(&mut ranks[0], 2, tag, len);
        let errors = [ranks[2].sync(sent).unwrap_err(), ranks[0].sync(received).unwrap_err()];
        assert_eq!(errors[0], errors[1]);
        let text = format!(
            "ranks disagree: rank 2 called transfer #1 of 16 B from rank 2 to rank 0, \
             rank 0 called transfer #{tag} of {} B from rank 2 to rank 0",
            4 * len
        );
        assert_eq!(errors[0].to_string(), text);
    }
}

#[test]
fn ranks_of_one_stage_that_call_differently_are_an_error_before_any_rank_waits() {
    // Two stages of two ranks. Rank 0 sends to the next stage; rank 1 does something else in its place.
    type Odd = fn(&mut LocalCommunicator) -> Ticket;
    let odd: [Odd; 3] = [
        |rank| receive(rank, 3, 1, 4),
        |rank| send(rank, 3, 2, region(4, |_| 1.0)),
        |rank| rank.start(Operation::AllReduceSum, Group::pair(1, 3), Tag(1), region(4, |_| 1.0)),
    ];
    for odd in odd {
        let mut ranks = group(4, LocalOptions { stages: 2, ..options() });
        let sent = send(&mut ranks[0], 2, 1, region(4, |_| 1.0));
        let ticket = odd(&mut ranks[1]);
        let call = ticket.call();
        let error = ranks[1].sync(ticket).unwrap_err();
        let text = format!(
            "ranks disagree: rank 0 called transfer #1 of 16 B from rank 0 to rank 2, rank 1 called {call}"
        );
        assert_eq!(error.to_string(), text);
        assert_eq!(ranks[0].sync(sent).unwrap_err(), error);
        // The other stage hears of it as well.
        let ticket = receive(&mut ranks[2], 0, 1, 4);
        assert_eq!(ranks[2].sync(ticket).unwrap_err(), error);
    }
    // The same program on both is none, whatever the other stage does.
    let mut ranks = group(4, LocalOptions { stages: 2, ..options() });
    let tickets = [0, 1].map(|rank| send(&mut ranks[rank], rank + 2, 1, region(4, |_| 1.0)));
    for (rank, ticket) in tickets.into_iter().enumerate() {
        let received = receive(&mut ranks[rank + 2], rank, 1, 4);
        ranks[rank + 2].sync(received).unwrap();
        ranks[rank].sync(ticket).unwrap();
    }
}

#[test]
fn stages_whose_orders_contradict_each_other_end_in_a_timeout_on_a_link() {
    // Without a link, nothing needs an order between groups. With one, each collective waits for the other to begin.
    let link = Some(Link { bandwidth_bytes_per_s: 1e9, latency: Duration::ZERO });
    let mut ranks =
        group(4, LocalOptions { link, timeout: Duration::from_millis(5), stages: 4, ..options() });
    let groups = [Group::pair(0, 1), Group { first: 0, size: 3, stride: 1 }];
    let mut start = |rank: usize, index: usize| {
        let data = region(1, |_| 1.0);
        ranks[rank].start(Operation::AllReduceSum, groups[index], Tag(index as u32), data)
    };
    let [first, ..] = [(0, 0), (0, 1), (1, 1), (1, 0), (2, 1)].map(|(rank, index)| start(rank, index));
    let text = "rank 0 timed out after 5ms in all-reduce #0 of 4 B over ranks 0 and 1, waiting for rank 1";
    assert_eq!(ranks[0].sync(first).unwrap_err().to_string(), text);
}

#[test]
#[should_panic(expected = "send #3: a transfer has two ends, not ranks 0 to 2")]
fn a_transfer_has_two_ends() {
    let mut ranks = group(3, stages(3));
    let _ = ranks[0].start(Operation::Send, Group::world(3), Tag(3), region(3, |_| 1.0));
}

#[test]
#[should_panic(expected = "5 ranks do not fall into 2 stages of one size")]
fn stages_are_of_one_size() {
    group(5, LocalOptions { stages: 2, ..options() });
}
