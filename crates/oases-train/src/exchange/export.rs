//! Writing a checkpoint as transformers reads it: tensors under their names, one at a time, in one file or in several.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use oases_schedule::{Model, Parameter};
use safetensors::tensor::Dtype;

use super::names::{Family, Form, Names};
use super::tensors::{Folder, Wanted, encode, write_file};
use super::{
    CARRIED, REST, SOURCE, Source, TENSORS, config, finish, partial_folder, shape_of, wanted, write_text,
};
use crate::checkpoint::{Checkpoint, Kind};
use crate::error::{Error, Result};
use crate::job::describe_model;

/// How an export is written.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The type of all weights; `None` for those of the import, or 32 bits.
    pub dtype: Option<Dtype>,
    /// Bytes of a file beyond which another one is begun.
    pub shard_bytes: usize,
}

/// What an export has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Files of tensors.
    pub files: usize,
    /// Tensors in them.
    pub tensors: usize,
    /// Files that the import had brought along.
    pub carried: Vec<String>,
}

/// Where a run, or what it went on from, keeps what an import has brought along.
pub fn source_of(run: &Path, init_from: Option<&Path>) -> Option<PathBuf> {
    let folders = std::iter::once(run).chain(init_from).map(|folder| folder.join(SOURCE));
    folders.into_iter().find(|source| source.join(TENSORS).is_file())
}

/// Writes the weights of a checkpoint into the new folder `out`, as transformers reads them.
pub fn export(
    checkpoint: &Checkpoint,
    family: Family,
    model: &Model,
    source: Option<&Path>,
    out: &Path,
    options: &ExportOptions,
) -> Result<Exported> {
    checkpoint.metadata().expect_model(&describe_model(model), checkpoint.path())?;
    let read = source.map(read_source).transpose()?;
    let rest = source
        .filter(|source| source.join(REST).is_file())
        .map(|source| Folder::open_file(&source.join(REST)));
    let export = Export { checkpoint, family, model, source: read, rest: rest.transpose()?, options };
    let partial = partial_folder(out)?;
    let written = export.write(source, &partial);
    let mut exported = None;
    finish(written.map(|written| exported = Some(written)), &partial, out)?;
    exported.ok_or_else(|| Error::internal("an export without a report"))
}

fn read_source(source: &Path) -> Result<Source> {
    let path = source.join(TENSORS);
    let text = fs::read_to_string(&path).map_err(|error| Error::input_output("read", &path, error))?;
    serde_json::from_str(&text).map_err(|error| {
        Error::configuration(format!("{}: {error}", path.display())).with_hint("import the model again")
    })
}

struct Export<'a> {
    checkpoint: &'a Checkpoint,
    family: Family,
    model: &'a Model,
    source: Option<Source>,
    rest: Option<Folder>,
    options: &'a ExportOptions,
}

