//! A run, prepared: everything that is decided before the first rank starts, and shared by all ranks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oases_exec::Program;
use oases_schedule::passes::EVALUATE;
use oases_schedule::{Bytes, Model, Purpose, Request, Stage, Statics, Workspace};

use crate::checkpoint::{Checkpoint, Description, Kind, Metadata, TensorSpec};
use crate::data::{self, Tokens, TrainData, ValidationData};
#[cfg(feature = "mpi")]
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::learning_rate::LearningRate;
use crate::options::Options;

/// What the ranks of one pipeline stage run.
pub struct StageJob {
    /// Places of everything that outlives a step.
    pub statics: Statics,
    /// The training step.
    pub train: Program,
    /// The evaluation of one batch.
    pub evaluate: Program,
}

/// What all ranks of a run share.
pub struct Job {
    /// What was asked for.
    pub options: Options,
    /// What the ranks of each pipeline stage run.
    pub stages: Vec<StageJob>,
    /// Training windows.
    pub train_data: TrainData,
    /// Validation windows.
    pub validation_data: ValidationData,
    /// Learning rate by step.
    pub learning_rate: LearningRate,
    /// Set from outside to have all ranks write a checkpoint and end after the step at hand.
    pub stop: Arc<AtomicBool>,
}

/// The schedule of a step, as the options ask for it. Refuses models and batches that cannot be cut so.
pub fn request(options: &Options) -> Result<Request> {
    let layout = &options.layout;
    let degrees: BTreeSet<u32> = layout.degrees().iter().copied().collect();
    for degree in degrees {
        let checked = options.model.check(degree);
        checked.map_err(|error| Error::configuration(error.message.clone()).with_hint(error.hint.clone()))?;
    }
    layout.check().map_err(|message| {
        Error::configuration(message)
            .with_hint("degrees are like \"8*10 4*16 8*8\", over embed, attn.0, mlp.0, …, head")
    })?;
    let (batch, micro) = (options.batch, options.micro_batches);
    if micro == 0 || !batch.is_multiple_of(micro) || batch == 0 {
        return Err(Error::configuration(format!("a batch of {batch} sequences in {micro} micro-batches"))
            .with_hint("the batch must be a multiple of the micro-batches"));
    }
    let (sequences, granularity) = (batch / micro, layout.granularity());
    if !sequences.is_multiple_of(granularity) {
        let replicas =
            format!("a micro-batch of {sequences} sequences for {granularity} replicas of a block");
        return Err(Error::configuration(replicas).with_hint(
            "every replica computes on as many sequences: the micro-batch must be a multiple of the replicas",
        ));
    }
    if !(1..=(sequences / granularity).min(26)).contains(&options.sub_batches) {
        let parts = options.sub_batches;
        let message = format!("a micro-batch of {sequences} sequences in {parts} sub-batches");
        let hint = match granularity {
            1 => "a sub-batch holds at least one sequence".to_owned(),
            _ => format!(
                "a sub-batch holds at least one sequence for each of the {granularity} replicas of a block"
            ),
        };
        return Err(Error::configuration(message).with_hint(hint));
    }
    Ok(Request {
        micro_batches: micro,
        sub_batches: options.sub_batches,
        keep: options.keep.clone(),
        pieces: options.pieces,
        cut: options.cut,
        layers: options.model.layers,
        layout: layout.clone(),
        stage: Stage { stages: options.stages.clone(), index: 0 },
        order: options.order,
        optimizer: options.moments,
        sequences,
    })
}

impl Job {
    /// Reads the data, builds and plans the schedules. Nothing is allocated for tensors, and nothing is written.
    pub fn prepare(options: Options, workspace: Workspace) -> Result<Job> {
        let request = request(&options)?;
        let model = &options.model;
        let tokens = Tokens::read_bytes(&options.text, model.vocabulary)?;
        let (train_data, validation_data) =
            data::split(tokens, options.validation, model.sequence, options.seed)?;
        let optimizer = &options.optimizer;
        let learning_rate = LearningRate::new(
            optimizer.learning_rate,
            optimizer.warmup,
            options.steps,
            optimizer.final_share,
        )?;
        let stage = |index| stage_job(&options, &request, index, workspace);
        let stages = (0..options.stages.count()).map(stage).collect();
        Ok(Job { stages, train_data, validation_data, learning_rate, options, stop: Arc::default() })
    }

    /// The stage of a rank, and the rank's place in it.
    pub fn place_of(&self, rank: u32) -> (&StageJob, u32) {
        let group = self.options.layout.group();
        (&self.stages[(rank / group) as usize], rank % group)
    }

    /// Bytes of the arena of one rank of the stage that needs most.
    pub fn arena_bytes(&self) -> Bytes {
        self.stages.iter().map(StageJob::arena_bytes).max().unwrap_or_default()
    }

    /// Bytes of the arenas of all ranks.
    pub fn total_arena_bytes(&self) -> Bytes {
        let of_stages: u64 = self.stages.iter().map(|stage| stage.arena_bytes().0).sum();
        Bytes(of_stages * u64::from(self.options.layout.group()))
    }

