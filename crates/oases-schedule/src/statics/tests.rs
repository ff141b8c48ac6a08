//! Places of parameters, gradients and moments on every rank of every stage.

use super::*;
use crate::parameters::GradientKind;
use crate::passes::{Request, empty};
use crate::stage::Stages;

#[test]
fn places_are_disjoint_and_inside() {
    for (tensor, tied) in [(1, true), (4, true), (2, false), (4, false)] {
        let model = Model { tied, ..Model::gpt(2, 16, 4, 8, 30) };
        let statics = Statics::new(&model, &Layout::uniform(tensor, 6), Purpose::Training, 3, 2);
        let mut spans = vec![statics.tokens, statics.targets, statics.losses, statics.norm];
        for index in 0..statics.parameters.len() {
            let placed = statics.placed(index);
            spans.extend([placed.weight, placed.gradient]);
            spans.extend(statics.moments(index));
        }
        for (index, span) in spans.iter().enumerate() {
            assert!(span.end() <= statics.bytes);
            assert!(spans[..index].iter().all(|other| !other.overlaps(*span)));
        }
    }
}

#[test]
fn queries_keys_and_values_are_one_operand() {
    let statics = Statics::new(&Model::gpt(2, 16, 4, 8, 30), &Layout::uniform(4, 6), Purpose::Training, 1, 1);
    let fused = statics.role(BlockId::Attn(1), Role::InWeight);
    assert_eq!(fused.weight.bytes, 3 * 4 * 16 * 4);
    assert_eq!(statics.role(BlockId::Attn(1), Role::InBias).gradient.bytes, 3 * 4 * 4);
    assert_eq!(statics.role(BlockId::Attn(1), Role::Tokens), Placed::default());
}

/// The head's gradients travel with the embedding's.
fn summed_with(block: BlockId) -> BlockId {
    if block == BlockId::Head { BlockId::Embed } else { block }
}

fn layouts() -> Vec<Layout> {
    let mixed = ["2", "1", "4", "1 of 4", "2 of 4", "4*2 1*3 4*1", "2*1 4*2 1*1 2*2"];
    mixed.iter().map(|text| Layout::parse(text, 6).unwrap()).collect()
}

#[test]
fn a_bucket_holds_what_its_replicas_sum() {
    for layout in layouts() {
        let statics = Statics::new(
            &Model { tied: false, ..Model::gpt(2, 16, 4, 8, 30) },
            &layout,
            Purpose::Training,
            1,
            1,
        );
        for (index, parameter) in statics.parameters.iter().enumerate() {
            let gradient = statics.placed(index).gradient;
            let inside = |range: Span| gradient.offset >= range.offset && gradient.end() <= range.end();
            let degree = statics.degree(parameter.block);
            let partial = parameter.gradient(degree) == GradientKind::Partial;
            assert_eq!(inside(statics.partial_gradients()), partial);
            let block = summed_with(parameter.block);
            let replicated = statics.degree(block) < layout.group() && !partial;
            assert_eq!(
                inside(statics.replicated_gradients(block)),
                replicated,
                "{} {layout}",
                parameter.name
            );
        }
    }
}

/// Stages of the chain `embed, attn.0, …, head` of two layers, with and without a table that its ends share.
fn stages() -> Vec<Stages> {
    vec![Stages::single(), Stages::new(2, vec![0, 3], true), Stages::new(2, vec![0, 3], false)]
}

/// All ranks of a stage: statics of the schedule that a request is for.
fn statics_of(layout: &Layout, stages: &Stages, index: u32, optimizer: Optimizer) -> Statics {
    let stage = Stage { stages: stages.clone(), index };
    let request = Request { layout: layout.clone(), stage, optimizer, ..Request::new(2, 1, 12) };
    let model = Model { tied: stages.tied(), ..Model::gpt(2, 16, 4, 8, 30) };
    Statics::of(&model, &empty("none", &request), Purpose::Training, 12)
}

