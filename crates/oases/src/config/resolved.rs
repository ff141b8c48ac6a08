//! What will be done: a configuration with every default filled in, as it is saved with the run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oases_schedule::{Keeps, Layout, Model, Stages};

use super::document::Document;
use super::model::ModelConfig;
use super::parallel::ParallelConfig;
use super::reader::Reader;
use super::rules;
use super::units::{Bandwidth, Latency};
use crate::error::UserError;

/// A whole run. Values are in the ranges of [`super::keys`] and keep the rules of [`super::rules`].
#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    /// `[model]`
    pub model: ModelConfig,
    /// `[data]`
    pub data: DataConfig,
    /// `[parallel]`
    pub parallel: ParallelConfig,
    /// `[schedule]`
    pub schedule: ScheduleConfig,
    /// `[link]`; `None` leaves the ranks' memory as fast as it is.
    pub link: Option<LinkConfig>,
    /// `[train]`
    pub train: TrainConfig,
    /// `[bench]`
    pub bench: BenchConfig,
    /// `[run]`
    pub run: FolderConfig,
}

/// The data.
#[derive(Clone, Debug, PartialEq)]
pub struct DataConfig {
    /// Text files; relative to the current directory.
    pub text: Vec<PathBuf>,
    /// Their tokenizer; `None` where tokens are bytes.
    pub tokenizer: Option<PathBuf>,
    /// The field of a line of JSONL.
    pub field: String,
    /// Tokenised data sets; without text, at least one.
    pub files: Vec<PathBuf>,
    /// A weight for each source, or none.
    pub weights: Vec<f64>,
    /// Share of the text kept for validation, from a millionth to all but a millionth.
    pub validation: f64,
}

/// The order of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// One of [`super::keys::SCHEDULES`].
    pub name: String,
    /// Parts of a micro-batch, 1 to 4.
    pub sub_batches: usize,
    /// What forwards keep, as [`oases_schedule::Keeps::parse`] reads it.
    pub keep: String,
    /// Pieces of a product, for a schedule that cuts them.
    pub pieces: usize,
    /// Along which dimension, one of [`super::keys::CUTS`].
    pub cut: String,
    /// Micro-batches of a step.
    pub micro_batches: usize,
}

/// An emulated link between the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Its speed.
    pub bandwidth: Bandwidth,
    /// Its latency.
    pub latency: Latency,
}

/// The optimisation.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainConfig {
    /// Optimizer steps.
    pub steps: u64,
    /// Sequences in a step, whatever the layout: micro-batch × micro-batches.
    pub batch: usize,
    /// Learning rate at its peak.
    pub learning_rate: f64,
    /// Steps in which it rises to its peak.
    pub warmup: u64,
    /// Learning rate at the last step, as a share of the peak.
    pub final_learning_rate: f64,
    /// Decoupled weight decay, for matrices only.
    pub weight_decay: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Global gradient norm above which gradients are scaled down.
    pub clip: f64,
    /// Seed of initial weights, dropout and data order.
    pub seed: u64,
    /// Steps between evaluations.
    pub eval_every: u64,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// Checkpoints kept.
    pub keep_checkpoints: usize,
    /// Share of tokens that a masked language model predicts.
    pub mask_rate: f64,
    /// Parameters that stay as they are.
    pub freeze: Vec<String>,
    /// Whose weights training begins with.
    pub init_from: Option<PathBuf>,
}

/// What a bench compares.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchConfig {
    /// Schedules by name, each with what differs from `[schedule]`.
    pub schedules: Vec<String>,
    /// Links as ratios of an all-reduce's time to a block's forward.
    pub ratios: Vec<f64>,
    /// Links by their speed.
    pub links: Vec<Bandwidth>,
    /// How often each runs.
    pub rounds: usize,
}

