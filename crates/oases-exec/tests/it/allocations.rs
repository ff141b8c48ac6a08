//! A step allocates no tensor, and a collective nothing at all: a counting allocator watches the threads of the ranks.

use std::alloc::{GlobalAlloc, Layout as AllocLayout, System};
use std::cell::Cell;
use std::sync::Barrier;
use std::time::Instant;

use oases_exec::arena::Arena;
use oases_exec::comm::local::{LocalCommunicator, LocalOptions, group};
use oases_exec::comm::{Communicator, Group, Operation, Tag};
use oases_exec::{AdamW, CpuBackend, Interpreter, Program, StepInputs};
use oases_schedule::passes::VARIANTS;
use oases_schedule::{Grouping, Model, Purpose, Span, Statics};

use crate::harness::{HYPER, request};

/// Allocations from this size on may be tensors. One of the smallest kind here (statistics of a part) is larger.
const TENSOR_BYTES: usize = 512;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static LARGE: Cell<usize> = const { Cell::new(0) };
    static ALL: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands every call to the system allocator unchanged; the counters are plain thread-local cells that neither
// allocate nor unwind.
#[allow(unsafe_code, reason = "an allocator can be observed in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: AllocLayout) -> *mut u8 {
        if COUNTING.try_with(Cell::get).unwrap_or(false) {
            ALL.with(|count| count.set(count.get() + 1));
            if layout.size() >= TENSOR_BYTES {
                LARGE.with(|count| count.set(count.get() + 1));
            }
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: AllocLayout) {
        // SAFETY: the pointer came from `alloc` above, that is from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_no_tensor() {
    let model = Model { dropout: 0.1, ..Model::gpt(2, 64, 4, 32, 128) };
    for variant in VARIANTS {
        let schedule = variant.build(&request(&model, "2", 4, 2, 2));
        let statics =
            Statics::new(&model, &schedule.layout, Purpose::Training, schedule.batch(), schedule.parts.len());
        let program = Program::new(schedule, &statics, CpuBackend::workspace(&model));
        let large: usize = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..)
                .zip(group(2, LocalOptions::default()))
                .map(|(rank, mut communicator)| {
                    let (statics, program) = (&statics, &program);
                    scope.spawn(move || {
                        let arena = Arena::new(program.plan.bytes.0 as usize).expect("a small arena");
                        let mut backend = CpuBackend::new(arena);
                        let mut interpreter = Interpreter::new(rank, Instant::now());
                        for step in 0..3 {
                            let inputs = StepInputs {
                                step,
                                first_sample: 0,
                                loss_scale: 1.0,
                                dropout: true,
                                dropout_key: [5, 6],
                                update: Some(AdamW { update: u64::from(step) + 1, ..HYPER }),
                            };
                            // The first step makes room for what the later ones reuse.
                            COUNTING.set(step > 0);
                            let outcome =
                                interpreter.run(program, statics, &mut backend, &mut communicator, &inputs);
                            COUNTING.set(false);
                            outcome.expect("a sound group");
                        }
                        LARGE.get()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).sum()
        });
        assert_eq!(large, 0, "allocations of at least {TENSOR_BYTES} B in steps of `{}`", variant.name);
    }
}

#[test]
fn collectives_of_groups_at_different_speeds_allocate_nothing() {
    const RANKS: u32 = 4;
    /// Collectives by which one pair is ahead of the other.
    const AHEAD: usize = 100;
    let span = Span { offset: 0, bytes: 4 * 50_000 };
    let meeting = Barrier::new(RANKS as usize);
    let run = |mut communicator: LocalCommunicator| {
        let mut arena = Arena::new(span.bytes).expect("a small arena");
        let rank = communicator.rank();
        let mut collective = |operation, grouping| {
            let members = Group::of_stage(0, RANKS, grouping, rank as u32);
            let ticket = communicator.start(operation, members, Tag(0), arena.lend(span));
            arena.give_back(communicator.sync(ticket).expect("a sound communicator"));
        };
        // More than a thousand collectives, so that no room from the beginning lasts to the end.
        for round in 0..12 {
            // The first round makes room for the arena's list of loans.
            COUNTING.set(round > 0);
            let ahead = (rank / 2) == round % 2;
            if !ahead {
                meeting.wait();
            }
            for _ in 0..AHEAD {
                collective(Operation::AllReduceSum, Grouping::new(2, 1, RANKS));
            }
            if ahead {
                meeting.wait();
            }
            collective(Operation::AllReduceSum, Grouping::Whole);
            for operation in [Operation::AllGather, Operation::ReduceScatterSum, Operation::AllReduceSum] {
                collective(operation, Grouping::new(2, 2, RANKS));
                collective(operation, Grouping::new(1, 1, RANKS));
            }
            COUNTING.set(false);
        }
        ALL.get()
    };
    let allocations: Vec<usize> = std::thread::scope(|scope| {
        let ranks = group(RANKS as usize, LocalOptions::default()).into_iter();
        let ranks: Vec<_> = ranks.map(|communicator| scope.spawn(|| run(communicator))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    });
    assert_eq!(allocations, [0; RANKS as usize]);
}

#[test]
fn the_allocator_counts() {
    COUNTING.set(true);
    let before = (LARGE.get(), ALL.get());
    drop(std::hint::black_box(vec![0_u8; TENSOR_BYTES]));
    drop(std::hint::black_box(Box::new(1_u8)));
    COUNTING.set(false);
    assert_eq!((LARGE.get(), ALL.get()), (before.0 + 1, before.1 + 2));
}
