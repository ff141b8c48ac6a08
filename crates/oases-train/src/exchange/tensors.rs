//! Tensors of others' files: reading some of a folder, and writing files of them, one tensor at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorInfo};
use serde_json::Value;

use crate::checkpoint::read_header;
use crate::error::{Error, Result};
use crate::replace_file::replace_file;

const READ: &str = "read";
const WRITE: &str = "write";
/// Bytes that are converted at a time.
const CHUNK_BYTES: usize = 1 << 16;

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    file: usize,
    start: u64,
    bytes: usize,
}

impl Stored {
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// All tensors of a folder, in one file or in several.
#[derive(Debug)]
pub(super) struct Folder {
    files: Vec<(PathBuf, File)>,
    pub tensors: BTreeMap<String, Stored>,
}

impl Folder {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` names.
    pub(super) fn open(dir: &Path) -> Result<Folder> {
        let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
        let mut folder = Folder { files: Vec::new(), tensors: BTreeMap::new() };
        if single.is_file() || !index.is_file() {
            if !single.is_file() {
                return Err(Error::configuration(format!("{} has no model.safetensors", dir.display()))
                    .with_hint("give a folder as `save_pretrained` of transformers writes it: config.json beside model.safetensors, or beside model.safetensors.index.json and the files that it names"));
            }
            folder.add(&single)?;
            return Ok(folder);
        }
        let mut of_files: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in read_index(&index)? {
            of_files.entry(file).or_default().push(tensor);
        }
        let mut problems = Vec::new();
        for (name, tensors) in &of_files {
            let path = dir.join(name);
            if !path.is_file() {
                problems.push(format!("names {name}, which is missing"));
                continue;
            }
            folder.add(&path)?;
            let absent = tensors.iter().filter(|tensor| !folder.tensors.contains_key(*tensor));
            problems.extend(absent.map(|tensor| format!("puts {tensor} into {name}, which has none")));
        }
        if problems.is_empty() {
            return Ok(folder);
        }
        Err(Error::configuration(format!("{} {}", index.display(), problems.join("; ")))
            .with_hint("download the folder again, all of its files"))
    }

    /// Opens a single file.
    pub(super) fn open_file(path: &Path) -> Result<Folder> {
        let mut folder = Folder { files: Vec::new(), tensors: BTreeMap::new() };
        folder.add(path)?;
        Ok(folder)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(|source| Error::input_output(READ, path, source))?;
        let (header, data) = read_header(&file, path).map_err(|error| {
            error.with_hint("the file is not as it was written; download or copy it again")
        })?;
        let number = self.files.len();
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue };
            let (start, end) = info.data_offsets;
            let stored = Stored {
                dtype: info.dtype,
                shape: info.shape.clone(),
                file: number,
                start: data + start as u64,
                bytes: end - start,
            };
            if self.tensors.insert(name.clone(), stored).is_some() {
                return Err(Error::checkpoint(
                    path,
                    format!("has {name}, as another file of the folder does"),
                ));
            }
        }
        self.files.push((path.to_owned(), file));
        Ok(())
    }

    /// The values of a tensor of floating-point numbers, in the order of the file.
    pub(super) fn values(&self, name: &str) -> Result<Vec<f32>> {
        let stored = &self.tensors[name];
        let mut values = Vec::with_capacity(stored.elements());
        self.chunks(name, |bytes| {
            match stored.dtype {
                Dtype::F32 => {
                    values.extend(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)))
                }
                Dtype::BF16 => {
                    values
                        .extend(bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()));
                }
                _ => {
                    values.extend(bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()))
                }
            }
            Ok(())
        })?;
        Ok(values)
    }

    /// Hands over the bytes of a tensor, some at a time, each time whole numbers.
    pub(super) fn chunks(&self, name: &str, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let stored = &self.tensors[name];
        let (path, file) = &self.files[stored.file];
        let mut buffer = vec![0; CHUNK_BYTES.min(stored.bytes)];
        let mut done = 0;
        while done < stored.bytes {
            let some = CHUNK_BYTES.min(stored.bytes - done);
            let bytes = &mut buffer[..some];
            file.read_exact_at(bytes, stored.start + done as u64)
                .map_err(|source| Error::input_output(READ, path, source))?;
            take(bytes)?;
            done += some;
        }
        Ok(())
    }
}

/// Tensor and file of each entry of an index.
fn read_index(path: &Path) -> Result<Vec<(String, String)>> {
    let refuse = |what: &str| {
        Err(Error::configuration(format!("{} {what}", path.display()))
            .with_hint("an index has a `weight_map` from the names of tensors to those of files"))
    };
    let text = std::fs::read_to_string(path).map_err(|source| Error::input_output(READ, path, source))?;
    let Ok(json) = serde_json::from_str::<Value>(&text) else { return refuse("is not JSON") };
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return refuse("has no `weight_map`");
    };
    let mut entries = Vec::new();
    for (tensor, file) in map {
        match file.as_str() {
            // A name, not a path: the files of a folder are in the folder.
            Some(file) if !file.is_empty() && !file.contains(['/', '\\', '\0']) => {
                entries.push((tensor.clone(), file.to_owned()));
            }
            _ => return refuse(&format!("gives {tensor} the file {file}, which is no name of a file")),
        }
    }
    if entries.is_empty() { refuse("names no tensor") } else { Ok(entries) }
}

/// A tensor of a file to be written.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl Wanted {
    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * width(self.dtype)
    }
}

/// Bytes of a number; types with several numbers in a byte are never written.
fn width(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

/// Writes a safetensors file. `fill` is asked for the bytes of one tensor after the other, in the order of `tensors`.
pub(super) fn write_file(
    path: &Path,
    tensors: &[Wanted],
    mut fill: impl FnMut(&Wanted, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let json = |error: serde_json::Error| Error::internal(format!("{}: {error}", path.display()));
    let mut header = serde_json::Map::new();
    // transformers refuses files that do not say so.
    header.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut start = 0;
    for wanted in tensors {
        let end = start + wanted.bytes();
        let info =
            TensorInfo { dtype: wanted.dtype, shape: wanted.shape.clone(), data_offsets: (start, end) };
        header.insert(wanted.name.clone(), serde_json::to_value(info).map_err(json)?);
        start = end;
    }
    let mut bytes = serde_json::to_vec(&header).map_err(json)?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let failed = |source| Error::input_output(WRITE, path, source);
    replace_file(path, WRITE, |out: &mut dyn Write| {
        out.write_all(&(bytes.len() as u64).to_le_bytes()).map_err(failed)?;
        out.write_all(&bytes).map_err(failed)?;
        for wanted in tensors {
            let mut written = 0;
            fill(wanted, &mut |bytes: &[u8]| {
                written += bytes.len();
                out.write_all(bytes).map_err(failed)
            })?;
            if written != wanted.bytes() {
                return Err(Error::internal(format!(
                    "{written} bytes of {} for {}",
                    wanted.bytes(),
                    wanted.name
                )));
            }
        }
        Ok(())
    })
}

/// Hands over values as numbers of a type, some at a time.
pub(super) fn encode(
    name: &str,
    values: &[f32],
    dtype: Dtype,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut bytes = Vec::with_capacity(CHUNK_BYTES);
    for chunk in values.chunks(CHUNK_BYTES / size_of::<f32>()) {
        bytes.clear();
        for &value in chunk {
            match dtype {
                Dtype::BF16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
                Dtype::F16 => {
                    let narrow = f16::from_f32(value);
                    if narrow.is_infinite() && value.is_finite() {
                        return Err(Error::configuration(format!(
                            "{name} has {value}, which is beyond float16"
                        ))
                        .with_hint("export with `--dtype bf16` or `--dtype f32`"));
                    }
                    bytes.extend(narrow.to_le_bytes());
                }
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
        take(&bytes)?;
    }
    Ok(())
}
