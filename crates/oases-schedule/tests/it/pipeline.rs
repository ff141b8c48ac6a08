//! Stages of a pipeline: what the builders make verifies, alone and together, and computes what a single stage does.

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::{
    BufferKind, Instruction, Keep, Layout, Model, Optimizer, Order, Purpose, Request, Schedule, Stage,
    Stages, Statics, Variant, Workspace, plan, verify, verify_stages,
};

use crate::meaning::{meaning, meaning_of_stages};

/// Layers, number of stages, first blocks of the chunks.
pub(crate) type Cut = (u32, u32, &'static [usize]);

/// One chunk per stage and several, borders between layers and inside them, ends that are alone on a stage.
pub(crate) const CUTS: [Cut; 9] = [
    (1, 2, &[0, 2]),
    (1, 2, &[0, 3]),
    (2, 2, &[0, 3]),
    (2, 3, &[0, 1, 4]),
    (3, 4, &[0, 2, 3, 6]),
    (1, 4, &[0, 1, 2, 3]),
    (2, 2, &[0, 1, 3, 5]),
    (3, 3, &[0, 1, 2, 4, 6, 7]),
    (3, 2, &[0, 1, 2, 4, 6, 7]),
];

/// Data-parallel replicas and TMP.
const LAYOUTS: [&str; 4] = ["1", "2", "1 of 2", "2 of 4"];

pub(crate) const ORDERS: [Order; 2] = [Order::OneForwardOneBackward, Order::ZeroBubble];

const OPTIMIZERS: [Optimizer; 2] = [Optimizer::Whole, Optimizer::Sharded];

/// What to build, in sub-batches of unequal sizes where there are several.
pub(crate) fn request(
    (layers, count, starts): (u32, u32, &[usize]),
    layout: &str,
    order: Order,
    [micro_batches, sub_batches]: [u32; 2],
) -> Request {
    let layout = Layout::parse(layout, Schedule::blocks(layers)).unwrap();
    let sequences = layout.granularity() * (2 * sub_batches - 1);
    let stage = Stage { stages: Stages::new(count, starts.to_vec(), true), index: 0 };
    let plain = Request::new(layers, 1, sequences);
    Request { layout, stage, order, micro_batches, sub_batches, ..plain }
}

/// Micro-batches that a cut allows, up to `most`.
pub(crate) fn micro_batches((_, count, starts): Cut, most: u32) -> Vec<u32> {
    let interleaved = starts.len() > count as usize;
    (1..=most).filter(|micro| !interleaved || micro.is_multiple_of(count)).collect()
}

fn all_variants() -> impl Iterator<Item = &'static Variant> {
    VARIANTS.iter().chain([&EVALUATE])
}

#[test]
fn stages_verify_alone_and_together() {
    for (cut, order) in CUTS.into_iter().flat_map(|cut| ORDERS.map(|order| (cut, order))) {
        for (variant, micro) in
            all_variants().flat_map(|v| micro_batches(cut, 8).into_iter().map(move |m| (v, m)))
        {
            let request = request(cut, "2", order, [micro, 1 + micro % 2]);
            assert_eq!(request.check(), Ok(()));
            let schedules = variant.build_stages(&request);
            let name = format!("{} {cut:?} {order:?} {micro}", variant.name);
            for schedule in &schedules {
                assert_eq!(verify(schedule), [], "{name}");
                assert_eq!(Schedule::parse(&schedule.to_string()).as_ref(), Ok(schedule));
            }
            assert_eq!(verify_stages(&schedules), [], "{name}");
        }
    }
}

/// Every layout of blocks over two ranks with one degree for the ends, and every one of a single layer over four.
fn mixed_layouts() -> Vec<(u32, Layout)> {
    let mut layouts = Vec::new();
    for (layers, group, degrees) in [(1, 2, &[1, 2][..]), (2, 2, &[1, 2]), (1, 4, &[1, 2, 4])] {
        let free = Schedule::blocks(layers) - 1;
        for mut number in 0..degrees.len().pow(free as u32) {
            let mut of_blocks: Vec<u32> = (0..free)
                .map(|_| {
                    let degree = degrees[number % degrees.len()];
                    number /= degrees.len();
                    degree
                })
                .collect();
            of_blocks.push(of_blocks[0]);
            layouts.push((layers, Layout::new(group, of_blocks)));
        }
    }
    layouts
}

