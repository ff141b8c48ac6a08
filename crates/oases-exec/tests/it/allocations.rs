//! A step allocates no tensor: a counting allocator watches the threads of the ranks.

use std::alloc::{GlobalAlloc, Layout as AllocLayout, System};
use std::cell::Cell;
use std::time::Instant;

use oases_exec::arena::Arena;
use oases_exec::comm::local::{LocalOptions, group};
use oases_exec::{AdamW, CpuBackend, Interpreter, Program, StepInputs};
use oases_schedule::passes::VARIANTS;
use oases_schedule::{Model, Purpose, Statics};

use crate::harness::{HYPER, request};

/// Allocations from this size on are counted. A tensor of the smallest kind here (statistics of a part) is larger;
/// what is smaller are the handles of a collective.
const TENSOR_BYTES: usize = 512;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static LARGE: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands every call to the system allocator unchanged; the counters are plain thread-local cells that neither
// allocate nor unwind.
#[allow(unsafe_code, reason = "an allocator can be observed in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: AllocLayout) -> *mut u8 {
        if layout.size() >= TENSOR_BYTES && COUNTING.try_with(Cell::get).unwrap_or(false) {
            LARGE.with(|count| count.set(count.get() + 1));
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
        let schedule = variant.build(&request(&model, 2, 4, 2, 2));
        let statics = Statics::new(&model, 2, Purpose::Training, schedule.batch(), schedule.parts.len());
        let program = Program::new(schedule, &statics, CpuBackend::workspace(&model, 2));
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
fn the_allocator_counts() {
    COUNTING.set(true);
    let before = LARGE.get();
    drop(std::hint::black_box(vec![0_u8; TENSOR_BYTES]));
    COUNTING.set(false);
    assert_eq!(LARGE.get(), before + 1);
}
