//! Another simulator of pipelines, which knows no events: it goes through time in steps of 1 and asks at each what can happen.

use oases_plan::{Nanoseconds, simulate_stages};
use oases_schedule::{
    Axis, Bytes, CollectiveId, CollectiveKind, Instruction, Operation, Order, Plan, Request, Schedule, Stage,
    Stages, Variant,
};

use crate::support::{Rule, planned, request};

/// A collective as one stage sees it.
#[derive(Clone, Debug)]
struct Flight {
    collective: CollectiveId,
    kind: CollectiveKind,
    axis: Axis,
    since: u64,
    /// From when to when it is on the link.
    on_link: Option<[u64; 2]>,
}

/// How a stage stands at a point in time.
struct Place {
    next: usize,
    busy_until: u64,
    flights: Vec<Flight>,
    /// Until when the outgoing and the incoming direction are taken.
    taken: [u64; 2],
}

/// When each stage ends. `duration` of each instruction: on the compute stream, or of a start on the link.
fn ends(stages: &[Schedule], duration: &dyn Fn(&Instruction) -> u64) -> Vec<u64> {
    let place = || Place { next: 0, busy_until: 0, flights: Vec::new(), taken: [0; 2] };
    let mut places: Vec<Place> = stages.iter().map(|_| place()).collect();
    for now in 0..1_000_000 {
        loop {
            while let Some((members, since)) = oldest_ready(&places, now) {
                let first = &places[members[0].0].flights[members[0].1];
                let until = now + duration(&start_of(&stages[members[0].0], first.collective));
                assert!(since <= now);
                for (stage, flight) in members {
                    let directions: &[usize] = match places[stage].flights[flight].kind {
                        CollectiveKind::Send => &[0],
                        CollectiveKind::Recv => &[1],
                        _ => &[0, 1],
                    };
                    directions.iter().for_each(|&direction| places[stage].taken[direction] = until);
                    places[stage].flights[flight].on_link = Some([now, until]);
                }
            }
            // One rank takes one instruction, then what can begin is asked for again.
            let goes_on =
                (0..stages.len()).find(|&stage| go_on(&mut places[stage], &stages[stage], now, duration));
            if goes_on.is_none() {
                break;
            }
        }
        if places.iter().zip(stages).all(|(place, stage)| place.next == stage.instructions.len()) {
            return places.iter().map(|place| place.busy_until).collect();
        }
    }
    panic!("it does not end");
}

fn start_of(stage: &Schedule, wanted: CollectiveId) -> Instruction {
    let is_it = |instruction: &&Instruction| matches!(instruction, Instruction::Start { collective, .. } if *collective == wanted);
    *stage.instructions.iter().find(is_it).unwrap()
}

/// Takes the next instruction of a stage, if it is free for it.
fn go_on(place: &mut Place, stage: &Schedule, now: u64, duration: &dyn Fn(&Instruction) -> u64) -> bool {
    let Some(instruction) = stage.instructions.get(place.next) else { return false };
    if place.busy_until > now {
        return false;
    }
    match *instruction {
        Instruction::Start { collective, kind, axis, .. } => {
            place.flights.push(Flight { collective, kind, axis, since: now, on_link: None });
            place.busy_until = now;
        }
        Instruction::Sync { collective } => {
            let flight = place.flights.iter().find(|flight| flight.collective == collective).unwrap();
            match flight.on_link {
                Some([_, end]) if end <= now => place.busy_until = now,
                _ => return false,
            }
        }
        _ => place.busy_until = now + duration(instruction),
    }
    place.next += 1;
    true
}

