//! Exchange with folders as transformers writes them: `config.json` and safetensors, in and out.
//!
//! An import is a folder with a checkpoint before the first step, whose weights every layout can read, and `source/`: what the export
//! needs to write the same files again. Tensors are converted one at a time, so memory holds one of theirs and one of ours.

mod config;
mod export;
mod names;
mod tensors;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use oases_exec::philox::{Normal, key_from_seed};
use oases_schedule::{Init, Model, Parameter};
pub use safetensors::tensor::Dtype;
use serde::{Deserialize, Serialize};

pub use self::export::{ExportOptions, Exported, export, source_of};
pub use self::names::Family;
use self::names::{Form, Names, Place};
use self::tensors::{Folder, Wanted, write_file};
use crate::checkpoint::{Checkpoints, Description, Kind, Metadata, TensorSpec};
use crate::error::{Error, Result};
use crate::job::describe_model;
use crate::replace_file::replace_file;
use crate::run_dir::RunPaths;

/// Files that are carried along as they are.
const CARRIED: [&str; 8] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
];
const SOURCE: &str = "source";
const TENSORS: &str = "tensors.json";
const REST: &str = "rest.safetensors";
/// A `config.json` is a page of text.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// What a folder of theirs holds.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its family.
    pub family: Family,
    /// The model.
    pub model: Model,
    /// Tensors that are no parameters of the language model, which an export writes back.
    pub kept: Vec<String>,
    /// Parameters that the folder lacks, with their initial values: a head that was never trained.
    pub fresh: Vec<String>,
    /// Whether there is a `tokenizer.json`.
    pub tokenizer: bool,
}

/// What an export needs to write what an import has read.
#[derive(Debug, Serialize, Deserialize)]
struct Source {
    /// What stands before the names of all tensors but the head's.
    prefix: String,
    /// Name and type of each tensor, in the order of the files.
    tensors: Vec<(String, Dtype)>,
}

/// Reads a folder of theirs into the new folder `out`. `describe` says what is written into the run configuration there.
pub fn import(dir: &Path, out: &Path, describe: impl Fn(&Imported) -> String) -> Result<Imported> {
    let (family, model) = read_config(dir)?;
    let folder = Folder::open(dir)?;
    let expects = Expected::new(family, &model, &folder, dir)?;
    let partial = partial_folder(out)?;
    let imported = Imported {
        family,
        kept: expects.kept.clone(),
        fresh: expects.fresh.clone(),
        tokenizer: dir.join("tokenizer.json").is_file(),
        model,
    };
    let written = write_import(&folder, &expects, &imported, dir, &partial, &describe(&imported));
    finish(written, &partial, out)?;
    Ok(imported)
}

/// Reads `config.json` of a folder of theirs.
pub fn read_config(dir: &Path) -> Result<(Family, Model)> {
    let path = dir.join("config.json");
    // A pipe of that name would be waited for.
    let about = fs::metadata(&path).ok().filter(fs::Metadata::is_file).ok_or_else(|| {
        Error::configuration(format!("{} has no config.json", dir.display())).with_hint(
            "give a folder as `save_pretrained` of transformers writes it, with config.json and model.safetensors",
        )
    })?;
    if about.len() > MAX_CONFIG_BYTES {
        return Err(Error::configuration(format!("{} is larger than 1 MiB", path.display())));
    }
    let text = fs::read_to_string(&path).map_err(|source| Error::input_output("read", &path, source))?;
    config::read(&path, &text)
}

/// What a folder must hold, compared with what it holds.
struct Expected {
    prefix: String,
    /// The place of each parameter of ours that is there.
    places: Vec<(Parameter, Place)>,
    fresh: Vec<String>,
    kept: Vec<String>,
}

