//! Computation that is slowed down by collectives beside it, drawn and computed by hand.

use oases_plan::{CollectiveTime, Costs, Error, Nanoseconds, Reach, Timeline, bound};
use oases_schedule::{Bytes, CollectiveKind, Operation, Schedule};

use crate::support::{OVERLAPPED, Rule, build, planned, request, simulate};

/// Every compute instruction takes 12 and every collective `link`; computation under a collective takes `interference`
/// times as long.
struct Slowed {
    link: u64,
    interference: f64,
}

impl Costs for Slowed {
    fn compute(&self, _: Operation, _: u32, _: u32) -> Result<Nanoseconds, Error> {
        Ok(Nanoseconds(12))
    }

    fn collective(&self, _: CollectiveKind, _: Bytes, _: Reach) -> Result<CollectiveTime, Error> {
        Ok(CollectiveTime { link: Nanoseconds(self.link), host: Nanoseconds::ZERO })
    }

    fn interference(&self) -> f64 {
        self.interference
    }
}

fn timeline(link: u64, interference: f64) -> Timeline {
    simulate(&Schedule::parse(OVERLAPPED).unwrap(), &Slowed { link, interference })
}

fn ends(timeline: &Timeline) -> Vec<u64> {
    timeline.instructions.iter().map(|interval| interval.end.0).collect()
}

/// Twice as slow beside collectives of 6. The first instruction runs alone: 12. The second begins with one that is busy for 6
/// more: in these it does 3 of its 12, and the other 9 after it. So do all that follow, but for the losses: the first begins
/// while the gather of b is busy for 6 more, the second finds nothing running.
///
/// ```text
/// time     0        12       27       42       57        …
/// compute  embed a  embed b  attn a   attn b   mlp a     …
/// link              a===     b===     a===     b===
///                   12 18    27 33    42 48    57 63
/// ```
#[test]
fn a_short_collective_slows_down_what_it_runs_under() {
    let timeline = timeline(6, 2.0);
    let expected = [
        [12, 12, 27, 27].as_slice(),
        &[27, 42, 42, 42, 57, 57],
        &[57, 72, 72, 72, 87, 87],
        &[87, 102, 102, 102, 117, 117],
        &[117, 132, 132, 144],
    ];
    assert_eq!(ends(&timeline), expected.concat());
    // The compute stream never waits: it is busy all the time, 24 of it for what collectives cost.
    assert_eq!((timeline.compute.0, timeline.exposed.0, timeline.step.0), (144, 0, 144));
}

/// One and a half times as slow, beside collectives of 20: an instruction of 12 takes 18, all of it beside a collective.
///
/// ```text
/// time     0        12       30   32       50   52       70   72       90   92        110 112      130
/// compute  embed a  embed b  wait attn a   wait attn b   wait mlp a    wait mlp b    wait head a  wait head b
/// link              a=============b=============a=============b=============a=============b========…
///                   12            32            52            72            92            112
/// ```
#[test]
fn what_runs_under_a_long_collective_is_slowed_down_as_a_whole() {
    let timeline = timeline(20, 1.5);
    let expected = [
        [12, 12, 30, 30].as_slice(),
        &[32, 50, 50, 52, 70, 70],
        &[72, 90, 90, 92, 110, 110],
        &[112, 130, 130, 132, 150, 150],
        // The gathers end at 152 and 172; the first loss runs under the second, the last alone.
        &[152, 170, 172, 184],
    ];
    assert_eq!(ends(&timeline), expected.concat());
    // Waits of 2 before each of the 6 blocks behind the embedding, before the first loss and before the last.
    assert_eq!((timeline.exposed.0, timeline.compute.0), (16, 168));
}

/// 12 beside a collective of exactly 18 takes 18 if one and a half times as slow: the two rules meet.
#[test]
fn what_just_fits_under_a_collective_ends_with_it() {
    let timeline = timeline(18, 1.5);
    assert_eq!(ends(&timeline)[..7], [12, 12, 30, 30, 30, 48, 48]);
    assert_eq!(timeline.exposed.0, 0);
}

/// The bound is over all orders of the instructions, so it holds no interference.
#[test]
fn the_bound_and_a_factor_of_one_have_no_interference() {
    let schedule = Schedule::parse(OVERLAPPED).unwrap();
    let slowed = bound(&schedule, &planned(&schedule), &Slowed { link: 6, interference: 2.0 }).unwrap();
    assert_eq!((slowed.compute.0, slowed.communication.0), (120, 48));
    let rule = Rule { compute: |_: Operation, _: u32| 12, collective: |_: CollectiveKind, _: Bytes| (6, 0) };
    assert_eq!(timeline(6, 1.0), simulate(&schedule, &rule));
}

/// Nothing runs beside computation in a blocking schedule.
#[test]
fn blocking_schedules_are_not_slowed_down() {
    let schedule = build("megatron", &request(2, 2, 1, 4));
    let step = |interference| simulate(&schedule, &Slowed { link: 7, interference }).step;
    assert_eq!(step(1.0), step(3.0));
}