/// The collective that has waited longest of those that can begin now: the stages and flights that it joins.
fn oldest_ready(places: &[Place], now: u64) -> Option<(Vec<(usize, usize)>, u64)> {
    let mut found = Vec::new();
    for (stage, place) in places.iter().enumerate() {
        for (index, flight) in place.flights.iter().enumerate() {
            if flight.on_link.is_some() {
                continue;
            }
            let is_transfer = flight.axis == Axis::Pipeline;
            let joined: Vec<(usize, usize)> = match flight.axis {
                Axis::Tensor | Axis::Data => vec![(stage, index)],
                _ => {
                    let own = |other: &Place| {
                        other.flights.iter().position(|theirs| theirs.collective == flight.collective)
                    };
                    places
                        .iter()
                        .enumerate()
                        .filter_map(|(stage, other)| Some((stage, own(other)?)))
                        .collect()
                }
            };
            let expected = match flight.axis {
                Axis::Tensor | Axis::Data => 1,
                Axis::World => places.len(),
                Axis::Pipeline | Axis::Ends => 2,
            };
            let first_in_line = joined.iter().all(|&(stage, index)| {
                let own = &places[stage].flights[index];
                // With two stages there is one channel in each direction.
                let alike = |other: &Flight| match is_transfer {
                    true => other.axis == Axis::Pipeline && other.kind == own.kind,
                    false => other.axis != Axis::Pipeline,
                };
                places[stage].flights[..index].iter().all(|other| !alike(other) || other.on_link.is_some())
            });
            let free = joined.iter().all(|&(stage, index)| match places[stage].flights[index].kind {
                CollectiveKind::Send => places[stage].taken[0] <= now,
                CollectiveKind::Recv => places[stage].taken[1] <= now,
                _ => places[stage].taken.iter().all(|&until| until <= now),
            });
            if joined.len() == expected && first_in_line && free {
                let since = joined.iter().map(|&(stage, index)| places[stage].flights[index].since).max()?;
                found.push((since, u8::from(is_transfer), joined));
            }
        }
    }
    found.into_iter().min_by_key(|(since, kind, _)| (*since, *kind)).map(|(since, _, joined)| (joined, since))
}

/// A small generator of numbers (Knuth's MMIX constants).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Sizes that are unequal, so that few things happen at the same time.
fn compute_time(operation: Operation, sizes: &[u64; 4]) -> u64 {
    match operation {
        Operation::Forward(..) | Operation::Tail(..) => 3 + sizes[0],
        Operation::Backward(..) => 5 + sizes[1],
        Operation::Recompute(..) => 2 + sizes[0],
        // A stage has a share of these, which is the memory plan's.
        Operation::Norm | Operation::Step => 0,
        _ => 1 + sizes[0] % 3,
    }
}

fn link_time(kind: CollectiveKind, sizes: &[u64; 4]) -> u64 {
    match kind {
        CollectiveKind::Send | CollectiveKind::Recv => sizes[2],
        _ => sizes[3],
    }
}

#[test]
fn two_simulators_agree_on_two_stages() {
    let mut numbers = Numbers(7);
    let variants = ["none", "megatron", "merak", "domino", "oases", "oases-w"];
    for round in 0..60 {
        let layers = 1 + numbers.below(3) as u32;
        let blocks = Schedule::blocks(layers) as u64;
        let starts = vec![0, 1 + numbers.below(blocks - 1) as usize];
        let stage = Stage { stages: Stages::new(2, starts, numbers.below(2) == 0), index: 0 };
        let order = if numbers.below(2) == 0 { Order::OneForwardOneBackward } else { Order::ZeroBubble };
        let sub_batches = 1 + numbers.below(2) as u32;
        let micro_batches = 1 + numbers.below(4) as u32;
        let request = Request { stage, order, ..request(layers, micro_batches, sub_batches, 2) };
        let variant = variants[numbers.below(variants.len() as u64) as usize];
        let stages = Variant::find(variant).unwrap().build_stages(&request);
        let sizes = [0; 4].map(|_| numbers.below(20));
        let costs = Rule {
            compute: |operation: Operation, _: u32| compute_time(operation, &sizes),
            collective: |kind: CollectiveKind, _: Bytes| (link_time(kind, &sizes), 0),
        };
        let plans: Vec<Plan> = stages.iter().map(planned).collect();
        let timelines = simulate_stages(&stages, &plans, &costs).unwrap();
        let found: Vec<u64> = timelines.iter().map(|timeline| timeline.step.0).collect();
        let expected = ends(&stages, &|instruction| match *instruction {
            Instruction::Start { kind, .. } => link_time(kind, &sizes),
            _ => compute_time(instruction.operation().unwrap(), &sizes),
        });
        assert_eq!(found, expected, "round {round}: {variant}, {order:?}, {}", stages[1]);
        for timeline in &timelines {
            for direction in [CollectiveKind::Send, CollectiveKind::Recv] {
                let against = if direction == CollectiveKind::Send {
                    CollectiveKind::Recv
                } else {
                    CollectiveKind::Send
                };
                let mut runs: Vec<[Nanoseconds; 2]> = timeline
                    .collectives
                    .iter()
                    .filter(|run| run.kind != against)
                    .map(|run| [run.on_link.start, run.on_link.end])
                    .collect();
                runs.sort_unstable();
                assert!(runs.windows(2).all(|pair| pair[0][1] <= pair[1][0]), "{direction:?} {runs:?}");
            }
        }
    }
}
