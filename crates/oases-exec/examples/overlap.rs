//! Measures how much of an all-reduce between processes is hidden under computation, and what that costs the computation.
//! Before that, checks every operation of the communicator against sums made here.
//!
//! ```text
//! cargo build --release -p oases-exec --features mpi --example overlap
//! mpirun -np 2 target/release/examples/overlap [MiB] [rounds]
//! ```
//!
//! Each round times the all-reduce alone, the computation alone, and both together. Hidden is the share of the all-reduce's
//! time that the two together do not take on top of the computation; the computation is a third longer, so all of it
//! could be.

use std::hint::black_box;
use std::time::{Duration, Instant};

use oases_exec::arena::Arena;
use oases_exec::comm::mpi::{MpiCommunicator, MpiHostGroup, join};
use oases_exec::comm::{Communicator, Group, HostGroup, Operation, Tag, probe};
use oases_schedule::Span;

fn main() {
    let number = |index, default| {
        std::env::args().nth(index).map_or(default, |argument| argument.parse().expect("a number"))
    };
    let (mebibytes, rounds) = (number(1, 4), number(2, 15));
    let communicator = join(Duration::from_secs(20)).expect("started by mpirun");
    let host = communicator.host_group();
    let mut rank = Rank { communicator, host };
    probe(&mut rank.communicator, 1).expect("data arrives");
    for len in [1, 2, 7, 10_007, 3 * 8192, 300_001] {
        rank.check(len);
    }
    rank.check_host();
    rank.say("every operation checked");
    rank.measure(mebibytes << 20, rounds);
}

struct Rank {
    communicator: MpiCommunicator,
    host: MpiHostGroup,
}

impl Rank {
    fn say(&self, text: &str) {
        if self.communicator.rank() == 0 {
            println!("{text}");
        }
    }

    fn run(&mut self, operation: Operation, group: Group, values: &[f32]) -> Vec<f32> {
        let span = Span { offset: 0, bytes: size_of_val(values) };
        let mut arena = Arena::new(span.bytes).expect("memory");
        arena.write(span).copy_from_slice(values);
        let ticket = self.communicator.start(operation, group, Tag(3), arena.lend(span));
        let region = self.communicator.sync(ticket).expect("no rank fails");
        region.to_vec()
    }

    fn check(&mut self, len: usize) {
        let (me, ranks) = (self.communicator.rank(), self.communicator.ranks());
        let world = Group::world(ranks);
        let of =
            |rank| -> Vec<f32> { (0..len * ranks).map(|element| ill_conditioned(rank, element)).collect() };
        let mut sum = of(0);
        for rank in 1..ranks {
            sum.iter_mut().zip(of(rank)).for_each(|(sum, term)| *sum += term);
        }
        assert_bits(&self.run(Operation::AllReduceSum, world, &of(me)), &sum);
        let own = me * len..(me + 1) * len;
        let scattered = self.run(Operation::ReduceScatterSum, world, &of(me));
        assert_bits(&scattered[own.clone()], &sum[own.clone()]);
        let mut slots = vec![0.0; len * ranks];
        slots[own.clone()].copy_from_slice(&of(me)[own]);
        let gathered = self.run(Operation::AllGather, world, &slots);
        for rank in 0..ranks {
            let slot = rank * len..(rank + 1) * len;
            assert_bits(&gathered[slot.clone()], &of(rank)[slot]);
        }
        // Each rank sends to the next and receives from the one before; every second begins with the send.
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        if ranks > 1 {
            let span = Span { offset: 0, bytes: len * ranks * 4 };
            let (mut from, mut to) =
                (Arena::new(span.bytes).expect("memory"), Arena::new(span.bytes).expect("memory"));
            from.write(span).copy_from_slice(&of(me));
            let mut send = |communicator: &mut MpiCommunicator| {
                let pair = Group::pair(me as u32, next as u32);
                communicator.start(Operation::Send, pair, Tag(4), from.lend(span))
            };
            let early = me.is_multiple_of(2).then(|| send(&mut self.communicator));
            let pair = Group::pair(me as u32, before as u32);
            let receive = self.communicator.start(Operation::Receive, pair, Tag(4), to.lend(span));
            let sent = early.unwrap_or_else(|| send(&mut self.communicator));
            assert_bits(&self.communicator.sync(receive).expect("no rank fails"), &of(before));
            drop(self.communicator.sync(sent).expect("no rank fails"));
        }
        // Pairs that are half the ranks apart.
        if ranks >= 4 && ranks.is_multiple_of(2) {
            let stride = (ranks / 2) as u32;
            let group = Group { first: me as u32 % stride, size: 2, stride };
            let [low, high] = [group.rank(0), group.rank(1)].map(of);
            let sum: Vec<f32> = low.iter().zip(high).map(|(low, high)| low + high).collect();
            assert_bits(&self.run(Operation::AllReduceSum, group, &of(me)), &sum);
        }
    }

