//! What the instructions and collectives of a model take on this machine, with all ranks running at once as in training.
//!
//! Every operation is timed inside a step that needs it, in the same group of ranks, on micro-batches of each size that is
//! asked for. What ranks share is thereby in the times: caches, memory bandwidth, the clock of the processor.

mod references;

use std::collections::BTreeMap;

use oases_exec::Timing;
use oases_schedule::{
    BlockId, CollectiveId, CollectiveKind, Grouping, Instruction, Operation, Optimizer, Pass, Plan, Schedule,
    Stage, collective_bytes,
};

use crate::trial::Sample;

pub use references::{Border, Needs, references};

/// Under which the duration of an instruction is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeKey {
    /// What it does.
    pub operation: Operation,
    /// TMP degree of the block; for what depends on parameters only, of all blocks.
    pub degree: u32,
    /// Sequences of the part on one rank; 0 for what depends on parameters only.
    pub sequences: u32,
}

impl ComputeKey {
    /// The key of an instruction that computes on a part of the batch.
    fn on_part(schedule: &Schedule, instruction: &Instruction) -> Option<ComputeKey> {
        let (operation, part) = (instruction.operation()?, instruction.part()?);
        let block = match *instruction {
            Instruction::Reshard { pass, block, .. } => schedule.resharded(pass, block)[0],
            Instruction::Complete { pass: Pass::Forward, block, .. } => schedule.before(block)?,
            Instruction::Loss { .. } => BlockId::Head,
            _ => instruction.block()?,
        };
        let sequences = schedule.share(block, part)?;
        Some(ComputeKey { operation, degree: schedule.degree(block), sequences })
    }

    /// That of an operation on all parameters.
    fn on_parameters(operation: Operation, degree: u32) -> ComputeKey {
        ComputeKey { operation, degree, sequences: 0 }
    }
}

/// Under which the duration of a collective is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectiveKey {
    /// What it does.
    pub kind: CollectiveKind,
    /// Ranks that it joins. All groups of as many run theirs at once, so it does not matter how far apart they are: ranks
    /// share one memory.
    pub ranks: u32,
    /// Bytes of a rank's whole buffer.
    pub bytes: u64,
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
    pub compute: BTreeMap<ComputeKey, Times>,
    /// Of collectives that nothing runs under: from the last rank's `start` to the end of its `sync`.
    pub collectives: BTreeMap<CollectiveKey, Times>,
}

impl Measurement {
    /// Adds one step, given the schedule and the memory plan of each stage. Of a step with mixed TMP degrees, several stages or a
    /// sharded optimizer only what plain steps lack: a forward behind a border, say, has no input to complete, and its optimizer works at several
    /// degrees or on some of the blocks.
    pub fn add(&mut self, stages: &[Schedule], plans: &[Plan], sample: &Sample) {
        let group = sample.timings.len() / stages.len();
        for ((schedule, plan), timings) in stages.iter().zip(plans).zip(sample.timings.chunks(group)) {
            self.add_stage(schedule, plan, timings);
        }
        self.add_table(stages, plans, sample);
    }

    /// The sum of the table's gradient: over the first and the last stage, rank by rank.
    fn add_table(&mut self, stages: &[Schedule], plans: &[Plan], sample: &Sample) {
        let group = sample.timings.len() / stages.len();
        let mut ends = Vec::new();
        let mut found = None;
        for ((schedule, plan), timings) in stages.iter().zip(plans).zip(sample.timings.chunks(group)) {
            let of_table = |instruction: &Instruction| {
                matches!(instruction, Instruction::Start { collective: CollectiveId::Table, .. })
            };
            let Some(start) = schedule.instructions.iter().position(of_table) else { continue };
            let waited = Instruction::Sync { collective: CollectiveId::Table };
            let bytes = collective_bytes(schedule, plan, start);
            if let (Some(bytes), true) = (bytes, schedule.instructions.get(start + 1) == Some(&waited)) {
                found = Some(bytes.0);
                ends.push((start, timings));
            }
        }
        let (Some(bytes), [_, _]) = (found, ends.as_slice()) else { return };
        let of_place = |place: usize| {
            let starts = ends.iter().map(|(start, timings)| timings[place][*start].start_ns);
            let finished = ends.iter().map(|(start, timings)| timings[place][*start + 1].end_ns);
            finished.max().unwrap_or(0).saturating_sub(starts.max().unwrap_or(0)) as f64
        };
        let key = CollectiveKey { kind: CollectiveKind::AllReduce, ranks: 2, bytes };
        let slowest = (0..group).map(of_place).fold(0.0, f64::max);
        self.collectives.entry(key).or_default().ns.push(slowest);
    }

    fn add_stage(&mut self, schedule: &Schedule, plan: &Plan, timings: &[Vec<Timing>]) {
        let uniform = schedule.layout.uniform_degree();
        let plain =
            uniform.is_some() && schedule.stage == Stage::whole() && schedule.optimizer == Optimizer::Whole;
        for (index, instruction) in schedule.instructions.iter().enumerate() {
            let apart = schedule.optimizer == Optimizer::Sharded || schedule.stage.stages.count() > 1;
            let shares = apart && of_replicas(instruction);
            if !plain && !shares && !at_borders(instruction) {
                continue;
            }
            if let Instruction::Start { kind, collective, grouping, .. } = *instruction {
                let waited = Instruction::Sync { collective };
                if schedule.instructions.get(index + 1) == Some(&waited) {
                    let ranks = grouping.size(schedule.layout.group());
                    let bytes = collective_bytes(schedule, plan, index).map_or(0, |bytes| bytes.0);
                    let times = self.collectives.entry(CollectiveKey { kind, ranks, bytes }).or_default();
                    times.ns.push(waited_ns(timings, index, grouping));
                }
                continue;
            }
            let on_parameters = || Some(ComputeKey::on_parameters(instruction.operation()?, uniform?));
            if let Some(key) = ComputeKey::on_part(schedule, instruction).or_else(on_parameters) {
                let durations = timings.iter().map(|timings| timings[index].duration_ns() as f64);
                self.compute.entry(key).or_default().ns.push(durations.fold(0.0, f64::max));
            }
        }
    }
}

/// Whether the instruction belongs to a change of the TMP degree or of the stage, and can be measured there: a transfer is a matter
/// of two stages, and a formula.
fn at_borders(instruction: &Instruction) -> bool {
    matches!(
        instruction,
        Instruction::Reshard { .. }
            | Instruction::Complete { .. }
            | Instruction::Start { collective: CollectiveId::Reshard { .. }, .. }
    )
}

/// Whether the instruction starts the sum of gradients over replicas, or gathers weights from them.
fn of_replicas(instruction: &Instruction) -> bool {
    matches!(
        instruction,
        Instruction::Start { collective: CollectiveId::Replicas(_) | CollectiveId::Weights(_), .. }
    )
}

/// From the last rank's `start`, who waits for nobody, to the end of the `sync` behind it; in the slowest of the groups.
fn waited_ns(timings: &[Vec<Timing>], start: usize, grouping: Grouping) -> f64 {
    let ranks = timings.len() as u32;
    let of_group = |group: u32| {
        let members = (0..grouping.size(ranks)).map(|place| grouping.member(group, place));
        let times = members.map(|rank| &timings[rank as usize]);
        let last = times.clone().map(|timings| timings[start].start_ns).max().unwrap_or(0);
        let end = times.map(|timings| timings[start + 1].end_ns).max().unwrap_or(0);
        end.saturating_sub(last)
    };
    (0..grouping.groups(ranks)).map(of_group).max().unwrap_or(0) as f64
}

#[cfg(test)]
mod tests;
