//! Builders: a schedule is made by a list of named passes, each from a schedule to a schedule.
//!
//! Every pass leaves a schedule that verifies and computes the same numbers; it only changes what is kept, repeated, or
//! waited for, and where. In debug builds the verifier runs after each.

mod barriers;
mod bridge;
mod checkpoint;
mod decompose;
mod forward_only;
mod interleave;
mod keeps;
mod overlap;
mod serial;
mod split;
mod split_backward;

use crate::ids::Cut;
use crate::mesh::Layout;
use crate::schedule::{Keep, Schedule};
use crate::verify::verify;

pub use keeps::Keeps;

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
    /// What forwards keep.
    pub keep: Keeps,
    /// Pieces of the products that a decomposing schedule cuts.
    pub pieces: u8,
    /// Along which dimension it cuts them.
    pub cut: Cut,
}

impl Request {
    /// One micro-batch of `sequences` sequences in two sub-batches, everything else as the schedules have it.
    pub fn new(layers: u32, tensor: u32, sequences: u32) -> Request {
        Request {
            layers,
            layout: Layout::uniform(tensor, Schedule::blocks(layers)),
            micro_batches: 1,
            sub_batches: 2,
            sequences,
            keep: Keeps::AsScheduled,
            pieces: 4,
            cut: Cut::Rows,
        }
    }
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
const CHECKPOINT_CORES: Pass = Pass {
    name: "checkpoint-cores",
    description: "keeps all but what the attention cores put out; recomputes those",
    apply: checkpoint::checkpoint_cores,
};
const DECOMPOSE: Pass = Pass {
    name: "decompose",
    description: "cuts the product before each all-reduce into pieces; one piece's runs under the next piece",
    apply: decompose::decompose,
};
const SPLIT_BACKWARD: Pass = Pass {
    name: "split-backward",
    description: "computes input gradients first, so that their all-reduces run under the weight gradients",
    apply: split_backward::split_backward,
};
const BRIDGE: Pass = Pass {
    name: "bridge",
    description: "begins each micro-batch before the one before has ended, so that neither end waits",
    apply: bridge::bridge,
};
const SPLIT_KEPT: Pass = Pass {
    name: "split-kept",
    description: "where nothing is recomputed, weight gradients take the place of recomputation under all-reduces",
    apply: split_backward::split_kept,
};
const INTERLEAVE: Pass = Pass {
    name: "interleave",
    description: "runs the forward of each micro-batch block by block with the backward of the one before",
    apply: interleave::interleave,
};
const OVERLAP: Pass = Pass {
    name: "overlap",
    description: "waits for each collective only where its result is first read, across blocks and passes",
    apply: overlap::overlap,
};
const BARRIERS: Pass = Pass {
    name: "barriers",
    description: "waits for every collective where one pass ends and another begins",
    apply: barriers::barriers,
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
        name: "megatron-ss",
        description: "blocking, only attention cores recomputed (Megatron-LM's selective recomputation)",
        passes: &[SERIAL, SPLIT, CHECKPOINT_CORES],
    },
    Variant {
        name: "merak",
        description: "sub-batches overlap inside each pass, with barriers between passes (Merak)",
        passes: &[SERIAL, SPLIT, CHECKPOINT_LAYERS, OVERLAP, BARRIERS],
    },
    Variant {
        name: "decomposed",
        description: "the product before each all-reduce is cut into pieces (Wang et al., ASPLOS 2023; AccTFM)",
        passes: &[SERIAL, SPLIT, CHECKPOINT_LAYERS, DECOMPOSE],
    },
    Variant {
        name: "domino",
        description: "sub-batches overlap inside each pass, input gradients first, everything kept (DeepSpeed-Domino)",
        passes: &[SERIAL, SPLIT, SPLIT_BACKWARD, OVERLAP, BARRIERS],
    },
    Variant {
        name: "cross-pass",
        description: "overlap across passes, recomputation still communicates",
        passes: &[SERIAL, SPLIT, CHECKPOINT_LAYERS, OVERLAP],
    },
    Variant {
        name: "oases",
        description: "overlap across passes, recomputation cut at the all-reduces (Li et al., arXiv 2305.16121)",
        passes: &[SERIAL, SPLIT, CHECKPOINT_BLOCKS, BRIDGE, SPLIT_KEPT, OVERLAP],
    },
    Variant {
        name: "oases-w",
        description: "oases, with input gradients before weight gradients",
        passes: &[SERIAL, SPLIT, CHECKPOINT_BLOCKS, BRIDGE, SPLIT_BACKWARD, OVERLAP],
    },
    Variant {
        name: "oases-dual",
        description: "oases, with the forward of each micro-batch interleaved with the backward of the one before",
        passes: &[SERIAL, SPLIT, CHECKPOINT_BLOCKS, INTERLEAVE, OVERLAP],
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

    /// What it keeps whatever is asked for; `None` where that can be chosen.
    pub fn keeps_always(&self) -> Option<Keep> {
        let has = |name| self.passes.iter().any(|pass| pass.name == name);
        match () {
            () if has(CHECKPOINT_LAYERS.name) || has(CHECKPOINT_BLOCKS.name) => None,
            () if has(CHECKPOINT_CORES.name) => Some(Keep::Selective),
            () => Some(Keep::All),
        }
    }

    /// Whether a forward of it can be asked to keep that.
    pub fn can_keep(&self, keep: Keep) -> bool {
        keep != Keep::Nothing && self.keeps_always().is_none_or(|always| always == keep)
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

    /// Builds the schedule. `request` must hold at least one of everything, sequences in a multiple of the layout's
    /// [`Layout::granularity`], and no more sub-batches than such multiples or than [`crate::PartId::MAX_SUB_BATCHES`].
    pub fn build(&self, request: &Request) -> Schedule {
        let (_, schedule) = self.trace(request).pop().expect("a variant has passes");
        schedule
    }
}