    /// What must be the same on all ranks, each with its digest; `program` is that of the program.
    #[cfg(feature = "mpi")]
    pub(crate) fn facts(&self, program: u64) -> [(&'static str, u64); 4] {
        let text = |text: &str| Digest::default().text(text).finish();
        let schedules: String = self.stages.iter().map(|stage| stage.train.schedule.to_string()).collect();
        [
            ("the program", program),
            ("the configuration", text(&self.options.config)),
            ("the schedule", text(&schedules)),
            ("the training text", self.train_data.digest()),
        ]
    }

    /// Tokens that one step trains on.
    pub fn tokens_per_step(&self) -> u64 {
        u64::from(self.options.batch) * self.options.model.sequence as u64
    }

    /// The tensors of a checkpoint, in order.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        self.entries().map(|(_, _, spec)| spec).collect()
    }

    /// Parameter index, what of it, and its name and shape in a checkpoint.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, Kind, TensorSpec)> {
        [Kind::Weight, Kind::FirstMoment, Kind::SecondMoment].into_iter().flat_map(|kind| {
            self.stages[0].statics.parameters.iter().enumerate().map(move |(index, parameter)| {
                (index, kind, TensorSpec::new(kind.tensor_name(&parameter.name), parameter.shape()))
            })
        })
    }

    /// What a checkpoint after `step` steps says of the run.
    pub fn metadata(&self, step: u64) -> Metadata {
        Metadata {
            step,
            samples: step * u64::from(self.options.batch),
            tokens: step * self.tokens_per_step(),
            seed: self.options.seed,
            model: describe_model(&self.options.model),
            optimizer: self.describe_optimizer(),
        }
    }

    fn describe_optimizer(&self) -> Description {
        let optimizer = &self.options.optimizer;
        Description::new()
            .with("beta1", optimizer.beta1)
            .with("beta2", optimizer.beta2)
            .with("epsilon", optimizer.epsilon)
    }

    /// Whether the run can go on from this checkpoint: same model, all tensors, and the same batch.
    pub fn expect(&self, checkpoint: &Checkpoint) -> Result<()> {
        let metadata = checkpoint.metadata();
        metadata.expect_model(&describe_model(&self.options.model), checkpoint.path())?;
        checkpoint.expect_tensors(&self.tensors())?;
        let options = &self.options;
        if metadata.seed != options.seed {
            return Err(Error::checkpoint(
                checkpoint.path(),
                format!("was made with train.seed = {}, not {}", metadata.seed, options.seed),
            )
            .with_hint("the data order and dropout depend on the seed; resume with the same"));
        }
        if metadata.samples != metadata.step * u64::from(options.batch) {
            let batch = metadata.samples / metadata.step.max(1);
            return Err(Error::checkpoint(
                checkpoint.path(),
                format!("was made with train.batch = {batch}, not {}", options.batch),
            )
            .with_hint("the data position counts whole batches; resume with the same batch"));
        }
        if metadata.step > options.steps {
            return Err(Error::checkpoint(
                checkpoint.path(),
                format!("is of step {}, past train.steps = {}", metadata.step, options.steps),
            )
            .with_hint("raise train.steps to go on"));
        }
        Ok(())
    }
}

impl StageJob {
    /// Bytes of one rank's arena.
    pub fn arena_bytes(&self) -> Bytes {
        self.train.plan.bytes.max(self.evaluate.plan.bytes)
    }
}

fn stage_job(options: &Options, request: &Request, index: u32, workspace: Workspace) -> StageJob {
    let stage = Stage { stages: options.stages.clone(), index };
    let request = Request { stage, ..request.clone() };
    let train = options.variant.build(&request);
    let evaluate = EVALUATE.build(&Request { micro_batches: 1, ..request });
    let statics = Statics::of(&options.model, &train, Purpose::Training, options.batch);
    let train = Program::new(train, &statics, workspace);
    let evaluate = Program::new(evaluate, &statics, workspace);
    StageJob { statics, train, evaluate }
}

/// What of a model a checkpoint must agree on. A GPT is described by its sizes; of other models also what differs from that.
pub(crate) fn describe_model(model: &Model) -> Description {
    let gpt = Model::gpt(model.layers, model.hidden, model.heads, model.sequence, model.vocabulary);
    let described = Description::new()
        .with("family", "gpt")
        .with("layers", model.layers)
        .with("hidden", model.hidden)
        .with("heads", model.heads)
        .with("ffn", model.ffn)
        .with("sequence", model.sequence)
        .with("vocabulary", model.vocabulary)
        .with("tied", model.tied)
        .with("norm_epsilon", model.norm_epsilon);
    let differing = [
        ("kv_heads", model.kv_heads.to_string(), gpt.kv_heads.to_string()),
        ("head_dim", model.head_dim.to_string(), gpt.head_dim.to_string()),
        ("biases", model.biases.to_string(), gpt.biases.to_string()),
        ("head_norm", model.head_norm.to_string(), gpt.head_norm.to_string()),
        ("norm", model.norm.to_string(), gpt.norm.to_string()),
        ("placement", model.placement.to_string(), gpt.placement.to_string()),
        ("positions", model.positions.to_string(), gpt.positions.to_string()),
        ("activation", model.activation.to_string(), gpt.activation.to_string()),
        ("mask", model.mask.to_string(), gpt.mask.to_string()),
        ("token_types", model.token_types.to_string(), gpt.token_types.to_string()),
        ("head", model.head.to_string(), gpt.head.to_string()),
    ];
    let differing = differing.into_iter().filter(|(_, own, usual)| own != usual);
    differing.fold(described, |described, (name, own, _)| described.with(name, own))
}
