//! `checkpoint-layers`, `-blocks` and `-cores`: keep less, recompute the rest before backward.

use std::collections::BTreeSet;

use crate::ids::{BlockId, PartId};
use crate::passes::Request;
use crate::passes::serial::Blocking;
use crate::schedule::{Extent, Instruction, Keep, Schedule};

/// Chen et al., arXiv 1604.06174, at the granularity of Megatron-LM: one input per layer is kept, and the whole layer runs
/// again before its backward, all-reduces included. 6 all-reduces per layer and part: 2 forward, 2 recompute, 2 backward.
pub(super) fn checkpoint_layers(schedule: &Schedule, request: &Request) -> Schedule {
    match request.keep {
        Some(Keep::All) => return schedule.clone(),
        Some(Keep::Selective) => return checkpoint_cores(schedule, request),
        Some(Keep::Input | Keep::Nothing) | None => {}
    }
    let mut step = Blocking { schedule, instructions: Vec::new() };
    let mut recomputed = BTreeSet::new();
    for instruction in &schedule.instructions {
        if let Instruction::Backward { block: block @ BlockId::Mlp(layer), part, .. } = *instruction {
            // The layer is recomputed for all sub-batches, block by block, before the first of them goes backward.
            if recomputed.insert((layer, part.micro)) {
                for block in [BlockId::Attn(layer), block] {
                    for part in sub_batches(schedule, part) {
                        step.push(Instruction::Recompute { block, part, extent: Extent::Output });
                    }
                }
            }
        }
        step.instructions.push(match *instruction {
            Instruction::Forward { block: block @ BlockId::Attn(_), part, extent, .. } => {
                Instruction::Forward { block, part, keep: Keep::Input, extent }
            }
            Instruction::Forward { block: block @ BlockId::Mlp(_), part, extent, .. } => {
                Instruction::Forward { block, part, keep: Keep::Nothing, extent }
            }
            // Embedding and head are not recomputed: one has nothing to keep, the other goes backward at once.
            other => other,
        });
    }
    schedule.with_instructions(step.instructions)
}

/// One input per block is kept, and each block is recomputed up to what its backward reads. No collective is repeated:
/// the gradient of an all-reduce's input is the gradient of its output (Li et al., arXiv 2305.16121, section 3.2).
pub(super) fn checkpoint_blocks(schedule: &Schedule, request: &Request) -> Schedule {
    match request.keep {
        Some(Keep::All) => return schedule.clone(),
        Some(Keep::Selective) => return checkpoint_cores(schedule, request),
        Some(Keep::Input | Keep::Nothing) | None => {}
    }
    recompute_before_backward(schedule, |block| match block {
        BlockId::Attn(_) | BlockId::Mlp(_) => Some((Keep::Input, Extent::Saved)),
        BlockId::Embed | BlockId::Head => None,
    })
}

/// Attention cores are cheap to recompute for what they hold (Korthikanti et al., arXiv 2205.05198, section 5).
pub(super) fn checkpoint_cores(schedule: &Schedule, _: &Request) -> Schedule {
    recompute_before_backward(schedule, |block| match block {
        BlockId::Attn(_) => Some((Keep::Selective, Extent::Core)),
        BlockId::Mlp(_) | BlockId::Embed | BlockId::Head => None,
    })
}

/// Each block for which `policy` says so keeps that much, and is recomputed that far right before its backward.
fn recompute_before_backward(
    schedule: &Schedule,
    policy: impl Fn(BlockId) -> Option<(Keep, Extent)>,
) -> Schedule {
    let mut instructions = Vec::new();
    for instruction in &schedule.instructions {
        match *instruction {
            Instruction::Backward { block, part, .. } => {
                let recompute =
                    policy(block).map(|(_, extent)| Instruction::Recompute { block, part, extent });
                instructions.extend(recompute.into_iter().chain([*instruction]));
            }
            Instruction::Forward { block, part, keep, extent } => {
                let keep = policy(block).map_or(keep, |(keep, _)| keep);
                instructions.push(Instruction::Forward { block, part, keep, extent });
            }
            other => instructions.push(other),
        }
    }
    schedule.with_instructions(instructions)
}

fn sub_batches(schedule: &Schedule, of: PartId) -> impl Iterator<Item = PartId> {
    schedule.parts.iter().map(|part| part.id).filter(move |part| part.micro == of.micro)
}
