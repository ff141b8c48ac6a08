//! `serial`: the plainest step, from which every other is derived.

use crate::ids::{BlockId, CollectiveId, PartId};
use crate::mesh::Axis;
use crate::passes::Request;
use crate::schedule::{Extent, Instruction, Keep, Part, Schedule, Scope};
use crate::value::expected_kind;

/// A schedule with a header and no instructions.
pub(super) fn empty(name: &str, request: &Request) -> Schedule {
    let part = |micro| Part { id: PartId::whole(micro), sequences: request.sequences };
    Schedule {
        name: name.to_owned(),
        layers: request.layers,
        layout: request.layout.clone(),
        parts: (0..request.micro_batches).map(part).collect(),
        instructions: Vec::new(),
    }
}

pub(super) fn serial(schedule: &Schedule, _: &Request) -> Schedule {
    let mut step = Blocking { schedule, instructions: Vec::new() };
    for part in schedule.parts.iter().map(|part| part.id) {
        for block in schedule.chain() {
            let keep = if block == BlockId::Embed { Keep::Nothing } else { Keep::All };
            step.push(Instruction::Forward { block, part, keep, extent: Extent::Output });
        }
        step.push(Instruction::Loss { part });
        for block in schedule.chain().rev() {
            step.push(Instruction::Backward { block, part, scope: Scope::All });
        }
    }
    step.collective(CollectiveId::Gradients(0));
    step.push(Instruction::Norm);
    step.push(Instruction::Step);
    schedule.with_instructions(step.instructions)
}

/// Appends instructions, each with the collective that completes its result, waited for at once.
pub(super) struct Blocking<'a> {
    pub schedule: &'a Schedule,
    pub instructions: Vec<Instruction>,
}

impl Blocking<'_> {
    pub(super) fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
        if let Some(collective) = instruction.produces() {
            self.collective(collective);
        }
    }

    /// Groups of one have no collectives.
    fn collective(&mut self, collective: CollectiveId) {
        let degree = match collective {
            CollectiveId::Block { block, .. } => self.schedule.degree(block),
            CollectiveId::Gradients(_) | CollectiveId::Norm => {
                self.schedule.chain().map(|block| self.schedule.degree(block)).max().unwrap_or(1)
            }
        };
        if degree > 1 {
            let kind = expected_kind(collective);
            self.instructions.push(Instruction::Start { collective, kind, axis: Axis::Tensor });
            self.instructions.push(Instruction::Sync { collective });
        }
    }
}
