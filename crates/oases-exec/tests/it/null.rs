//! The interpreter on the backend that computes nothing: every rank of a larger group runs every instruction once, in
//! order, and a collective is waited for where the schedule says so.

use std::time::{Duration, Instant};

use oases_exec::comm::local::{LocalOptions, group};
use oases_exec::comm::{Link, Operation};
use oases_exec::null::{NullBackend, scaled};
use oases_exec::{Interpreter, Program, StepInputs, Timing};
use oases_schedule::passes::VARIANTS;
use oases_schedule::{CollectiveId, Instruction, Model, Purpose, Statics, Workspace};

use crate::harness::{HYPER, request};

/// The instructions that a rank ran, and when.
type Trace = (Vec<Instruction>, Vec<Timing>);

fn run(
    variant: &oases_schedule::Variant,
    ranks: u32,
    link: Option<Link>,
    duration: Duration,
) -> (Program, Vec<Trace>) {
    let model = Model::gpt(2, 64, 8, 32, 100);
    let schedule = variant.build(&request(&model, &ranks.to_string(), 4, 1, 2));
    let statics =
        Statics::new(&model, &schedule.layout, Purpose::Training, schedule.batch(), schedule.parts.len());
    let program = Program::new(schedule, &statics, Workspace::default());
    let options = LocalOptions { link: link.map(scaled), ..LocalOptions::default() };
    let began = Instant::now();
    let of_ranks = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(group(ranks as usize, options))
            .map(|(rank, mut communicator)| {
                let (program, statics) = (&program, &statics);
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    let lasts = |index: usize| {
                        let instruction = program.schedule.instructions[index];
                        seen.push(instruction);
                        match instruction {
                            Instruction::Start { .. } | Instruction::Sync { .. } => Duration::ZERO,
                            _ => duration,
                        }
                    };
                    let bytes = program.plan.bytes;
                    let mut backend = NullBackend::new(bytes, ranks as usize, lasts).expect("virtual memory");
                    let inputs = StepInputs {
                        step: 0,
                        first_sample: 0,
                        loss_scale: 1.0,
                        dropout: false,
                        dropout_key: [0, 0],
                        update: Some(HYPER),
                    };
                    let mut interpreter = Interpreter::new(rank, began);
                    let outcome = interpreter.run(program, statics, &mut backend, &mut communicator, &inputs);
                    outcome.expect("a sound group");
                    drop(backend);
                    (seen, interpreter.timings().to_vec())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    });
    (program, of_ranks)
}

#[test]
fn every_rank_runs_the_schedule_as_it_stands() {
    for variant in VARIANTS {
        for ranks in [1, 2, 8] {
            let (program, of_ranks) = run(variant, ranks, None, Duration::ZERO);
            for (seen, timings) in of_ranks {
                assert_eq!(seen, program.schedule.instructions, "{} over {ranks}", variant.name);
                assert_eq!(timings.len(), seen.len());
                assert!(timings.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
            }
        }
    }
}

#[test]
fn nothing_goes_on_before_the_link_has_carried_it() {
    let link = Link { bandwidth_bytes_per_s: 10e6, latency: Duration::from_micros(100) };
    for variant in VARIANTS {
        let (program, of_ranks) = run(variant, 4, Some(link), Duration::from_micros(200));
        let instructions = &program.schedule.instructions;
        let at = |wanted: CollectiveId, synced: bool| {
            let found = instructions.iter().position(|instruction| match instruction {
                Instruction::Start { collective, .. } => !synced && *collective == wanted,
                Instruction::Sync { collective } => synced && *collective == wanted,
                _ => false,
            });
            found.expect("every collective is started and synced")
        };
        for (index, instruction) in instructions.iter().enumerate() {
            let Instruction::Start { collective: id @ CollectiveId::Block { .. }, .. } = *instruction else {
                continue;
            };
            let started =
                of_ranks.iter().map(|(_, timings)| timings[at(id, false)].start_ns).max().unwrap_or(0);
            let bytes = oases_schedule::collective_bytes(&program.schedule, &program.plan, index).unwrap().0;
            let operation = match id {
                CollectiveId::Block {
                    block: oases_schedule::BlockId::Head,
                    pass: oases_schedule::Pass::Forward,
                    ..
                } => Operation::AllGather,
                _ => Operation::AllReduceSum,
            };
            // The buffers are shrunk by 1024 and rounded up, so they never take less than the real ones.
            let least = link.duration(operation, bytes as usize, 4).as_nanos() as u64;
            for (_, timings) in &of_ranks {
                let ended = timings[at(id, true)].end_ns;
                assert!(
                    ended >= started + least,
                    "{} {id}: {} ns after its start",
                    variant.name,
                    ended - started
                );
            }
        }
    }
}
