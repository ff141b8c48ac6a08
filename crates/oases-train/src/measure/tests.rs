//! What is measured, and that it is all that predictions ask for.

use std::collections::BTreeSet;

use oases_exec::Timing;
use oases_schedule::passes::VARIANTS;
use oases_schedule::{
    Bytes, Grouping, Instruction, Layout, Model, Optimizer, Purpose, Request, Schedule, Stage, Stages,
    Statics, Variant, Workspace, plan,
};

use super::*;
use crate::trial::Contender;

/// Four heads, so that a block can be cut over four ranks.
fn model() -> Model {
    Model::gpt(1, 16, 4, 8, 32)
}

fn planned(schedule: &Schedule) -> Plan {
    let statics = Statics::of(&model(), schedule, Purpose::Training, schedule.batch());
    plan(schedule, &statics, Workspace::default())
}

/// A step of which instruction `i` lasts from 10 i to 10 i + 4 ns on every rank.
fn step(schedule: &Schedule) -> Sample {
    let timing = |index: usize| {
        let start_ns = 10 * index as u64;
        Timing { start_ns, end_ns: start_ns + 4 }
    };
    let timings: Vec<Timing> = (0..schedule.instructions.len()).map(timing).collect();
    let ranks = schedule.layout.group() as usize;
    Sample { step_ns: 1, began_ns: 0, timings: vec![timings; ranks], loss: 0.0, touched: Bytes(0) }
}

fn measured(references: &[Contender]) -> Measurement {
    let mut measurement = Measurement::default();
    for Contender { stages, .. } in references {
        let timings = stages.iter().flat_map(|stage| step(stage).timings).collect();
        let plans: Vec<Plan> = stages.iter().map(planned).collect();
        measurement.add(stages, &plans, &Sample { timings, ..step(&stages[0]) });
    }
    measurement
}

/// All that a simulation of the schedule asks for and the measurement does not hold.
fn missing(schedule: &Schedule, measurement: &Measurement) -> Vec<String> {
    let plan = planned(schedule);
    let of = |(index, instruction): (usize, &Instruction)| {
        let operands = &plan.operands[index];
        let known = match (*instruction, instruction.operation()) {
            (Instruction::Start { kind, grouping, .. }, _) => {
                let bytes = collective_bytes(schedule, &plan, index).unwrap().0;
                let ranks = grouping.size(schedule.layout.group());
                measurement.collectives.contains_key(&CollectiveKey { kind, ranks, bytes })
            }
            (_, Some(operation)) if operation.is_on_part() => {
                let sequences = operands.sequences as u32;
                measurement.compute.contains_key(&ComputeKey {
                    operation,
                    degree: operands.degree,
                    sequences,
                })
            }
            (_, Some(operation)) => plan.parameter_shares.iter().all(|&(degree, _)| {
                measurement.compute.contains_key(&ComputeKey { operation, degree, sequences: 0 })
            }),
            _ => true,
        };
        (!known).then(|| format!("{instruction} in {} of {}", schedule.name, schedule.layout))
    };
    schedule.instructions.iter().enumerate().filter_map(of).collect()
}

/// Every layout of a chain of four blocks whose ends have one degree.
fn layouts(ranks: u32, degrees: &[u32]) -> Vec<Layout> {
    let mut layouts = Vec::new();
    for &ends in degrees {
        for &attn in degrees {
            layouts.extend(degrees.iter().map(|&mlp| Layout::new(ranks, vec![ends, attn, mlp, ends])));
        }
    }
    layouts
}

#[test]
fn a_mean_leaves_out_what_is_no_measurement_of_it() {
    // Median 3, so 6 counts and 7 does not.
    let times = Times { ns: vec![1e6, 7e6, 3e6, 6e6, 2e6] };
    assert_eq!(times.mean_ms(), 3.0);
    assert_eq!(times.min_ms(), 1.0);
}

