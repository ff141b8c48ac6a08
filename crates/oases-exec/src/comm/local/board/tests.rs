//! Tests of the links' bookkeeping, at times that are made up.

use std::time::Duration;

use oases_schedule::Grouping;

use super::super::tests::region;
use super::*;
use crate::comm::{Group, Operation, Tag};

/// 1 MB/s: an all-reduce of 250 elements between two ranks takes 1 ms, an all-gather of 1000 between four 3 ms.
const LINK: Link = Link { bandwidth_bytes_per_s: 1e6, latency: Duration::ZERO };

const PAIRS: Grouping = Grouping::Cut { size: 2, stride: 1 };
const FAR_PAIRS: Grouping = Grouping::Cut { size: 2, stride: 2 };
const ALONE: Grouping = Grouping::Cut { size: 1, stride: 1 };

/// A board, and a clock that goes as far as events are told.
struct Fixture {
    board: Board,
    begin: Instant,
    /// Per rank, the numbers of what it has started.
    started: Vec<Vec<u64>>,
}

impl Fixture {
    fn new(ranks: usize) -> Fixture {
        Fixture::with_stages(ranks, 1)
    }

    fn with_stages(ranks: usize, stages: usize) -> Fixture {
        let board = Board::new(ranks, stages, Some(LINK));
        Fixture { board, begin: Instant::now(), started: vec![Vec::new(); ranks] }
    }

    fn at(&self, ms: u64) -> Instant {
        self.begin + Duration::from_millis(ms)
    }

    fn call(&mut self, ms: u64, rank: usize, operation: Operation, group: Group, len: usize) {
        let call = Call::starting(rank, self.started.len(), operation, group, Tag(0), 4 * len);
        let (number, _) = self.board.start(rank, call, region(len, |_| 1.0), self.at(ms)).unwrap();
        self.started[rank].push(number);
    }

    /// Some ranks start their next collective.
    fn start<const N: usize>(&mut self, ms: u64, ranks: [usize; N], call: (Operation, Grouping), len: usize) {
        let world = self.started.len() as u32;
        for rank in ranks {
            self.call(ms, rank, call.0, Group::of_stage(0, world, call.1, rank as u32), len);
        }
    }

    /// Some ranks start an all-reduce of 1 ms between two.
    fn reduce<const N: usize>(&mut self, ms: u64, ranks: [usize; N], grouping: Grouping) {
        self.start(ms, ranks, (Operation::AllReduceSum, grouping), 250);
    }

    fn send(&mut self, ms: u64, from: usize, to: usize, len: usize) {
        self.call(ms, from, Operation::Send, Group::pair(from as u32, to as u32), len);
    }

    fn receive(&mut self, ms: u64, from: usize, to: usize, len: usize) {
        self.call(ms, to, Operation::Receive, Group::pair(from as u32, to as u32), len);
    }

    /// Both ends of a transfer at once.
    fn transfer(&mut self, ms: u64, from: usize, to: usize, len: usize) {
        self.send(ms, from, to, len);
        self.receive(ms, from, to, len);
    }

    /// How far the collective is that `rank` was the `position`th to start.
    fn progress(&mut self, position: usize, rank: usize, ms: u64) -> Progress {
        let now = self.at(ms);
        self.board.progress(self.started[rank][position], now)
    }

    /// When a collective ends, with nothing more to come before.
    fn ends(&mut self, position: usize, rank: usize) -> Duration {
        let number = self.started[rank][position];
        for _ in 0..=self.board.collectives.len() {
            // At the beginning all is still to come; time then goes on by what begins next.
            match self.board.progress(number, self.begin) {
                Progress::OnLink(ends) => return ends - self.begin,
                Progress::Queued(Some(next)) => self.board.progress(number, next),
                other => panic!("position {position} of rank {rank} is {other:?}"),
            };
        }
        panic!("position {position} of rank {rank} never begins");
    }

    fn ends_ms(&mut self, position: usize) -> [u128; 4] {
        [0, 1, 2, 3].map(|rank| self.ends(position, rank).as_millis())
    }

    fn missing(&self, position: usize, rank: usize) -> Vec<usize> {
        self.board.missing(self.started[rank][position]).collect()
    }
}

