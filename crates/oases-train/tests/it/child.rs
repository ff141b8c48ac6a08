//! This test binary started again, to do something that a test then does to it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FOLDER: &str = "OASES_TEST_CHILD_FOLDER";

/// A command that runs the test `name` alone, with its output on a pipe and `folder` given to it.
pub(crate) fn command(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    prepare(&mut command, name, folder);
    command
}

/// The same in a shell that first runs `setup`.
pub(crate) fn command_after(setup: &str, name: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")]).arg(env::current_exe().unwrap());
    prepare(&mut command, name, folder);
    command
}

fn prepare(command: &mut Command, name: &str, folder: &Path) {
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
}

/// The folder that the parent gave; nothing where the test runs with all others: then it has nothing to do.
pub(crate) fn folder() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}