impl Expected {
    fn new(family: Family, model: &Model, folder: &Folder, dir: &Path) -> Result<Expected> {
        let prefix = family.prefix();
        let prefix = if folder.tensors.keys().any(|name| name.starts_with(prefix)) { prefix } else { "" };
        let names = Names { family, model, prefix };
        let (mut places, mut fresh, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        let mut used = BTreeSet::new();
        for parameter in model.parameters() {
            let place = names.place(&parameter.name).ok_or_else(|| {
                Error::internal(format!("no place for {} in a {}", parameter.name, family.model_type()))
            })?;
            match folder.tensors.get(&place.tensor) {
                // Models without a head come without one.
                None if place.tensor.starts_with("cls.") => fresh.push(parameter.name),
                None => problems.push(format!("{} is missing", place.tensor)),
                Some(stored) => {
                    let wanted = shape_of(&parameter, place.form);
                    if stored.shape != wanted && used.insert(place.tensor.clone()) {
                        let found = &stored.shape;
                        problems.push(format!("{} has shape {found:?}, not {wanted:?}", place.tensor));
                    }
                    if !matches!(stored.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
                        problems.push(format!("{} has the type {:?}", place.tensor, stored.dtype));
                    }
                    used.insert(place.tensor.clone());
                    places.push((parameter, place));
                }
            }
        }
        let aliases: BTreeSet<String> = names.aliases().map(|(_, theirs)| theirs).collect();
        let mut kept = Vec::new();
        for name in folder.tensors.keys().filter(|name| !used.contains(*name) && !aliases.contains(*name)) {
            match family.may_keep(name) {
                true => kept.push(name.clone()),
                false => problems.push(format!("{name} is unknown")),
            }
        }
        problems.sort();
        problems.dedup();
        if problems.is_empty() {
            return Ok(Expected { prefix: prefix.to_owned(), places, fresh, kept });
        }
        Err(Error::configuration(format!(
            "{} does not hold the {} that its config.json describes: {}",
            dir.display(),
            family.model_type(),
            problems.join("; ")
        ))
        .with_hint("config.json and the tensors must be of one model"))
    }
}

/// The shape of a tensor of theirs that holds a parameter of ours.
fn shape_of(parameter: &Parameter, form: Form) -> Vec<usize> {
    let (rows, columns) = (parameter.rows, parameter.columns);
    match form {
        Form::Same => parameter.shape(),
        Form::Transposed => vec![columns, rows],
        Form::Third(_) if parameter.vector => vec![3 * columns],
        Form::Third(_) => vec![columns, 3 * rows],
    }
}

fn write_import(
    folder: &Folder,
    expects: &Expected,
    imported: &Imported,
    dir: &Path,
    out: &Path,
    configuration: &str,
) -> Result<()> {
    let model = &imported.model;
    let parameters = model.parameters();
    let specs: Vec<TensorSpec> = parameters
        .iter()
        .map(|parameter| TensorSpec::new(Kind::Weight.tensor_name(&parameter.name), parameter.shape()))
        .collect();
    let metadata =
        Metadata { model: describe_model(model), optimizer: Description::new(), ..Metadata::default() };
    let paths = RunPaths::new(out);
    let checkpoints = Checkpoints::open(paths.checkpoints())?;
    let draft = checkpoints.begin(&metadata, &specs)?;
    // Neighbours are often parts of one tensor.
    let mut at_hand: Option<(String, Vec<f32>)> = None;
    for (parameter, place) in &expects.places {
        if at_hand.as_ref().is_none_or(|(name, _)| *name != place.tensor) {
            drop(at_hand.take());
            at_hand = Some((place.tensor.clone(), folder.values(&place.tensor)?));
        }
        let Some((_, values)) = &at_hand else { continue };
        let name = Kind::Weight.tensor_name(&parameter.name);
        match place.form {
            Form::Same => draft.write_whole(&name, values)?,
            form => draft.write_whole(&name, &ours(values, parameter, form))?,
        }
    }
    for (index, parameter) in parameters.iter().enumerate() {
        if expects.fresh.contains(&parameter.name) {
            draft.write_whole(&Kind::Weight.tensor_name(&parameter.name), &initial(parameter, index))?;
        }
    }
    draft.publish()?;
    let source = out.join(SOURCE);
    fs::create_dir_all(&source).map_err(|error| Error::input_output("create", &source, error))?;
    for name in CARRIED {
        let (from, to) = (dir.join(name), source.join(name));
        if from.is_file() {
            fs::copy(&from, &to).map_err(|error| Error::input_output("write", &to, error))?;
        }
    }
    let rest: Vec<Wanted> = expects.kept.iter().map(|name| wanted(folder, name)).collect();
    if !rest.is_empty() {
        write_file(&source.join(REST), &rest, |wanted, take| folder.chunks(&wanted.name, take))?;
    }
    let tensors = folder.tensors.iter().map(|(name, stored)| (name.clone(), stored.dtype)).collect();
    let described = Source { prefix: expects.prefix.clone(), tensors };
    let text =
        serde_json::to_string(&described).map_err(|error| Error::internal(format!("{TENSORS}: {error}")))?;
    write_text(&source.join(TENSORS), &text)?;
    write_text(&paths.config(), configuration)
}

fn wanted(folder: &Folder, name: &str) -> Wanted {
    let stored = &folder.tensors[name];
    Wanted { name: name.to_owned(), dtype: stored.dtype, shape: stored.shape.clone() }
}

/// A parameter of ours, `[out, in]`, out of a tensor of theirs.
fn ours(theirs: &[f32], parameter: &Parameter, form: Form) -> Vec<f32> {
    let (rows, columns) = (parameter.rows, parameter.columns);
    match form {
        Form::Same => theirs.to_vec(),
        Form::Third(third) if parameter.vector => theirs[third * columns..][..columns].to_vec(),
        Form::Transposed | Form::Third(_) => {
            let (stride, first) =
                if let Form::Third(third) = form { (3 * rows, third * rows) } else { (rows, 0) };
            let row = |row: usize| (0..columns).map(move |column| theirs[column * stride + first + row]);
            (0..rows).flat_map(row).collect()
        }
    }
}

/// What a parameter is before training.
fn initial(parameter: &Parameter, index: usize) -> Vec<f32> {
    let mut values = vec![0.0; parameter.elements()];
    match parameter.init {
        Init::Zeros => {}
        Init::Ones => values.fill(1.0),
        Init::Normal { std } => {
            Normal { mean: 0.0, deviation: std }.fill(key_from_seed(0), index as u64, 0, &mut values);
        }
    }
    values
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    replace_file(path, "write", |out| {
        out.write_all(text.as_bytes()).map_err(|source| Error::input_output("write", path, source))
    })
}

/// The name under which a folder is made before it is complete. Refuses what exists.
fn partial_folder(out: &Path) -> Result<PathBuf> {
    if out.exists() {
        return Err(Error::configuration(format!("{} exists already", out.display()))
            .with_hint("give the name of a new folder, or remove that one"));
    }
    // Components leave out a slash at the end, behind which the new folder would lie within the one to be made.
    let mut name = out.components().collect::<PathBuf>().into_os_string();
    name.push(".tmp");
    let partial = PathBuf::from(name);
    // What an earlier attempt has left is nobody's.
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(|source| Error::input_output("create", &partial, source))?;
    Ok(partial)
}

/// Gives a complete folder its name, or removes what there is of an incomplete one.
fn finish(written: Result<()>, partial: &Path, out: &Path) -> Result<()> {
    let named = written
        .and_then(|()| fs::rename(partial, out).map_err(|source| Error::input_output("create", out, source)));
    if named.is_err() {
        let _ = fs::remove_dir_all(partial);
    }
    named
}

#[cfg(test)]
mod tests;
