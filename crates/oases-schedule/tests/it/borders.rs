//! What can be got wrong where degrees change and where blocks are replicated: each is refused by the rule that it breaks.

use oases_schedule::passes::VARIANTS;
use oases_schedule::random;
use oases_schedule::{
    BlockId, CollectiveId, CollectiveKind, Grouping, Instruction, Layout, Optimizer, Part, PartId, Pass,
    Rule, Schedule, Scope, Stage, Violation, verify,
};

use crate::layouts::{FEW, LAYOUTS, request};
use crate::meaning::meaning;

/// Every variant and some random schedules over layouts that have borders or replicas.
fn schedules() -> Vec<Schedule> {
    let mixed = FEW.into_iter().filter(|(_, layout)| layout.contains(['*', ' ']));
    let built = mixed.enumerate().flat_map(|(index, layout)| {
        let micro_batches = 1 + index as u32 % 2;
        let request = request(layout, micro_batches, 3 - micro_batches);
        let random = (10..14).map(|seed| random::schedule(seed, &request));
        VARIANTS.iter().map(|variant| variant.build(&request)).chain(random).collect::<Vec<_>>()
    });
    built.collect()
}

fn with(schedule: &Schedule, instructions: Vec<Instruction>) -> Schedule {
    Schedule { instructions, ..schedule.clone() }
}

fn without(schedule: &Schedule, unwanted: impl Fn(&Instruction) -> bool) -> Schedule {
    with(schedule, schedule.instructions.iter().copied().filter(|i| !unwanted(i)).collect())
}

fn concerns(instruction: &Instruction, wanted: CollectiveId) -> bool {
    matches!(*instruction, Instruction::Start { collective, .. } | Instruction::Sync { collective } if collective == wanted)
}

/// Where an instruction is.
fn find(schedule: &Schedule, wanted: impl Fn(&Instruction) -> bool) -> usize {
    schedule.instructions.iter().position(wanted).unwrap()
}

/// The mutated schedule takes an instruction out and puts it in before the one that is at `to` then.
fn moved(schedule: &Schedule, from: usize, to: usize) -> Schedule {
    let mut instructions = schedule.instructions.clone();
    let instruction = instructions.remove(from);
    instructions.insert(to, instruction);
    with(schedule, instructions)
}

fn rules(schedule: &Schedule) -> Vec<Rule> {
    verify(schedule).iter().map(|violation| violation.rule).collect()
}

/// Refused, by that rule first, and the executor does not get to the same result either.
fn assert_breaks(mutated: &Schedule, original: &Schedule, rule: Rule, what: &str) {
    let rules = rules(mutated);
    assert_eq!(rules.first(), Some(&rule), "{what}: {rules:?} in\n{mutated}");
    assert_ne!(meaning(mutated).as_ref().ok(), meaning(original).as_ref().ok(), "{what} in\n{mutated}");
}

fn reshards(schedule: &Schedule) -> impl Iterator<Item = (Pass, BlockId, PartId)> {
    schedule.instructions.iter().filter_map(|instruction| match *instruction {
        Instruction::Reshard { pass, block, part } => Some((pass, block, part)),
        _ => None,
    })
}

#[test]
fn a_border_cannot_be_left_out() {
    for schedule in schedules() {
        for (pass, block, part) in reshards(&schedule) {
            let collective = CollectiveId::Reshard { pass, block, part };
            let mutated = without(&schedule, |i| {
                *i == Instruction::Reshard { pass, block, part } || concerns(i, collective)
            });
            // A recomputed input that is missing is missed by the recomputation.
            assert_breaks(
                &mutated,
                &schedule,
                Rule::Reshard,
                &format!("no {} {block} {part} reshard", pass.name()),
            );
        }
    }
}

#[test]
fn a_border_is_crossed_only_where_it_is() {
    for schedule in schedules() {
        for block in schedule.chain().filter(|&block| schedule.border(block).is_none()) {
            for pass in Pass::ALL {
                let at =
                    find(&schedule, |i| matches!(*i, Instruction::Forward { block: b, .. } if b == block));
                let part = schedule.instructions[at].part().unwrap();
                let mut instructions = schedule.instructions.clone();
                instructions.insert(at, Instruction::Reshard { pass, block, part });
                assert_eq!(rules(&with(&schedule, instructions))[0], Rule::Reshard, "{block} of\n{schedule}");
            }
        }
    }
}