#[test]
fn disjoint_groups_do_not_share_a_link_and_a_whole_collective_waits_for_all() {
    let mut f = Fixture::new(4);
    // Both pairs at once; then one pair at once and the other late.
    f.reduce(0, [0, 1, 2, 3], PAIRS);
    assert_eq!(f.ends_ms(0), [1; 4]);
    f.reduce(0, [2, 3], PAIRS);
    f.reduce(5, [0, 1], PAIRS);
    assert_eq!(f.ends_ms(1), [6, 6, 2, 2]);
    // All have started it at 5 ms; the later pair has its links till 6 ms.
    f.start(5, [3, 2, 1, 0], (Operation::AllGather, Grouping::Whole), 1000);
    assert_eq!(f.ends_ms(2), [9; 4]);
    // Behind it at 9 ms, and after a pause at 20 ms.
    f.reduce(6, [0, 2], FAR_PAIRS);
    f.reduce(20, [1, 3], FAR_PAIRS);
    assert_eq!(f.ends_ms(3), [10, 21, 10, 21]);
    assert_eq!([0, 1].map(|ms| f.progress(0, 0, ms)), [Progress::OnLink(f.at(1)), Progress::Working]);
}

#[test]
fn a_link_keeps_the_order_of_its_rank() {
    let mut f = Fixture::new(4);
    for (position, grouping) in [PAIRS, FAR_PAIRS, PAIRS].into_iter().enumerate() {
        f.reduce(position as u64, [3, 2, 0], grouping);
    }
    // Without rank 1, only 2 and 3 have come through: 0 has to wait for it, 2 for 0, and the last pair for both.
    assert_eq!(f.ends(0, 2), Duration::from_millis(1));
    for (position, rank) in [(1, 0), (1, 2), (2, 2), (2, 3)] {
        assert_eq!(f.progress(position, rank, 2), Progress::Queued(None));
    }
    for (position, rank) in [(0, 0), (1, 3), (2, 0)] {
        assert_eq!(f.progress(position, rank, 2), Progress::Missing);
    }
    for (position, rank) in [(0, 0), (1, 0), (1, 2), (1, 3), (2, 0), (2, 2), (2, 3)] {
        assert_eq!(f.missing(position, rank), [1]);
    }
    f.reduce(5, [1], PAIRS);
    assert_eq!([f.ends(0, 1), f.ends(1, 0), f.ends(1, 2)], [6, 7, 7].map(Duration::from_millis));
    assert_eq!(f.progress(2, 3, 7), Progress::Queued(None));
    f.reduce(9, [1], FAR_PAIRS);
    assert_eq!(f.ends_ms(1), [7, 10, 7, 10]);
    assert_eq!(f.ends(2, 3), Duration::from_millis(11));
    f.reduce(9, [1], PAIRS);
    assert_eq!(f.ends_ms(2), [11; 4]);
}

#[test]
fn a_rank_alone_uses_no_link() {
    let mut f = Fixture::new(2);
    f.start(0, [0, 1], (Operation::AllReduceSum, Grouping::Whole), 250);
    f.start(0, [0], (Operation::AllGather, ALONE), 250);
    let mut regions = Vec::new();
    let claim = f.board.claim_of(f.started[0][1], &mut regions).unwrap();
    assert!(f.board.finish(&claim, &mut regions));
    assert_eq!(f.progress(1, 0, 0), Progress::Done);
    assert_eq!(f.progress(0, 0, 0), Progress::OnLink(f.at(1)));
}

#[test]
fn a_link_carries_one_transfer_each_way_and_a_collective_on_both() {
    // Three stages of one rank, 250 elements in 1 ms.
    let mut f = Fixture::with_stages(3, 3);
    // Both ways at once between 0 and 1; a transfer ends as late as the slower end starts.
    f.transfer(0, 0, 1, 1000);
    f.send(0, 1, 0, 500);
    f.receive(1, 1, 0, 500);
    assert_eq!(
        [f.ends(0, 0), f.ends(0, 1), f.ends(1, 0), f.ends(1, 1)],
        [4, 4, 3, 3].map(Duration::from_millis)
    );
    // Rank 1 sends to 2 behind what it sends to 0; 2 receives from 0 behind that, since both come in there.
    f.transfer(1, 1, 2, 500);
    assert_eq!(f.progress(2, 1, 2), Progress::Queued(Some(f.at(3))));
    f.transfer(2, 0, 2, 250);
    assert_eq!(f.ends(2, 1), Duration::from_millis(5));
    assert_eq!(f.ends(1, 2), Duration::from_millis(6));
    // A sum of 1 and 2 needs both directions of both: 1's from 5 ms on, 2's from 6.
    for rank in [1, 2] {
        f.call(3, rank, Operation::AllReduceSum, Group::pair(1, 2), 500);
    }
    assert_eq!(f.ends(3, 1), Duration::from_millis(8));
    // Meanwhile 0 receives from nobody and sends to nobody: with 1 it has to wait, and 8 ms is when both begin.
    f.transfer(6, 1, 0, 250);
    f.transfer(6, 0, 1, 250);
    assert_eq!([f.ends(4, 1), f.ends(5, 1)], [9, 9].map(Duration::from_millis));
}

