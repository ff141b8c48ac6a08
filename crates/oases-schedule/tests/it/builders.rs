//! Every variant over batches, splits and degrees.

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::{
    CollectiveId, Instruction, Model, Plan, Purpose, Request, Schedule, Span, Statics, Variant, Workspace,
    plan, verify,
};

use crate::layouts::{LAYOUTS, request as mixed};

fn request(layers: u32, tensor: u32, micro_batches: u32, sub_batches: u32, sequences: u32) -> Request {
    Request { micro_batches, sub_batches, ..Request::new(layers, tensor, sequences) }
}

fn planned(schedule: &Schedule) -> Plan {
    let model = Model::gpt(schedule.layers, 64, 4, 16, 100);
    let statics =
        Statics::new(&model, &schedule.layout, Purpose::Training, schedule.batch(), schedule.parts.len());
    plan(schedule, &statics, Workspace::default())
}

#[test]
fn every_variant_verifies_and_round_trips() {
    for variant in VARIANTS.iter().chain([&EVALUATE]) {
        for (layers, tensor, micro, sub) in
            [(1, 1, 1, 1), (1, 2, 1, 2), (3, 4, 2, 3), (2, 2, 3, 4), (2, 1, 2, 2)]
        {
            let schedule = variant.build(&request(layers, tensor, micro, sub, 5));
            assert_eq!(verify(&schedule), [], "{}", variant.name);
            assert_eq!(Schedule::parse(&schedule.to_string()).as_ref(), Ok(&schedule));
            assert_eq!(schedule.batch(), 5 * micro);
        }
    }
}

/// Collectives of one layer and part.
fn per_layer(variant: &str) -> usize {
    let schedule = Variant::find(variant).unwrap().build(&request(4, 2, 1, 2, 8));
    let of_layer = |instruction: &&Instruction| match instruction {
        Instruction::Start { collective: CollectiveId::Block { block, part, .. }, .. } => {
            let name = block.to_string();
            (name == "attn.2" || name == "mlp.2") && part.to_string() == "m0.a"
        }
        _ => false,
    };
    schedule.instructions.iter().filter(of_layer).count()
}

#[test]
fn fine_grained_recomputation_repeats_no_all_reduce() {
    assert_eq!(per_layer("none"), 4);
    assert_eq!(per_layer("megatron"), 6);
    assert_eq!(per_layer("cross-pass"), 6);
    assert_eq!(per_layer("oases"), 4);
}

#[test]
fn buffers_that_live_together_are_disjoint() {
    for (variant, layout) in VARIANTS.iter().flat_map(|variant| LAYOUTS.map(|layout| (variant, layout))) {
        let schedule = variant.build(&mixed(layout, 2, 2));
        let plan = planned(&schedule);
        let name = format!("{} over {}", variant.name, schedule.layout);
        for (index, left) in plan.buffers.iter().enumerate() {
            for right in &plan.buffers[index + 1..] {
                let together = left.birth <= right.death && right.birth <= left.death;
                assert!(!together || !left.span.overlaps(right.span), "{name}: {left:?} {right:?}");
            }
        }
        assert!(plan.bytes >= plan.live_bytes);
        assert!(plan.bytes.0 <= plan.live_bytes.0 * 21 / 20, "{name}: {} of {}", plan.bytes, plan.live_bytes);
        assert_eq!(plan.buffers.iter().map(|b| b.span.end() as u64).max(), Some(plan.bytes.0));
        assert!(plan.buffers.iter().all(|b| b.span.offset % Span::ALIGNMENT == 0));
    }
}

#[test]
fn recomputation_saves_memory() {
    let bytes = |name| planned(&Variant::find(name).unwrap().build(&request(8, 2, 1, 2, 8))).bytes;
    assert!(bytes("oases") < bytes("none"));
    assert!(bytes("megatron") < bytes("oases"), "one input per layer against two");
}
