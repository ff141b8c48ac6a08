//! Schedules over mixed layouts: they compute what one rank computes, and communicate what the borders ask for, no more.

use std::collections::BTreeMap;

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::random::{self, Numbers};
use oases_schedule::{
    Axis, BlockId, CollectiveId, CollectiveKind, Cut, Grouping, Instruction, Keep, Keeps, Layout, Pass,
    Request, Schedule, Variant, verify,
};

use crate::layouts::{LAYOUTS, drawn, over, request};
use crate::meaning::{Meaning, meaning};

/// What the same parts become on one rank.
fn on_one_rank(variant: &Variant, request: &Request, parts: &Schedule) -> Meaning {
    let layout = Layout::uniform(1, Schedule::blocks(request.layers));
    let alone = variant.build(&Request { layout, ..request.clone() });
    // Sub-batches of one rank are cut at any sequence.
    let alone = Schedule { parts: parts.parts.clone(), ..alone };
    meaning(&alone).unwrap()
}

/// Checks a schedule by everything that can be said about it; `like` is what it must compute, rounding included.
fn check(schedule: &Schedule, alone: &Meaning, like: &mut Option<Meaning>) {
    let name = &schedule.name;
    assert_eq!(verify(schedule), [], "{name} over {}", schedule.layout);
    assert_eq!(Schedule::parse(&schedule.to_string()).as_ref(), Ok(schedule));
    let found = meaning(schedule).unwrap_or_else(|message| panic!("{message}\n{schedule}"));
    assert!(found.agrees(alone), "{schedule}");
    let like = like.get_or_insert_with(|| meaning(schedule).unwrap());
    assert_eq!(&found, like, "{name} rounds in another order than the first");
}

#[test]
fn every_variant_over_every_layout_computes_what_one_rank_computes() {
    for layout in LAYOUTS {
        for (micro_batches, sub_batches) in [(1, 1), (3, 1), (2, 2), (1, 3)] {
            let plain = request(layout, micro_batches, sub_batches);
            let alone = on_one_rank(&VARIANTS[0], &plain, &VARIANTS[0].build(&plain));
            let mut like = None;
            for variant in VARIANTS {
                for keep in [Keep::Input, Keep::Selective, Keep::All]
                    .into_iter()
                    .filter(|&keep| variant.can_keep(keep))
                {
                    let cuts = [(4, Cut::Rows), (2, Cut::Columns), (3, Cut::Rows)];
                    let cuts = if variant.name == "decomposed" { &cuts[..] } else { &cuts[..1] };
                    for &(pieces, cut) in cuts {
                        let request = Request { keep: Keeps::Same(keep), pieces, cut, ..plain.clone() };
                        check(&variant.build(&request), &alone, &mut like);
                    }
                }
            }
            let evaluation = EVALUATE.build(&plain);
            check(&evaluation, &on_one_rank(&EVALUATE, &plain, &evaluation), &mut None);
        }
    }
}

#[test]
fn random_degrees_up_to_eight_compute_what_one_rank_computes() {
    let mut numbers = Numbers::new(8);
    for seed in 0..40 {
        let [layers, micro_batches, sub_batches] = [1, 2, 3].map(|_| 1 + numbers.below(3) as u32);
        let layout = drawn(&mut numbers, layers, 8);
        let request = over(layers, layout, micro_batches, sub_batches.min(2));
        let alone = on_one_rank(&VARIANTS[0], &request, &VARIANTS[0].build(&request));
        let mut like = None;
        for _ in 0..3 {
            check(&numbers.pick(VARIANTS).build(&request), &alone, &mut like);
        }
        check(&random::candidate(seed, &request), &alone, &mut like);
    }
}

/// Degrees that are no powers of two work as long as neighbours are nested.
#[test]
fn degrees_of_three_and_six() {
    for degrees in [[6, 2, 6, 3, 6, 6], [1, 3, 6, 2, 1, 1], [3, 3, 1, 6, 3, 3]] {
        let request = over(2, Layout::new(6, degrees.to_vec()), 2, 2);
        let alone = on_one_rank(&VARIANTS[0], &request, &VARIANTS[0].build(&request));
        let mut like = None;
        for variant in VARIANTS {
            check(&variant.build(&request), &alone, &mut like);
        }
    }
}

fn starts(schedule: &Schedule) -> BTreeMap<CollectiveId, (CollectiveKind, Axis, Grouping)> {
    let start = |instruction: &Instruction| match *instruction {
        Instruction::Start { collective, kind, axis, grouping } => Some((collective, (kind, axis, grouping))),
        _ => None,
    };
    schedule.instructions.iter().filter_map(start).collect()
}