/// Where the run is kept and how long its ranks wait for each other.
#[derive(Clone, Debug, PartialEq)]
pub struct FolderConfig {
    /// The run's folder; relative to the current directory.
    pub dir: PathBuf,
    /// Steps between comparisons of the weights that several ranks hold.
    pub check_every: u64,
    /// Seconds after which a rank that others wait for counts as lost.
    pub timeout_s: f64,
}

impl FolderConfig {
    /// The time after which a rank counts as lost.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }
}

impl RunConfig {
    /// The TMP degree of every block.
    pub fn layout(&self) -> Layout {
        self.parallel.layout(self.model.layers).expect("the rules have read it")
    }

    /// The model.
    pub fn model(&self) -> Model {
        self.model.model()
    }

    /// The pipeline stages.
    pub fn stages(&self) -> Stages {
        self.parallel.stages(&self.model()).expect("the rules have read it")
    }

    /// What forwards keep.
    pub fn keeps(&self) -> Keeps {
        Keeps::parse(&self.schedule.keep, self.model.layers as u32).expect("the rules have read it")
    }

    /// Fills in the defaults and applies all rules. `stem` names the run folder where the configuration does not.
    pub(super) fn resolve(document: &Document, stem: &str) -> Result<RunConfig, UserError> {
        let mut reader = Reader::new(document);
        let config = RunConfig::read(&mut reader, stem);
        let (mut problems, unusable) = reader.finish();
        problems.extend(
            rules::broken_rules(&config)
                .into_iter()
                .filter(|broken| broken.keys.iter().all(|key| !unusable.contains(key)))
                .map(|broken| {
                    let place = document.place(broken.keys[0]);
                    UserError::new(format!("{place}: {}", broken.message), broken.hint)
                }),
        );
        match UserError::all(problems) {
            Some(error) => Err(error),
            None => Ok(config),
        }
    }

    fn read(reader: &mut Reader<'_>, stem: &str) -> RunConfig {
        let model = ModelConfig::read(reader);
        let data = DataConfig {
            text: reader.paths("data.text"),
            tokenizer: reader.path("data.tokenizer"),
            field: reader.text("data.field"),
            files: reader.paths("data.files"),
            weights: reader.numbers("data.weights"),
            validation: reader.number("data.validation"),
        };
        let parallel = ParallelConfig::read(reader);
        let schedule = ScheduleConfig {
            name: reader.word("schedule.name"),
            sub_batches: reader.size("schedule.sub_batches"),
            keep: reader.word_or_runs("schedule.keep"),
            pieces: reader.size("schedule.pieces"),
            cut: reader.word("schedule.cut"),
            micro_batches: reader.size("schedule.micro_batches"),
        };
        let link = reader.has_section("link").then(|| LinkConfig {
            bandwidth: reader.bandwidth("link.bandwidth"),
            latency: reader.latency("link.latency"),
        });
        let train = TrainConfig::read(reader);
        let run = FolderConfig {
            dir: reader.path_or("run.dir", Path::new("runs").join(stem)),
            check_every: reader.integer("run.check_every"),
            timeout_s: reader.number("run.timeout_s"),
        };
        let bench = BenchConfig {
            schedules: reader.texts("bench.schedules"),
            ratios: reader.numbers("bench.ratios"),
            links: reader.bandwidths("bench.links"),
            rounds: reader.size("bench.rounds"),
        };
        RunConfig { model, data, parallel, schedule, link, train, bench, run }
    }

