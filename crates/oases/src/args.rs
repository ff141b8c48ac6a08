//! What the user typed on the command line, as it was typed. Nothing is opened, checked or done here.

mod examples;
mod exchange;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};

use self::examples::{
    BENCH_EXAMPLES, EXPLAIN_EXAMPLES, GENERATE_EXAMPLES, PLAN_EXAMPLES, PROFILE_EXAMPLES, REPRODUCE_EXAMPLES,
    SIMULATE_EXAMPLES, TRAIN_EXAMPLES,
};
pub use self::exchange::{
    DataCommand, EvalArgs, ExportArgs, ImportArgs, InspectArgs, TokenizeArgs, WeightType,
};
use crate::config::{Override, keys};
use crate::error::UserError;
use crate::launched;

/// Train transformer language models across commodity servers with the communication hidden.
///
/// Tensor parallelism puts an all-reduce behind every block of a transformer. Oases cuts each batch into sub-batches and
/// lets the all-reduce of one run under the computation of the other.
#[derive(Debug, Parser)]
#[command(name = "oases", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "Start with: oases train configs/quickstart.toml")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// One thing to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model.
    Train(TrainArgs),
    /// Show the schedule of a training step, its collectives and its memory, without training.
    Explain(ExplainArgs),
    /// Predict what schedules would take, on hardware that one does not have or from a profile.
    Simulate(SimulateArgs),
    /// Measure what the instructions of a model take on this machine, for `oases simulate` and `oases plan`.
    Profile(ProfileArgs),
    /// Find the best TMP degree for every block, proven and, where asked for, measured.
    Plan(PlanArgs),
    /// Compare schedules over emulated links, predicted beside measured.
    Bench(BenchArgs),
    /// Continue a text with a trained model.
    Generate(GenerateArgs),
    /// Make a run folder out of a model that transformers has saved.
    Import(ImportArgs),
    /// Write a run's model as transformers reads it.
    Export(ExportArgs),
    /// Turn text into a data set of tokens.
    Tokenize(TokenizeArgs),
    /// Look at data.
    Data {
        #[command(subcommand)]
        command: DataCommand,
    },
    /// Take the loss of a model over a text.
    Eval(EvalArgs),
    /// Predict the experiments of the Oases paper, and print them beside its figures.
    Reproduce(ReproduceArgs),
    /// Show what this machine has, in a form to paste into a report.
    Doctor,
    /// Print the completions of a shell.
    #[command(
        after_help = "Example:\n  oases completions bash > ~/.local/share/bash-completion/completions/oases"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of the program or of one command.
    #[command(after_help = "Example:\n  oases man train | man -l -")]
    Man {
        /// The command; the whole program where it is left out.
        command: Option<String>,
    },
}

/// A configuration and what to change in it.
#[derive(Args, Debug)]
pub struct ConfigArgs {
    /// The configuration, a TOML file.
    #[arg(value_name = "CONFIG")]
    pub path: PathBuf,
    /// Set a key of the configuration, such as `train.steps=100`; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<Override>,
}

/// `oases train`
#[derive(Args, Debug)]
#[command(after_help = TRAIN_EXAMPLES, after_long_help = train_long_help())]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Continue the run in the configuration's folder from its newest checkpoint.
    #[arg(long)]
    pub resume: bool,
    /// This process's rank, where it was started as one of several by something that does not say so in the environment.
    #[arg(long, value_name = "R", requires = "ranks")]
    pub rank: Option<usize>,
    /// The number of such processes.
    #[arg(long, value_name = "N", requires = "rank")]
    pub ranks: Option<usize>,
    /// Write the last step, as it went on each rank, to a file for ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print the summary of the run on standard output in this form.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `oases explain`
#[derive(Args, Debug)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Show the schedule after each of the passes that build it.
    #[arg(long)]
    pub verbose: bool,
    /// Show one stage of a pipeline, counted from 0.
    #[arg(long, value_name = "N")]
    pub stage: Option<u32>,
    /// The form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `oases simulate`
#[derive(Args, Debug)]
#[command(after_help = SIMULATE_EXAMPLES)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["machine", "profile"])))]
pub struct SimulateArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Take durations from the description of a machine: the name of one that is built in, or a TOML file.
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<PathBuf>,
    /// Take durations from a profile that `oases profile` has written, or from a CSV table of published block times, to
    /// which `--machine` gives the links and the memory.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Schedules to predict, or `all`; the configuration's where it is left out.
    #[arg(long = "schedule", value_name = "NAME", value_delimiter = ',')]
    pub schedules: Vec<String>,
    /// Write the predicted steps to a file for ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `oases profile`
