//! The verifier against mutations of valid schedules, with the symbolic executor as the judge of what they mean.

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::random::{self, Numbers};
use oases_schedule::{
    Axis, BlockId, CollectiveId, CollectiveKind, Cut, Extent, Grouping, Instruction, Keep, PartId, Pass,
    Piece, Rule, Schedule, Scope, verify,
};

use crate::layouts::{FEW, request};
use crate::meaning::{Meaning, meaning};

/// Valid training schedules, each with what it must compute: every variant, and random ones.
fn valid() -> Vec<(Schedule, Meaning)> {
    let mut schedules = Vec::new();
    for (index, layout) in FEW.into_iter().enumerate() {
        let request = request(layout, 2 - index as u32 % 2, 1 + (index as u32 + 1) % 2);
        let serial = || meaning(&VARIANTS[0].build(&request)).unwrap();
        schedules.extend(VARIANTS.iter().map(|variant| (variant.build(&request), serial())));
        schedules.extend((0..3).map(|seed| (random::schedule(seed, &request), serial())));
    }
    schedules
}

fn evaluation() -> Schedule {
    EVALUATE.build(&request(FEW[3], 1, 2))
}

fn with(schedule: &Schedule, instructions: Vec<Instruction>) -> Schedule {
    Schedule { instructions, ..schedule.clone() }
}

/// The mutated schedule moves the instruction at `from` to `to`.
fn moved(schedule: &Schedule, from: usize, to: usize) -> Schedule {
    let mut instructions = schedule.instructions.clone();
    let instruction = instructions.remove(from);
    instructions.insert(to, instruction);
    with(schedule, instructions)
}

/// The verifier accepts exactly the orders that compute the same.
fn assert_judged_alike(mutated: &Schedule, expected: &Meaning, what: &str) {
    let found = meaning(mutated);
    let same = found.as_ref() == Ok(expected);
    let violations = verify(mutated);
    assert_eq!(
        violations.is_empty(),
        same,
        "{what}\nverifier: {violations:?}\nexecutor: {:?}\n{mutated}",
        found.map(|_| same)
    );
}

#[test]
fn all_variants_compute_the_same() {
    for (schedule, expected) in valid() {
        assert_judged_alike(&schedule, &expected, "unchanged");
    }
    assert_eq!(verify(&evaluation()), []);
    meaning(&evaluation()).unwrap();
}

#[test]
fn nothing_can_be_left_out() {
    for schedule in valid().into_iter().map(|(schedule, _)| schedule).chain([evaluation()]) {
        for index in 0..schedule.instructions.len() {
            let mut instructions = schedule.instructions.clone();
            let deleted = instructions.remove(index);
            assert_ne!(verify(&with(&schedule, instructions)), [], "without `{deleted}` in\n{schedule}");
        }
    }
}

#[test]
fn nothing_can_come_twice() {
    let mut numbers = Numbers::new(1);
    for schedule in valid().into_iter().map(|(schedule, _)| schedule).chain([evaluation()]) {
        let count = schedule.instructions.len();
        for (index, &instruction) in schedule.instructions.iter().enumerate() {
            for again in [index, numbers.below(count + 1)] {
                let mut instructions = schedule.instructions.clone();
                instructions.insert(again, instruction);
                assert_ne!(
                    verify(&with(&schedule, instructions)),
                    [],
                    "`{instruction}` twice in\n{schedule}"
                );
            }
        }
    }
}

#[test]
fn neighbours_change_places_only_where_it_makes_no_difference() {
    for (schedule, expected) in valid() {
        for index in 1..schedule.instructions.len() {
            let mutated = moved(&schedule, index, index - 1);
            assert_judged_alike(&mutated, &expected, &format!("line {} up by one", index + 6));
        }
    }
}

#[test]
fn an_instruction_moves_only_where_it_makes_no_difference() {
    let mut numbers = Numbers::new(2);
    for (schedule, expected) in valid() {
        let count = schedule.instructions.len();
        let mut mutated = schedule.clone();
        for _ in 0..400 {
            let (from, to) = (numbers.below(count), numbers.below(count));
            let candidate = moved(&mutated, from, to);
            assert_judged_alike(&candidate, &expected, &format!("line {} to {}", from + 6, to + 6));
            // Walk on from what was accepted, so that later moves start from unusual orders.
            if verify(&candidate).is_empty() {
                mutated = candidate;
            }
        }
    }
}

