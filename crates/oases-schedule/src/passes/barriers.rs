//! `barriers`: no collective runs on into another pass.

use crate::ids::{CollectiveId, Pass};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::schedule::Schedule;

/// Moves every `sync` that stands behind the end of a pass to that end. A pass ends where an instruction of another one
/// follows: so the overlap of Merak (Lai et al., arXiv 2206.04959) reaches from the first to the last block of the forward,
/// and over one layer in recomputation and backward. Transfers between pipeline stages run on.
pub(super) fn barriers(schedule: &Schedule, _: &Request) -> Schedule {
    let mut flying: Vec<CollectiveId> = Vec::new();
    let mut early: Vec<CollectiveId> = Vec::new();
    let mut current: Option<Pass> = None;
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    for instruction in &schedule.instructions {
        let pass = instruction.pass().filter(|_| instruction.block().is_some());
        if pass.is_some() && pass != current {
            instructions.extend(flying.iter().map(|&collective| Instruction::Sync { collective }));
            early.append(&mut flying);
            current = pass;
        }
        match *instruction {
            // What comes from another stage comes when that one sends it.
            Instruction::Start { collective: CollectiveId::Transfer { .. }, .. } => {}
            Instruction::Start { collective, .. } => flying.push(collective),
            Instruction::Sync { collective } => {
                if early.contains(&collective) {
                    early.retain(|&synced| synced != collective);
                    continue;
                }
                flying.retain(|&flying| flying != collective);
            }
            _ => {}
        }
        instructions.push(*instruction);
    }
    schedule.with_instructions(instructions)
}
