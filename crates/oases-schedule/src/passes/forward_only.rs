//! `forward-only`: an evaluation.

use crate::ids::Pass;
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::schedule::{Keep, Schedule};

pub(super) fn forward_only(schedule: &Schedule, _: &Request) -> Schedule {
    let keep = |instruction: &Instruction| match *instruction {
        Instruction::Forward { block, part, extent, .. } => {
            Some(Instruction::Forward { block, part, keep: Keep::Nothing, extent })
        }
        Instruction::Loss { .. } => Some(*instruction),
        other => (other.pass() == Some(Pass::Forward)).then_some(other),
    };
    schedule.with_instructions(schedule.instructions.iter().filter_map(keep).collect())
}
