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
mod pipeline;
mod serial;
mod split;
mod split_backward;

use crate::ids::{BlockId, Cut};
use crate::mesh::Layout;
use crate::model::ModelError;
use crate::schedule::{Keep, Schedule};
use crate::stage::{Optimizer, Stage};
use crate::verify::{verify, verify_stages};

pub use keeps::Keeps;
#[cfg(test)]
pub(crate) use serial::empty;

/// In which order a pipeline stage takes its micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// `1f1b`: after as many forwards as stages follow, one forward and one backward in turn (Narayanan et al.,
    /// arXiv 2104.04473); with several chunks per stage, their interleaved order.
    #[default]
    OneForwardOneBackward,
    /// `zero-bubble`: the same with backward in halves, whose second fills the bubbles (Qi et al., arXiv 2401.10241, ZB-H1).
    ZeroBubble,
}

impl Order {
    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Order::OneForwardOneBackward => "1f1b",
            Order::ZeroBubble => "zero-bubble",
        }
    }
}

/// What the schedule is for, besides its variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Transformer layers.
    pub layers: u32,
    /// TMP degree of every block.
    pub layout: Layout,
    /// The pipeline stage that the schedule is for.
    pub stage: Stage,
    /// In which order a stage takes its micro-batches.
    pub order: Order,
    /// Where the optimizer's moments are.
    pub optimizer: Optimizer,
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
            stage: Stage::whole(),
            order: Order::OneForwardOneBackward,
            optimizer: Optimizer::Whole,
            micro_batches: 1,
            sub_batches: 2,
            sequences,
            keep: Keeps::AsScheduled,
            pieces: 4,
            cut: Cut::Rows,
        }
    }
}