    fn check_host(&self) {
        let (me, ranks) = (self.host.rank(), self.host.ranks());
        let gathered = self.host.gather(vec![me as u8; me]).expect("no rank fails");
        assert_eq!(gathered, (me == 0).then(|| (0..ranks).map(|rank| vec![rank as u8; rank]).collect()));
        let text = self.host.broadcast((me == 0).then(|| b"text".to_vec())).expect("no rank fails");
        assert_eq!(text, b"text");
        self.host.barrier().expect("no rank fails");
    }

    fn measure(&mut self, bytes: usize, rounds: usize) {
        let span = Span { offset: 0, bytes };
        let mut arena = Arena::new(bytes).expect("memory");
        let group = Group::world(self.communicator.ranks());
        arena.write::<f32>(span).fill(1e-30);
        let mut reduce = |rank: &mut Rank, computation: usize| {
            rank.host.barrier().expect("no rank fails");
            let begin = Instant::now();
            let ticket = rank.communicator.start(Operation::AllReduceSum, group, Tag(0), arena.lend(span));
            compute(computation);
            let computed = begin.elapsed();
            arena.give_back(rank.communicator.sync(ticket).expect("no rank fails"));
            [begin.elapsed(), computed].map(|time| time.as_secs_f64() * 1e3)
        };
        let warm: Vec<f64> = (0..5).map(|_| reduce(self, 0)[0]).collect();
        let target_ms = warm.into_iter().fold(f64::MAX, f64::min) * 4.0 / 3.0;
        self.host.barrier().expect("no rank fails");
        let begin = Instant::now();
        compute(20_000);
        let computation = (20_000.0 * target_ms / (begin.elapsed().as_secs_f64() * 1e3)) as u64;
        // The same on all ranks: processors may share a core, and then one is faster while the other rests.
        let computation =
            self.host.broadcast(Some(computation.to_le_bytes().to_vec())).expect("no rank fails");
        let computation = u64::from_le_bytes(computation.try_into().expect("eight bytes")) as usize;
        let mut times: [Vec<f64>; 4] = Default::default();
        for _ in 0..rounds {
            let [alone, _] = reduce(self, 0);
            self.host.barrier().expect("no rank fails");
            let begin = Instant::now();
            compute(computation);
            let computed = begin.elapsed().as_secs_f64() * 1e3;
            let [together, beside] = reduce(self, computation);
            for (times, time) in times.iter_mut().zip([alone, computed, together, beside]) {
                times.push(time);
            }
        }
        let hidden: Vec<f64> =
            (0..rounds).map(|round| 1.0 - (times[2][round] - times[1][round]) / times[0][round]).collect();
        let slower: Vec<f64> = (0..rounds).map(|round| times[3][round] / times[1][round] - 1.0).collect();
        let [alone, computed, together, _] = times.map(median);
        let (hidden, slower) = (100.0 * median(hidden), 100.0 * median(slower));
        let rank = self.communicator.rank();
        let text = format!(
            "rank {rank}: all-reduce of {} KiB {alone:.1} ms, computation {computed:.1} ms, together {together:.1} ms; \
             hidden {hidden:.0} %, computation {slower:+.1} %",
            bytes >> 10
        );
        let lines = self.host.gather(text.into_bytes()).expect("no rank fails");
        for line in lines.iter().flatten() {
            println!("{}", String::from_utf8_lossy(line));
        }
    }
}

/// Values whose sum depends on the order of addition.
fn ill_conditioned(rank: usize, element: usize) -> f32 {
    [1e8, 3.25, -1e8, 1.0, 7e-3][(rank + element) % 5] * (1 + element % 7) as f32
}

fn assert_bits(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    let wrong = found.iter().zip(wanted).position(|(found, wanted)| found.to_bits() != wanted.to_bits());
    assert_eq!(wrong, None, "the first wrong element");
}

/// Arithmetic in the nearest cache.
fn compute(rounds: usize) {
    let mut values = [1.0_f32; 4096];
    for _ in 0..rounds {
        for value in &mut values {
            *value = *value * 0.999 + 0.001;
        }
        black_box(&mut values);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
