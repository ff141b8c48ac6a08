//! Builders: a schedule is made by a list of named passes, each from a schedule to a schedule.
//!
//! Every pass leaves a schedule that verifies and computes the same numbers; it only changes what is kept, repeated, or
//! waited for, and where. In debug builds the verifier runs after each.

mod checkpoint;
mod forward_only;
mod overlap;
mod serial;
mod split;

use crate::mesh::Layout;
use crate::schedule::Schedule;
use crate::verify::verify;

/// What the schedule is for, besides its variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Transformer layers.
    pub layers: u32,
    /// TMP degree of every block.
    pub layout: Layout,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Sub-batches of a micro-batch.
    pub sub_batches: u32,
    /// Sequences of a micro-batch.
    pub sequences: u32,
}

/// A named pass.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Its name in `explain`.
    pub name: &'static str,
    /// What it does, in one line.
    pub description: &'static str,
    apply: fn(&Schedule, &Request) -> Schedule,
}

impl Pass {
    /// The schedule after this pass. In debug builds, verified.
    pub fn apply(&self, schedule: &Schedule, request: &Request) -> Schedule {
        let result = (self.apply)(schedule, request);
        if cfg!(debug_assertions) {
            let violations = verify(&result);
            assert!(violations.is_empty(), "pass `{}` broke the schedule: {}", self.name, violations[0]);
        }
        result
    }
}

const SERIAL: Pass = Pass {
    name: "serial",
    description: "one micro-batch after another, everything kept, every collective waited for at once",
    apply: serial::serial,
};
const FORWARD_ONLY: Pass = Pass {
    name: "forward-only",
    description: "drops backward and the step, keeps nothing",
    apply: forward_only::forward_only,
};
const SPLIT: Pass = Pass {
    name: "split",
    description: "cuts each micro-batch into sub-batches and runs block by block through them",
    apply: split::split,
};
const CHECKPOINT_LAYERS: Pass = Pass {
    name: "checkpoint-layers",
    description: "keeps one input per layer; recomputes the layer before its backward, with its all-reduces",
    apply: checkpoint::checkpoint_layers,
};
const CHECKPOINT_BLOCKS: Pass = Pass {
    name: "checkpoint-blocks",
    description: "keeps one input per block; recomputes between the all-reduces, so that none is repeated",
    apply: checkpoint::checkpoint_blocks,
};
const OVERLAP: Pass = Pass {
    name: "overlap",
    description: "waits for each collective only where its result is first read, across blocks and passes",
    apply: overlap::overlap,
};

/// A schedule by name: a list of passes.
#[derive(Clone, Copy)]
pub struct Variant {
    /// Name in configurations.
    pub name: &'static str,
    /// Whose method it is, in one line.
    pub description: &'static str,
    /// How it is built.
    pub passes: &'static [Pass],
}

/// Every schedule that can be trained with.
pub const VARIANTS: &[Variant] = &[
    Variant { name: "none", description: "blocking, everything kept", passes: &[SERIAL, SPLIT] },
    Variant {
        name: "megatron",
        description: "blocking, per-layer recomputation with its all-reduces (Megatron-LM)",
        passes: &[SERIAL, SPLIT, CHECKPOINT_LAYERS],
    },
    Variant {
        name: "cross-pass",
        description: "overlap across passes, recomputation still communicates",
        passes: &[SERIAL, SPLIT, CHECKPOINT_LAYERS, OVERLAP],
    },
    Variant {
        name: "oases",
        description: "overlap across passes, recomputation cut at the all-reduces (Li et al., arXiv 2305.16121)",
        passes: &[SERIAL, SPLIT, CHECKPOINT_BLOCKS, OVERLAP],
    },
];

/// The schedule that evaluates without training.
pub const EVALUATE: Variant = Variant {
    name: "evaluate",
    description: "forward only, overlapped",
    passes: &[SERIAL, FORWARD_ONLY, SPLIT, OVERLAP],
};

impl Variant {
    /// The variant of that name.
    pub fn find(name: &str) -> Option<&'static Variant> {
        VARIANTS.iter().find(|variant| variant.name == name)
    }

    /// The schedule after each pass; the last is the result.
    pub fn trace(&self, request: &Request) -> Vec<(Pass, Schedule)> {
        let mut schedule = serial::empty(self.name, request);
        self.passes
            .iter()
            .map(|pass| {
                schedule = pass.apply(&schedule, request);
                (*pass, schedule.clone())
            })
            .collect()
    }

    /// Builds the schedule. `request` must hold at least one of everything, and no more sub-batches than
    /// sequences or than [`crate::PartId::MAX_SUB_BATCHES`].
    pub fn build(&self, request: &Request) -> Schedule {
        let (_, schedule) = self.trace(request).pop().expect("a variant has passes");
        schedule
    }
}
