//! `split-backward`: the gradient of the input first, since others wait for it.

use crate::ids::{BlockId, Pass};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::passes::split::{own_and_replicas, units};
use crate::schedule::{Schedule, Scope};

/// Each backward with its collectives becomes: input gradient, its collective, weight gradients, theirs. Where the input gradient
/// goes to another stage, the weight gradients come behind its send.
pub(super) fn split_backward(schedule: &Schedule, _: &Request) -> Schedule {
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    for unit in units(&schedule.instructions) {
        let (own, replicas) = own_and_replicas(unit);
        match unit[0] {
            Instruction::Backward { block, part, scope: Scope::All } if block != BlockId::Embed => {
                instructions.push(Instruction::Backward { block, part, scope: Scope::Input });
                instructions.extend_from_slice(&own[1..]);
                if !schedule.crosses(block) {
                    instructions.push(Instruction::Backward { block, part, scope: Scope::Weight });
                }
                instructions.extend_from_slice(replicas);
            }
            Instruction::Complete { pass: Pass::Backward, block, part } => {
                instructions.extend_from_slice(own);
                instructions.push(Instruction::Backward { block, part, scope: Scope::Weight });
                instructions.extend_from_slice(replicas);
            }
            _ => instructions.extend_from_slice(unit),
        }
    }
    schedule.with_instructions(instructions)
}

/// The same for a schedule that keeps everything. Where something is recomputed, that runs under the all-reduces; here the
/// weight gradients take its place.
pub(super) fn split_kept(schedule: &Schedule, request: &Request) -> Schedule {
    let recomputes = schedule.instructions.iter().any(|i| matches!(i, Instruction::Recompute { .. }));
    if recomputes { schedule.clone() } else { split_backward(schedule, request) }
}
