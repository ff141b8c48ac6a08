//! What the host decides before a step: everything in it that is not in the schedule.

use crate::operators::AdamW;

/// Host values of one step, the same on all ranks of a TMP group.
#[derive(Clone, Debug, PartialEq)]
pub struct StepInputs {
    /// Number of the step in the run, from 0.
    pub step: u32,
    /// Index of this rank's first sequence in the global batch.
    pub first_sample: u32,
    /// Factor on the summed loss before backward: one over the targets of the global batch.
    pub loss_scale: f32,
    /// Whether dropout is on.
    pub dropout: bool,
    /// Key of the dropout masks.
    pub dropout_key: [u32; 2],
    /// The optimizer's hyper-parameters; `None` for a schedule without a step.
    pub update: Option<AdamW>,
}
