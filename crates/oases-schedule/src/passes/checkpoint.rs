//! `checkpoint-layers` and `checkpoint-blocks`: keep inputs, recompute the rest before backward.

use std::collections::BTreeSet;

use crate::ids::{BlockId, PartId};
use crate::passes::Request;
use crate::passes::serial::Blocking;
use crate::schedule::{Extent, Instruction, Keep, Schedule};

/// Chen et al., arXiv 1604.06174, at the granularity of Megatron-LM: one input per layer is kept, and the whole layer runs
/// again before its backward, all-reduces included. 6 all-reduces per layer and part: 2 forward, 2 recompute, 2 backward.
pub(super) fn checkpoint_layers(schedule: &Schedule, _: &Request) -> Schedule {
    let mut step = Blocking { schedule, instructions: Vec::new() };
    let mut recomputed = BTreeSet::new();
    for instruction in &schedule.instructions {
        if let Instruction::Backward { block: block @ BlockId::Mlp(layer), part } = *instruction {
            // The layer is recomputed for all sub-batches, block by block, before the first of them goes backward.
            if recomputed.insert((layer, part.micro)) {
                for block in [BlockId::Attn(layer), block] {
                    for part in sub_batches(schedule, part) {
                        step.push(Instruction::Recompute { block, part, extent: Extent::Output });
                    }
                }
            }
        }
        step.instructions.push(with_keep(*instruction, |block| match block {
            BlockId::Attn(_) => Keep::Input,
            _ => Keep::Nothing,
        }));
    }
    schedule.with_instructions(step.instructions)
}

/// One input per block is kept, and each block is recomputed up to what its backward reads. No collective is repeated:
/// the gradient of an all-reduce's input is the gradient of its output (Li et al., arXiv 2305.16121, section 3.2).
pub(super) fn checkpoint_blocks(schedule: &Schedule, _: &Request) -> Schedule {
    let mut instructions = Vec::new();
    for instruction in &schedule.instructions {
        if let Instruction::Backward { block: block @ (BlockId::Attn(_) | BlockId::Mlp(_)), part } =
            *instruction
        {
            instructions.push(Instruction::Recompute { block, part, extent: Extent::Saved });
        }
        instructions.push(with_keep(*instruction, |_| Keep::Input));
    }
    schedule.with_instructions(instructions)
}

fn sub_batches(schedule: &Schedule, of: PartId) -> impl Iterator<Item = PartId> {
    schedule.parts.iter().map(|part| part.id).filter(move |part| part.micro == of.micro)
}

/// Embedding and head are not recomputed: one has nothing to keep, the other goes backward at once.
fn with_keep(instruction: Instruction, keep: impl Fn(BlockId) -> Keep) -> Instruction {
    match instruction {
        Instruction::Forward { block: block @ (BlockId::Attn(_) | BlockId::Mlp(_)), part, .. } => {
            Instruction::Forward { block, part, keep: keep(block) }
        }
        other => other,
    }
}
