//! Steps of pipelines and of replicas, against closed forms.

use oases_plan::{Error, Nanoseconds, Timeline, simulate_stages};
use oases_schedule::{
    Bytes, CollectiveKind, Family, Layout, Operation, Order, Plan, Request, Schedule, Scope, Stage, Stages,
    Variant, passes::EVALUATE,
};

use crate::support::{Rule, build, planned, request, simulate};

/// Forward and backward of a layer; its two blocks take half each.
const FORWARD: u64 = 20;
const BACKWARD: u64 = 40;

/// Layers alone: whatever else a step does takes no time.
fn layers_only(operation: Operation, _: u32) -> u64 {
    match (operation, operation.family()) {
        (Operation::Forward(..), Some(Family::Attn | Family::Mlp)) => FORWARD / 2,
        (Operation::Backward(_, Scope::All), Some(Family::Attn | Family::Mlp)) => BACKWARD / 2,
        // As long as the gradient of the input.
        (Operation::Backward(..), Some(Family::Attn | Family::Mlp)) => BACKWARD / 4,
        _ => 0,
    }
}

/// `count` stages of `chunks` pieces, each of one layer; the embedding is with the first and the head with the last.
fn pipeline(count: u32, chunks: u32, micro_batches: u32) -> Request {
    let layers = count * chunks;
    let starts = (0..layers as usize).map(|piece| if piece == 0 { 0 } else { 1 + 2 * piece }).collect();
    let stage = Stage { stages: Stages::new(count, starts, true), index: 0 };
    Request { stage, ..request(layers, micro_batches, 1, 1) }
}

fn stages(variant: &str, request: &Request) -> Vec<Schedule> {
    Variant::find(variant).unwrap().build_stages(request)
}

fn timelines(stages: &[Schedule], costs: &dyn oases_plan::Costs) -> Vec<Timeline> {
    let plans: Vec<Plan> = stages.iter().map(planned).collect();
    simulate_stages(stages, &plans, costs).unwrap()
}

/// When the last stage ends.
fn step(stages: &[Schedule], costs: &dyn oases_plan::Costs) -> u64 {
    timelines(stages, costs).iter().map(|timeline| timeline.step.0).max().unwrap()
}

/// Without communication, the first micro-batch reaches the last stage after p - 1 forwards, which then never waits, and its last
/// gradient takes p - 1 backwards to the first: (m + p - 1)(f + b). Narayanan et al., arXiv 2104.04473, section 2.2.1.
#[test]
fn one_forward_one_backward_of_equal_stages() {
    let costs = Rule { compute: layers_only, collective: |_: CollectiveKind, _: Bytes| (0, 0) };
    for variant in ["none", "megatron"] {
        for count in 2..=4 {
            for micro_batches in [1, 2, 4, 8] {
                let found = step(&stages(variant, &pipeline(count, 1, micro_batches)), &costs);
                let expected = u64::from(micro_batches + count - 1) * (FORWARD + BACKWARD);
                assert_eq!(found, expected, "{variant}, {count} stages, {micro_batches} micro-batches");
            }
        }
    }
}

/// The bubble of p - 1 forwards and backwards of a stage becomes one of a piece: section 2.2.2 of the same.
#[test]
fn interleaved_stages_divide_the_bubble_by_the_chunks() {
    let costs = Rule { compute: layers_only, collective: |_: CollectiveKind, _: Bytes| (0, 0) };
    for (count, chunks, micro_batches) in [(2, 2, 4), (2, 3, 4), (4, 2, 8), (3, 2, 6)] {
        let found = step(&stages("none", &pipeline(count, chunks, micro_batches)), &costs);
        let work = u64::from(micro_batches * chunks) * (FORWARD + BACKWARD);
        let bubble = u64::from(count - 1) * (FORWARD + BACKWARD);
        assert_eq!(found, work + bubble, "{count} stages of {chunks}, {micro_batches} micro-batches");
    }
}