/// Micro-batches of 12 are cut into 6 and 6 where up to two replicas share them, and into 8 and 4 where four do.
#[test]
fn the_references_of_degrees_hold_what_every_layout_of_them_needs() {
    let degrees = [1, 2, 4];
    for variant in VARIANTS {
        for sub_batches in [1, 2] {
            let request = Request { micro_batches: 2, sub_batches, pieces: 3, ..Request::new(1, 4, 12) };
            let needs = Needs::of_any_layout(variant, &request, &BTreeSet::from(degrees));
            let measurement = measured(&references(&needs, 4, &model(), None));
            for layout in layouts(4, &degrees) {
                let schedule = variant.build(&Request { layout, ..request.clone() });
                let missing = missing(&schedule, &measurement);
                assert!(missing.is_empty(), "{missing:?}");
            }
        }
    }
}

#[test]
fn the_references_of_a_schedule_hold_what_it_needs_and_no_other_degree() {
    for variant in VARIANTS {
        for layout in layouts(2, &[1, 2]) {
            let request = Request { micro_batches: 2, layout, ..Request::new(1, 2, 8) };
            let schedule = variant.build(&request);
            let references = references(&Needs::of(&schedule), 2, &model(), None);
            let missing = missing(&schedule, &measured(&references));
            assert!(missing.is_empty(), "{missing:?}");
            let wanted: BTreeSet<u32> = schedule.layout.degrees().iter().copied().collect();
            let run = references.iter().flat_map(|reference| reference.stages[0].layout.degrees());
            assert_eq!(run.copied().collect::<BTreeSet<u32>>(), wanted, "{}", schedule.name);
        }
    }
}

/// What a stage hands to collectives lies between sizes that are measured, for as many ranks: predictions are linear there.
#[test]
fn the_references_of_stages_hold_the_sizes_that_stages_need() {
    for optimizer in [Optimizer::Whole, Optimizer::Sharded] {
        for (ranks, degree) in [(1, 1), (2, 2), (2, 1), (4, 2)] {
            let layout = Layout::new(ranks, vec![degree; 4]);
            let stage = Stage { stages: Stages::new(2, vec![0, 2], true), index: 0 };
            let plain = Request { micro_batches: 2, sub_batches: 1, ..Request::new(1, 1, 4) };
            let request = Request { layout, stage, optimizer, ..plain };
            let stages = Variant::find("oases").unwrap().build_stages(&request);
            let mut needs = Needs::default();
            stages.iter().for_each(|stage| needs.extend(Needs::of(stage)));
            let measurement = measured(&references(&needs, ranks, &model(), None));
            for schedule in &stages {
                let plan = planned(schedule);
                for (index, instruction) in schedule.instructions.iter().enumerate() {
                    let Instruction::Start { kind, grouping, collective, .. } = *instruction else {
                        continue;
                    };
                    let bytes = collective_bytes(schedule, &plan, index).unwrap().0;
                    let over = if collective == CollectiveId::Table { 2 } else { grouping.size(ranks) };
                    let moves = matches!(kind, CollectiveKind::Send | CollectiveKind::Recv);
                    if moves || bytes <= 4 || over == 1 {
                        continue;
                    }
                    let sizes =
                        measurement.collectives.keys().filter(|key| (key.kind, key.ranks) == (kind, over));
                    let sizes: Vec<u64> = sizes.map(|key| key.bytes).collect();
                    let around =
                        sizes.iter().any(|&size| size <= bytes) && sizes.iter().any(|&size| size >= bytes);
                    assert!(around, "{instruction}: {bytes} B over {over} of {ranks}, not in {sizes:?}");
                }
            }
        }
    }
}

