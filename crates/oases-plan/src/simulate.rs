//! Simulates a schedule on the two streams of one rank.
//!
//! All ranks of a TMP group run the same instructions on equal shards of equal shares, so one stands for all. Rules, each an
//! absence of choice:
//!
//! 1. A compute instruction begins when the compute stream is free, and takes what it costs; where a collective runs, in as
//!    far as the communication stream is busy when the instruction begins, [`Costs::interference`] times as long.
//! 2. A `start` takes no time. Its collective begins when the communication stream is free, no earlier than now (all ranks
//!    come to it together), and occupies it for its link time.
//! 3. A `sync` ends when the collective is off the link and its arithmetic is done. A rank that waits does the arithmetic
//!    of all collectives that have been started, the oldest first; what is left of this one's when the link is done with
//!    it follows at once. With one collective in flight that is `max(end on the link, now + arithmetic)`.
//! 4. An instruction on a block costs what [`Costs::compute`] says for the rank's share of the part at the degree of the block;
//!    the loss, at that of the head; a `reshard`, on the side that it comes from.
//! 5. `norm` and `step` cost, for each TMP degree among the blocks, that degree's share of the parameters times what all of
//!    them cost at the degree ([`Plan::parameter_shares`]).
//! 6. Where a collective joins only some of the ranks, all groups of its grouping run it at the same time, as one collective
//!    of that [`Reach`]: what they take from each other is in its cost.

use oases_schedule::{
    Axis, Bytes, CollectiveId, CollectiveKind, Instruction, Operation, Plan, Schedule, collective_bytes,
};

use crate::costs::{CollectiveTime, Costs, Reach};
use crate::error::Error;
use crate::time::{Interval, Nanoseconds};
use crate::timeline::{Bound, CollectiveRun, Timeline};

/// Predicts a step: `plan` is the memory plan of the schedule, `costs` says what its instructions take.
pub fn simulate(schedule: &Schedule, plan: &Plan, costs: &dyn Costs) -> Result<Timeline, Error> {
    let charges = charges(schedule, plan, costs)?;
    let mut streams = Streams { interference: costs.interference(), ..Streams::default() };
    let instructions = charges
        .iter()
        .enumerate()
        .map(|(index, charge)| {
            let start = streams.now;
            streams.charge(index, charge);
            Interval { start, end: streams.now }
        })
        .collect();
    Ok(Timeline {
        schedule: schedule.name.clone(),
        instructions,
        collectives: streams.runs,
        step: streams.now,
        // The compute stream computes or waits.
        compute: streams.now - streams.exposed,
        communication: total(&charges).communication,
        exposed: streams.exposed,
        sequences: schedule.batch(),
        arena_bytes: plan.bytes,
    })
}

/// The least time for the instructions of a schedule, whatever their order: the
/// greater of the sum of its compute durations and the sum of the link times of its collectives. It counts no
/// interference, which depends on the order.
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
#[derive(Clone, Copy)]
enum Charge {
    Compute(Nanoseconds),
    Start { collective: CollectiveId, kind: CollectiveKind, bytes: Bytes, time: CollectiveTime },
    Sync(CollectiveId),
}

/// Asks for the cost of every instruction; the first that is not known is an error.
fn charges(schedule: &Schedule, plan: &Plan, costs: &dyn Costs) -> Result<Vec<Charge>, Error> {
    let durations = durations(schedule, plan, costs)?;
    let charge = |(index, instruction): (usize, &Instruction)| match *instruction {
        Instruction::Start { collective, kind, axis: Axis::Tensor, grouping } => {
            let bytes = collective_bytes(schedule, plan, index).expect("a start has a buffer");
            let reach = Reach::of(grouping, schedule.layout.group());
            let time = costs.named_collective(collective, kind, bytes, reach)?;
            Ok(Charge::Start { collective, kind, bytes, time })
        }
        Instruction::Start { .. } => Err(Error::Unsupported(format!("`{instruction}` leaves the TMP group"))),
        Instruction::Sync { collective } => Ok(Charge::Sync(collective)),
        _ => Ok(Charge::Compute(durations[index])),
    };
    schedule.instructions.iter().enumerate().map(charge).collect()
}

