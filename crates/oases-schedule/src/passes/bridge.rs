//! `bridge`: the ends of neighbouring micro-batches hide each other's collectives.

use crate::ids::{BlockId, Pass};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::passes::split::units;
use crate::schedule::Schedule;

/// Where one micro-batch ends and the next begins, the last gradient of the one and the embedding of the other have nothing
/// to run under. So the embedding of the next micro-batch moves before the last block's backward, and the embedding's
/// backward behind the next micro-batch's first block, part by part.
pub(super) fn bridge(schedule: &Schedule, _: &Request) -> Schedule {
    let mut units: Vec<&[Instruction]> = units(&schedule.instructions).collect();
    let micro_batches: Vec<u32> =
        schedule.parts.chunk_by(|a, b| a.id.micro == b.id.micro).map(|m| m[0].id.micro).collect();
    for pair in micro_batches.windows(2) {
        join(&mut units, pair[0], pair[1]);
    }
    schedule.with_instructions(units.concat())
}

fn join(units: &mut Vec<&[Instruction]>, before: u32, next: u32) {
    let is = |unit: &[Instruction], micro, pass, block| {
        let instruction = unit[0];
        instruction.part().is_some_and(|part| part.micro == micro)
            && instruction.pass() == Some(pass)
            && instruction.block() == Some(block)
    };
    let first_block = BlockId::Attn(0);
    let embeddings = take(units, |unit| is(unit, next, Pass::Forward, BlockId::Embed));
    let gradients = take(units, |unit| is(unit, before, Pass::Backward, BlockId::Embed));
    let last_block = units.iter().position(|unit| {
        is(unit, before, Pass::Recompute, first_block) || is(unit, before, Pass::Backward, first_block)
    });
    let at = last_block.expect("every micro-batch goes backward through its first block");
    units.splice(at..at, embeddings);
    for gradient in gradients.into_iter().rev() {
        let part = gradient[0].part().map(|part| part.sub);
        let under = units.iter().rposition(|unit| {
            is(unit, next, Pass::Forward, first_block) && unit[0].part().map(|part| part.sub) == part
        });
        let at = under.expect("every micro-batch goes forward through its first block") + 1;
        units.insert(at, gradient);
    }
}

/// Takes out the units that are wanted.
fn take<'a>(
    units: &mut Vec<&'a [Instruction]>,
    wanted: impl Fn(&[Instruction]) -> bool,
) -> Vec<&'a [Instruction]> {
    units.extract_if(.., |unit| wanted(unit)).collect()
}