#[derive(Args, Debug)]
#[command(after_help = PROFILE_EXAMPLES)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Numbers of sequences on one rank to measure; those that the schedules work on with the configuration's batch where it
    /// is left out.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub sequences: Vec<u32>,
    /// TMP degrees to measure, each inside the group of `parallel.tensor` ranks, with all of them running; the configuration's
    /// where it is left out. The profile holds what every layout of these degrees needs, with what happens between them.
    #[arg(long, value_name = "T", value_delimiter = ',')]
    pub tensor: Vec<u32>,
    /// Schedules to measure for, as `oases bench` takes them; all of them, with sub-batches and without, where it is left out.
    #[arg(long = "schedule", value_name = "SCHEDULE", value_delimiter = ',')]
    pub schedules: Vec<String>,
    /// How often each step is measured.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// The file to write; standard output where it is left out.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `oases plan`
#[derive(Args, Debug)]
#[command(after_help = PLAN_EXAMPLES)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["machine", "profile", "measure"])))]
pub struct PlanArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Take durations from the description of a machine: the name of one that is built in, or a TOML file.
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<PathBuf>,
    /// Take durations from a profile that `oases profile` has written, or from a CSV table of published block times, to
    /// which `--machine` gives the links and the memory.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Take durations from this machine, now.
    #[arg(long, conflicts_with_all = ["machine", "profile"])]
    pub measure: bool,
    /// What a rank may need, such as `24GB` or `22.4GiB`; the memory of the machine's device where it is left out.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// Sequences of a step, instead of the configuration's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub batch: Option<u32>,
    /// TMP degrees to choose from; the powers of two up to `parallel.tensor` where it is left out.
    #[arg(long, value_name = "T", value_delimiter = ',')]
    pub degrees: Vec<u32>,
    /// The schedule, instead of the configuration's.
    #[arg(long, value_name = "NAME")]
    pub schedule: Option<String>,
    /// Search over schedules, micro-batches, sub-batches and what each block keeps as well.
    #[arg(long)]
    pub search: bool,
    /// What solves the problem.
    #[arg(long, value_enum, default_value_t = PlanSolver::Labels)]
    pub solver: PlanSolver,
    /// Write the problem as an integer linear programme, in LP format.
    #[arg(long, value_name = "FILE")]
    pub dump_lp: Option<PathBuf>,
    /// The configuration to write: this one, with the plan in it.
    #[arg(short, long, value_name = "FILE", default_value = "plan.toml")]
    pub output: PathBuf,
    /// Run the plan, the runner-up, all uniform degrees and N random layouts, and show predicted beside measured.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub verify: Option<u32>,
    /// How often each of them runs.
    #[arg(long, value_name = "N", requires = "verify", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Compute nothing while verifying: instructions last as long as their costs. For more ranks than processors.
    #[arg(long, requires = "verify")]
    pub timed: bool,
    /// The seed of the random layouts.
    #[arg(long, value_name = "S", requires = "verify", default_value_t = 0)]
    pub seed: u64,
    /// The page to write of what was verified; in runs/, named after the plan, where it is left out.
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub report: Option<PathBuf>,
    /// The form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// What solves the planning problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanSolver {
    /// The exact label-setting dynamic programme.
    Labels,
    /// An integer linear programme, solved by microlp.
    Ilp,
    /// An integer linear programme, solved by HiGHS, where this program was built with it.
    Highs,
}

/// `oases bench`
#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// A schedule to compare, such as `oases`, `decomposed pieces=8` or, with a TMP degree for each block,
    /// `oases degrees=2*3+1*4+2*3`; may be given several times. The configuration's where it is left out; `all` stands for
    /// every one. Changes may be of sub_batches, keep, pieces, cut, degrees, order, chunks and zero; runs of blocks are joined by `+`.
    #[arg(long = "schedule", value_name = "SCHEDULE", value_delimiter = ',')]
    pub schedules: Vec<String>,
    /// A link, as the ratio of an all-reduce's time to a block's forward; may be given several times.
    #[arg(long = "ratio", value_name = "C/F", value_delimiter = ',')]
    pub ratios: Vec<f64>,
    /// A link by its speed, such as `1 Gbit/s`; may be given several times.
    #[arg(long = "link", value_name = "RATE", value_delimiter = ',')]
    pub links: Vec<String>,
    /// How often each schedule runs on each link.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Compute nothing: instructions last as long as they were measured. What schedules, executor and link do without the
    /// noise of the machine.
    #[arg(long)]
    pub timed: bool,
    /// With --timed, let instructions last as long as the description of a machine says; a name or a file.
    #[arg(long, value_name = "MACHINE", requires = "timed")]
    pub machine: Option<PathBuf>,
    /// The page to write; in runs/, named after the configuration, where it is left out.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `oases generate`
