//! The `oases` program: trains transformer language models with their communication hidden.

#![allow(
    unreachable_pub,
    reason = "a program exports nothing; `pub` marks what a module offers to the others"
)]

mod args;
mod commands;
mod config;
mod doctor;
mod environment;
mod error;
mod interrupt;
mod launched;
mod output_file;
mod progress;
mod report;
mod terminal;

use std::process::ExitCode;

use environment::Environment;
use terminal::Terminal;

fn main() -> ExitCode {
    let environment = Environment::read();
    let terminal = Terminal::of_stderr(&environment);
    let outcome = args::parse(std::env::args_os()).and_then(|request| match request {
        args::Request::Run(command) => commands::run(&command, &environment, &terminal),
        args::Request::Show(text) => terminal::print(&text),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error::report(&error, &terminal),
    }
}
