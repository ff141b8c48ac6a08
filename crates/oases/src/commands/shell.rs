//! `oases completions` and `oases man`: what a shell and a manual reader need, made from the command line's definition.

use crate::args::definition;
use crate::error::UserError;
use crate::terminal;

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "oases", &mut script);
    terminal::print(&String::from_utf8(script)?)
}

/// Prints the manual page of the program, or of one of its commands.
pub fn manual(command: Option<&str>) -> anyhow::Result<()> {
    let mut program = definition();
    program.build();
    let page = match command {
        None => program,
        Some(name) => find(&program, name)?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    terminal::print(&String::from_utf8(text)?)
}

fn find(program: &clap::Command, name: &str) -> Result<clap::Command, UserError> {
    if let Some(command) = program.find_subcommand(name) {
        return Ok(command.clone());
    }
    let names: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
    Err(UserError::new(
        format!("there is no command `{name}`"),
        format!("the commands are {}", names.join(", ")),
    ))
}