/// Every other spelling of one field of an instruction.
fn changes(instruction: Instruction, schedule: &Schedule) -> Vec<Instruction> {
    let parts = schedule.parts.iter().map(|part| part.id).chain([PartId::whole(9)]);
    let blocks = schedule.chain().chain([BlockId::Attn(9), BlockId::Mlp(9)]);
    let mut changed: Vec<Instruction> = Vec::new();
    if instruction.part().is_some() {
        changed.extend(parts.map(|part| instruction.with_part(part)));
    }
    match instruction {
        Instruction::Forward { block, part, keep, extent } => {
            changed.extend(Keep::ALL.map(|keep| Instruction::Forward { block, part, keep, extent }));
            changed.extend(Extent::ALL.map(|extent| Instruction::Forward { block, part, keep, extent }));
        }
        Instruction::Recompute { block, part, .. } => {
            changed.extend(Extent::ALL.map(|extent| Instruction::Recompute { block, part, extent }));
        }
        Instruction::Backward { block, part, .. } => {
            changed.extend(Scope::ALL.map(|scope| Instruction::Backward { block, part, scope }));
        }
        Instruction::Tail { pass, block, part, piece } => {
            changed.extend(Pass::ALL.map(|pass| Instruction::Tail { pass, block, part, piece }));
            changed.extend(neighbours(piece).map(|piece| Instruction::Tail { pass, block, part, piece }));
        }
        Instruction::Start { collective, kind, axis, grouping } => {
            let start =
                |collective, kind, axis, grouping| Instruction::Start { collective, kind, axis, grouping };
            let kinds = [CollectiveKind::AllReduce, CollectiveKind::AllGather];
            changed.extend(kinds.map(|kind| start(collective, kind, axis, grouping)));
            let axes = [Axis::Data, Axis::Pipeline, Axis::Tensor];
            changed.extend(axes.map(|axis| start(collective, kind, axis, grouping)));
            changed.extend(groupings().map(|grouping| start(collective, kind, axis, grouping)));
            changed.extend(renamed(collective).map(|collective| start(collective, kind, axis, grouping)));
        }
        Instruction::Reshard { block, part, .. } => {
            changed.extend(Pass::ALL.map(|pass| Instruction::Reshard { pass, block, part }));
        }
        Instruction::Sync { collective } => {
            changed.extend(renamed(collective).map(|collective| Instruction::Sync { collective }));
        }
        _ => {}
    }
    for new in blocks {
        changed.push(match instruction {
            Instruction::Forward { part, keep, extent, .. } => {
                Instruction::Forward { block: new, part, keep, extent }
            }
            Instruction::Recompute { part, extent, .. } => {
                Instruction::Recompute { block: new, part, extent }
            }
            Instruction::Backward { part, scope, .. } => Instruction::Backward { block: new, part, scope },
            Instruction::Tail { pass, part, piece, .. } => {
                Instruction::Tail { pass, block: new, part, piece }
            }
            Instruction::Reshard { pass, part, .. } => Instruction::Reshard { pass, block: new, part },
            _ => continue,
        });
    }
    changed.retain(|change| *change != instruction);
    changed
}

/// Pieces that differ in one number.
fn neighbours(piece: Piece) -> impl Iterator<Item = Piece> {
    let Piece { index, of, cut } = piece;
    let other = if cut == Cut::Rows { Cut::Columns } else { Cut::Rows };
    [(index + 1, of + 1, cut), (index.saturating_sub(1), of, cut), (index, of + 1, cut), (index, of, other)]
        .into_iter()
        .map(|(index, of, cut)| Piece { index, of, cut })
}

/// All ranks, some of them, and groups that cut nothing.
fn groupings() -> impl Iterator<Item = Grouping> {
    let cuts = [(2, 1), (2, 2), (4, 1), (0, 1), (2, 0)];
    cuts.map(|(size, stride)| Grouping::Cut { size, stride }).into_iter().chain([Grouping::Whole])
}

