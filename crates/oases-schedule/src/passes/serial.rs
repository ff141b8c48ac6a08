//! `serial`: the plainest step, from which every other is derived.

use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::schedule::{Extent, Keep, Part, Schedule, Scope};
use crate::stage::Stage;

/// A schedule with a header and no instructions.
pub(crate) fn empty(name: &str, request: &Request) -> Schedule {
    let part = |micro| Part { id: PartId::whole(micro), sequences: request.sequences };
    Schedule {
        name: name.to_owned(),
        layers: request.layers,
        layout: request.layout.clone(),
        stage: request.stage.clone(),
        optimizer: request.optimizer,
        parts: (0..request.micro_batches).map(part).collect(),
        instructions: Vec::new(),
    }
}

pub(super) fn serial(schedule: &Schedule, request: &Request) -> Schedule {
    let mut step = Blocking { schedule, instructions: Vec::new() };
    let Stage { stages, .. } = &schedule.stage;
    let chunk = |chunk: usize| {
        let positions = stages.range(chunk, Schedule::blocks(schedule.layers));
        positions.map(|position| BlockId::at(position, schedule.layers))
    };
    for part in schedule.parts.iter().map(|part| part.id) {
        for block in schedule.stage.chunks().flat_map(chunk) {
            step.receive(Pass::Forward, block, part);
            step.reshard(Pass::Forward, block, part);
            let keep = if block == BlockId::Embed { Keep::Nothing } else { Keep::All };
            step.push(Instruction::Forward { block, part, keep, extent: Extent::Output });
            step.send(Pass::Forward, schedule.after(block), part);
        }
        if schedule.runs(BlockId::Head) {
            step.push(Instruction::Loss { part });
        }
        for block in schedule.stage.chunks().flat_map(chunk).rev() {
            step.receive(Pass::Backward, block, part);
            step.push(Instruction::Backward { block, part, scope: Scope::All });
            step.reshard(Pass::Backward, block, part);
            step.send(Pass::Backward, Some(block), part);
            // Behind what the next block waits for, since collectives run in the order of their starts.
            let at_the_end = schedule.stage.shares_table() && matches!(block, BlockId::Embed | BlockId::Head);
            if part.micro + 1 == request.micro_batches && !at_the_end {
                step.collective(CollectiveId::Replicas(block));
            }
        }
    }
    step.collective(CollectiveId::Table);
    if schedule.stage.shares_table() {
        // Their sums over replicas come behind the sum between the stages.
        let ends = [BlockId::Embed, BlockId::Head].into_iter().filter(|&end| schedule.runs(end));
        ends.for_each(|end| step.collective(CollectiveId::Replicas(end)));
    }
    step.collective(CollectiveId::Gradients(0));
    step.push(Instruction::Norm);
    step.push(Instruction::Step);
    schedule.chain().for_each(|block| step.collective(CollectiveId::Weights(block)));
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

    /// Where the block's input, or in backward its output's gradient, comes from another stage, receives it.
    fn receive(&mut self, pass: Pass, block: BlockId, part: PartId) {
        let from = if pass == Pass::Backward { self.schedule.after(block) } else { Some(block) };
        if let Some(block) = from.filter(|&block| self.schedule.crosses(block)) {
            self.collective(CollectiveId::Transfer { pass, block, part });
        }
    }

    /// Where the chain crosses to another stage before `block`, completes and sends what belongs there.
    fn send(&mut self, pass: Pass, block: Option<BlockId>, part: PartId) {
        if let Some(block) = block.filter(|&block| self.schedule.crosses(block)) {
            self.push(Instruction::Complete { pass, block, part });
        }
    }

    fn collective(&mut self, collective: CollectiveId) {
        if let Some((kind, axis, grouping)) = self.schedule.collective(collective) {
            self.instructions.push(Instruction::Start { collective, kind, axis, grouping });
            self.instructions.push(Instruction::Sync { collective });
        }
    }
}
