//! What the instructions and collectives of a model take on this machine, with all ranks running at once as in training.
//!
//! Every operation is timed inside a step that needs it, on micro-batches of each size that is asked for. What ranks share
//! is thereby in the times: caches, memory bandwidth, the clock of the processor.

use std::collections::{BTreeMap, BTreeSet};

use oases_exec::comm::Link;
use oases_schedule::{
    CollectiveKind, Cut, Instruction, Layout, Operation, Plan, Request, Schedule, Variant, collective_bytes,
};

use crate::trial::{Contender, Sample};

/// An operation and the sequences that it works on; 0 for what depends on parameters only.
pub type Sized = (Operation, u32);

/// Every operation of a schedule with the sequences it works on.
pub fn operations(schedule: &Schedule) -> BTreeSet<Sized> {
    let of = |instruction: &Instruction| {
        let operation = instruction.operation()?;
        let sequences = instruction.part().and_then(|part| schedule.sequences(part)).unwrap_or(0);
        Some((operation, sequences))
    };
    schedule.instructions.iter().filter_map(of).collect()
}

/// Times of something, one for each time that it was done: the slowest rank's, since the others wait for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// In nanoseconds.
    pub ns: Vec<f64>,
}

impl Times {
    /// The mean, in milliseconds, of those up to twice the median. A step is a sum of many instructions, so their mean counts,
    /// not their median; a sample beyond that tells of other work on the machine.
    pub fn mean_ms(&self) -> f64 {
        let most = 2.0 * crate::metrics::median(&mut self.ns.clone());
        let counted: Vec<f64> = self.ns.iter().copied().filter(|ns| *ns <= most).collect();
        counted.iter().sum::<f64>() / counted.len() as f64 / 1e6
    }

    /// The shortest, in milliseconds.
    pub fn min_ms(&self) -> f64 {
        self.ns.iter().copied().fold(f64::INFINITY, f64::min) / 1e6
    }
}

/// Times by operation and by collective.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// Of compute instructions.
    pub compute: BTreeMap<Sized, Times>,
    /// Of collectives that nothing runs under, by kind and bytes of a rank's buffer: from the last rank's `start` to the
    /// end of its `sync`.
    pub collectives: BTreeMap<(CollectiveKind, u64), Times>,
}

impl Measurement {
    /// Adds one step.
    pub fn add(&mut self, schedule: &Schedule, plan: &Plan, sample: &Sample) {
        for (index, instruction) in schedule.instructions.iter().enumerate() {
            let durations = sample.timings.iter().map(|timings| timings[index].duration_ns() as f64);
            if let Some(operation) = instruction.operation() {
                let sequences = instruction.part().and_then(|part| schedule.sequences(part)).unwrap_or(0);
                let slowest = durations.fold(0.0, f64::max);
                self.compute.entry((operation, sequences)).or_default().ns.push(slowest);
            } else if let (Instruction::Start { kind, collective, .. }, Some(bytes)) =
                (*instruction, collective_bytes(schedule, plan, index))
            {
                let waited = Instruction::Sync { collective };
                if schedule.instructions.get(index + 1) == Some(&waited) {
                    // The rank that comes last waits for nobody.
                    let times = sample.timings.iter().map(|t| (t[index].start_ns, t[index + 1].end_ns));
                    let last = times.clone().map(|(start, _)| start).max().unwrap_or(0);
                    let end = times.map(|(_, end)| end).max().unwrap_or(0);
                    let ns = end.saturating_sub(last) as f64;
                    self.collectives.entry((kind, bytes.0)).or_default().ns.push(ns);
                }
            }
        }
    }
}

/// Steps that together hold each of the operations. One that none of the schedules to choose from has is left out.
pub fn contenders(
    wanted: &BTreeSet<Sized>,
    layout: &Layout,
    layers: u32,
    link: Option<Link>,
) -> Vec<Contender> {
    let mut left = wanted.clone();
    let mut contenders = Vec::new();
    let sizes: BTreeSet<u32> =
        wanted.iter().map(|(_, sequences)| *sequences).filter(|size| *size > 0).collect();
    for &sequences in &sizes {
        for request in requests(wanted, layout, layers, sequences) {
            let Some(variant) = Variant::find(request.0) else { continue };
            let schedule = variant.build(&request.1);
            let before = left.len();
            let held = operations(&schedule);
            left.retain(|operation| !held.contains(operation));
            if left.len() < before {
                contenders.push(Contender { schedule, link, lasts: None });
            }
        }
    }
    contenders
}

/// The first backward of a step writes gradients, later ones add to them, which takes longer (measured: 5 to 9 % of a step).
/// Of three, two add, so the median is that of adding, as in a step of many parts.
const MICRO_BATCHES: u32 = 3;

/// Schedules of whole micro-batches.
fn requests(
    wanted: &BTreeSet<Sized>,
    layout: &Layout,
    layers: u32,
    sequences: u32,
) -> Vec<(&'static str, Request)> {
    let plain = Request {
        layout: layout.clone(),
        micro_batches: MICRO_BATCHES,
        sub_batches: 1,
        ..Request::new(layers, 1, sequences)
    };
    let mut requests = vec![
        ("megatron", plain.clone()),
        ("oases", plain.clone()),
        ("megatron-ss", plain.clone()),
        ("oases-w", plain.clone()),
    ];
    let cuts: BTreeSet<(u8, Cut)> = wanted
        .iter()
        .filter_map(|(operation, _)| match operation {
            Operation::Tail(_, _, pieces, cut) => Some((*pieces, *cut)),
            _ => None,
        })
        .collect();
    requests.extend(
        cuts.into_iter().map(|(pieces, cut)| ("decomposed", Request { pieces, cut, ..plain.clone() })),
    );
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_leaves_out_what_is_no_measurement_of_it() {
        // Median 3, so 6 counts and 7 does not.
        let times = Times { ns: vec![1e6, 7e6, 3e6, 6e6, 2e6] };
        assert_eq!(times.mean_ms(), 3.0);
        assert_eq!(times.min_ms(), 1.0);
    }

    #[test]
    fn the_steps_hold_every_operation_of_every_schedule() {
        for variant in oases_schedule::passes::VARIANTS {
            for sub_batches in [1, 2] {
                let request = Request { micro_batches: 2, sub_batches, pieces: 3, ..Request::new(2, 2, 4) };
                let wanted = operations(&variant.build(&request));
                let steps = contenders(&wanted, &request.layout, 2, None);
                let held: BTreeSet<Sized> =
                    steps.iter().flat_map(|step| operations(&step.schedule)).collect();
                let missing: Vec<&Sized> = wanted.difference(&held).collect();
                assert!(missing.is_empty(), "{}: {missing:?}", variant.name);
            }
        }
    }
}
