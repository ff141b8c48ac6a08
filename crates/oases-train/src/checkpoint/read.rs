//! Reading a checkpoint, in whole or in part.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata as Header};

use super::{Metadata, Stored, TensorSpec};
use crate::error::{Error, Result};

const ACTION: &str = "read checkpoint";
/// The bytes before the header: its length.
const PREFIX_BYTES: u64 = 8;
/// The longest header that the format allows; nothing longer is even read.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const NUMBER_BYTES: usize = size_of::<f32>();
/// How many bytes are read at a time.
const CHUNK_BYTES: usize = 1 << 16;

/// An open checkpoint. Its structure has been checked; its numbers are read when asked for, from where they are.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    tensors: BTreeMap<String, Stored>,
}

impl Checkpoint {
    /// Opens a checkpoint and checks all of its structure: the header, every tensor's type and place, and that the
    /// file is exactly as long as they say.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| Error::input_output(ACTION, path, source))?;
        let (header, data_start) = read_header(&file, path)?;
        let map =
            header.metadata().iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect();
        let metadata = Metadata::from_map(&map).map_err(|reason| Error::checkpoint(path, reason))?;
        let mut tensors = BTreeMap::new();
        let mut other_types = Vec::new();
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue };
            if info.dtype != Dtype::F32 {
                other_types.push(format!("{name} ({:?})", info.dtype));
            }
            let start = data_start + info.data_offsets.0 as u64;
            tensors.insert(name, Stored { shape: info.shape.clone(), start });
        }
        if !other_types.is_empty() {
            return Err(Error::checkpoint(path, format!("not of type F32: {}", other_types.join(", "))));
        }
        Ok(Self { path: path.to_owned(), file, metadata, tensors })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says besides its tensors.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorSpec> {
        self.tensors.iter().map(|(name, stored)| TensorSpec::new(name.clone(), stored.shape.clone()))
    }

    /// Whether it has these weights, whatever else; all that are missing or of another shape are told.
    pub fn expect_weights(&self, wanted: &[TensorSpec]) -> Result<()> {
        let problems: Vec<String> = wanted
            .iter()
            .filter_map(|TensorSpec { name, shape }| match self.tensors.get(name) {
                None => Some(format!("{name} is missing")),
                Some(stored) if stored.shape != *shape => {
                    Some(format!("{name} has shape {:?}, wanted {shape:?}", stored.shape))
                }
                Some(_) => None,
            })
            .collect();
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::checkpoint(&self.path, format!("does not fit the model: {}", problems.join("; ")))
            .with_hint("train.init_from needs weights of a model with the same [model] section"))
    }

    /// An error that lists every tensor that is missing, unknown or of another shape than `wanted`.
    pub fn expect_tensors(&self, wanted: &[TensorSpec]) -> Result<()> {
        let mut unknown: BTreeMap<_, _> = self.tensors.iter().collect();
        let mut problems = Vec::new();
        for TensorSpec { name, shape } in wanted {
            match unknown.remove(name) {
                None => problems.push(format!("{name} is missing")),
                Some(stored) if stored.shape != *shape => {
                    problems.push(format!("{name} has shape {:?}, wanted {shape:?}", stored.shape));
                }
                Some(_) => {}
            }
        }
        problems.extend(unknown.keys().map(|name| format!("{name} is unknown")));
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::checkpoint(&self.path, format!("does not fit the model: {}", problems.join("; ")))
            .with_hint("use the configuration that the checkpoint was made with, or another run folder"))
    }

    /// Reads a whole tensor.
    pub fn read(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let (rows, columns) = self.stored(name)?.rows_and_columns();
        self.read_slice(name, 0..rows, 0..columns, out)
    }

    /// Reads whole rows, a row being what one index of the outermost dimension holds.
    pub fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let (_, columns) = self.stored(name)?.rows_and_columns();
        self.read_slice(name, rows, 0..columns, out)
    }

    /// Reads a rectangle into `out`, row by row. All dimensions after the outermost count as one.
    ///
    /// A rectangle outside the tensor, or an `out` of another size, is an [`Error::Internal`].
    pub fn read_slice(
        &self,
        name: &str,
        rows: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let stored = self.stored(name)?;
        let (all_rows, all_columns) = stored.rows_and_columns();
        let inside = rows.start <= rows.end
            && rows.end <= all_rows
            && columns.start <= columns.end
            && columns.end <= all_columns;
        if !inside || rows.len().checked_mul(columns.len()) != Some(out.len()) {
            return Err(Error::internal(format!(
                "rows {rows:?}, columns {columns:?} of {name} {:?} into {} numbers",
                stored.shape,
                out.len()
            )));
        }
        if out.is_empty() {
            return Ok(());
        }
        let mut buffer = vec![0; CHUNK_BYTES.min(out.len() * NUMBER_BYTES)];
        let place = |row: usize| stored.start + ((row * all_columns + columns.start) * NUMBER_BYTES) as u64;
        if columns.len() == all_columns {
            return self.read_numbers(place(rows.start), out, &mut buffer);
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(columns.len())) {
            self.read_numbers(place(row), out, &mut buffer)?;
        }
        Ok(())
    }

    /// Reads adjacent numbers through the buffer.
    fn read_numbers(&self, mut place: u64, out: &mut [f32], buffer: &mut [u8]) -> Result<()> {
        for chunk in out.chunks_mut(buffer.len() / NUMBER_BYTES) {
            let bytes = &mut buffer[..chunk.len() * NUMBER_BYTES];
            self.file
                .read_exact_at(bytes, place)
                .map_err(|source| Error::input_output(ACTION, &self.path, source))?;
            for (value, number) in chunk.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*number);
            }
            place += bytes.len() as u64;
        }
        Ok(())
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.tensors.get(name).ok_or_else(|| {
            Error::checkpoint(&self.path, format!("does not fit the model: {name} is missing"))
        })
    }
}

/// The checked header, and where the data begins.
pub(crate) fn read_header(file: &File, path: &Path) -> Result<(Header, u64)> {
    let failed = |source| Error::input_output(ACTION, path, source);
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(Error::checkpoint(path, "is not a file"));
    }
    let truncated = |expected: u64| {
        let reason = format!("is truncated: it has {} bytes of {expected}", about.len());
        Error::checkpoint(path, reason)
    };
    if about.len() < PREFIX_BYTES {
        return Err(truncated(PREFIX_BYTES));
    }
    let mut prefix = [0; PREFIX_BYTES as usize];
    file.read_exact_at(&mut prefix, 0).map_err(failed)?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES {
        return Err(Error::checkpoint(
            path,
            "is not a safetensors file: it begins with no plausible header length",
        ));
    }
    let data_start = PREFIX_BYTES + length;
    if about.len() < data_start {
        return Err(truncated(data_start));
    }
    let mut json = vec![0; length as usize];
    file.read_exact_at(&mut json, PREFIX_BYTES).map_err(failed)?;
    // Deserializing checks that tensors follow each other without gap or overlap, each as long as its shape says.
    let header: Header = serde_json::from_slice(&json)
        .map_err(|error| Error::checkpoint(path, format!("has a damaged header: {error}")))?;
    let expected = data_start.saturating_add(header.data_len() as u64);
    if about.len() < expected {
        return Err(truncated(expected));
    }
    if about.len() > expected {
        let more = about.len() - expected;
        let reason = format!("has {} bytes, {more} more than its header describes", about.len());
        return Err(Error::checkpoint(path, reason));
    }
    Ok((header, data_start))
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