/// What the bytes of a tensor of theirs come from.
enum Content<'a> {
    /// Parameters of ours, each with its form.
    Ours(Vec<(&'a Parameter, Form)>),
    /// A tensor that the import had put aside.
    Rest,
}

impl Export<'_> {
    fn write(&self, source: Option<&Path>, out: &Path) -> Result<Exported> {
        let parameters = self.model.parameters();
        let tensors = self.tensors(&parameters)?;
        let shards = shards(&tensors, self.options.shard_bytes);
        let mut index = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => "model.safetensors".to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
            };
            let wanted: Vec<Wanted> =
                tensors[shard.clone()].iter().map(|(wanted, _)| wanted.clone()).collect();
            let mut contents = tensors[shard.clone()].iter().map(|(_, content)| content);
            write_file(&out.join(&name), &wanted, |wanted, take| match contents.next() {
                Some(Content::Ours(parts)) => self.encode(wanted, parts, take),
                Some(Content::Rest) => {
                    let rest = self.rest.as_ref();
                    rest.map_or(Ok(()), |rest| rest.chunks(&wanted.name, take))
                }
                None => Err(Error::internal("a tensor without content")),
            })?;
            index.extend(wanted.into_iter().map(|wanted| (wanted.name, name.clone())));
        }
        if shards.len() > 1 {
            let total: usize = tensors.iter().map(|(wanted, _)| wanted.bytes()).sum();
            let json = serde_json::json!({"metadata": {"total_size": total}, "weight_map": index});
            write_text(&out.join("model.safetensors.index.json"), &format!("{json:#}\n"))?;
        }
        let carried = self.carry(source, out)?;
        Ok(Exported { files: shards.len(), tensors: tensors.len(), carried })
    }

    /// The tensors of their files, in order.
    fn tensors<'a>(&self, parameters: &'a [Parameter]) -> Result<Vec<(Wanted, Content<'a>)>> {
        let fresh_head = self.source.as_ref().is_some_and(|source| {
            self.family == Family::Bert && !source.tensors.iter().any(|(name, _)| name.starts_with("cls."))
        });
        // A base model that got a head is a whole model from here on.
        let source = self.source.as_ref().filter(|_| !fresh_head);
        let prefix = source.map_or(self.family.prefix(), |source| &source.prefix);
        let names = Names { family: self.family, model: self.model, prefix };
        let mut of_tensors: BTreeMap<String, Vec<(&Parameter, Form)>> = BTreeMap::new();
        for parameter in parameters {
            let place = names.place(&parameter.name).ok_or_else(|| {
                Error::configuration(format!(
                    "a {} has no {}: this model is of no family that can be exported",
                    self.family.model_type(),
                    parameter.name
                ))
            })?;
            of_tensors.entry(place.tensor).or_default().push((parameter, place.form));
        }
        if let Some(source) = source {
            for (ours, theirs) in
                names.aliases().filter(|(_, theirs)| source.tensors.iter().any(|(name, _)| name == theirs))
            {
                let parameter = parameters.iter().find(|parameter| parameter.name == ours);
                of_tensors
                    .insert(theirs, parameter.into_iter().map(|parameter| (parameter, Form::Same)).collect());
            }
        }
        let stored = |name: &str| {
            let all = self.source.iter().flat_map(|source| &source.tensors);
            let bare = name.strip_prefix(self.family.prefix()).unwrap_or(name);
            all.into_iter()
                .find(|(known, _)| known == name || fresh_head && known == bare)
                .map(|(_, dtype)| *dtype)
        };
        let mut tensors: Vec<(Wanted, Content)> = Vec::new();
        for (name, parts) in of_tensors {
            let shape = shape_of(parts[0].0, parts[0].1);
            let dtype = self.options.dtype.or(stored(&name)).unwrap_or(Dtype::F32);
            tensors.push((Wanted { name, dtype, shape }, Content::Ours(parts)));
        }
        for name in self.rest.iter().flat_map(|rest| rest.tensors.keys()) {
            tensors.push((wanted(self.rest.as_ref().expect("it has names"), name), Content::Rest));
        }
        tensors.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        Ok(tensors)
    }

    fn encode(
        &self,
        wanted: &Wanted,
        parts: &[(&Parameter, Form)],
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut theirs = vec![0.0; wanted.shape.iter().product()];
        for (parameter, form) in parts {
            let name = Kind::Weight.tensor_name(&parameter.name);
            if *form == Form::Same {
                self.checkpoint.read(&name, &mut theirs)?;
                continue;
            }
            let mut values = vec![0.0; parameter.elements()];
            self.checkpoint.read(&name, &mut values)?;
            put(&values, parameter, *form, &mut theirs);
        }
        encode(&wanted.name, &theirs, wanted.dtype, take)
    }

    /// Copies what the import has brought along, or describes the model.
    fn carry(&self, source: Option<&Path>, out: &Path) -> Result<Vec<String>> {
        let mut carried = Vec::new();
        for name in CARRIED {
            let Some(from) = source.map(|source| source.join(name)).filter(|from| from.is_file()) else {
                continue;
            };
            let to = out.join(name);
            let text = fs::read(&from).map_err(|error| Error::input_output("read", &from, error))?;
            let text = if name == "config.json" { self.config(text)? } else { text };
            fs::write(&to, text).map_err(|error| Error::input_output("write", &to, error))?;
            carried.push(name.to_owned());
        }
        if !carried.iter().any(|name| name == "config.json") {
            write_text(&out.join("config.json"), &config::write(self.family, self.model)?)?;
        }
        Ok(carried)
    }

    /// Their `config.json`, with the class and the type of what is written now.
    fn config(&self, text: Vec<u8>) -> Result<Vec<u8>> {
        let headless = self.source.as_ref().is_some_and(|source| {
            self.family == Family::Bert && !source.tensors.iter().any(|(name, _)| name.starts_with("cls."))
        });
        if !headless && self.options.dtype.is_none() {
            return Ok(text);
        }
        let failed = |error: serde_json::Error| Error::internal(format!("config.json: {error}"));
        let mut json: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(failed)?;
        if headless {
            json.insert("architectures".into(), serde_json::json!([self.family.architecture()]));
        }
        if let Some(dtype) = self.options.dtype {
            let name = match dtype {
                Dtype::BF16 => "bfloat16",
                Dtype::F16 => "float16",
                _ => "float32",
            };
            let key = if json.contains_key("dtype") { "dtype" } else { "torch_dtype" };
            json.insert(key.into(), name.into());
        }
        serde_json::to_vec_pretty(&json).map_err(failed)
    }
}

/// Consecutive tensors of at most so many bytes, or one that is larger.
fn shards(tensors: &[(Wanted, Content<'_>)], most: usize) -> Vec<std::ops::Range<usize>> {
    let mut shards: Vec<std::ops::Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, (wanted, _)) in tensors.iter().enumerate() {
        match shards.last_mut() {
            Some(shard) if bytes + wanted.bytes() <= most => shard.end = index + 1,
            _ => {
                shards.push(index..index + 1);
                bytes = 0;
            }
        }
        bytes += wanted.bytes();
    }
    shards
}

/// Puts a parameter of ours into a tensor of theirs: the inverse of [`ours`].
fn put(values: &[f32], parameter: &Parameter, form: Form, theirs: &mut [f32]) {
    let (rows, columns) = (parameter.rows, parameter.columns);
    match form {
        Form::Same => theirs.copy_from_slice(values),
        Form::Third(third) if parameter.vector => {
            theirs[third * columns..][..columns].copy_from_slice(values)
        }
        Form::Transposed | Form::Third(_) => {
            let (stride, first) =
                if let Form::Third(third) = form { (3 * rows, third * rows) } else { (rows, 0) };
            for (row, values) in values.chunks_exact(columns).enumerate() {
                for (column, &value) in values.iter().enumerate() {
                    theirs[column * stride + first + row] = value;
                }
            }
        }
    }
}
