//! Simulates the schedules of a step, one rank for each pipeline stage.
//!
//! All ranks of a stage run the same instructions on equal shards of equal shares, so one stands for all. Rules, each an
//! absence of choice:
//!
//! 1. A compute instruction begins when the compute stream is free, and takes what it costs; where a collective runs, in as
//!    far as the communication stream is busy when the instruction begins, [`Costs::interference`] times as long.
//! 2. A `start` takes no time. Its collective begins when all of its stages have started it, what is before it in its queue has
//!    begun, and the directions of the link that it needs are free; it occupies these for its link time ([`crate::links`]).
//! 3. A `sync` ends when the collective is off the link and its arithmetic is done. A rank that waits does the arithmetic
//!    of all collectives that have been started, the oldest first; what is left of this one's when the link is done with
//!    it follows at once. With one collective in flight that is `max(end on the link, now + arithmetic)`.
//! 4. An instruction on a block costs what [`Costs::compute`] says for the rank's share of the part at the degree of the block;
//!    the loss, at that of the head; a `reshard` or `complete`, on the side that it comes from.
//! 5. `norm` and `step` cost, for each TMP degree among the blocks, that degree's share of the parameters times what all of
//!    them cost at the degree ([`Plan::parameter_shares`]).
//! 6. Where a collective joins only some of the ranks, all groups of its grouping run it at the same time, as one collective
//!    of that [`Reach`]: what they take from each other is in its cost.
//! 7. Stages advance in the order of time: of what can happen next, the earliest happens.

use std::slice;

use oases_schedule::{
    Axis, Bytes, CollectiveId, CollectiveKind, Instruction, Operation, Pass, Plan, Schedule, collective_bytes,
};

use crate::costs::{CollectiveTime, Costs, Reach};
use crate::error::Error;
use crate::links::Members;
use crate::rank::Rank;
use crate::time::Nanoseconds;
use crate::timeline::{Bound, Timeline};
use crate::walk::walk;

/// Predicts a step of a single stage: `plan` is the memory plan of the schedule, `costs` says what its instructions take.
pub fn simulate(schedule: &Schedule, plan: &Plan, costs: &dyn Costs) -> Result<Timeline, Error> {
    let mut timelines = simulate_stages(slice::from_ref(schedule), slice::from_ref(plan), costs)?;
    Ok(timelines.swap_remove(0))
}

/// Predicts a step of all stages, given in their order with their memory plans. Each timeline is that of one rank of a stage; a
/// step is over when the last of them is.
pub fn simulate_stages(
    schedules: &[Schedule],
    plans: &[Plan],
    costs: &dyn Costs,
) -> Result<Vec<Timeline>, Error> {
    let complete = schedules.iter().enumerate().all(|(index, schedule)| {
        let (stage, count) = (&schedule.stage, schedules.len() as u32);
        stage.index as usize == index && stage.stages.count() == count && plans.len() == schedules.len()
    });
    if !complete {
        return Err(Error::Unsupported(
            "a pipeline is simulated with the schedules of all its stages".to_owned(),
        ));
    }
    let charges = |(schedule, plan)| charges(schedule, plan, costs);
    let charges: Vec<Vec<Charge>> = schedules.iter().zip(plans).map(charges).collect::<Result<_, _>>()?;
    let ranks = walk(charges.iter().map(|charges| Rank::new(charges, costs.interference())).collect())?;
    let timeline = |(index, rank): (usize, Rank<'_>)| Timeline {
        schedule: schedules[index].name.clone(),
        step: rank.now,
        // The compute stream computes or waits.
        compute: rank.now - rank.exposed,
        communication: total(&charges[index]).communication,
        exposed: rank.exposed,
        sequences: schedules[index].batch(),
        arena_bytes: plans[index].bytes,
        instructions: rank.instructions,
        collectives: rank.started.into_iter().map(|started| started.run).collect(),
    };
    Ok(ranks.into_iter().enumerate().map(timeline).collect())
}

/// The least time for the instructions of a stage, whatever their order: the greater of the sum of its compute durations and
/// the sum of the link times of its collectives. It counts no interference, which depends on the order, and no waiting for other
/// stages.
pub fn bound(schedule: &Schedule, plan: &Plan, costs: &dyn Costs) -> Result<Bound, Error> {
    Ok(total(&charges(schedule, plan, costs)?))
}

