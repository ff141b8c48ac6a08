//! `split`: sub-batches, so that the collective of one can run under the computation of another.

use crate::ids::PartId;
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::schedule::{CollectiveKind, Part, Schedule, Scope};

/// Each unit (an instruction on a block, with its collective) runs for all sub-batches before the next unit.
pub(super) fn split(schedule: &Schedule, request: &Request) -> Schedule {
    if request.sub_batches == 1 {
        return schedule.clone();
    }
    let granularity = request.layout.granularity();
    let parts = schedule.parts.iter().flat_map(|part| cut(part, request.sub_batches, granularity)).collect();
    let mut instructions = Vec::new();
    for unit in units(&schedule.instructions) {
        match unit[0].part() {
            Some(part) => {
                let (own, replicas) = own_and_replicas(unit);
                for sub in 0..request.sub_batches {
                    let part = PartId { sub: Some(sub as u8), ..part };
                    instructions.extend(own.iter().map(|instruction| instruction.with_part(part)));
                }
                instructions.extend_from_slice(replicas);
            }
            None => instructions.extend_from_slice(unit),
        }
    }
    Schedule { parts, ..schedule.with_instructions(instructions) }
}

/// Near-equal sub-batches, in multiples of what all replicas need to get as many; the first ones get what does not divide, the
/// first of all even what no replicas can share, so that the verifier finds it.
fn cut(part: &Part, sub_batches: u32, granularity: u32) -> impl Iterator<Item = Part> {
    let Part { id, sequences } = *part;
    let shares = sequences / granularity;
    (0..sub_batches).map(move |sub| Part {
        id: PartId { sub: Some(sub as u8), ..id },
        sequences: granularity * (shares / sub_batches + u32::from(sub < shares % sub_batches))
            + if sub == 0 { sequences % granularity } else { 0 },
    })
}

/// An instruction, the collective on its result, and behind the last backward of a block that on its gradients. A border
/// behind a block that has no collective of its own belongs to it, so that its gather runs under the other sub-batches; it has
/// nothing to do with weight gradients, which may come any time later.
pub(super) fn units(instructions: &[Instruction]) -> impl Iterator<Item = &[Instruction]> {
    instructions.chunk_by(|before, next| match next {
        Instruction::Reshard { .. } => {
            let weight = matches!(before, Instruction::Backward { scope: Scope::Weight, .. });
            !weight && matches!(before, Instruction::Forward { .. } | Instruction::Backward { .. })
        }
        // What is received belongs to what follows.
        Instruction::Start { kind: CollectiveKind::Recv, .. } => false,
        Instruction::Start { collective, .. } | Instruction::Sync { collective } => {
            collective.block().is_some()
        }
        _ => false,
    })
}

/// A unit cut before the collective on a block's gradients.
pub(super) fn own_and_replicas(unit: &[Instruction]) -> (&[Instruction], &[Instruction]) {
    let replicas = unit.iter().position(|instruction| instruction.part().is_none());
    unit.split_at(replicas.unwrap_or(unit.len()))
}
