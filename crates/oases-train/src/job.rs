//! A run, prepared: everything that is decided before the first rank starts, and shared by all ranks.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oases_exec::Program;
use oases_schedule::passes::EVALUATE;
use oases_schedule::{Bytes, Mask, Model, Purpose, Request, Stage, Statics, Workspace};

use crate::checkpoint::Checkpoints;
use crate::checkpoint::{Checkpoint, Description, Kind, Metadata, TensorSpec};
use crate::data::masking::Masking;
use crate::data::tokenizer::Tokenizer;
use crate::data::{self, Blend, Tokens, ValidationData};
#[cfg(feature = "mpi")]
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::learning_rate::LearningRate;
use crate::options::{DataOptions, Options};
use crate::run_dir::RunPaths;

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
    pub train_data: Blend,
    /// Validation windows.
    pub validation_data: ValidationData,
    /// How tokens are hidden; `None` where the next one is predicted.
    pub masking: Option<Masking>,
    /// What the weights begin as; `None` where they are drawn.
    pub init: Option<Checkpoint>,
    /// Indices of parameters that stay as they are.
    pub frozen: Vec<usize>,
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
        let (train_data, validation_data, masking) = read_data(&options)?;
        let init = options.init_from.as_deref().map(|folder| initial_weights(folder, model)).transpose()?;
        let frozen = frozen(model, &options.freeze)?;
        let optimizer = &options.optimizer;
        let learning_rate = LearningRate::new(
            optimizer.learning_rate,
            optimizer.warmup,
            options.steps,
            optimizer.final_share,
        )?;
        let stage = |index| stage_job(&options, &request, index, workspace);
        let stages = (0..options.stages.count()).map(stage).collect();
        Ok(Job {
            stages,
            train_data,
            validation_data,
            masking,
            init,
            frozen,
            learning_rate,
            options,
            stop: Arc::default(),
        })
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
    pub(crate) fn facts(&self, program: u64) -> Result<[(&'static str, u64); 4]> {
        let text = |text: &str| Digest::default().text(text).finish();
        let schedules: String = self.stages.iter().map(|stage| stage.train.schedule.to_string()).collect();
        Ok([
            ("the program", program),
            ("the configuration", text(&self.options.config)),
            ("the schedule", text(&schedules)),
            ("the training text", self.train_data.digest()?),
        ])
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

/// The tokenizer of a run's text.
fn tokenizer(data: &DataOptions) -> Result<Tokenizer> {
    data.tokenizer.as_deref().map_or_else(|| Ok(Tokenizer::bytes()), Tokenizer::open)
}

/// The text files as one source, in the tokens of the tokenizer.
pub(crate) fn read_text(data: &DataOptions, tokenizer: &Tokenizer, vocabulary: usize) -> Result<Tokens> {
    if tokenizer.is_bytes() {
        return Tokens::read_bytes(&data.text, vocabulary);
    }
    Tokens::tokenise(&data.text, &data.field, tokenizer)
}

/// Opens all sources, cuts each for validation, and blends them.
fn read_data(options: &Options) -> Result<(Blend, ValidationData, Option<Masking>)> {
    let Options { model, data, seed, .. } = options;
    let tokenizer = tokenizer(data)?;
    if !tokenizer.is_bytes() {
        tokenizer.expect_vocabulary(model.vocabulary)?;
    }
    let masked = model.mask == Mask::Bidirectional;
    let masking = masked.then(|| Masking::new(options.mask_rate, &tokenizer, *seed)).transpose()?;
    let mut sources = data.files.iter().map(|prefix| Tokens::open(prefix)).collect::<Result<Vec<_>>>()?;
    if !data.text.is_empty() || sources.is_empty() {
        sources.push(read_text(data, &tokenizer, model.vocabulary)?);
    }
    let weights = match data.weights.as_slice() {
        [] => sources.iter().map(|tokens| tokens.count() as f64).collect(),
        given if given.len() == sources.len() => given.to_vec(),
        given => {
            return Err(Error::configuration(format!(
                "data.weights has {} weights for {} sources",
                given.len(),
                sources.len()
            ))
            .with_hint("a weight for each of data.files, and one more for data.text if there is any"));
        }
    };
    let (mut training, mut validation) = (Vec::new(), None::<ValidationData>);
    for (index, (tokens, weight)) in (0_u64..).zip(sources.into_iter().zip(weights)) {
        // Each source has an order of its own; the first has that of a run with one.
        let seed = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (train, held_out) = data::split(tokens, data.validation, model.sequence, seed)?;
        training.push((train, weight));
        validation = Some(match validation {
            None => held_out,
            Some(others) => others.and(held_out),
        });
    }
    let validation = validation.ok_or_else(|| Error::internal("no source of data"))?;
    Ok((Blend::new(training, *seed)?, validation, masking))
}

/// The newest checkpoint of a folder, whose weights must be those of this model.
fn initial_weights(folder: &Path, model: &Model) -> Result<Checkpoint> {
    let checkpoints = RunPaths::new(folder).checkpoints();
    let latest = Checkpoints::view(checkpoints).latest()?;
    let checkpoint = latest.map(|latest| latest.checkpoint).ok_or_else(|| {
        Error::configuration(format!("train.init_from = {} has no checkpoint", folder.display()))
            .with_hint("give the folder that `oases import` or `oases train` wrote")
    })?;
    let weights: Vec<TensorSpec> = model
        .parameters()
        .iter()
        .map(|parameter| TensorSpec::new(Kind::Weight.tensor_name(&parameter.name), parameter.shape()))
        .collect();
    checkpoint.expect_weights(&weights)?;
    Ok(checkpoint)
}

/// The parameters that are named, or whose names begin so; `layers.2-5` stands for four layers.
fn frozen(model: &Model, names: &[String]) -> Result<Vec<usize>> {
    let parameters = model.parameters();
    let mut frozen = BTreeSet::new();
    for name in names {
        let range = name.strip_prefix("layers.").and_then(|rest| rest.split_once('-'));
        let range = range.and_then(|(first, last)| Some(first.parse::<u32>().ok()?..=last.parse().ok()?));
        let prefixes: Vec<String> = match range {
            Some(layers) if !layers.is_empty() && *layers.end() < model.layers => {
                layers.map(|layer| format!("layers.{layer}")).collect()
            }
            _ => vec![name.clone()],
        };
        let before = frozen.len();
        for prefix in &prefixes {
            let matches = |own: &str| {
                own.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            frozen.extend((0..parameters.len()).filter(|&index| matches(&parameters[index].name)));
        }
        if frozen.len() == before {
            return Err(Error::configuration(format!(
                "train.freeze names {name}, and no more parameter begins so"
            ))
            .with_hint(format!(
                "names are like embed, embed.tokens, layers.0, layers.0-{}, layers.0.attn, head",
                model.layers.saturating_sub(1)
            )));
        }
    }
    if frozen.len() == parameters.len() {
        return Err(Error::configuration("train.freeze leaves no parameter to train")
            .with_hint("name fewer parts of the model"));
    }
    Ok(frozen.into_iter().collect())
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
