//! One module for each command: what it checks, what it does, what it prints.

mod bench;
mod data;
mod eval;
mod exchange;
mod explain;
mod generate;
mod machine_files;
mod measuring;
mod over_ring;
mod plan;
mod plan_run;
mod profile;
mod recipes;
mod reproduce;
mod run_folder;
mod shell;
mod simulate;
mod sources;
mod text_files;
mod train;

use crate::args::{Command, DataCommand};
use crate::doctor;
use crate::environment::Environment;
use crate::error::{ToldElsewhere, UserError};
use crate::launched::{self, Launched};
use crate::terminal::{self, Terminal};

/// Does what was asked for.
pub fn run(command: &Command, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    if !matches!(command, Command::Train(_) | Command::Doctor) {
        once(environment)?;
    }
    match command {
        Command::Train(args) => train::run(args, environment, terminal),
        Command::Explain(args) => explain::run(args, environment),
        Command::Simulate(args) => simulate::run(args, environment, terminal),
        Command::Profile(args) => profile::run(args, environment, terminal),
        Command::Plan(args) => plan::run(args, environment, terminal),
        Command::Bench(args) => bench::run(args, environment, terminal),
        Command::Generate(args) => generate::run(args, environment, terminal),
        Command::Import(args) => exchange::import(args),
        Command::Export(args) => exchange::export(args, environment, terminal),
        Command::Tokenize(args) => data::tokenize(args, terminal),
        Command::Data { command: DataCommand::Inspect(args) } => data::inspect(args),
        Command::Eval(args) => eval::run(args, environment, terminal),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Doctor => terminal::print(&doctor::report(environment)),
        Command::Completions { shell } => shell::completions(*shell),
        Command::Man { command } => shell::manual(command.as_deref()),
    }
}

/// Of several processes, the first says that only training is done by several.
fn once(environment: &Environment) -> anyhow::Result<()> {
    match launched::detect(&environment.launch, (None, None))? {
        Some(Launched { rank: 0, ranks, source }) if ranks > 1 => Err(UserError::new(
            format!("this command runs as one process, and {source} has started {ranks}"),
            "only `oases train` runs as several processes; start this one without a launcher",
        )
        .into()),
        Some(launched) if launched.ranks > 1 => Err(ToldElsewhere(2).into()),
        _ => Ok(()),
    }
}
