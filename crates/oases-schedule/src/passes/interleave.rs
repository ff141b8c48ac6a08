//! `interleave`: two micro-batches at once, one forward and one backward.

use crate::ids::{BlockId, Pass};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::passes::split::units;
use crate::schedule::Schedule;

/// An instruction and the collective on its result.
type Unit<'a> = &'a [Instruction];

/// The forward of each micro-batch runs block by block with the backward of the one before. Forward is bound by
/// communication sooner than backward is; together they keep both streams busy at every ratio of the two. The inputs of a
/// second micro-batch are kept meanwhile.
///
/// Where a backward ends, its last gradients have little to run under. So the embedding of the micro-batch that begins there
/// comes before its last block, and the first block of that micro-batch before the next backward.
pub(super) fn interleave(schedule: &Schedule, _: &Request) -> Schedule {
    let (batches, end) = by_micro_batch(&schedule.instructions);
    let mut units: Vec<Unit<'_>> = Vec::new();
    let nothing = MicroBatch::default();
    for index in 0..batches.len() + 2 {
        let at = |index: Option<usize>| index.and_then(|index| batches.get(index)).unwrap_or(&nothing);
        // At this border one backward ends, one forward begins, and the micro-batch between them turns back.
        let (begins, turns, ends) = (at(Some(index)), at(index.checked_sub(1)), at(index.checked_sub(2)));
        let upcoming = &at(Some(index + 1)).embedding;
        if index < 2 {
            units.extend(&begins.embedding);
        }
        merge(&begins.first_block, &ends.embedding_gradient, &mut units);
        merge(&begins.rest, &turns.backward, &mut units);
        units.extend(upcoming.iter().filter(|_| index > 0));
        merge(&[], &turns.last_block, &mut units);
    }
    let mut instructions = units.concat();
    instructions.extend_from_slice(end);
    schedule.with_instructions(instructions)
}

/// The units of one micro-batch.
#[derive(Default)]
struct MicroBatch<'a> {
    embedding: Vec<Unit<'a>>,
    first_block: Vec<Unit<'a>>,
    /// The rest of the forward, up to the losses.
    rest: Vec<Unit<'a>>,
    /// The backward of all blocks but the first.
    backward: Vec<Unit<'a>>,
    /// The backward of the first block, which is the last to go backward.
    last_block: Vec<Unit<'a>>,
    embedding_gradient: Vec<Unit<'a>>,
}

/// The units by micro-batch, and what belongs to none: the end of the step.
fn by_micro_batch(instructions: &[Instruction]) -> (Vec<MicroBatch<'_>>, &[Instruction]) {
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
        let first = Some(BlockId::Attn(0));
        let list = match (unit[0].pass(), unit[0].block()) {
            (Some(Pass::Forward), Some(BlockId::Embed)) => &mut batch.embedding,
            (Some(Pass::Forward), block) if block == first => &mut batch.first_block,
            (Some(Pass::Forward) | None, _) => &mut batch.rest,
            (_, Some(BlockId::Embed)) => &mut batch.embedding_gradient,
            (_, block) if block == first => &mut batch.last_block,
            _ => &mut batch.backward,
        };
        list.push(unit);
    }
    (batches, end)
}

/// Deals the units of both lists out in proportion.
fn merge<'a>(forward: &[Unit<'a>], backward: &[Unit<'a>], into: &mut Vec<Unit<'a>>) {
    let (total, others) = (forward.len(), backward.len());
    let mut dealt = 0;
    for (index, unit) in backward.iter().enumerate() {
        into.push(unit);
        while dealt < total && dealt * others <= index * total {
            into.push(forward[dealt]);
            dealt += 1;
        }
    }
    into.extend(&forward[dealt..]);
}
