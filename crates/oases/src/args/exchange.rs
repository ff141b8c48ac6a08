//! The arguments of commands that bring models and data in and out.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Format;
use super::examples::{EVAL_EXAMPLES, EXPORT_EXAMPLES, IMPORT_EXAMPLES, INSPECT_EXAMPLES, TOKENIZE_EXAMPLES};

/// `oases import`
#[derive(Args, Debug)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct ImportArgs {
    /// A folder with config.json and model.safetensors, or with an index and the files that it names.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The run folder to make; it must not exist.
    #[arg(short, long, value_name = "RUN")]
    pub output: PathBuf,
    /// The form of the report.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `oases export`
#[derive(Args, Debug)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct ExportArgs {
    /// The folder of a run, or of an import.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// The folder to make; it must not exist.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The type of the weights; that of the import, or f32, where it is left out.
    #[arg(long, value_enum)]
    pub dtype: Option<WeightType>,
    /// Bytes of a file, in GB, beyond which another one is begun.
    #[arg(long, value_name = "GB", default_value_t = 5.0)]
    pub shard_size: f64,
    /// The form of the report.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// A type of weights in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightType {
    /// 32 bits.
    F32,
    /// 16 bits with the range of 32.
    Bf16,
    /// 16 bits.
    F16,
}

/// `oases tokenize`
#[derive(Args, Debug)]
#[command(after_help = TOKENIZE_EXAMPLES)]
pub struct TokenizeArgs {
    /// Text files: plain text, a file a document, or JSONL (.jsonl, .ndjson, .json), a line a document.
    #[arg(value_name = "TEXT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The name of the data set: two files, NAME.bin and NAME.idx, as Megatron has them.
    #[arg(short, long, value_name = "NAME")]
    pub output: PathBuf,
    /// The tokenizer, a tokenizer.json; tokens are bytes where it is left out.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// The field of a line of JSONL that holds its text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub field: String,
    /// What stands behind each document: a token's number, or `none`; the tokenizer's own end where it is left out.
    #[arg(long, value_name = "TOKEN")]
    pub end_token: Option<String>,
    /// Threads that tokenise; as many as the machine has processors where it is left out.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// The form of the report.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `oases data`
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Show how much there is, how long documents are, and how some begin.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
}

/// `oases data inspect`
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// A data set, with or without .bin or .idx.
    #[arg(value_name = "NAME")]
    pub data: PathBuf,
    /// The tokenizer, to show text; tokens are shown as numbers where it is left out.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// How many documents to show.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub samples: u64,
    /// The form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `oases eval`
#[derive(Args, Debug)]
#[command(after_help = EVAL_EXAMPLES)]
pub struct EvalArgs {
    /// The folder of a run, or of an import.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Text files, or one tokenised data set.
    #[arg(value_name = "TEXT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The tokenizer of the text; the run's where it is left out.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// The field of a line of JSONL that holds its text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub field: String,
    /// Sequences at a time.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub batch: u32,
    /// The form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}
