//! Tiny schedules whose timelines are drawn and computed by hand.

use oases_plan::{Bound, Error, Nanoseconds, bound};
use oases_schedule::{Bytes, CollectiveKind, Operation, Schedule};

use crate::support::{ELEMENTS, OVERLAPPED, Rule, build, planned, request, simulate};

/// Forward 10 and backward 20 for each sequence, whatever the block; loss 1, norm 2, step 3.
fn compute(operation: Operation, sequences: u32) -> u64 {
    match operation {
        Operation::Forward(..) => 10 * u64::from(sequences),
        Operation::Backward(..) => 20 * u64::from(sequences),
        Operation::Loss => 1,
        Operation::Norm => 2,
        Operation::Step => 3,
        Operation::Recompute(..) | Operation::Tail(..) | Operation::Reshard(_) | Operation::Complete(_) => {
            panic!("nothing is recomputed, cut or moved here")
        }
    }
}

/// Times at which each instruction ends.
fn ends(schedule: &Schedule, costs: &dyn oases_plan::Costs) -> Vec<u64> {
    simulate(schedule, costs).instructions.iter().map(|interval| interval.end.0).collect()
}

/// One layer, one sequence, all collectives waited for at once. Each takes 5 on the link and 2 of arithmetic, which is
/// inside the wait.
///
/// ```text
/// time     0        10   15       25   30 …
/// compute  embed         attn          …
/// link              =====         ===== …
/// ```
#[test]
fn blocking_collectives_are_exposed() {
    let schedule = build("none", &request(1, 1, 1, 1));
    let costs = Rule { compute, collective: |_: CollectiveKind, _: Bytes| (5, 2) };
    let computing: Vec<(String, u64)> = schedule
        .instructions
        .iter()
        .zip(ends(&schedule, &costs))
        .filter_map(|(instruction, end)| Some((instruction.operation()?.to_string(), end)))
        .collect();
    // Each begins 5 after the end of the one before, but for those without a collective between: loss, backward head,
    // norm, and the embedding's backward is followed by the reduction of gradients.
    let expected = [
        ("forward embed", 10),
        ("forward attn", 25),
        ("forward mlp", 40),
        ("forward head", 55),
        ("loss", 61),
        ("backward head", 81),
        ("backward mlp", 106),
        ("backward attn", 131),
        ("backward embed", 156),
        ("norm", 163),
        ("step", 171),
    ];
    assert_eq!(computing, expected.map(|(name, end)| (name.to_owned(), end)));

    let timeline = simulate(&schedule, &costs);
    // 4 · 10 + 1 + 4 · 20 + 2 + 3 of computation, 9 collectives of 5.
    assert_eq!((timeline.compute.0, timeline.communication.0, timeline.exposed.0), (126, 45, 45));
    assert_eq!(timeline.step.0, 171);
    let least = bound(&schedule, &planned(&schedule), &costs).unwrap();
    assert_eq!(least, Bound { compute: Nanoseconds(126), communication: Nanoseconds(45) });
    assert_eq!(least.step(), Nanoseconds(126));
    assert!((timeline.compute_utilisation() - 126.0 / 171.0).abs() < 1e-15);
    assert!((timeline.communication_utilisation() - 45.0 / 171.0).abs() < 1e-15);
    assert!((timeline.exposed_share() - 45.0 / 171.0).abs() < 1e-15);
    // One sequence of 8 tokens in 171 ns.
    assert!((timeline.tokens_per_s(8) - 8e9 / 171.0).abs() < 1e-3);
    assert_eq!(timeline.arena_bytes, planned(&schedule).bytes);
}

/// Ends of the instructions of [`OVERLAPPED`], four for each block: forward, start, sync of the other sub-batch's.
fn overlapped(link: u64, host: u64) -> Vec<u64> {
    let schedule = Schedule::parse(OVERLAPPED).unwrap();
    ends(&schedule, &Rule { compute, collective: move |_: CollectiveKind, _: Bytes| (link, host) })
}

/// The link is faster than the computation: each sync finds its collective off the link, and pays for the arithmetic (2).
/// Only the last has to wait, and does its arithmetic meanwhile.
///
/// ```text
/// time     0        10        20 22      32 34      44 46     56 58     68 70      80 82      92 94 95 97 98
/// compute  embed a  embed b   2  attn a  2  attn b  2  mlp a  2  mlp b  2  head a  2  head b  2  1  2  1
/// link              a====     b====      a====      b====     a====     b====      a====      b=====
/// ```
#[test]
fn a_fast_link_leaves_the_arithmetic() {
    let expected = [
        [10, 10, 20, 20].as_slice(),
        &[22, 32, 32, 34, 44, 44],
        &[46, 56, 56, 58, 68, 68],
        &[70, 80, 80, 82, 92, 92],
        &[94, 95, 97, 98],
    ];
    assert_eq!(overlapped(5, 2), expected.concat());
}

