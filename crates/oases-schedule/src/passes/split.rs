//! `split`: sub-batches, so that the collective of one can run under the computation of another.

use crate::ids::PartId;
use crate::passes::Request;
use crate::schedule::{Instruction, Part, Schedule};

/// Each unit (an instruction on a block, with its collective) runs for all sub-batches before the next unit.
pub(super) fn split(schedule: &Schedule, request: &Request) -> Schedule {
    if request.sub_batches == 1 {
        return schedule.clone();
    }
    let parts = schedule.parts.iter().flat_map(|part| cut(part, request.sub_batches)).collect();
    let mut instructions = Vec::new();
    for unit in units(&schedule.instructions) {
        match unit[0].part() {
            Some(part) => {
                for sub in 0..request.sub_batches {
                    let part = PartId { sub: Some(sub as u8), ..part };
                    instructions.extend(unit.iter().map(|instruction| instruction.with_part(part)));
                }
            }
            None => instructions.extend_from_slice(unit),
        }
    }
    Schedule { parts, ..schedule.with_instructions(instructions) }
}

/// Near-equal sub-batches; the first ones get what does not divide.
fn cut(part: &Part, sub_batches: u32) -> impl Iterator<Item = Part> {
    let Part { id, sequences } = *part;
    (0..sub_batches).map(move |sub| Part {
        id: PartId { sub: Some(sub as u8), ..id },
        sequences: sequences / sub_batches + u32::from(sub < sequences % sub_batches),
    })
}

/// An instruction and the collective on its result.
pub(super) fn units(instructions: &[Instruction]) -> impl Iterator<Item = &[Instruction]> {
    instructions.chunk_by(|_, next| {
        matches!(next, Instruction::Start { .. } | Instruction::Sync { .. }) && next.part().is_some()
    })
}