/// Elements of a rank's shard of a parameter, as indices into the full one.
fn elements(statics: &Statics, index: usize, tp_rank: u32) -> Vec<usize> {
    let parameter = &statics.parameters[index];
    let degree = statics.degree(parameter.block);
    let (rows, columns) = parameter.slice(statics.place_in(parameter.block, tp_rank), degree);
    rows.flat_map(|row| columns.clone().map(move |column| row * parameter.columns + column)).collect()
}

/// Counts how often each element of the full gradient is in a range of some rank of some stage.
#[test]
fn every_gradient_counts_once_in_the_norm() {
    for (layout, stages) in layouts().iter().flat_map(|layout| stages().into_iter().map(move |s| (layout, s)))
    {
        if stages.check(6).is_err() || layout.degree(2) != layout.degree(3) && stages.count() > 1 {
            continue;
        }
        for optimizer in [Optimizer::Whole, Optimizer::Sharded] {
            let all: Vec<Statics> =
                (0..stages.count()).map(|index| statics_of(layout, &stages, index, optimizer)).collect();
            for (index, parameter) in all[0].parameters.iter().enumerate() {
                let mut seen = vec![0; parameter.elements()];
                for statics in all.iter().filter(|statics| statics.held().any(|held| held == index)) {
                    for tp_rank in 0..layout.group() {
                        let first = statics.placed(index).gradient.offset;
                        let ranges = statics.counted_gradients(tp_rank);
                        for (local, element) in elements(statics, index, tp_rank).into_iter().enumerate() {
                            let place = first + 4 * local;
                            let counts = |range: &&Span| (range.offset..range.end()).contains(&place);
                            seen[element] += ranges.iter().filter(counts).count();
                        }
                    }
                }
                let once = seen.iter().all(|&count| count == 1);
                assert!(once, "{} with degrees {layout} on {stages:?}", parameter.name);
            }
        }
    }
}

/// Of what replicas share, each element is updated by one; of the rest, by all. Nothing else is in its place.
#[test]
fn every_replica_updates_its_share() {
    for (layout, stages) in layouts().iter().flat_map(|layout| stages().into_iter().map(move |s| (layout, s)))
    {
        for index in 0..stages.count() {
            let statics = statics_of(layout, &stages, index, Optimizer::Sharded);
            for held in statics.held() {
                let parameter = &statics.parameters[held];
                let degree = statics.degree(parameter.block);
                let sharded = degree < layout.group() && parameter.gradient(degree) != GradientKind::Partial;
                let expected = if sharded { 1 } else { layout.group() / degree };
                for place in 0..degree {
                    let mut seen = vec![0; parameter.local_elements(degree)];
                    for replica in 0..layout.group() / degree {
                        let updated = statics.updated(held, replica * degree + place);
                        updated.elements.clone().for_each(|element| seen[element] += 1);
                        assert_eq!(updated.weight.bytes, 4 * updated.elements.len());
                        let own = statics.placed(held);
                        let offset = 4 * updated.elements.start;
                        if !updated.elements.is_empty() {
                            assert_eq!(updated.weight.offset, own.weight.offset + offset);
                            assert_eq!(updated.gradient.offset, own.gradient.offset + offset);
                        }
                    }
                    assert!(seen.iter().all(|&count| count == expected), "{} {layout}", parameter.name);
                }
            }
        }
    }
}

#[test]
fn sharded_moments_are_disjoint_and_inside() {
    for layout in layouts() {
        let statics = statics_of(&layout, &Stages::single(), 0, Optimizer::Sharded);
        for tp_rank in 0..layout.group() {
            let mut spans = vec![statics.tokens, statics.targets, statics.losses, statics.norm];
            for index in statics.held() {
                let placed = statics.placed(index);
                spans.extend([placed.weight, placed.gradient]);
                let moments = statics.updated(index, tp_rank).moments;
                spans.extend(moments.iter().filter(|moment| moment.bytes > 0));
            }
            for (index, span) in spans.iter().enumerate() {
                assert!(span.end() <= statics.bytes);
                assert!(spans[..index].iter().all(|other| !other.overlaps(*span)), "{layout}");
            }
        }
    }
}
