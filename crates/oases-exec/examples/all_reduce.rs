//! Measures the local communicator: all-reduces back to back, beside computation, on an emulated link, and
//! how late a sleeping thread wakes. Where processors are shared with others, times say little; the processor
//! time of all threads together (Linux) still does.
//!
//! ```text
//! cargo run --release -p oases-exec --example all_reduce [ranks]
//! ```

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use oases_exec::arena::Arena;
use oases_exec::comm::local::{LocalCommunicator, LocalOptions, group};
use oases_exec::comm::{Communicator, Group, HostGroup, Link, Operation, Tag};
use oases_schedule::Span;

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 768 << 10, 2 << 20, 4 << 20];

fn main() {
    let ranks = std::env::args().nth(1).map_or(2, |argument| argument.parse().expect("a number of ranks"));
    let processors = thread::available_parallelism().map_or(0, usize::from);
    println!("{ranks} ranks, {processors} processors; times in µs: 10 % quantile / median\n");
    sleep_overshoot();
    for threads in [0, 1, ranks] {
        back_to_back(ranks, threads);
    }
    let link = Link { bandwidth_bytes_per_s: 1e9, latency: Duration::from_micros(20) };
    for link in [None, Some(link)] {
        for threads in [0, 1, ranks] {
            beside_computation(ranks, threads, link);
        }
    }
}

/// How much later than asked a timed wait ends.
fn sleep_overshoot() {
    let (lock, wake) = (Mutex::new(()), Condvar::new());
    for asked_us in [100, 1_000, 5_000] {
        let asked = Duration::from_micros(asked_us);
        let overshoot = |_| {
            let begin = Instant::now();
            let mut guard = lock.lock().unwrap();
            while begin.elapsed() < asked {
                guard = wake.wait_timeout(guard, asked.saturating_sub(begin.elapsed())).unwrap().0;
            }
            micros(begin.elapsed() - asked)
        };
        let mut overshoots: Vec<f64> = (0..300).map(overshoot).collect();
        let (median, late) = (quantile(&mut overshoots, 0.5), quantile(&mut overshoots, 0.99));
        println!("sleep {asked_us:5} µs: overshoot median {median:5.1} µs, 99 % {late:6.1} µs");
    }
    println!();
}

fn back_to_back(ranks: usize, threads: usize) {
    println!("back to back, {threads} communication threads");
    for bytes in SIZES {
        let ([mut times], busy) = on_ranks(ranks, threads, None, bytes, |rank| {
            let begin = Instant::now();
            rank.all_reduce(|| ());
            [begin.elapsed()]
        });
        let rate = bytes as f64 / quantile(&mut times, 0.1) / 1e3;
        let (kib, times) = (bytes >> 10, Times(times));
        println!("  {kib:5} KiB: {times}, processors {busy:7.1}, {rate:6.2} GB/s of each rank's buffer");
    }
    println!();
}

/// Every rank computes as long as the link takes (without one, 1 ms) between start and sync.
fn beside_computation(ranks: usize, threads: usize, link: Option<Link>) {
    println!("beside computation, {threads} communication threads, {link:?}");
    for bytes in SIZES {
        let on_link = link.map(|link| link.duration(Operation::AllReduceSum, bytes, ranks));
        let rounds = rounds_for(on_link.unwrap_or(Duration::from_millis(1)));
        let ([alone], busy_alone) = on_ranks(ranks, threads, link, bytes, |_| {
            let begin = Instant::now();
            compute(rounds);
            [begin.elapsed()]
        });
        let ([both], busy) = on_ranks(ranks, threads, link, bytes, |rank| {
            let begin = Instant::now();
            rank.all_reduce(|| compute(rounds));
            [begin.elapsed()]
        });
        let (kib, on_link, busy) = (bytes >> 10, on_link.map_or(0.0, micros), busy - busy_alone);
        let (alone, both) = (Times(alone), Times(both));
        println!(
            "  {kib:5} KiB: link {on_link:7.1}, compute {alone}, together {both}, processors {busy:+7.1}"
        );
    }
    println!();
}

/// A rank with a buffer.
struct Rank {
    communicator: LocalCommunicator,
    arena: Arena,
    span: Span,
}

impl Rank {
    fn all_reduce(&mut self, meanwhile: impl FnOnce()) {
        let region = self.arena.lend(self.span);
        let ticket = self.communicator.start(
            Operation::AllReduceSum,
            Group::world(self.communicator.ranks()),
            Tag(0),
            region,
        );
        meanwhile();
        let region = self.communicator.sync(ticket).expect("no rank fails");
        self.arena.give_back(region);
    }
}

/// Repeats `body` on each rank's thread. Returns all times that it gives, and the processor time of one
/// repetition on all threads together, in microseconds.
fn on_ranks<const N: usize>(
    ranks: usize,
    threads: usize,
    link: Option<Link>,
    bytes: usize,
    body: impl Fn(&mut Rank) -> [Duration; N] + Sync,
) -> ([Vec<f64>; N], f64) {
    const REPETITIONS: usize = 300;
    let options = LocalOptions { link, communication_threads: Some(threads), ..LocalOptions::default() };
    let span = Span { offset: 0, bytes };
    let run = |communicator: LocalCommunicator| {
        let host = communicator.host_group();
        let mut rank = Rank { communicator, arena: Arena::new(bytes).expect("memory"), span };
        rank.arena.write::<f32>(span).fill(1e-30);
        host.barrier().expect("no rank fails");
        let busy = processor_time();
        host.barrier().expect("no rank fails");
        let times = (0..REPETITIONS).map(|_| body(&mut rank).map(micros)).collect::<Vec<[f64; N]>>();
        host.barrier().expect("no rank fails");
        let busy = processor_time().saturating_sub(busy);
        host.barrier().expect("no rank fails");
        (times, micros(busy) / REPETITIONS as f64)
    };
    let results: Vec<(Vec<[f64; N]>, f64)> = thread::scope(|scope| {
        let threads: Vec<_> = group(ranks, options).into_iter().map(|one| scope.spawn(|| run(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let times = |index| results.iter().flat_map(|(times, _)| times).map(|times| times[index]).collect();
    (std::array::from_fn(times), results[0].1)
}

/// Processor time of all threads of this process that are alive; zero where the system does not tell.
fn processor_time() -> Duration {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let of_task = |path: PathBuf| -> Option<u64> {
        fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Duration::from_nanos(tasks.flatten().filter_map(|task| of_task(task.path())).sum())
}

/// Prints the 10 % quantile and the median.
struct Times(Vec<f64>);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut times = self.0.clone();
        write!(f, "{:7.1} / {:7.1}", quantile(&mut times, 0.1), quantile(&mut times, 0.5))
    }
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

fn rounds_for(target: Duration) -> usize {
    let begin = Instant::now();
    compute(2_000);
    (2_000.0 * target.as_secs_f64() / begin.elapsed().as_secs_f64()) as usize
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}
