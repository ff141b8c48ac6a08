//! One module for each command: what it checks, what it does, what it prints.

mod bench;
mod explain;
mod generate;
mod machine_files;
mod measuring;
mod plan_run;
mod profile;
mod recipes;
mod reproduce;
mod shell;
mod simulate;
mod text_files;
mod train;

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use crate::args::Command;
use crate::config::describe_io;
use crate::doctor;
use crate::environment::Environment;
use crate::error::UserError;
use crate::terminal::{self, Terminal};

/// Does what was asked for.
pub fn run(command: &Command, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    match command {
        Command::Train(args) => train::run(args, environment, terminal),
        Command::Explain(args) => explain::run(args, environment),
        Command::Simulate(args) => simulate::run(args, environment, terminal),
        Command::Profile(args) => profile::run(args, environment, terminal),
        Command::Bench(args) => bench::run(args, environment, terminal),
        Command::Generate(args) => generate::run(args, environment, terminal),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Doctor => terminal::print(&doctor::report(environment)),
        Command::Completions { shell } => shell::completions(*shell),
        Command::Man { command } => shell::manual(command.as_deref()),
    }
}

/// Writes a trace to a file.
fn write_trace_file(
    path: &Path,
    write: impl FnOnce(BufWriter<File>) -> io::Result<()>,
) -> Result<(), UserError> {
    File::create(path).and_then(|file| write(BufWriter::new(file))).map_err(|error| {
        UserError::new(
            format!("cannot write the trace {}: {}", path.display(), describe_io(&error)),
            "give the path of a file in a folder that exists",
        )
    })
}
