//! What a training run is asked to do, with every default filled in.

use std::path::PathBuf;
use std::time::Duration;

use oases_exec::comm::Link;
use oases_schedule::{Cut, Keeps, Layout, Model, Optimizer, Order, Stages, Variant};

/// A training run. The values are those of the configuration, checked there for range.
#[derive(Clone)]
pub struct Options {
    /// The model.
    pub model: Model,
    /// The group of a stage and the TMP degree of every block. Data parallelism is a group larger than any degree.
    pub layout: Layout,
    /// The pipeline stages.
    pub stages: Stages,
    /// In which order a stage takes its micro-batches.
    pub order: Order,
    /// Where the moments of blocks with replicas are.
    pub moments: Optimizer,
    /// The schedule.
    pub variant: &'static Variant,
    /// Sub-batches of a micro-batch.
    pub sub_batches: u32,
    /// What forwards keep.
    pub keep: Keeps,
    /// Pieces of the products that a decomposing schedule cuts.
    pub pieces: u8,
    /// Along which dimension it cuts them.
    pub cut: Cut,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Sequences of a step.
    pub batch: u32,
    /// What is trained on.
    pub data: DataOptions,
    /// Share of the tokens that are hidden, where the model sees all others (masked language modelling).
    pub mask_rate: f64,
    /// The folder of a run, or of an import, whose weights training begins with.
    pub init_from: Option<PathBuf>,
    /// Parameters that stay as they are: names, or what they begin with.
    pub freeze: Vec<String>,
    /// The network to emulate between ranks.
    pub link: Option<Link>,
    /// Optimizer and its course.
    pub optimizer: OptimizerOptions,
    /// Steps of the whole run.
    pub steps: u64,
    /// Seed of weights, data order and dropout.
    pub seed: u64,
    /// Steps between evaluations; the last step is always evaluated.
    pub eval_every: u64,
    /// Steps between checkpoints; the last step always has one.
    pub checkpoint_every: u64,
    /// Steps between comparisons of the weights that several ranks hold; they are compared before the first step too.
    pub check_every: u64,
    /// Checkpoints to keep.
    pub keep_checkpoints: usize,
    /// How long ranks wait for each other.
    pub timeout: Duration,
    /// The run folder.
    pub dir: PathBuf,
    /// The resolved configuration, for the run folder.
    pub config: String,
    /// Whether to go on with the run in the folder.
    pub resume: bool,
    /// Whether to tell how the last training step went, instruction by instruction.
    pub trace: bool,
    /// A failure to provoke, to test that it ends the run as it should.
    pub fault: Option<Fault>,
}

/// Where tokens come from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataOptions {
    /// Text files.
    pub text: Vec<PathBuf>,
    /// The `tokenizer.json` of the text; `None` where tokens are bytes.
    pub tokenizer: Option<PathBuf>,
    /// The field of a line of JSONL that holds its text.
    pub field: String,
    /// Tokenised data sets, each a source of its own.
    pub files: Vec<PathBuf>,
    /// A weight for each source, the text being the last; none for equal ones by their tokens.
    pub weights: Vec<f64>,
    /// Share of each source that is held out.
    pub validation: f64,
}

impl Options {
    /// Ranks of all stages.
    pub fn ranks(&self) -> u32 {
        self.stages.count() * self.layout.group()
    }
}

/// AdamW, its learning rate over the run, and clipping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerOptions {
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// Learning rate at the end, as a share of the highest.
    pub final_share: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
    /// Largest gradient norm.
    pub clip: f64,
}

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The rank panics inside an instruction.
    Panic,
    /// The rank stops and never comes back.
    Hang,
    /// The rank's loss becomes NaN.
    NonFinite,
}

/// A provoked failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// To which rank of the world.
    pub rank: u32,
    /// In which step, from 0.
    pub step: u64,
}
