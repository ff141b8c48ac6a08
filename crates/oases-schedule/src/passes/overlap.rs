//! `overlap`: collectives run under whatever does not need their result.

use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::schedule::{CollectiveKind, Schedule};

/// Moves every `sync` to just before the first instruction that reads the result.
pub(super) fn overlap(schedule: &Schedule, _: &Request) -> Schedule {
    let mut waiting: Vec<CollectiveId> = Vec::new();
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    for instruction in &schedule.instructions {
        if let Instruction::Sync { collective } = *instruction {
            waiting.push(collective);
            continue;
        }
        let readers = Readers { schedule, instruction };
        for collective in waiting.extract_if(.., |collective| readers.reads(*collective)) {
            instructions.push(Instruction::Sync { collective });
        }
        instructions.push(*instruction);
    }
    // What nobody reads is still waited for: its buffer must come back.
    instructions.extend(waiting.into_iter().map(|collective| Instruction::Sync { collective }));
    schedule.with_instructions(instructions)
}

struct Readers<'a> {
    schedule: &'a Schedule,
    instruction: &'a Instruction,
}

impl Readers<'_> {
    /// Whether the instruction reads the collective's result. A recomputed output that nobody reads (the last of a
    /// layer) counts as read by the backward of its own block, which ends the recomputation.
    fn reads(&self, collective: CollectiveId) -> bool {
        let (pass, block, part) = match collective {
            CollectiveId::Block { pass, block, part, .. } => (pass, block, part),
            CollectiveId::Reshard { pass, block, part } => return self.reads_resharded(pass, block, part),
            CollectiveId::Transfer { pass, block, part } => return self.reads_transferred(pass, block, part),
            CollectiveId::Replicas(_) | CollectiveId::Gradients(_) | CollectiveId::Table => {
                return matches!(self.instruction, Instruction::Norm) || self.follows_table(collective);
            }
            CollectiveId::Weights(_) => return false,
            CollectiveId::Norm => return matches!(self.instruction, Instruction::Step),
        };
        if self.instruction.part() != Some(part) {
            return false;
        }
        match *self.instruction {
            Instruction::Reshard { pass: Pass::Backward, block: border, .. }
            | Instruction::Complete { pass: Pass::Backward, block: border, .. } => {
                pass == Pass::Backward && border == block
            }
            Instruction::Reshard { pass: of, block: border, .. }
            | Instruction::Complete { pass: of, block: border, .. } => {
                pass == of && self.schedule.before(border) == Some(block)
            }
            Instruction::Forward { block: reader, .. } => {
                pass == Pass::Forward && self.schedule.before(reader) == Some(block)
            }
            Instruction::Recompute { block: reader, .. } => {
                pass == Pass::Recompute && self.schedule.before(reader) == Some(block)
            }
            Instruction::Loss { .. } => pass == Pass::Forward && block == BlockId::Head,
            Instruction::Backward { block: reader, .. } => match pass {
                Pass::Forward => false,
                Pass::Recompute => reader == block,
                Pass::Backward => self.schedule.before(block) == Some(reader),
            },
            _ => false,
        }
    }

    /// What was sent nobody reads. Its buffer is waited for where the next of its kind is completed, or at the end of the step.
    /// What was received is read by the block on this side.
    fn reads_transferred(&self, pass: Pass, block: BlockId, part: PartId) -> bool {
        let transfer = CollectiveId::Transfer { pass, block, part };
        let sent = self.schedule.collective(transfer).is_some_and(|(kind, ..)| kind == CollectiveKind::Send);
        match *self.instruction {
            Instruction::Norm => sent,
            Instruction::Complete { pass: next, block: of, part: another } => {
                sent && (next, of, another.sub) == (pass, block, part.sub)
            }
            _ => !sent && self.reads_resharded(pass, block, part),
        }
    }

    /// The sums over the replicas of the ends come behind the sum between the ends.
    fn follows_table(&self, collective: CollectiveId) -> bool {
        collective == CollectiveId::Table
            && matches!(
                self.instruction,
                Instruction::Start { collective: CollectiveId::Replicas(BlockId::Embed | BlockId::Head), .. }
            )
    }

    /// Whether the instruction reads what was gathered before `block`, or what came from another stage.
    fn reads_resharded(&self, pass: Pass, block: BlockId, part: PartId) -> bool {
        let reader = if pass == Pass::Backward { self.schedule.before(block) } else { Some(block) };
        let reads = match self.instruction {
            Instruction::Forward { .. } => pass == Pass::Forward,
            Instruction::Recompute { .. } => pass == Pass::Recompute,
            Instruction::Backward { .. } => pass == Pass::Backward,
            _ => false,
        };
        reads && self.instruction.block() == reader && self.instruction.part() == Some(part)
    }
}
