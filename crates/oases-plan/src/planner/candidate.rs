//! A layout, built, planned to the byte and simulated.

use std::collections::BTreeMap;

use oases_schedule::{BufferKind, Bytes, Keeps, Layout, plan};

use super::Task;
use crate::error::Error;
use crate::simulate::simulate;
use crate::time::Nanoseconds;

/// A layout with what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The degree of every block.
    pub layout: Layout,
    /// What every block keeps.
    pub keep: Keeps,
    /// The simulated step.
    pub step: Nanoseconds,
    /// Of it, time in which a rank waits for collectives.
    pub exposed: Nanoseconds,
    /// A rank's arena: the exact peak.
    pub bytes: Bytes,
    /// Of it, weights, gradients, moments and the step's inputs.
    pub static_bytes: Bytes,
    /// Of that, the weights; gradients are as large.
    pub weight_bytes: Bytes,
    /// Of that, each of the two moments.
    pub moment_bytes: Bytes,
    /// What else is alive at the peak, by kind.
    pub alive: BTreeMap<BufferKind, Bytes>,
}

impl Candidate {
    /// Builds, plans and simulates a layout.
    pub fn new(task: &Task<'_>, layout: &Layout, keep: &Keeps) -> Result<Candidate, Error> {
        let schedule = task.schedule(layout, keep);
        let statics = task.statics(&schedule);
        let memory = plan(&schedule, &statics, task.workspace);
        let timeline = simulate(&schedule, &memory, task.costs)?;
        Ok(Candidate {
            layout: layout.clone(),
            keep: keep.clone(),
            step: timeline.step,
            exposed: timeline.exposed,
            bytes: memory.bytes,
            static_bytes: Bytes(statics.bytes as u64),
            weight_bytes: Bytes(statics.region_bytes() as u64),
            moment_bytes: Bytes(statics.moment_bytes() as u64),
            alive: memory.alive(memory.peak_instruction),
        })
    }

    /// Whether it is within the budget of the task.
    pub fn fits(&self, task: &Task<'_>) -> bool {
        task.budget.is_none_or(|budget| self.bytes <= budget)
    }
}
