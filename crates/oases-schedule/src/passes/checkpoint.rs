//! `checkpoint-layers`, `-blocks` and `-cores`: keep less, recompute the rest before backward.

use std::collections::BTreeSet;

use crate::ids::{BlockId, PartId, Pass};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::passes::serial::Blocking;
use crate::schedule::{Extent, Keep, Schedule};

/// Chen et al., arXiv 1604.06174, at the granularity of Megatron-LM: one input per layer is kept, and the whole layer runs
/// again before its backward, all-reduces included. 6 all-reduces per layer and part: 2 forward, 2 recompute, 2 backward.
pub(super) fn checkpoint_layers(schedule: &Schedule, request: &Request) -> Schedule {
    // Embedding and head are not recomputed: one has nothing to keep, the other goes backward at once.
    let of_layer = |layer| request.keep.of(BlockId::Attn(layer)).unwrap_or(Keep::Input);
    let mut step = Blocking { schedule, instructions: Vec::new() };
    let mut recomputed = BTreeSet::new();
    for instruction in &schedule.instructions {
        match *instruction {
            // The layer is recomputed for all sub-batches, block by block, before the first of them goes backward.
            Instruction::Backward {
                block: block @ (BlockId::Attn(layer) | BlockId::Mlp(layer)),
                part,
                ..
            } if of_layer(layer) == Keep::Input && recomputed.insert((part.micro, block)) => {
                // Where the layer lies on two stages, each recomputes its half.
                let alone = block == BlockId::Attn(layer) || schedule.crosses(block);
                let blocks = if alone { vec![block] } else { vec![BlockId::Attn(layer), block] };
                recompute(&mut step, &blocks, part);
                recomputed.extend(blocks.into_iter().map(|block| (part.micro, block)));
            }
            Instruction::Backward { block: block @ BlockId::Attn(layer), part, .. }
                if of_layer(layer) == Keep::Selective =>
            {
                step.push(Instruction::Recompute { block, part, extent: Extent::Core });
            }
            _ => {}
        }
        step.instructions.push(match *instruction {
            Instruction::Forward { block: block @ BlockId::Attn(layer), part, extent, .. } => {
                Instruction::Forward { block, part, keep: of_layer(layer), extent }
            }
            Instruction::Forward { block: block @ BlockId::Mlp(layer), part, extent, .. } => {
                let keep = match of_layer(layer) {
                    Keep::Input if schedule.crosses(block) => Keep::Input,
                    Keep::Input => Keep::Nothing,
                    _ => Keep::All,
                };
                Instruction::Forward { block, part, keep, extent }
            }
            other => other,
        });
    }
    schedule.with_instructions(step.instructions)
}

fn recompute(step: &mut Blocking<'_>, blocks: &[BlockId], part: PartId) {
    let parts: Vec<PartId> = sub_batches(step.schedule, part).collect();
    for &block in blocks {
        if block != blocks[0] {
            parts.iter().for_each(|&part| step.reshard(Pass::Recompute, block, part));
        }
        for &part in &parts {
            step.push(Instruction::Recompute { block, part, extent: Extent::Output });
        }
    }
}

/// One input per block is kept, and each block is recomputed up to what its backward reads. No collective is repeated:
/// the gradient of an all-reduce's input is the gradient of its output (Li et al., arXiv 2305.16121, section 3.2).
pub(super) fn checkpoint_blocks(schedule: &Schedule, request: &Request) -> Schedule {
    recompute_before_backward(schedule, |block| match (block, request.keep.of(block)) {
        (BlockId::Embed | BlockId::Head, _) | (_, Some(Keep::All)) => None,
        (BlockId::Attn(_), Some(Keep::Selective)) => Some((Keep::Selective, Extent::Core)),
        (BlockId::Mlp(_), Some(Keep::Selective)) => None,
        _ => Some((Keep::Input, Extent::Saved)),
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