/// What each instruction takes on the compute stream, alone: no time for `start` and `sync`. The first whose cost is not known
/// is an error.
pub fn durations(schedule: &Schedule, plan: &Plan, costs: &dyn Costs) -> Result<Vec<Nanoseconds>, Error> {
    let duration = |(index, instruction): (usize, &Instruction)| {
        let operands = &plan.operands[index];
        match instruction.operation() {
            None => Ok(Nanoseconds::ZERO),
            Some(operation) if operation.is_on_part() => {
                costs.compute(operation, operands.sequences as u32, operands.degree)
            }
            Some(operation) => on_parameters(operation, &plan.parameter_shares, costs),
        }
    };
    schedule.instructions.iter().enumerate().map(duration).collect()
}

/// What takes as long as the rank has parameters, which it holds at several degrees.
fn on_parameters(
    operation: Operation,
    shares: &[(u32, f64)],
    costs: &dyn Costs,
) -> Result<Nanoseconds, Error> {
    let mut nanoseconds = 0.0;
    for &(degree, share) in shares {
        nanoseconds += share * costs.compute(operation, 0, degree)?.0 as f64;
    }
    Ok(Nanoseconds(nanoseconds.round() as u64))
}

/// What one instruction asks of the streams.
#[derive(Clone, Debug)]
pub(crate) enum Charge {
    Compute(Nanoseconds),
    Start {
        collective: CollectiveId,
        kind: CollectiveKind,
        bytes: Bytes,
        time: CollectiveTime,
        members: Members,
    },
    Sync(CollectiveId),
}

/// Asks for the cost of every instruction; the first that is not known is an error.
fn charges(schedule: &Schedule, plan: &Plan, costs: &dyn Costs) -> Result<Vec<Charge>, Error> {
    let durations = durations(schedule, plan, costs)?;
    let (group, count) = (schedule.layout.group(), schedule.stage.stages.count());
    let charge = |(index, instruction): (usize, &Instruction)| match *instruction {
        Instruction::Start { collective, kind, axis, grouping } => {
            let bytes = collective_bytes(schedule, plan, index).expect("a start has a buffer");
            let (members, reach) = match axis {
                Axis::Tensor | Axis::Data => (Members::Stage, Reach::of(grouping, group)),
                Axis::World => (Members::Stages((0..count).collect()), Reach::neighbours(count * group)),
                Axis::Ends => {
                    let ends = [0, count - 1];
                    (Members::Stages(ends.to_vec()), Reach::between(ends, count, group))
                }
                Axis::Pipeline => {
                    let (from, to) = ends(schedule, collective);
                    (Members::Transfer { from, to }, Reach::between([from, to], count, group))
                }
            };
            let time = costs.named_collective(collective, kind, bytes, reach)?;
            Ok(Charge::Start { collective, kind, bytes, time, members })
        }
        Instruction::Sync { collective } => Ok(Charge::Sync(collective)),
        _ => Ok(Charge::Compute(durations[index])),
    };
    schedule.instructions.iter().enumerate().map(charge).collect()
}

/// The stages from which and to which a transfer goes.
fn ends(schedule: &Schedule, transfer: CollectiveId) -> (u32, u32) {
    let CollectiveId::Transfer { pass, block, .. } = transfer else {
        unreachable!("`{transfer}` goes along the pipeline")
    };
    let position = schedule.position(block).expect("a block of the chain");
    let [before, behind] = [position - 1, position].map(|position| schedule.stage.stages.stage_of(position));
    if pass == Pass::Backward { (behind, before) } else { (before, behind) }
}

/// Sums of what the compute stream computes and of what the busier direction of the link carries.
fn total(charges: &[Charge]) -> Bound {
    let (mut compute, mut directions) = (Nanoseconds::ZERO, [Nanoseconds::ZERO; 2]);
    for charge in charges {
        match charge {
            Charge::Compute(duration) => compute += *duration,
            Charge::Start { kind, time, .. } => {
                let occupied = match kind {
                    CollectiveKind::Send => &mut directions[..1],
                    CollectiveKind::Recv => &mut directions[1..],
                    _ => &mut directions[..],
                };
                occupied.iter_mut().for_each(|direction| *direction += time.link);
            }
            Charge::Sync(_) => {}
        }
    }
    Bound { compute, communication: directions[0].max(directions[1]) }
}
