//! The two ways out of the program: data on standard output, everything else on standard error.

use std::io::{self, IsTerminal, Write};

use anyhow::Context;

use crate::environment::Environment;
use crate::error::OutputClosed;

/// What standard error can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Standard error is a terminal whose cursor can be moved: a progress bar may be drawn.
    pub interactive: bool,
    /// Colour may be used; never needed to understand a message.
    pub colour: bool,
}

impl Terminal {
    /// Standard error as it is now.
    pub fn of_stderr(environment: &Environment) -> Terminal {
        let interactive = io::stderr().is_terminal() && !environment.dumb_terminal;
        Terminal { interactive, colour: interactive && !environment.no_color }
    }

    /// How an error line begins.
    pub fn error_label(&self) -> &'static str {
        if self.colour { "\u{1b}[1;31merror\u{1b}[0m" } else { "error" }
    }

    /// How a hint line begins.
    pub fn hint_label(&self) -> &'static str {
        if self.colour { "\u{1b}[1;36mhint\u{1b}[0m" } else { "hint" }
    }

    /// Writes to standard error. A terminal that has been closed must not end a training run, so failures are ignored.
    pub fn write(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    /// Writes one line to standard error.
    pub fn line(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }
}

/// Writes data to standard output.
///
/// A reader that has closed the pipe gives [`OutputClosed`]; a full disk is a failure like any other.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        result => result.context("cannot write to standard output"),
    }
}