#[test]
fn mixed_degrees_compute_on_stages_what_they_compute_on_a_single_stage() {
    let mut compared = 0;
    for (index, (layers, layout)) in mixed_layouts().into_iter().enumerate() {
        for first in 1..Schedule::blocks(layers) {
            let (micro, sub) = (1 + (index + first) as u32 % 3, 1 + index as u32 % 2);
            let starts = vec![0, first];
            let stage = Stage { stages: Stages::new(2, starts, true), index: 0 };
            let sequences = layout.granularity() * (2 * sub - 1);
            let plain = Request::new(layers, 1, sequences);
            let cut = Request {
                layout: layout.clone(),
                stage,
                micro_batches: micro,
                sub_batches: sub,
                ..plain.clone()
            };
            if cut.check().is_err() {
                continue;
            }
            for variant in all_variants() {
                let alone = Request { stage: Stage::whole(), ..cut.clone() };
                let expected = meaning(&variant.build(&alone)).unwrap();
                for order in ORDERS {
                    let schedules = variant.build_stages(&Request { order, ..cut.clone() });
                    let name = format!("{} {layout} from {first}, {order:?} {micro} {sub}", variant.name);
                    assert!(schedules.iter().all(|schedule| verify(schedule).is_empty()), "{name}");
                    assert_eq!(verify_stages(&schedules), [], "{name}");
                    assert!(meaning_of_stages(&schedules).unwrap().agrees(&expected), "{name}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn stages_compute_what_a_single_stage_computes() {
    for (index, cut) in CUTS.into_iter().enumerate() {
        for (layout, sub) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 1), (layout, 2)]) {
            let allowed = micro_batches(cut, 4);
            let micro = allowed[index % allowed.len()];
            for (variant, order) in all_variants().flat_map(|variant| ORDERS.map(|order| (variant, order))) {
                let whole = request(cut, layout, order, [micro, sub]);
                let alone = Request { stage: Stage::whole(), ..whole.clone() };
                let expected = meaning(&variant.build(&alone)).unwrap();
                let found = OPTIMIZERS.map(|optimizer| {
                    let schedules = variant.build_stages(&Request { optimizer, ..whole.clone() });
                    meaning_of_stages(&schedules).unwrap_or_else(|message| {
                        let texts: Vec<String> = schedules.iter().map(Schedule::to_string).collect();
                        panic!("{message} in {}\n{}", variant.name, texts.join("\n"))
                    })
                });
                let name = format!("{} {cut:?} over {layout}, {order:?} {micro} {sub}", variant.name);
                assert!(found[0].agrees(&expected), "{name}");
                assert_eq!(found[1], found[0], "{name}: where the moments are changes no bit");
            }
        }
    }
}

#[test]
fn sharded_moments_change_no_bit_on_a_single_stage() {
    for (layout, variant) in LAYOUTS.into_iter().flat_map(|layout| VARIANTS.iter().map(move |v| (layout, v)))
    {
        let whole = Request {
            stage: Stage::whole(),
            ..request((2, 2, &[0, 2]), layout, Order::OneForwardOneBackward, [2, 2])
        };
        let sharded = Request { optimizer: Optimizer::Sharded, ..whole.clone() };
        let sharded = variant.build(&sharded);
        assert_eq!(verify(&sharded), [], "{sharded}");
        assert_eq!(meaning(&sharded), meaning(&variant.build(&whole)), "{sharded}");
    }
}

/// In one-forward-one-backward order stage s of p has at most p - s micro-batches between forward and backward: as many forwards as
/// stages follow, and one more. Each keeps one input of 8 positions by 16 features per layer.
#[test]
fn a_stage_keeps_the_inputs_of_the_micro_batches_that_are_under_way_behind_it() {
    let model = Model::gpt(4, 16, 4, 8, 32);
    for name in ["megatron", "cross-pass"] {
        let request = request((4, 4, &[0, 3, 5, 7]), "1", Order::OneForwardOneBackward, [8, 1]);
        let schedules = Variant::find(name).unwrap().build_stages(&request);
        for (stage, schedule) in schedules.iter().enumerate() {
            let statics = Statics::of(&model, schedule, Purpose::Training, schedule.batch());
            let plan = plan(schedule, &statics, Workspace::default());
            let at = |index: usize| schedule.instructions[index];
            let forward = |part, block| {
                schedule.instructions.iter().position(|instruction| {
                    matches!(*instruction, Instruction::Forward { block: b, part: p, keep: Keep::Input, .. }
                        if (b, p) == (block, part))
                })
            };
            // From the forward that keeps it to the backward that reads it.
            let kept = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Inputs);
            let lives: Vec<(usize, usize, usize)> = kept
                .filter_map(|buffer| match at(buffer.death) {
                    Instruction::Backward { block, part, .. } => {
                        Some((forward(part, block)?, buffer.death, buffer.span.bytes))
                    }
                    _ => None,
                })
                .collect();
            assert_eq!(lives.len(), 8, "one per micro-batch and layer");
            let alive = |index: usize| {
                lives
                    .iter()
                    .filter(|life| life.0 <= index && index <= life.1)
                    .map(|life| life.2)
                    .sum::<usize>()
            };
            let most = (0..schedule.instructions.len()).map(alive).max().unwrap();
            assert_eq!(most, (4 - stage) * 8 * 16 * 4, "{name}, stage {stage}");
        }
    }
}

#[test]
fn what_no_pipeline_can_be_built_for_is_refused_with_what_would_do() {
    let refused = |request: &Request| {
        let error = request.check().unwrap_err();
        (error.message, error.hint)
    };
    let interleaved = (2, 2, &[0, 1, 3, 5][..]);
    let of = |micro| request(interleaved, "2", Order::OneForwardOneBackward, [micro, 1]);
    let message =
        |micro| format!("{micro} micro-batches are not a multiple of 2 stages, as interleaved stages need");
    assert_eq!(of(4).check(), Ok(()));
    assert_eq!(refused(&of(3)), (message(3), "2 or 4 micro-batches would do, or one chunk per stage".into()));
    assert_eq!(refused(&of(1)), (message(1), "2 micro-batches would do, or one chunk per stage".into()));
    let border = request((1, 2, &[0, 2]), "2*2 1*1 2*1", Order::OneForwardOneBackward, [1, 1]);
    assert_eq!(refused(&border).0, "before mlp.0 a stage ends, and the TMP degree changes from 2 to 1");
    let cut = request((1, 2, &[0, 4]), "2", Order::OneForwardOneBackward, [1, 1]);
    assert_eq!(refused(&cut).0, "a chunk has at least one block");
}
