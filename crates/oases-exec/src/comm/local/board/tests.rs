//! Tests of the links' bookkeeping, at times that are made up.

use std::time::Duration;

use oases_schedule::Grouping;

use super::super::tests::region;
use super::*;
use crate::comm::{Operation, Tag};

/// 1 MB/s: an all-reduce of 250 elements between two ranks takes 1 ms, an all-gather of 1000 between four 3 ms.
const LINK: Link = Link { bandwidth_bytes_per_s: 1e6, latency: Duration::ZERO };

const PAIRS: Grouping = Grouping::Cut { size: 2, stride: 1 };
const FAR_PAIRS: Grouping = Grouping::Cut { size: 2, stride: 2 };
const ALONE: Grouping = Grouping::Cut { size: 1, stride: 1 };

/// A board, and a clock that stands still.
struct Fixture {
    board: Board,
    begin: Instant,
}

impl Fixture {
    fn new(ranks: usize) -> Fixture {
        Fixture { board: Board::new(ranks, Some(LINK)), begin: Instant::now() }
    }

    fn at(&self, ms: u64) -> Instant {
        self.begin + Duration::from_millis(ms)
    }

    /// Some ranks start their next collective.
    fn start<const N: usize>(&mut self, ms: u64, ranks: [usize; N], call: (Operation, Grouping), len: usize) {
        let (operation, grouping) = call;
        let call = Call::Collective { operation, grouping, tag: Tag(0), bytes: 4 * len };
        let now = self.at(ms);
        for rank in ranks {
            self.board.start(rank, call, region(len, |_| 1.0), now).unwrap();
        }
    }

    /// Some ranks start an all-reduce of 1 ms between two.
    fn reduce<const N: usize>(&mut self, ms: u64, ranks: [usize; N], grouping: Grouping) {
        self.start(ms, ranks, (Operation::AllReduceSum, grouping), 250);
    }

    /// When a collective that has begun ends.
    fn ends(&self, position: u64, rank: usize) -> Duration {
        match self.board.progress(position, rank, self.begin) {
            Progress::OnLink(ends) => ends - self.begin,
            other => panic!("position {position} of rank {rank} is {other:?}"),
        }
    }

    fn ends_ms(&self, position: u64) -> [u128; 4] {
        [0, 1, 2, 3].map(|rank| self.ends(position, rank).as_millis())
    }

    fn missing(&self, position: u64, rank: usize) -> Vec<usize> {
        self.board.missing(position, rank).collect()
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
    let progress = |f: &Fixture, ms| f.board.progress(0, 0, f.at(ms));
    assert_eq!([progress(&f, 0), progress(&f, 1)], [Progress::OnLink(f.at(1)), Progress::Working]);
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
        assert_eq!(f.board.progress(position, rank, f.at(2)), Progress::Queued);
    }
    for (position, rank) in [(0, 0), (1, 3), (2, 0)] {
        assert_eq!(f.board.progress(position, rank, f.at(2)), Progress::Missing);
    }
    for (position, rank) in [(0, 0), (1, 0), (1, 2), (1, 3), (2, 0), (2, 2), (2, 3)] {
        assert_eq!(f.missing(position, rank), [1]);
    }
    f.reduce(5, [1], PAIRS);
    assert_eq!([f.ends(0, 1), f.ends(1, 0), f.ends(1, 2)], [6, 7, 7].map(Duration::from_millis));
    assert_eq!(f.board.progress(2, 3, f.at(5)), Progress::Queued);
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
    let claim = f.board.claim_at(1, 0, &mut regions).unwrap();
    assert!(f.board.finish(&claim, &mut regions));
    assert_eq!(f.board.progress(1, 0, f.begin), Progress::Done);
    assert_eq!(f.board.progress(0, 0, f.begin), Progress::OnLink(f.at(1)));
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
        for (position, ends) in (0..).zip(ends_by_definition(&program, &started, 4 * LEN)) {
            for (rank, end) in ends.into_iter().enumerate() {
                let Some(end) = end else { continue };
                assert_eq!(f.ends(position, rank), end, "position {position}, rank {rank} of {program:?}");
            }
        }
    }
}