/// The link is slower than the computation: a collective takes 16, and the communication stream is never idle. The
/// arithmetic (2 each) is all inside the waits.
///
/// ```text
/// time     0        10        20    26      36    42      52    58     68    74     84    90 …
/// compute  embed a  embed b   wait  attn a  wait  attn b  wait  mlp a  wait  mlp b  wait  head a
/// link              a===============b=============a=============b============a============b=====
///                   10              26            42            58           74           90
/// ```
#[test]
fn a_slow_link_hides_the_arithmetic() {
    let expected = [
        [10, 10, 20, 20].as_slice(),
        &[26, 36, 36, 42, 52, 52],
        &[58, 68, 68, 74, 84, 84],
        &[90, 100, 100, 106, 116, 116],
        &[122, 123, 138, 139],
    ];
    assert_eq!(overlapped(16, 2), expected.concat());
}

/// A wait that is shorter than the arithmetic of its collective: 12 on the link, 5 of arithmetic. At 20, a is on the link
/// until 22, but its arithmetic takes until 25. From then on each collective is off the link before its sync, which costs
/// the 5. Only the last is waited for: from 116 to 122, with the arithmetic inside.
///
/// ```text
/// time     0        10        20  25      35  40      50  55     65  70     80 …
/// compute  embed a  embed b   a5  attn a  b5  attn b  a5  mlp a  b5  mlp b  …
/// link              a===========b=========a===========b==========a…
///                   10          22    34  35   47     50   62    65
/// ```
#[test]
fn arithmetic_that_is_longer_than_the_wait_is_done_to_the_end() {
    let expected = [
        [10, 10, 20, 20].as_slice(),
        &[25, 35, 35, 40, 50, 50],
        &[55, 65, 65, 70, 80, 80],
        &[85, 95, 95, 100, 110, 110],
        &[115, 116, 122, 123],
    ];
    assert_eq!(overlapped(12, 5), expected.concat());
}

/// A wait is filled with the arithmetic of later collectives, but does not last for it: 14 on the link, 3 of arithmetic.
///
/// From 20 to 23 that of a, from 23 to 24 one of the 3 of b, as a is off the link at 24. At 34, b is on the link until 38:
/// its 2 others until 36, then 2 of the 3 of the next.
#[test]
fn a_wait_is_filled_with_the_arithmetic_of_others() {
    let expected = [
        [10, 10, 20, 20].as_slice(),
        &[24, 34, 34, 38, 48, 48],
        &[52, 62, 62, 66, 76, 76],
        &[80, 90, 90, 94, 104, 104],
        &[108, 109, 122, 123],
    ];
    assert_eq!(overlapped(14, 3), expected.concat());
}

/// Unequal sub-batches, 3 sequences and 1: the long wait for the first also does the arithmetic of the second, whose own
/// sync then costs nothing. A sequence takes 10 on the link and 2 of arithmetic.
///
/// ```text
/// time     0          30       40               60         90 90        100
/// compute  embed a    embed b  a 6, b 2, wait   attn a        attn b    …
/// link                a=========================b=====     a========…
///                     30                        60    70   90
/// ```
#[test]
fn arithmetic_done_in_the_wait_for_another_is_not_done_again() {
    let text = OVERLAPPED.replace("parts     m0.a=1 m0.b=1", "parts     m0.a=3 m0.b=1");
    let schedule = Schedule::parse(&text).unwrap();
    let collective = |_: CollectiveKind, bytes: Bytes| {
        let sequences = bytes.0 / (ELEMENTS * 4);
        (10 * sequences, 2 * sequences)
    };
    let ends = ends(&schedule, &Rule { compute, collective });
    assert_eq!(ends[..10], [30, 30, 40, 40, 60, 90, 90, 90, 100, 100]);
}

#[test]
fn what_has_no_cost_is_an_error() {
    let schedule = build("oases", &request(1, 1, 2, 4));
    struct Nothing;
    impl oases_plan::Costs for Nothing {
        fn compute(&self, operation: Operation, _: u32, _: u32) -> Result<Nanoseconds, Error> {
            Err(Error::Unsupported(operation.to_string()))
        }
        fn collective(
            &self,
            _: CollectiveKind,
            _: Bytes,
            _: oases_plan::Reach,
        ) -> Result<oases_plan::CollectiveTime, Error> {
            unreachable!("the first instruction computes")
        }
    }
    let error = oases_plan::simulate(&schedule, &planned(&schedule), &Nothing).unwrap_err();
    assert_eq!(error, Error::Unsupported("forward embed".to_owned()));
}
