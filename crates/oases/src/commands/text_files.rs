//! Whether the text files that a configuration names can be read, checked before anything is allocated.

use std::fs::{self, File};
use std::path::Path;

use oases_schedule::Bytes;

use crate::config::{RunConfig, describe_io};
use crate::environment::Environment;
use crate::error::UserError;

/// Checks every file against the memory that is available; all problems are told together. The bytes of all of them.
pub fn check(
    config: &RunConfig,
    environment: &Environment,
    available: Option<u64>,
) -> Result<Bytes, UserError> {
    let mut problems = Vec::new();
    let mut bytes = 0u64;
    for path in &config.data.text {
        match readable(path) {
            Ok(length) => bytes = bytes.saturating_add(length),
            Err(problem) => problems.push(UserError::new(
                format!("cannot use the text file {}: {problem}", path.display()),
                hint(path, environment),
            )),
        }
    }
    // A window is a sequence and the token after it; training and validation need one each. How many tokens other text has is only known
    // when it is tokenised.
    let of_bytes = config.data.tokenizer.is_none() && !config.data.text.is_empty();
    let least = 2 * (config.model.sequence as u64 + 1);
    if problems.is_empty() && of_bytes && bytes < least {
        problems.push(UserError::new(
            format!("the text has {bytes} bytes, too few for sequences of {} tokens", config.model.sequence),
            format!("give at least {least} bytes in `data.text`, or make `model.sequence` smaller"),
        ));
    }
    if let Some(available) = available.filter(|available| problems.is_empty() && bytes > *available) {
        problems.push(UserError::new(
            format!(
                "the text takes {}, more than the {} of memory that are available",
                Bytes(bytes),
                Bytes(available)
            ),
            "a run holds all of its text in memory; list fewer or smaller files in `data.text`",
        ));
    }
    UserError::all(problems).map_or(Ok(Bytes(bytes)), Err)
}

/// The length of a file that can be read, or why it cannot.
fn readable(path: &Path) -> Result<u64, String> {
    // Asked before opening: to open a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(|error| describe_io(&error))?;
    if metadata.is_dir() {
        return Err("it is a folder".to_string());
    }
    if !metadata.is_file() {
        return Err("it is not a regular file".to_string());
    }
    File::open(path).map_err(|error| describe_io(&error))?;
    match metadata.len() {
        0 => Err("it is empty".to_string()),
        length => Ok(length),
    }
}

fn hint(path: &Path, environment: &Environment) -> String {
    if path.is_absolute() {
        return "`data.text` lists the files to train on".to_string();
    }
    format!("paths in `data.text` start at the current directory, {}", environment.current_folder_text())
}
