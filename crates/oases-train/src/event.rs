//! What a run tells while it goes on. Whoever listens decides how to show it.

use std::path::PathBuf;

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
    /// A checkpoint is safely on disk.
    Checkpoint {
        /// Steps done.
        step: u64,
        /// Where.
        path: PathBuf,
    },
}
