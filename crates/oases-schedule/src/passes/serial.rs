//! `serial`: the plainest step, from which every other is derived.

use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::mesh::Axis;
use crate::passes::Request;
use crate::schedule::{Extent, Instruction, Keep, Part, Schedule, Scope};

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

pub(super) fn serial(schedule: &Schedule, request: &Request) -> Schedule {
    let mut step = Blocking { schedule, instructions: Vec::new() };
    for part in schedule.parts.iter().map(|part| part.id) {
        for block in schedule.chain() {
            step.reshard(Pass::Forward, block, part);
            let keep = if block == BlockId::Embed { Keep::Nothing } else { Keep::All };
            step.push(Instruction::Forward { block, part, keep, extent: Extent::Output });
        }
        step.push(Instruction::Loss { part });
        for block in schedule.chain().rev() {
            step.push(Instruction::Backward { block, part, scope: Scope::All });
            step.reshard(Pass::Backward, block, part);
            // Behind what the next block waits for, since collectives run in the order of their starts.
            if part.micro + 1 == request.micro_batches {
                step.collective(CollectiveId::Replicas(block));
            }
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

    /// Where the TMP degree changes before the block, what must be done about that.
    pub(super) fn reshard(&mut self, pass: Pass, block: BlockId, part: PartId) {
        if self.schedule.border(block).is_some() {
            self.push(Instruction::Reshard { pass, block, part });
        }
    }

    fn collective(&mut self, collective: CollectiveId) {
        if let Some((kind, grouping)) = self.schedule.collective(collective) {
            self.instructions.push(Instruction::Start { collective, kind, axis: Axis::Tensor, grouping });
            self.instructions.push(Instruction::Sync { collective });
        }
    }
}
