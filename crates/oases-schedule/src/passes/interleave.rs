//! `interleave`: two micro-batches at once, one forward and one backward.

use crate::ids::Pass;
use crate::passes::Request;
use crate::passes::split::units;
use crate::schedule::{Instruction, Schedule};

/// The forward of each micro-batch runs block by block with the backward of the one before. Forward is bound by
/// communication sooner than backward is; together they keep both streams busy at every ratio of the two. The inputs of a
/// second micro-batch are kept meanwhile.
pub(super) fn interleave(schedule: &Schedule, _: &Request) -> Schedule {
    let micro_batches = by_micro_batch(&schedule.instructions);
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    let mut backward: Vec<&[Instruction]> = Vec::new();
    for MicroBatch { forward, backward: next } in &micro_batches.batches {
        merge(forward, &backward, &mut instructions);
        backward.clone_from(next);
    }
    merge(&[], &backward, &mut instructions);
    instructions.extend_from_slice(micro_batches.end);
    schedule.with_instructions(instructions)
}

/// The units of one micro-batch, up to its losses and after them.
#[derive(Default)]
struct MicroBatch<'a> {
    forward: Vec<&'a [Instruction]>,
    backward: Vec<&'a [Instruction]>,
}

struct MicroBatches<'a> {
    batches: Vec<MicroBatch<'a>>,
    /// What belongs to no micro-batch: the end of the step.
    end: &'a [Instruction],
}

fn by_micro_batch(instructions: &[Instruction]) -> MicroBatches<'_> {
    let end =
        instructions.iter().rposition(|instruction| instruction.part().is_some()).map_or(0, |last| last + 1);
    let (parts, end) = instructions.split_at(end);
    let mut batches: Vec<MicroBatch<'_>> = Vec::new();
    let mut current = None;
    for unit in units(parts) {
        let micro = unit[0].part().map(|part| part.micro);
        if micro != current {
            batches.push(MicroBatch::default());
            current = micro;
        }
        let batch = batches.last_mut().expect("one was just pushed");
        match unit[0].pass() {
            Some(Pass::Forward) | None => batch.forward.push(unit),
            Some(Pass::Recompute | Pass::Backward) => batch.backward.push(unit),
        }
    }
    MicroBatches { batches, end }
}

/// Deals the units of both lists out in proportion, the backward's first.
fn merge(forward: &[&[Instruction]], backward: &[&[Instruction]], into: &mut Vec<Instruction>) {
    let mut forward = forward.iter().enumerate();
    let mut dealt = 0;
    let total = forward.len();
    for (index, unit) in backward.iter().enumerate() {
        into.extend_from_slice(unit);
        while dealt * backward.len() <= index * total {
            let Some((_, unit)) = forward.next() else { break };
            into.extend_from_slice(unit);
            dealt += 1;
        }
    }
    into.extend(forward.flat_map(|(_, unit)| unit.iter().copied()));
}