fn total(charges: &[Charge]) -> Bound {
    charges.iter().fold(Bound::default(), |mut bound, charge| {
        match charge {
            Charge::Compute(duration) => bound.compute += *duration,
            Charge::Start { time, .. } => bound.communication += time.link,
            Charge::Sync(_) => {}
        }
        bound
    })
}

/// What a computation of `duration` takes that begins while the communication stream is busy for `busy` more: until then it
/// advances `interference` times slower. Nothing starts on that stream before the computation ends.
pub(crate) fn stretched(duration: Nanoseconds, busy: Nanoseconds, interference: f64) -> Nanoseconds {
    if busy == Nanoseconds::ZERO || interference <= 1.0 {
        return duration;
    }
    let under = duration.0 as f64 * interference;
    if under <= busy.0 as f64 {
        return Nanoseconds(under.round() as u64);
    }
    let advanced = Nanoseconds((busy.0 as f64 / interference).round() as u64);
    busy + (duration - advanced)
}

/// A collective that has been started and not yet waited for.
struct InFlight {
    /// Its place in `runs`.
    run: usize,
    collective: CollectiveId,
    arithmetic_left: Nanoseconds,
}

/// The two streams of a rank.
#[derive(Default)]
struct Streams {
    /// When the compute stream is free.
    now: Nanoseconds,
    /// When the communication stream is free.
    link_free: Nanoseconds,
    exposed: Nanoseconds,
    /// How many times longer computation takes under a collective.
    interference: f64,
    /// Oldest first.
    in_flight: Vec<InFlight>,
    runs: Vec<CollectiveRun>,
}

impl Streams {
    fn charge(&mut self, index: usize, charge: &Charge) {
        match *charge {
            Charge::Compute(duration) => {
                self.now += stretched(duration, self.link_free - self.now, self.interference);
            }
            Charge::Start { collective, kind, bytes, time } => {
                let start = self.link_free.max(self.now);
                self.link_free = start + time.link;
                let run = self.runs.len();
                self.in_flight.push(InFlight { run, collective, arithmetic_left: time.host });
                let on_link = Interval { start, end: self.link_free };
                let [start_instruction, sync_instruction] = [index, index];
                self.runs.push(CollectiveRun {
                    collective,
                    kind,
                    bytes,
                    start_instruction,
                    sync_instruction,
                    on_link,
                });
            }
            Charge::Sync(collective) => {
                let began = self.now;
                let run = self.wait(collective);
                self.runs[run].sync_instruction = index;
                self.exposed += self.now - began;
            }
        }
    }

    /// Waits for a collective, and returns its place in `runs`.
    fn wait(&mut self, collective: CollectiveId) -> usize {
        let own = self.in_flight.iter().position(|entry| entry.collective == collective);
        let own = own.unwrap_or_else(|| panic!("`sync {collective}` without its start was planned"));
        let run = self.in_flight[own].run;
        let link_end = self.runs[run].on_link.end;
        loop {
            let rest = link_end - self.now;
            let own_left = self.in_flight[own].arithmetic_left;
            if rest == Nanoseconds::ZERO && own_left == Nanoseconds::ZERO {
                break;
            }
            let oldest = self.in_flight.iter_mut().find(|entry| entry.arithmetic_left > Nanoseconds::ZERO);
            let Some(InFlight { arithmetic_left, .. }) = oldest else {
                self.now = link_end;
                break;
            };
            // Arithmetic of others only fills the wait; its own, and what stands before it, is needed in any case.
            let worked =
                if own_left == Nanoseconds::ZERO { rest.min(*arithmetic_left) } else { *arithmetic_left };
            *arithmetic_left = *arithmetic_left - worked;
            self.now += worked;
        }
        self.in_flight.remove(own);
        run
    }
}