#[test]
fn a_transfer_goes_past_a_collective_whose_links_are_busy() {
    // Two stages of two ranks. 1 ms for 250 elements.
    let mut f = Fixture::with_stages(4, 2);
    let [upper, lower] = [Group::pair(0, 1), Group::pair(2, 3)];
    for rank in [0, 1] {
        f.transfer(0, rank, rank + 2, 1000);
        f.call(1, rank, Operation::AllReduceSum, upper, 250);
    }
    // The upper stage's sum waits until 4 ms for the outgoing directions; what comes in goes past it.
    for rank in [0, 1] {
        f.transfer(2, rank + 2, rank, 250);
    }
    for rank in [0, 1] {
        assert_eq!(f.ends(2, rank), Duration::from_millis(3));
        assert_eq!(f.ends(1, rank), Duration::from_millis(5));
    }
    // The lower stage's sum waits for the same, and the next transfer down has waited less than both.
    for rank in [2, 3] {
        f.call(3, rank, Operation::AllReduceSum, lower, 250);
    }
    f.transfer(3, 1, 3, 250);
    assert_eq!(f.ends(2, 2), Duration::from_millis(5));
    assert_eq!(f.ends(3, 1), Duration::from_millis(6));
}

#[test]
fn of_several_that_could_begin_the_one_that_has_waited_longest_does() {
    let mut f = Fixture::with_stages(3, 3);
    f.transfer(0, 0, 1, 1000);
    // All need rank 0's outgoing direction, free at 4 ms; the sends came in the opposite order.
    f.send(0, 0, 2, 250);
    f.transfer(1, 0, 1, 250);
    f.receive(2, 0, 2, 250);
    for rank in [0, 1] {
        f.call(3, rank, Operation::AllReduceSum, Group::pair(0, 1), 250);
    }
    assert_eq!(f.ends(2, 0), Duration::from_millis(5));
    assert_eq!(f.ends(1, 0), Duration::from_millis(6));
    assert_eq!(f.ends(3, 0), Duration::from_millis(7));
}

/// Numbers without a pattern, but the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// When the collective at each position ends for each rank, by definition: it begins when its last member has
/// started it and the links of all members have carried what comes before. Nothing where a rank is alone.
fn ends_by_definition(
    program: &[Grouping],
    started: &[Vec<Duration>],
    bytes: usize,
) -> Vec<Vec<Option<Duration>>> {
    let ranks = started.len();
    let mut free = vec![Duration::ZERO; ranks];
    let mut ends = vec![vec![None; ranks]; program.len()];
    for (position, grouping) in program.iter().enumerate() {
        let members = |group| {
            let places = 0..grouping.size(ranks as u32);
            places.map(|place| grouping.member(group, place) as usize).collect::<Vec<_>>()
        };
        for members in (0..grouping.groups(ranks as u32)).map(members).filter(|members| members.len() > 1) {
            let begins = members.iter().map(|&rank| free[rank].max(started[rank][position])).max().unwrap();
            let end = begins + LINK.duration(Operation::AllReduceSum, bytes, members.len());
            for rank in members {
                (free[rank], ends[position][rank]) = (end, Some(end));
            }
        }
    }
    ends
}

#[test]
fn links_keep_to_the_definition_in_any_order_of_events() {
    const LEN: usize = 500;
    let mut random = Random(1);
    for round in 0..if cfg!(miri) { 2 } else { 200 } {
        let ranks = [4, 8][round % 2];
        let sizes = 1..=ranks as u32;
        let cuts = sizes
            .clone()
            .flat_map(|size| sizes.clone().map(move |stride| Grouping::new(size, stride, ranks as u32)));
        let cuts: Vec<Grouping> = cuts.filter(|grouping| grouping.fits(ranks as u32)).collect();
        let program: Vec<Grouping> = (0..12).map(|_| cuts[random.below(cuts.len())]).collect();

        let mut f = Fixture::new(ranks);
        let mut started = vec![Vec::new(); ranks];
        let mut now_ms = 0;
        while started.iter().any(|times| times.len() < program.len()) {
            let rank = random.below(ranks);
            let Some(&grouping) = program.get(started[rank].len()) else { continue };
            // A collective takes 2 ms or more, so that links fall behind.
            now_ms += random.below(3) as u64;
            started[rank].push(Duration::from_millis(now_ms));
            f.start(now_ms, [rank], (Operation::AllReduceSum, grouping), LEN);
        }
        for (position, ends) in ends_by_definition(&program, &started, 4 * LEN).into_iter().enumerate() {
            for (rank, end) in ends.into_iter().enumerate() {
                let Some(end) = end else { continue };
                assert_eq!(f.ends(position, rank), end, "position {position}, rank {rank} of {program:?}");
            }
        }
    }
}