#[derive(Args, Debug)]
#[command(after_help = GENERATE_EXAMPLES)]
pub struct GenerateArgs {
    /// The folder of a run, which holds config.toml and checkpoints/.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// The text to continue.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// How many tokens to add.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub tokens: usize,
    /// How much chance there is: 0 always takes the likeliest token, 1 follows the model's probabilities.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Choose among the K likeliest tokens only.
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the fewest likeliest tokens that together have the probability P.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// The seed of the choices.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

/// `oases reproduce`
#[derive(Args, Debug)]
#[command(after_help = REPRODUCE_EXAMPLES)]
pub struct ReproduceArgs {
    /// Which experiments; all where none is named.
    #[arg(value_enum, value_name = "EXPERIMENT")]
    pub experiments: Vec<Experiment>,
    /// The form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// An experiment of the Oases paper, arXiv 2305.16121.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Experiment {
    /// What cutting batches in two costs, by hidden size.
    Figure5,
    /// End-to-end throughput of five methods on seven models.
    Figure6,
    /// Pipeline and tensor parallelism over batch sizes.
    Figure7,
    /// Weak scaling with data parallelism.
    Figure10,
    /// Device utilisation.
    Utilisation,
    /// The steps from Megatron-LM to Oases.
    Ablation,
    /// Selective recomputation.
    Selective,
    /// A server with fast links.
    V100,
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

fn train_long_help() -> String {
    format!(
        "{TRAIN_EXAMPLES}\n\nThe run's folder holds config.toml (with every default filled in), metrics.jsonl, \
         checkpoints/ and summary.json.\n\n{}\n\nKeys of a configuration:\n{}",
        launched::HELP,
        keys::reference()
    )
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Request {
    /// Do this.
    Run(Box<Command>),
    /// Show this text: help or the version.
    Show(String),
}

/// Reads a command line.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<Request> {
    let error = match CommandLine::try_parse_from(arguments) {
        Ok(line) => return Ok(Request::Run(Box::new(line.command))),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Request::Show(error.to_string())),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Err(UserError::new(
            "no command given",
            "`oases --help` lists the commands; start with `oases train configs/quickstart.toml`",
        )
        .into()),
        _ => Err(user_error(&error).into()),
    }
}

/// The definition of the command line, for completions and manual pages.
pub fn definition() -> clap::Command {
    CommandLine::command()
}

/// The parser's own message is a page; this is its first paragraph as one line, and the most helpful of the rest.
fn user_error(error: &clap::Error) -> UserError {
    let text = error.to_string();
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    UserError::new(message, suggestion(error).unwrap_or_else(|| usage(&text)))
}

fn suggestion(error: &clap::Error) -> Option<String> {
    const SUGGESTIONS: [ContextKind; 3] =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    SUGGESTIONS.iter().find_map(|kind| match error.get(*kind)? {
        ContextValue::String(name) => Some(format!("did you mean `{name}`?")),
        ContextValue::Strings(names) if !names.is_empty() => {
            Some(format!("did you mean `{}`?", names.join("` or `")))
        }
        _ => None,
    })
}

fn usage(text: &str) -> String {
    match text.lines().find_map(|line| line.strip_prefix("Usage: ")) {
        Some(usage) => format!("usage: {usage}"),
        None => "`oases COMMAND --help` describes all options of a command".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    fn refused(line: &str) -> String {
        let arguments = line.split_whitespace().map(OsString::from);
        format!("{:?}", parse(arguments).unwrap_err().downcast::<UserError>().unwrap())
    }

    #[test]
    fn what_cannot_be_parsed_is_one_line_and_a_hint() {
        for (line, message, hint) in [
            ("oases", "no command given", "`oases --help` lists the commands"),
            ("oases trian x", "unrecognized subcommand 'trian'", "did you mean `train`?"),
            (
                "oases train",
                "the following required arguments were not provided: <CONFIG>",
                "usage: oases train",
            ),
            ("oases train x --formt json", "unexpected argument '--formt' found", "did you mean `--format`?"),
            ("oases train x --set a.b", "there is no `=`", "`oases COMMAND --help`"),
            ("oases generate r --prompt p --tokens many", "invalid value 'many' for '--tokens <N>'", ""),
        ] {
            let refused = refused(line);
            assert!(refused.contains(message) && refused.contains(hint), "{line}: {refused}");
        }
    }

    #[test]
    fn every_key_is_in_the_long_help() {
        let Ok(Request::Show(help)) = parse(["oases", "train", "--help"].map(OsString::from)) else {
            panic!("no help");
        };
        for key in keys::KEYS {
            assert!(help.contains(key.name()), "{}", key.path);
        }
    }
}
