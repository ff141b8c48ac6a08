//! One module for each command: what it checks, what it does, what it prints.

mod bench;
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
mod shell;
mod simulate;
mod sources;
mod text_files;
mod train;

use crate::args::Command;
use crate::doctor;
use crate::environment::Environment;
use crate::terminal::{self, Terminal};

/// Does what was asked for.
pub fn run(command: &Command, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    match command {
        Command::Train(args) => train::run(args, environment, terminal),
        Command::Explain(args) => explain::run(args, environment),
        Command::Simulate(args) => simulate::run(args, environment, terminal),
        Command::Profile(args) => profile::run(args, environment, terminal),
        Command::Plan(args) => plan::run(args, environment, terminal),
        Command::Bench(args) => bench::run(args, environment, terminal),
        Command::Generate(args) => generate::run(args, environment, terminal),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Doctor => terminal::print(&doctor::report(environment)),
        Command::Completions { shell } => shell::completions(*shell),
        Command::Man { command } => shell::manual(command.as_deref()),
    }
}