#[test]
fn layouts_that_micro_batches_cannot_be_shared_by_need_nothing() {
    // Six sequences can be shared by two replicas, not by four.
    let (variant, request) = (Variant::find("oases").unwrap(), Request::new(1, 4, 6));
    let needs = Needs::of_any_layout(variant, &request, &BTreeSet::from([1, 2, 4]));
    let degrees: BTreeSet<u32> = needs.compute.iter().map(|key| key.degree).collect();
    assert_eq!(degrees, BTreeSet::from([2, 4]));
    // Two sub-batches of three sequences, or of four and two, where two replicas share them.
    let expected = [2, 3, 4].map(|sequences| Border { degrees: [2, 4], sequences });
    assert_eq!(needs.borders.into_iter().collect::<Vec<_>>(), [expected[0], expected[2]]);
}

#[test]
fn chosen_sequences_take_the_place_of_those_of_the_batch() {
    let (variant, request) = (Variant::find("none").unwrap(), Request::new(1, 4, 8));
    let needs = Needs::of_any_layout(variant, &request, &BTreeSet::from([1, 2]));
    let chosen = needs.on_sequences(&[3, 4], 4);
    let sizes: BTreeSet<u32> = chosen.compute.iter().map(|key| key.sequences).collect();
    assert_eq!(sizes, BTreeSet::from([0, 3, 4]));
    // Three or four sequences on a rank at degree 1 are 12 or 16 on four; at degree 2, 6 or 8, of which four replicas can
    // share 8 only.
    let borders: Vec<u32> = chosen.borders.iter().map(|border| border.sequences).collect();
    assert_eq!(borders, [8, 12, 16]);
    assert!(references(&chosen, 4, &model(), None).iter().any(|reference| reference.stages[0].batch() == 8));
}

#[test]
fn a_collective_takes_as_long_as_in_its_slowest_group() {
    let timing = |start_ns, end_ns| Timing { start_ns, end_ns };
    // Ranks 0 and 2, and ranks 1 and 3. Rank 2 comes last of its group, at 30, and rank 3 of its own, at 5.
    let timings = vec![
        vec![timing(10, 11), timing(11, 70)],
        vec![timing(1, 2), timing(2, 40)],
        vec![timing(30, 31), timing(31, 65)],
        vec![timing(5, 6), timing(6, 90)],
    ];
    let sample = Sample { step_ns: 90, began_ns: 0, timings, loss: 0.0, touched: Bytes(0) };
    assert_eq!(waited_ns(&sample.timings, 0, Grouping::Cut { size: 2, stride: 2 }), 85.0);
    // Of all four, the last comes at 30 and the last is done at 90.
    assert_eq!(waited_ns(&sample.timings, 0, Grouping::Whole), 60.0);
}

#[test]
fn a_mixed_step_adds_only_what_reshards() {
    let layout = Layout::new(2, vec![2, 1, 2, 2]);
    let request = Request { layout, sub_batches: 1, ..Request::new(1, 2, 4) };
    let schedule = Variant::find("none").unwrap().build(&request);
    let measurement = measured(&[Contender::new(schedule, None)]);
    let keys: Vec<(String, u32, u32)> = measurement
        .compute
        .keys()
        .map(|key| (key.operation.to_string(), key.degree, key.sequences))
        .collect();
    // A rank has all four sequences of a block of degree 2, and two of a block of degree 1.
    let expected = [
        ("reshard forward", 1, 2),
        ("reshard forward", 2, 4),
        ("reshard backward", 1, 2),
        ("reshard backward", 2, 4),
    ];
    assert_eq!(
        keys,
        expected.map(|(operation, degree, sequences)| (operation.to_owned(), degree, sequences))
    );
    // Four sequences of 8 tokens and 16 features, gathered in forward before the MLP and in backward before the attention.
    let gather = CollectiveKey { kind: CollectiveKind::AllGather, ranks: 2, bytes: 4 * 8 * 16 * 4 };
    let times: Vec<usize> = measurement.collectives.values().map(|times| times.ns.len()).collect();
    assert_eq!((measurement.collectives.keys().collect::<Vec<_>>(), times), (vec![&gather], vec![2]));
}