/// Of a layout of eight ranks, by hand: which collectives there are, and between whom.
#[test]
fn collectives_of_a_mixed_layout() {
    use CollectiveKind::{AllGather, AllReduce};
    let request = request((1, "2*1 8*1 1*1 2*1"), 1, 1);
    let schedule = Variant::find("megatron").unwrap().build(&request);
    // Nothing to reduce in mlp.0, which is on one rank; nothing to gather before it, where everything is there already. In
    // backward it is the other way round.
    let expected = [
        ("f.embed.m0", AllReduce, "@tensor:2"),
        ("f.attn.0.m0:in", AllGather, "@tensor:4/2"),
        ("f.attn.0.m0", AllReduce, "@tensor"),
        ("r.attn.0.m0", AllReduce, "@tensor"),
        ("f.head.m0:in", AllGather, "@tensor:2"),
        ("f.head.m0", AllGather, "@tensor:2"),
        ("b.head.m0", AllReduce, "@tensor:2"),
        ("b.mlp.0.m0:in", AllGather, "@tensor:8"),
        ("b.attn.0.m0", AllReduce, "@tensor"),
        ("g.embed", AllReduce, "@data:4/2"),
        ("g.mlp.0", AllReduce, "@data:8"),
        ("g.0", AllReduce, "@tensor"),
        ("norm", AllReduce, "@tensor"),
    ];
    let mut found: Vec<(String, CollectiveKind, String)> = starts(&schedule)
        .into_iter()
        .map(|(collective, (kind, axis, grouping))| {
            (collective.to_string(), kind, format!("@{}{grouping}", axis.name()))
        })
        .collect();
    // All eight are the whole axis, which has one spelling.
    let mut expected = expected.map(|(name, kind, ranks)| (name.to_owned(), kind, ranks.replace(":8", "")));
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// Borders of a layout, and how many of them are rises.
fn borders(schedule: &Schedule) -> [usize; 2] {
    let pairs = || schedule.layout.degrees().windows(2);
    [pairs().filter(|pair| pair[0] != pair[1]).count(), pairs().filter(|pair| pair[0] < pair[1]).count()]
}

#[test]
fn borders_cost_one_gather_in_one_direction() {
    for layout in LAYOUTS {
        let request = request(layout, 2, 2);
        for variant in VARIANTS {
            let schedule = variant.build(&request);
            let [borders, rises] = borders(&schedule);
            let parts = schedule.parts.len();
            let count = |wanted: Pass| {
                let in_pass =
                    |i: &&Instruction| matches!(**i, Instruction::Reshard { pass, .. } if pass == wanted);
                schedule.instructions.iter().filter(in_pass).count()
            };
            let gathers = |wanted: Pass| {
                let of_pass =
                    |id: &&CollectiveId| matches!(**id, CollectiveId::Reshard { pass, .. } if pass == wanted);
                starts(&schedule).keys().filter(of_pass).count()
            };
            assert_eq!([count(Pass::Forward), gathers(Pass::Forward)], [borders * parts, rises * parts]);
            assert_eq!(
                [count(Pass::Backward), gathers(Pass::Backward)],
                [borders * parts, (borders - rises) * parts]
            );
            // Whoever recomputes a layer from its input crosses the borders inside it; whoever recomputes blocks, none.
            let by_layers = ["megatron", "merak", "decomposed", "cross-pass"].contains(&variant.name);
            let layers = schedule.layout.degrees()[1..].chunks(2).filter(|pair| pair.len() == 2);
            let inside = layers.filter(|pair| pair[0] != pair[1]).count() * usize::from(by_layers);
            assert_eq!(count(Pass::Recompute), inside * parts, "{} over {}", variant.name, schedule.layout);
        }
    }
}

#[test]
fn replicas_sum_each_block_once_under_other_work() {
    for layout in LAYOUTS {
        let schedule = Variant::find("oases").unwrap().build(&request(layout, 2, 2));
        let replicated = schedule.chain().zip(schedule.layout.degrees());
        let mut expected: Vec<BlockId> = replicated
            .filter(|(block, degree)| *block != BlockId::Head && **degree < schedule.layout.group())
            .map(|(block, _)| block)
            .collect();
        let of = |id: &CollectiveId| if let CollectiveId::Replicas(block) = *id { Some(block) } else { None };
        let mut found: Vec<BlockId> = starts(&schedule).keys().filter_map(of).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{}", schedule.layout);
        let place = |wanted: Instruction| schedule.instructions.iter().position(|i| *i == wanted);
        for block in found {
            // Right behind the last backward, and waited for at the end only.
            let sync = Instruction::Sync { collective: CollectiveId::Replicas(block) };
            let between = &schedule.instructions[place(sync).unwrap()..place(Instruction::Norm).unwrap()];
            assert!(between.iter().all(|i| matches!(i, Instruction::Sync { .. })), "{schedule}");
        }
    }
}