    /// The configuration of a run as TOML, without what a bench compares. Read back, it gives an equal value.
    pub fn to_toml(&self) -> String {
        let RunConfig { model, data, parallel, schedule, link, train, bench: _, run } = self;
        let mut out = Writer::default();
        model.write(&mut out);
        out.section("data");
        let paths = |paths: &[PathBuf]| paths.iter().map(|path| path_text(path)).collect::<Vec<_>>();
        if !data.text.is_empty() {
            out.put("text", paths(&data.text));
        }
        if let Some(tokenizer) = &data.tokenizer {
            out.put("tokenizer", path_text(tokenizer));
        }
        out.put("field", data.field.as_str());
        if !data.files.is_empty() {
            out.put("files", paths(&data.files));
        }
        out.put("weights", data.weights.clone());
        out.put("validation", data.validation);
        out.section("parallel");
        out.put("data", integer(parallel.data));
        out.put("pipeline", integer(parallel.pipeline));
        out.put("tensor", integer(parallel.tensor));
        out.put("degrees", parallel.degrees.as_str());
        out.put("chunks", integer(parallel.chunks));
        out.put("order", parallel.order.as_str());
        out.put("stages", parallel.stages.as_str());
        out.put("zero", integer(parallel.zero));
        out.section("schedule");
        out.put("name", schedule.name.as_str());
        out.put("sub_batches", integer(schedule.sub_batches));
        out.put("keep", schedule.keep.as_str());
        out.put("pieces", integer(schedule.pieces));
        out.put("cut", schedule.cut.as_str());
        out.put("micro_batches", integer(schedule.micro_batches));
        if let Some(link) = link {
            out.section("link");
            out.put("bandwidth", link.bandwidth.to_string());
            out.put("latency", link.latency.to_string());
        }
        out.section("train");
        out.put("steps", integer(train.steps));
        out.put("batch", integer(train.batch));
        out.put("learning_rate", train.learning_rate);
        out.put("warmup", integer(train.warmup));
        out.put("final_learning_rate", train.final_learning_rate);
        out.put("weight_decay", train.weight_decay);
        out.put("beta1", train.beta1);
        out.put("beta2", train.beta2);
        out.put("epsilon", train.epsilon);
        out.put("clip", train.clip);
        out.put("seed", integer(train.seed));
        out.put("eval_every", integer(train.eval_every));
        out.put("checkpoint_every", integer(train.checkpoint_every));
        out.put("keep_checkpoints", integer(train.keep_checkpoints));
        out.put("mask_rate", train.mask_rate);
        out.put("freeze", train.freeze.clone());
        if let Some(init_from) = &train.init_from {
            out.put("init_from", path_text(init_from));
        }
        out.section("run");
        out.put("dir", path_text(&run.dir));
        out.put("check_every", integer(run.check_every));
        out.put("timeout_s", run.timeout_s);
        out.text
    }
}

impl TrainConfig {
    fn read(reader: &mut Reader<'_>) -> TrainConfig {
        let steps = reader.integer("train.steps");
        let eval_every = reader.integer("train.eval_every");
        TrainConfig {
            steps,
            batch: reader.size("train.batch"),
            learning_rate: reader.number("train.learning_rate"),
            warmup: reader.integer_or("train.warmup", steps / 10, "train.steps"),
            final_learning_rate: reader.number("train.final_learning_rate"),
            weight_decay: reader.number("train.weight_decay"),
            beta1: reader.number("train.beta1"),
            beta2: reader.number("train.beta2"),
            epsilon: reader.number("train.epsilon"),
            clip: reader.number("train.clip"),
            seed: reader.integer("train.seed"),
            eval_every,
            checkpoint_every: reader.integer_or("train.checkpoint_every", eval_every, "train.eval_every"),
            keep_checkpoints: reader.size("train.keep_checkpoints"),
            mask_rate: reader.number("train.mask_rate"),
            freeze: reader.texts_or_none("train.freeze"),
            init_from: reader.path("train.init_from"),
        }
    }
}

/// Writes sections and keys, one a line.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) text: String,
}

impl Writer {
    pub(super) fn section(&mut self, name: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text.push_str(&format!("{gap}[{name}]\n"));
    }

    pub(super) fn put(&mut self, name: &str, value: impl Into<toml::Value>) {
        let value: toml::Value = value.into();
        self.text.push_str(&format!("{name} = {value}\n"));
    }
}

/// All whole numbers of a configuration are at most `i64::MAX`, see [`super::keys`].
pub(super) fn integer(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// Paths of a configuration came from text, so this is the same text.
fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
