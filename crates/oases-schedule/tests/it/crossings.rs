//! The verifier between stages against mutations of valid pipelines, with the symbolic executor as the judge of what they mean.

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::random::Numbers;
use oases_schedule::{
    Axis, CollectiveId, CollectiveKind, Grouping, Instruction, Optimizer, Request, Rule, Schedule, verify,
    verify_stages,
};

use crate::meaning::{Meaning, meaning_of_stages};
use crate::pipeline::{CUTS, Cut, ORDERS, request};

/// Small pipelines of every variant and order, one chunk per stage and two, with replicas and without.
fn pipelines() -> Vec<Vec<Schedule>> {
    let interleaved: Cut = (1, 2, &[0, 1, 2, 3]);
    let mut pipelines = Vec::new();
    for (index, variant) in VARIANTS.iter().chain([&EVALUATE]).enumerate() {
        for (cut, order) in [(CUTS[0], ORDERS[index % 2]), (interleaved, ORDERS[(index + 1) % 2])] {
            let (layout, optimizer) = match index % 3 {
                0 => ("2", Optimizer::Whole),
                1 => ("1 of 2", Optimizer::Sharded),
                _ => ("1 of 2", Optimizer::Whole),
            };
            let request = request(cut, layout, order, [2, 1 + index as u32 % 2]);
            pipelines.push(variant.build_stages(&Request { optimizer, ..request }));
        }
    }
    pipelines
}

/// Whether both verifiers accept the pipeline.
fn accepted(schedules: &[Schedule]) -> bool {
    schedules.iter().all(|schedule| verify(schedule).is_empty()) && verify_stages(schedules).is_empty()
}

fn with(schedules: &[Schedule], stage: usize, instructions: Vec<Instruction>) -> Vec<Schedule> {
    let mut schedules = schedules.to_vec();
    schedules[stage].instructions = instructions;
    schedules
}

fn moved(schedules: &[Schedule], stage: usize, from: usize, to: usize) -> Vec<Schedule> {
    let mut instructions = schedules[stage].instructions.clone();
    let instruction = instructions.remove(from);
    instructions.insert(to, instruction);
    with(schedules, stage, instructions)
}

fn text(schedules: &[Schedule]) -> String {
    schedules.iter().map(Schedule::to_string).collect::<Vec<_>>().join("\n")
}

fn assert_judged_alike(mutated: &[Schedule], expected: &Meaning, what: &str) {
    let found = meaning_of_stages(mutated);
    let same = found.as_ref() == Ok(expected);
    let alone: Vec<_> = mutated.iter().flat_map(verify).collect();
    let together = verify_stages(mutated);
    assert_eq!(
        alone.is_empty() && together.is_empty(),
        same,
        "{what}\nverifier: {alone:?} {together:?}\nexecutor: {:?}\n{}",
        found.map(|_| same),
        text(mutated)
    );
}

#[test]
fn nothing_can_be_left_out_or_come_twice_on_one_stage() {
    let mut numbers = Numbers::new(11);
    for schedules in pipelines() {
        for stage in 0..schedules.len() {
            for index in 0..schedules[stage].instructions.len() {
                let mut instructions = schedules[stage].instructions.clone();
                let deleted = instructions.remove(index);
                let without = with(&schedules, stage, instructions.clone());
                assert!(!accepted(&without), "without `{deleted}` on stage {stage} in\n{}", text(&schedules));
                instructions.insert(index, deleted);
                instructions.insert(numbers.below(instructions.len() + 1), deleted);
                let twice = with(&schedules, stage, instructions);
                assert!(!accepted(&twice), "`{deleted}` twice on stage {stage} in\n{}", text(&schedules));
            }
        }
    }
}

#[test]
fn an_instruction_moves_only_where_it_makes_no_difference_to_any_stage() {
    let mut numbers = Numbers::new(12);
    for schedules in pipelines() {
        let expected = meaning_of_stages(&schedules).unwrap();
        let mut mutated = schedules.clone();
        for _ in 0..200 {
            let stage = numbers.below(schedules.len());
            let count = schedules[stage].instructions.len();
            // Far and near ones alike.
            let from = numbers.below(count);
            let to = if numbers.below(2) == 0 { numbers.below(count) } else { (from + 1).min(count - 1) };
            let candidate = moved(&mutated, stage, from, to);
            assert_judged_alike(&candidate, &expected, &format!("{from} to {to} on stage {stage}"));
            if accepted(&candidate) {
                mutated = candidate;
            }
        }
    }
}