#[test]
fn collectives_are_among_the_right_ranks() {
    for schedule in schedules() {
        let group = schedule.layout.group();
        let expected = meaning(&schedule);
        // Nobody reads the last output of a recomputed layer.
        let unread = |collective| matches!(collective, CollectiveId::Block { pass: Pass::Recompute, .. });
        for (index, &instruction) in schedule.instructions.iter().enumerate() {
            let Instruction::Start { collective, kind, axis, grouping: right } = instruction else {
                continue;
            };
            let cuts =
                [1, 2, 4].into_iter().flat_map(|size| [1, 2].map(|stride| Grouping::Cut { size, stride }));
            for grouping in cuts.chain([Grouping::Whole]).filter(|&grouping| grouping != right) {
                let mut instructions = schedule.instructions.clone();
                instructions[index] = Instruction::Start { collective, kind, axis, grouping };
                let mutated = with(&schedule, instructions);
                assert_eq!(rules(&mutated), [Rule::Collectives], "`{instruction}` over {grouping:?}");
                // A cut of the whole axis is another spelling of it, and a gather may take smaller slots from more ranks.
                let same = right == Grouping::Whole && grouping == Grouping::Cut { size: group, stride: 1 };
                if kind == CollectiveKind::AllReduce && !same && !unread(collective) {
                    assert_ne!(meaning(&mutated), expected, "`{instruction}` over {grouping:?}");
                }
            }
        }
    }
}

fn replicated(schedule: &Schedule) -> impl Iterator<Item = BlockId> {
    schedule.instructions.iter().filter_map(|instruction| match *instruction {
        Instruction::Start { collective: CollectiveId::Replicas(block), .. } => Some(block),
        _ => None,
    })
}

#[test]
fn replicas_are_summed_after_the_last_backward_and_before_the_norm() {
    for schedule in schedules() {
        for block in replicated(&schedule) {
            let collective = CollectiveId::Replicas(block);
            let is_start =
                |i: &Instruction| matches!(*i, Instruction::Start { collective: c, .. } if c == collective);
            let start = find(&schedule, is_start);
            let sync = find(&schedule, |i| *i == Instruction::Sync { collective });
            let norm = find(&schedule, |i| *i == Instruction::Norm);

            let mutated = without(&schedule, |i| concerns(i, collective));
            assert_breaks(&mutated, &schedule, Rule::Reduced, "never summed");
            assert_eq!(rules(&mutated), [Rule::Reduced]);
            assert_breaks(&moved(&schedule, sync, norm), &schedule, Rule::Reduced, "waited for too late");

            // The head's weights may be the embedding's table, so these are summed with them.
            let adds = |i: &Instruction| match *i {
                Instruction::Backward { block: b, scope, .. } => {
                    scope != Scope::Input && (b == block || (block == BlockId::Embed && b == BlockId::Head))
                }
                _ => false,
            };
            let backwards = schedule.instructions.iter().enumerate().filter(|(_, i)| adds(i));
            for (index, backward) in backwards {
                let mutated = moved(&schedule, start, index);
                assert_breaks(
                    &mutated,
                    &schedule,
                    Rule::Reduced,
                    &format!("{collective} before `{backward}`"),
                );
            }
        }
    }
}

#[test]
fn the_head_has_no_sum_over_replicas_of_its_own() {
    for schedule in schedules() {
        let Some(block) = replicated(&schedule).find(|&block| block == BlockId::Embed) else { continue };
        let rename = |instruction: &Instruction| match *instruction {
            Instruction::Start { collective: CollectiveId::Replicas(b), kind, axis, grouping }
                if b == block =>
            {
                Instruction::Start { collective: CollectiveId::Replicas(BlockId::Head), kind, axis, grouping }
            }
            Instruction::Sync { collective: CollectiveId::Replicas(b) } if b == block => {
                Instruction::Sync { collective: CollectiveId::Replicas(BlockId::Head) }
            }
            other => other,
        };
        let mutated = with(&schedule, schedule.instructions.iter().map(rename).collect());
        assert_breaks(&mutated, &schedule, Rule::Collectives, "g.head");
    }
}

