//! From what the user typed to what will be done: a TOML file and `--set` overrides become a [`RunConfig`].
//!
//! `document` keeps what was typed and where, `families` adds what a family of models decides, `keys` is the table of all keys, `reader` takes typed values out of the
//! document, `rules` relates them, `resolved` is the outcome, `changes` compares two. Nothing here opens any file but the configuration.

mod changes;
mod document;
mod families;
pub mod keys;
mod model;
mod parallel;
mod reader;
mod resolved;
mod rules;
#[cfg(test)]
mod tests;
mod units;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use changes::changes;
pub use document::Override;
pub use model::ModelConfig;
pub use resolved::{DataConfig, RunConfig};
pub use units::{Bandwidth, UnitError};

use crate::environment::Environment;
use crate::error::UserError;
use document::Document;

/// A configuration is a page of text; what is longer is another kind of file.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a configuration file, applies the overrides, fills in the defaults and checks all rules.
pub fn load(path: &Path, overrides: &[Override], environment: &Environment) -> Result<RunConfig, UserError> {
    let (name, text) = open(path, environment)?;
    let stem = path.file_stem().map_or("run".into(), |stem| stem.to_string_lossy());
    resolve(&name, &text, overrides, &stem)
}

/// The name and the text of a configuration file.
fn open(path: &Path, environment: &Environment) -> Result<(String, String), UserError> {
    let name = path.display().to_string();
    let text = read(path).map_err(|problem| {
        let hint = if path.is_absolute() {
            "give the path of a configuration such as configs/quickstart.toml".to_string()
        } else {
            format!("the path starts at {}", environment.current_folder_text())
        };
        UserError::new(format!("cannot read the configuration {name}: {problem}"), hint)
    })?;
    Ok((name, text))
}

/// What a folder's configuration says of its model. The rest of it need not be there: an import has none.
#[derive(Clone, Debug, PartialEq)]
pub struct FolderModel {
    /// `[model]`
    pub model: ModelConfig,
    /// What the weights began as.
    pub init_from: Option<PathBuf>,
    /// The tokenizer of its text; `None` where tokens are bytes.
    pub tokenizer: Option<PathBuf>,
    /// Share of tokens that a masked language model predicts.
    pub mask_rate: f64,
}

/// Reads of a configuration file what it says of the model.
pub fn load_model(path: &Path, environment: &Environment) -> Result<FolderModel, UserError> {
    let (name, text) = open(path, environment)?;
    let mut document = Document::parse(&name, &text)?;
    families::fill_in(&mut document)?;
    let mut reader = reader::Reader::new(&document);
    let folder = FolderModel {
        model: ModelConfig::read(&mut reader),
        init_from: reader.path("train.init_from"),
        tokenizer: reader.path("data.tokenizer"),
        mask_rate: reader.number("train.mask_rate"),
    };
    match UserError::all(reader.finish().0) {
        Some(error) => Err(error),
        None => Ok(folder),
    }
}

/// The same for a text in memory, which messages call `name`.
fn resolve(name: &str, text: &str, overrides: &[Override], stem: &str) -> Result<RunConfig, UserError> {
    let mut document = Document::parse(name, text)?;
    document.apply(overrides);
    families::fill_in(&mut document)?;
    RunConfig::resolve(&document, stem)
}

/// The text of the file, or why there is none.
fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| describe_io(&error))?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| describe_io(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err("it is larger than 1 MiB".to_string());
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_string())
}

/// An input or output error in lower case and without its number.
pub fn describe_io(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_lowercase().chain(characters).collect())
}
