//! `decompose`: overlap inside a block, without sub-batches.

use crate::ids::{BlockId, CollectiveId, Cut, Pass, Piece};
use crate::instruction::Instruction;
use crate::passes::Request;
use crate::passes::split::units;
use crate::schedule::{Extent, Schedule, Scope};

/// The product before each all-reduce is cut into pieces, and each piece is reduced under the computation of the next
/// (Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models",
/// ASPLOS 2023). All pieces are waited for where the block ends, for the next one needs them all.
///
/// In backward they are cut by rows, whatever is asked for: there the normalisation stands between product and all-reduce,
/// and it needs whole rows.
pub(super) fn decompose(schedule: &Schedule, request: &Request) -> Schedule {
    if request.pieces < 2 {
        return schedule.clone();
    }
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    for unit in units(&schedule.instructions) {
        let (Some(&Instruction::Start { collective, kind, axis, grouping }), Some((body, pass))) =
            (unit.get(1), body(unit[0]))
        else {
            instructions.extend_from_slice(unit);
            continue;
        };
        let CollectiveId::Block { block, part, .. } = collective else {
            instructions.extend_from_slice(unit);
            continue;
        };
        let cut = if pass == Pass::Backward { Cut::Rows } else { request.cut };
        let collective = |piece| CollectiveId::Block { pass, block, part, piece: Some(piece) };
        instructions.push(body);
        for piece in Piece::all(request.pieces, cut) {
            instructions.push(Instruction::Tail { pass, block, part, piece });
            instructions.push(Instruction::Start { collective: collective(piece), kind, axis, grouping });
        }
        let syncs =
            Piece::all(request.pieces, cut).map(|piece| Instruction::Sync { collective: collective(piece) });
        instructions.extend(syncs);
        instructions.extend_from_slice(&unit[3..]);
    }
    schedule.with_instructions(instructions)
}

/// What is left of an instruction without its last product; `None` for one without an all-reduce behind that.
fn body(instruction: Instruction) -> Option<(Instruction, Pass)> {
    let inner = |block| matches!(block, BlockId::Attn(_) | BlockId::Mlp(_));
    match instruction {
        Instruction::Forward { block, part, keep, extent: Extent::Output } if inner(block) => {
            Some((Instruction::Forward { block, part, keep, extent: Extent::Body }, Pass::Forward))
        }
        Instruction::Recompute { block, part, extent: Extent::Output } => {
            Some((Instruction::Recompute { block, part, extent: Extent::Body }, Pass::Recompute))
        }
        Instruction::Backward { block, part, scope: Scope::All } if block != BlockId::Embed => {
            Some((Instruction::Backward { block, part, scope: Scope::Body }, Pass::Backward))
        }
        _ => None,
    }
}