#[test]
fn another_degree_in_the_header_is_noticed() {
    for schedule in schedules() {
        for position in 0..schedule.layout.degrees().len() {
            for degree in [1, 2, 4].into_iter().filter(|&degree| degree != schedule.layout.degree(position)) {
                let mut degrees = schedule.layout.degrees().to_vec();
                degrees[position] = degree;
                let layout = Layout::new(schedule.layout.group(), degrees);
                let mutated = Schedule { layout, ..schedule.clone() };
                assert_ne!(verify(&mutated), [], "{degree} at {position} in\n{schedule}");
            }
        }
        for group in [1, 2, 4, 8].into_iter().filter(|&group| group != schedule.layout.group()) {
            let layout = Layout::new(group, schedule.layout.degrees().to_vec());
            let mutated = Schedule { layout, ..schedule.clone() };
            assert_ne!(verify(&mutated), [], "{group} ranks in\n{schedule}");
        }
    }
}

/// A schedule with nothing but a header.
fn header(layers: u32, layout: &str, sequences: &[u32]) -> Vec<Violation> {
    let part = |(micro, &sequences): (usize, &u32)| Part { id: PartId::whole(micro as u32), sequences };
    let layout = Layout::parse(layout, Schedule::blocks(layers)).unwrap();
    let parts = sequences.iter().enumerate().map(part).collect();
    let stage = Stage::whole();
    let schedule = Schedule {
        name: "header".into(),
        layers,
        layout,
        stage,
        optimizer: Optimizer::Whole,
        parts,
        instructions: Vec::new(),
    };
    verify(&schedule).into_iter().filter(|violation| violation.rule == Rule::Header).collect()
}

#[test]
fn unsound_layouts_are_refused_once_and_clearly() {
    let uneven = |count: u32| {
        format!(
            "the sequences of every part must be a multiple of {count}, so that all replicas of a block get as many"
        )
    };
    let table = [
        ("3 of 4", 3, "degree 3 does not divide the group of 4 ranks".to_owned()),
        ("4 of 2", 3, "degree 4 does not divide the group of 2 ranks".to_owned()),
        (
            "6*1 2*1 3*1 6*1",
            3,
            "neighbouring blocks have degrees 2 and 3: one must divide the other".to_owned(),
        ),
        ("2*3 1*1", 3, "embedding and head must have one degree, since they may share a table".to_owned()),
        ("1 of 4", 4, uneven(4)),
        ("2*1 1*2 2*1 of 8", 4, uneven(8)),
        ("2*1 1*2 2*1", 4, uneven(2)),
    ];
    for (layout, line, message) in table {
        let violations = header(1, layout, &[24, if line == 4 { 9 } else { 12 }]);
        let found: Vec<(usize, &str)> = violations.iter().map(|v| (v.line, v.message.as_str())).collect();
        assert_eq!(found, [(line, message.as_str())], "{layout}");
    }
    // Three replicas of one block and two of another.
    assert_eq!(header(2, "6*1 2*1 6*1 3*1 6*2", &[3])[0].message, uneven(6));
    assert_eq!(header(2, "6*1 2*1 6*1 3*1 6*2", &[6, 12]), []);
    for layout in LAYOUTS {
        let granularity = request(layout, 1, 1).layout.granularity();
        assert_eq!(header(layout.0, layout.1, &[granularity, 3 * granularity]), []);
    }
}

/// No sequence is lost where a request does not fit the layout.
#[test]
fn sequences_that_replicas_cannot_share_are_refused() {
    let fits = request((1, "1 of 4"), 1, 2);
    let refused = |sequences| {
        let request = oases_schedule::Request { sequences, ..fits.clone() };
        std::panic::catch_unwind(|| VARIANTS[0].build(&request))
            .map_or(true, |schedule| !verify(&schedule).is_empty())
    };
    for sequences in 1..=16 {
        assert_eq!(refused(sequences), sequences % 4 != 0 || sequences < 8, "{sequences} sequences");
    }
}