fn renamed(collective: CollectiveId) -> impl Iterator<Item = CollectiveId> {
    let mut names = Vec::new();
    if let Some((block, part)) = collective.block().zip(collective.part()) {
        names.extend(Pass::ALL.map(|pass| CollectiveId::Block { pass, block, part, piece: None }));
        names.extend(Pass::ALL.map(|pass| CollectiveId::Reshard { pass, block, part }));
        names.push(CollectiveId::Replicas(block));
    }
    if let CollectiveId::Replicas(_) = collective {
        let others = [BlockId::Embed, BlockId::Attn(0), BlockId::Mlp(0), BlockId::Head, BlockId::Attn(9)];
        names.extend(others.map(CollectiveId::Replicas));
    }
    if let CollectiveId::Block { pass, block, part, piece } = collective {
        names.extend(Pass::ALL.map(|pass| CollectiveId::Block { pass, block, part, piece }));
        let cut = neighbours(piece.unwrap_or(Piece { index: 0, of: 1, cut: Cut::Rows }));
        names.extend(cut.map(|piece| CollectiveId::Block { pass, block, part, piece: Some(piece) }));
    }
    names.extend([CollectiveId::Gradients(0), CollectiveId::Gradients(1), CollectiveId::Norm]);
    names.into_iter().filter(move |&name| name != collective)
}

/// Whether a change of a field makes more work and no difference. Such schedules may be valid: an input that is kept
/// and could be rebuilt, the output of a recomputed layer that nobody reads.
fn wasteful(from: Instruction, to: Instruction) -> bool {
    match (from, to) {
        (Instruction::Forward { .. }, Instruction::Forward { .. }) => true,
        (Instruction::Recompute { extent, .. }, Instruction::Recompute { extent: other, .. }) => {
            extent != other
        }
        _ => false,
    }
}

#[test]
fn no_field_changes_unnoticed() {
    for (schedule, expected) in valid() {
        for (index, &instruction) in schedule.instructions.iter().enumerate() {
            for change in changes(instruction, &schedule) {
                let mut instructions = schedule.instructions.clone();
                instructions[index] = change;
                let mutated = with(&schedule, instructions);
                if verify(&mutated).is_empty() {
                    let same = meaning(&mutated).as_ref() == Ok(&expected);
                    assert!(same, "`{instruction}` became `{change}` in\n{schedule}");
                    assert!(wasteful(instruction, change), "`{instruction}` became `{change}`");
                }
            }
        }
    }
}

#[test]
fn several_faults_do_not_hide_each_other() {
    let mut numbers = Numbers::new(3);
    let mut accepted = 0;
    for (schedule, expected) in valid() {
        for _ in 0..400 {
            let mut instructions = schedule.instructions.clone();
            for _ in 0..2 + numbers.below(3) {
                let index = numbers.below(instructions.len());
                let other = numbers.below(instructions.len());
                let instruction = instructions[index];
                match numbers.below(4) {
                    0 => drop(instructions.remove(index)),
                    1 => instructions.insert(other, instruction),
                    2 => instructions.swap(index, other),
                    _ => {
                        let changes = changes(instruction, &schedule);
                        if !changes.is_empty() {
                            instructions[index] = numbers.pick(&changes);
                        }
                    }
                }
            }
            let mutated = with(&schedule, instructions);
            if verify(&mutated).is_empty() {
                accepted += 1;
                assert_eq!(meaning(&mutated).as_ref(), Ok(&expected), "{mutated}");
            }
        }
    }
    assert!(accepted > 0, "the mutations are too coarse to say anything");
}

#[test]
fn a_collective_under_another_name_is_noticed() {
    for (schedule, _) in valid() {
        for &instruction in &schedule.instructions {
            let Instruction::Start { collective, .. } = instruction else { continue };
            for name in renamed(collective) {
                let rename = |instruction: &Instruction| match *instruction {
                    Instruction::Start { collective: c, kind, axis, grouping } if c == collective => {
                        Instruction::Start { collective: name, kind, axis, grouping }
                    }
                    Instruction::Sync { collective: c } if c == collective => {
                        Instruction::Sync { collective: name }
                    }
                    other => other,
                };
                let mutated = with(&schedule, schedule.instructions.iter().map(rename).collect());
                let rules: Vec<Rule> = verify(&mutated).iter().map(|violation| violation.rule).collect();
                let named = rules.contains(&Rule::Collectives) || rules.contains(&Rule::Names);
                assert!(named, "{collective} became {name}: {rules:?}");
            }
        }
    }
}
