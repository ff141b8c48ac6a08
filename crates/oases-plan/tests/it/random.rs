//! What must hold for every schedule, whatever its costs.

use oases_plan::{Nanoseconds, bound};
use oases_schedule::random::{self, Numbers};
use oases_schedule::{Bytes, CollectiveKind, Instruction, Layout, Operation, Request, Schedule};

use crate::support::{Rule, planned, request, simulate};

/// A duration that depends on the question only.
fn drawn(seed: u64, question: &str, most: usize) -> u64 {
    let hash =
        question.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    Numbers::new(hash).below(most) as u64
}

#[test]
fn a_step_lies_between_its_bound_and_the_sum_of_everything() {
    for seed in 0..300 {
        let mut numbers = Numbers::new(seed);
        let [layers, micro_batches, sub_batches] =
            [1 + numbers.below(3) as u32, 1 + numbers.below(3) as u32, 1 + numbers.below(3) as u32];
        let uniform = request(layers, micro_batches, sub_batches, 3);
        let request = if numbers.one_in(2) { uniform } else { mixed(uniform, &mut numbers) };
        let schedule = random::schedule(seed, &request);
        // From nothing to longer than any computation.
        let [most_link, most_host] = [1 + numbers.below(4000), 1 + numbers.below(800)];
        let costs = Rule {
            compute: |operation: Operation, sequences: u32| {
                drawn(seed, &format!("{operation} {sequences}"), 1000)
            },
            collective: |kind: CollectiveKind, bytes: Bytes| {
                let question = format!("{} {}", kind.name(), bytes.0);
                (drawn(seed, &question, most_link), drawn(seed + 1, &question, most_host))
            },
        };
        let timeline = simulate(&schedule, &costs);
        assert_eq!(timeline, simulate(&schedule, &costs), "seed {seed}: not the same twice");
        let least = bound(&schedule, &planned(&schedule), &costs).unwrap();
        assert_eq!((least.compute, least.communication), (timeline.compute, timeline.communication));
        let host: u64 =
            timeline.collectives.iter().map(|run| (costs.collective)(run.kind, run.bytes).1).sum();
        let everything = timeline.compute + timeline.communication + Nanoseconds(host);
        assert!(least.step() <= timeline.step, "seed {seed}: {} above {}", least.step(), timeline.step);
        assert!(timeline.step <= everything, "seed {seed}: {} above {everything}", timeline.step);
        assert_eq!(timeline.exposed, timeline.step - timeline.compute, "seed {seed}");
        check_streams(seed, &schedule.instructions, &timeline);
    }
}

/// The same in a group of four with any degrees, and so many sequences that each replica has some of every part.
fn mixed(request: Request, numbers: &mut Numbers) -> Request {
    let mut degrees: Vec<u32> =
        (0..Schedule::blocks(request.layers)).map(|_| numbers.pick(&[1, 2, 4])).collect();
    let last = degrees.len() - 1;
    degrees[last] = degrees[0];
    Request { layout: Layout::new(4, degrees), sequences: 12, ..request }
}

/// Neither stream does two things at once, and nothing is used before it is there.
fn check_streams(seed: u64, instructions: &[Instruction], timeline: &oases_plan::Timeline) {
    let mut now = Nanoseconds::ZERO;
    for interval in &timeline.instructions {
        assert_eq!(interval.start, now, "seed {seed}: a gap on the compute stream");
        now = interval.end;
    }
    assert_eq!(now, timeline.step);
    let mut link_free = Nanoseconds::ZERO;
    for run in &timeline.collectives {
        let [started, synced] = [run.start_instruction, run.sync_instruction];
        assert_eq!(run.on_link.start, link_free.max(timeline.instructions[started].start), "seed {seed}");
        assert!(run.on_link.end <= timeline.instructions[synced].end, "seed {seed}: used while on the link");
        assert!(
            matches!(instructions[started], Instruction::Start { collective, .. } if collective == run.collective)
        );
        assert!(
            matches!(instructions[synced], Instruction::Sync { collective } if collective == run.collective)
        );
        link_free = run.on_link.end;
    }
    let starts = instructions.iter().filter(|i| matches!(i, Instruction::Start { .. })).count();
    assert_eq!(timeline.collectives.len(), starts);
}