impl Request {
    /// Whether the pipeline can be built: the cut is sound, and its order fits the micro-batches.
    pub fn check(&self) -> Result<(), ModelError> {
        let refuse = |message: String, hint: String| Err(ModelError { message, hint });
        let (stages, blocks) = (&self.stage.stages, Schedule::blocks(self.layers));
        let count = stages.count();
        if let Err(message) = stages.check(blocks) {
            let hint =
                format!("the chain has {blocks} blocks, and every stage as many chunks of it as any other");
            return refuse(message, hint);
        }
        let degrees = self.layout.degrees();
        if let Some(&start) = stages.starts()[1..].iter().find(|&&start| degrees[start - 1] != degrees[start])
        {
            let block = BlockId::at(start, self.layers);
            let (before, behind) = (degrees[start - 1], degrees[start]);
            return refuse(
                format!("before {block} a stage ends, and the TMP degree changes from {before} to {behind}"),
                "the blocks on both sides of a border between stages must have one degree".to_owned(),
            );
        }
        let micro_batches = self.micro_batches;
        if stages.chunks_per_stage() > 1 && !micro_batches.is_multiple_of(count) {
            let below = micro_batches / count * count;
            let next = below + count;
            let fits = if below > 0 { format!("{below} or {next}") } else { next.to_string() };
            return refuse(
                format!(
                    "{micro_batches} micro-batches are not a multiple of {count} stages, as interleaved stages need"
                ),
                format!("{fits} micro-batches would do, or one chunk per stage"),
            );
        }
        Ok(())
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

const ONE_FORWARD_ONE_BACKWARD: Pass = Pass {
    name: "1f1b",
    description: "as many forwards as stages follow, then one forward and one backward in turn",
    apply: pipeline::order,
};
const INTERLEAVED: Pass = Pass {
    name: "interleaved",
    description: "one forward and one backward in turn, each chunk of the stage for a group of micro-batches",
    apply: pipeline::order,
};
const ZERO_BUBBLE: Pass = Pass {
    name: "zero-bubble",
    description: "one forward and one backward in turn, and weight gradients where the stage would wait",
    apply: pipeline::order,
};
const EXCHANGE: Pass = Pass {
    name: "exchange",
    description: "sends what one micro-batch left while receiving what the next needs, and waits for both",
    apply: pipeline::exchange,
};
const HIDE_TAILS: Pass = Pass {
    name: "hide-tails",
    description: "runs the last all-reduce of a micro-batch under the first computation of the next",
    apply: pipeline::hide_tails,
};
const RECEIVE_EARLY: Pass = Pass {
    name: "receive-early",
    description: "starts each receive one micro-batch before the one that needs it",
    apply: pipeline::receive_early,
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

    /// The passes for a stage of a pipeline. The order of the pipeline takes the place of what orders micro-batches on a single
    /// stage, behind what says what is recomputed.
    fn on_stage(&self, order: Order, chunks_per_stage: usize) -> Vec<Pass> {
        let has = |name| self.passes.iter().any(|pass| pass.name == name);
        let is_one_of = |pass: &Pass, list: &[Pass]| list.iter().any(|other| other.name == pass.name);
        let first = [SERIAL, FORWARD_ONLY, SPLIT, CHECKPOINT_LAYERS, CHECKPOINT_BLOCKS, CHECKPOINT_CORES];
        let (mut passes, rest): (Vec<Pass>, Vec<Pass>) =
            self.passes.iter().partition(|pass| is_one_of(pass, &first));
        let halves = order == Order::ZeroBubble && !has(FORWARD_ONLY.name);
        passes.extend(halves.then_some(SPLIT_BACKWARD));
        passes.push(match order {
            Order::ZeroBubble => ZERO_BUBBLE,
            Order::OneForwardOneBackward if chunks_per_stage > 1 => INTERLEAVED,
            Order::OneForwardOneBackward => ONE_FORWARD_ONE_BACKWARD,
        });
        let needless: &[Pass] =
            if halves { &[BRIDGE, INTERLEAVE, SPLIT_BACKWARD, SPLIT_KEPT] } else { &[BRIDGE, INTERLEAVE] };
        for pass in rest.into_iter().filter(|pass| !is_one_of(pass, needless)) {
            if pass.name == OVERLAP.name {
                passes.extend((!has(BARRIERS.name)).then_some(HIDE_TAILS));
                passes.push(RECEIVE_EARLY);
            }
            passes.push(pass);
        }
        passes.extend((!has(OVERLAP.name)).then_some(EXCHANGE));
        passes
    }

    /// The schedule after each pass; the last is the result.
    pub fn trace(&self, request: &Request) -> Vec<(Pass, Schedule)> {
        let stages = &request.stage.stages;
        let passes = match stages.count() {
            1 => self.passes.to_vec(),
            _ => self.on_stage(request.order, stages.chunks_per_stage()),
        };
        let mut schedule = serial::empty(self.name, request);
        let mut apply = |pass: Pass| {
            schedule = pass.apply(&schedule, request);
            (pass, schedule.clone())
        };
        passes.into_iter().map(&mut apply).collect()
    }

    /// Builds the schedule. `request` must hold at least one of everything, sequences in a multiple of the layout's
    /// [`Layout::granularity`], and no more sub-batches than such multiples or than [`crate::PartId::MAX_SUB_BATCHES`]; and
    /// it must pass [`Request::check`].
    pub fn build(&self, request: &Request) -> Schedule {
        let (_, schedule) = self.trace(request).pop().expect("a variant has passes");
        schedule
    }

    /// Builds the schedules of all stages of the request's pipeline, whichever stage it names. In debug builds, verified
    /// together.
    pub fn build_stages(&self, request: &Request) -> Vec<Schedule> {
        let stages = &request.stage.stages;
        let stage = |index| Stage { stages: stages.clone(), index };
        let build = |index| self.build(&Request { stage: stage(index), ..request.clone() });
        let schedules: Vec<Schedule> = (0..stages.count()).map(build).collect();
        if cfg!(debug_assertions) {
            let violations = verify_stages(&schedules);
            assert!(violations.is_empty(), "the stages do not fit: {}", violations[0]);
        }
        schedules
    }
}