/// With the gradients of inputs F, of weights W and a forward F all of 20: Qi et al., arXiv 2401.10241, table 2: the bubble of ZB-H1 is
/// (p - 1)(F + B - W) instead of (p - 1)(F + B + W).
#[test]
fn weight_gradients_fill_bubbles() {
    let costs = Rule { compute: layers_only, collective: |_: CollectiveKind, _: Bytes| (0, 0) };
    for (count, micro_batches) in [(2, 4), (3, 6), (4, 8)] {
        let usual = pipeline(count, 1, micro_batches);
        let filled = Request { order: Order::ZeroBubble, ..usual.clone() };
        let [usual, filled] = [usual, filled].map(|request| step(&stages("none", &request), &costs));
        let part = BACKWARD / 2;
        let work = u64::from(micro_batches) * (FORWARD + 2 * part);
        let bubble = u64::from(count - 1) * (FORWARD + part - part);
        assert_eq!(
            filled,
            work + bubble,
            "{count} stages, {micro_batches} micro-batches, {usual} in usual order"
        );
        assert!(filled < usual);
    }
}

/// What goes up and what goes down the pipeline crosses on the link. In the usual order of two stages with four micro-batches the
/// first stage sends an activation and receives a gradient between all but its first and last computations.
#[test]
fn transfers_in_both_directions_share_no_link() {
    let transfer = 7;
    let costs = Rule {
        compute: layers_only,
        collective: move |kind: CollectiveKind, _: Bytes| match kind {
            CollectiveKind::Send | CollectiveKind::Recv => (transfer, 0),
            _ => (0, 0),
        },
    };
    let stages = stages("none", &pipeline(2, 1, 4));
    let timelines = timelines(&stages, &costs);
    let of = |kind: CollectiveKind| {
        let runs = timelines[0].collectives.iter().filter(move |run| run.kind == kind);
        runs.map(|run| run.on_link).collect::<Vec<_>>()
    };
    let (sends, receives) = (of(CollectiveKind::Send), of(CollectiveKind::Recv));
    assert_eq!((sends.len(), receives.len()), (4, 4));
    let together = sends.iter().filter(|send| receives.contains(send)).count();
    assert!(together >= 2, "{sends:?} {receives:?}");
    // Four transfers in each direction; the busier one is as busy as the other.
    assert_eq!(timelines[0].communication, Nanoseconds(4 * transfer));
}

/// Four replicas that compute alone: buckets of gradients go over the link behind each other, the first as soon as its block has them. The
/// embedding's, with the head's, is last. Those of the normalisations take no time here. So the step ends when backward does or when the link has carried all that was ready,
/// whichever is later, and then with the last bucket.
#[test]
fn buckets_of_gradients_run_under_backward() {
    for bucket in [1, 15, 20, 21, 50, 100] {
        let layout = Layout::new(4, vec![1; Schedule::blocks(3)]);
        let request = Request { layout, ..request(3, 1, 1, 4) };
        let schedule = build("cross-pass", &request);
        // The gradients of the seven normalisations are 7 · 2 · 16 floats.
        let reduce = move |_: CollectiveKind, bytes: Bytes| if bytes.0 > 896 { (bucket, 0) } else { (0, 0) };
        let costs = Rule { compute: layers_only, collective: reduce };
        let (forward, backward) = (3 * FORWARD, 3 * BACKWARD);
        // The first of six is ready after half a layer, the last at the end.
        let carried = forward + BACKWARD / 2 + 6 * bucket;
        let ready = forward + backward + bucket;
        let expected = carried.max(ready) + bucket;
        assert_eq!(simulate(&schedule, &costs).step.0, expected, "buckets of {bucket}");
    }
}

/// The second stage asks for the second micro-batch first.
#[test]
fn stages_that_do_not_fit_are_told() {
    let request = pipeline(2, 1, 2);
    let mut stages = EVALUATE.build_stages(&request);
    let text = stages[1].to_string();
    let (header, instructions) = text.split_once("\n\n").unwrap();
    let swapped = instructions.replace("m0", "m9").replace("m1", "m0").replace("m9", "m1");
    stages[1] = Schedule::parse(&format!("{header}\n\n{swapped}")).unwrap();
    let plans: Vec<Plan> = stages.iter().map(planned).collect();
    let costs = Rule { compute: layers_only, collective: |_: CollectiveKind, _: Bytes| (1, 0) };
    let error = simulate_stages(&stages, &plans, &costs).unwrap_err();
    assert!(matches!(error, Error::Deadlock { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "the pipeline stands still: stage 0 sends `f.attn.1.m0:p2p` where stage 1 receives `f.attn.1.m1:p2p`"
    );
    let alone = simulate_stages(&stages[..1], &plans[..1], &costs).unwrap_err();
    assert_eq!(alone.to_string(), "a pipeline is simulated with the schedules of all its stages");
}