/// Moves only the starts and waits of transfers of sound pipelines, so that single stages stay sound more often than not.
#[test]
fn crossing_transfers_are_found_as_deadlocks() {
    let mut numbers = Numbers::new(13);
    let (mut deadlocks, mut disorders) = (0, 0);
    for schedules in pipelines() {
        let expected = meaning_of_stages(&schedules).unwrap();
        for _ in 0..200 {
            let stage = numbers.below(schedules.len());
            let transfers: Vec<usize> = (0..schedules[stage].instructions.len())
                .filter(|&index| match schedules[stage].instructions[index] {
                    Instruction::Start { collective, .. } | Instruction::Sync { collective } => {
                        matches!(collective, CollectiveId::Transfer { .. })
                    }
                    _ => false,
                })
                .collect();
            let (from, to) = (numbers.pick(&transfers), numbers.below(schedules[stage].instructions.len()));
            let mutated = moved(&schedules, stage, from, to);
            assert_judged_alike(&mutated, &expected, &format!("{from} to {to} on stage {stage}"));
            if mutated.iter().any(|schedule| !verify(schedule).is_empty()) {
                continue;
            }
            let violations = verify_stages(&mutated);
            assert!(violations.iter().all(|violation| violation.rule == Rule::Pipeline));
            deadlocks += usize::from(violations.iter().any(|found| found.message.contains("for ever")));
            disorders += usize::from(violations.iter().any(|found| found.message.contains("where stage")));
        }
    }
    assert!(deadlocks > 20 && disorders > 20, "{deadlocks} deadlocks and {disorders} of another order");
}

#[test]
fn no_field_of_a_crossing_changes_unnoticed() {
    for schedules in pipelines() {
        for stage in 0..schedules.len() {
            for (index, &instruction) in schedules[stage].instructions.iter().enumerate() {
                for other in others(instruction) {
                    let mut instructions = schedules[stage].instructions.clone();
                    instructions[index] = other;
                    let mutated = with(&schedules, stage, instructions);
                    assert!(!accepted(&mutated), "`{other}` for `{instruction}` in\n{}", text(&mutated));
                }
            }
        }
    }
}

/// What could stand by mistake for what crosses.
fn others(instruction: Instruction) -> Vec<Instruction> {
    let Instruction::Start { collective, kind, axis, grouping } = instruction else { return Vec::new() };
    let kinds = CollectiveKind::ALL.into_iter().filter(|&other| other != kind);
    let kinds = kinds.map(|kind| Instruction::Start { collective, kind, axis, grouping });
    let axes = Axis::ALL.into_iter().filter(|&other| other != axis);
    let axes = axes.map(|axis| Instruction::Start { collective, kind, axis, grouping });
    let grouping = Grouping::Cut { size: 2, stride: 2 };
    kinds.chain(axes).chain([Instruction::Start { collective, kind, axis, grouping }]).collect()
}

#[test]
fn stages_of_different_steps_are_refused() {
    let request = request(CUTS[3], "2", ORDERS[0], [2, 2]);
    let variant = &VARIANTS[0];
    let schedules = variant.build_stages(&request);
    let message = |mutated: &[Schedule]| {
        let violations = verify_stages(mutated);
        assert!(violations.iter().all(|violation| violation.rule == Rule::Pipeline));
        violations.into_iter().map(|violation| violation.message).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(message(&[]), "a pipeline has at least one stage");
    assert_eq!(message(&schedules[..2]), "there are 2 schedules for 3 stages");
    let swapped = [schedules[0].clone(), schedules[2].clone(), schedules[1].clone()];
    assert_eq!(message(&swapped), "stage 2 stands where 1 should; stage 1 stands where 2 should");
    let others = [
        ("TMP degrees", Request { layout: oases_schedule::Layout::uniform(1, 6), ..request.clone() }),
        ("optimizer", Request { optimizer: Optimizer::Sharded, ..request.clone() }),
        ("parts", Request { micro_batches: 3, ..request.clone() }),
    ];
    for (what, other) in others {
        let mut mixed = schedules.clone();
        mixed[1] = variant.build_stages(&other).swap_remove(1);
        assert_eq!(message(&mixed), format!("stage 1 differs from stage 0 in its {what}"));
    }
    let mut mixed = schedules;
    mixed[2] = EVALUATE.build_stages(&request).swap_remove(2);
    assert_eq!(message(&mixed), "stage 2 differs from stage 0 in its purpose");
}
