//! What a run tells while it goes on. Whoever listens decides how to show it.

use std::path::PathBuf;

use oases_exec::{Program, Timing};

use crate::metrics::StepMetrics;

/// Something that happened in a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// The run begins, or goes on.
    Started {
        /// Steps already done.
        step: u64,
        /// The checkpoint it goes on from.
        resumed_from: Option<PathBuf>,
        /// Newer checkpoints that could not be loaded, and why.
        passed_over: Vec<String>,
    },
    /// A step is done; with its evaluation, if it had one.
    Step(StepMetrics),
    /// The run is over, and this is how its last training step went on each rank.
    Traced {
        /// The step.
        step: u64,
        /// What the ranks of each stage executed.
        programs: Vec<Program>,
        /// When, for each instruction, by rank; all on one clock.
        timings: Vec<Vec<Timing>>,
    },
    /// A checkpoint is safely on disk.
    Checkpoint {
        /// Steps done.
        step: u64,
        /// Where.
        path: PathBuf,
    },
}
