//! Writing a checkpoint, by one rank or by many at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorInfo};

use super::{Metadata, Stored, TensorSpec};
use crate::error::{Error, Result};
use crate::replace_file::{Temporary, temporary_path};

const ACTION: &str = "write checkpoint";
/// The data begins at a multiple of this.
const ALIGNMENT: usize = 8;
const NUMBER_BYTES: usize = size_of::<f32>();
/// How many numbers are turned into bytes at a time.
const CHUNK_NUMBERS: usize = 16 << 10;

/// A checkpoint that is being written, under a temporary name.
///
/// Its header follows from what it describes, so every rank knows where each number belongs, and all write at once: one
/// begins the file, the others join it, each writes its numbers and flushes them, and when all have, the one that began it
/// publishes it. At every instant, `path` is the whole old file (or none) or the whole new one; a draft that is dropped
/// leaves nothing.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, Stored>,
    /// On the rank that began it.
    temporary: Option<Temporary>,
}

impl Draft {
    /// Creates the file, as long as it will be.
    pub fn begin(path: &Path, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Draft> {
        let failed = |source| Error::input_output(ACTION, path, source);
        let Header { bytes, tensors, length } = header(metadata, tensors)?;
        let temporary = Temporary::create(path).map_err(failed)?;
        let file = temporary.file().map_err(failed)?;
        file.set_len(length).map_err(failed)?;
        file.write_all_at(&(bytes.len() as u64).to_le_bytes(), 0).map_err(failed)?;
        file.write_all_at(&bytes, NUMBER_BYTES as u64 * 2).map_err(failed)?;
        Ok(Draft { path: path.to_owned(), file, tensors, temporary: Some(temporary) })
    }

    /// Opens the file that another rank has begun with the same arguments.
    pub fn join(path: &Path, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Draft> {
        let Header { tensors, .. } = header(metadata, tensors)?;
        let file = File::options().write(true).open(temporary_path(path));
        let file = file.map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                Error::configuration(format!("rank 0 writes {}, which this rank cannot see", path.display()))
                    .with_hint("the run folder must be on a file system that all hosts share")
            }
            _ => Error::input_output(ACTION, path, source),
        })?;
        Ok(Draft { path: path.to_owned(), file, tensors, temporary: None })
    }

    /// Writes some of the numbers of a rectangle of a tensor, all dimensions after the outermost counting as one: `elements` counts
    /// the rectangle's numbers row by row, and `values` holds as many.
    ///
    /// A rectangle outside the tensor, or another number of values, is an [`Error::Internal`].
    pub fn write(
        &self,
        name: &str,
        (rows, columns): (Range<usize>, Range<usize>),
        elements: Range<usize>,
        values: &[f32],
    ) -> Result<()> {
        let stored = self.tensors.get(name);
        let stored = stored.ok_or_else(|| Error::internal(format!("a checkpoint without {name}")))?;
        let (all_rows, all_columns) = stored.rows_and_columns();
        let inside = rows.end <= all_rows && columns.end <= all_columns;
        let held = rows.len() * columns.len();
        if !inside || elements.end > held || elements.len() != values.len() {
            return Err(Error::internal(format!(
                "{elements:?} of rows {rows:?}, columns {columns:?} of {name} {all_rows}×{all_columns}"
            )));
        }
        let width = columns.len();
        let whole_rows = width == all_columns;
        let mut written = 0;
        while written < values.len() {
            let at = elements.start + written;
            let (row, column) = (rows.start + at / width, at % width);
            // Whole rows lie one behind the other.
            let run = if whole_rows { values.len() } else { width - column };
            let run = &values[written..values.len().min(written + run)];
            self.write_run(stored, row * all_columns + columns.start + column, run)?;
            written += run.len();
        }
        Ok(())
    }

    /// Writes all of a tensor.
    pub fn write_whole(&self, name: &str, values: &[f32]) -> Result<()> {
        let (rows, columns) = self.tensors.get(name).map_or((0, 0), Stored::rows_and_columns);
        self.write(name, (0..rows, 0..columns), 0..rows * columns, values)
    }

    fn write_run(&self, stored: &Stored, first: usize, values: &[f32]) -> Result<()> {
        let mut place = stored.start + (first * NUMBER_BYTES) as u64;
        let mut bytes = Vec::with_capacity(values.len().min(CHUNK_NUMBERS) * NUMBER_BYTES);
        for chunk in values.chunks(CHUNK_NUMBERS) {
            bytes.clear();
            bytes.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
            self.file
                .write_all_at(&bytes, place)
                .map_err(|source| Error::input_output(ACTION, &self.path, source))?;
            place += bytes.len() as u64;
        }
        Ok(())
    }

    /// Waits until what this rank has written is on the device.
    pub fn flush(&self) -> Result<()> {
        self.file.sync_all().map_err(|source| Error::input_output(ACTION, &self.path, source))
    }

    /// Gives the file its name, on the rank that began it, once all ranks have flushed it.
    pub fn publish(self) -> Result<()> {
        self.flush()?;
        let temporary =
            self.temporary.ok_or_else(|| Error::internal("a draft is published by who began it"))?;
        temporary.publish(&self.path).map_err(|source| Error::input_output(ACTION, &self.path, source))
    }
}

/// What stands before the numbers, and where these are.
struct Header {
    bytes: Vec<u8>,
    tensors: BTreeMap<String, Stored>,
    /// Of the whole file.
    length: u64,
}

/// The file's JSON header, the same bytes for the same checkpoint, padded to [`ALIGNMENT`].
fn header(metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Header> {
    let json = |error: serde_json::Error| Error::internal(format!("checkpoint header: {error}"));
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::to_value(metadata.to_map()).map_err(json)?);
    let (mut start, mut names) = (0usize, BTreeSet::from(["__metadata__"]));
    let mut starts = Vec::new();
    for spec in tensors {
        if !names.insert(&spec.name) {
            return Err(Error::internal(format!("a checkpoint with two tensors named {}", spec.name)));
        }
        let bytes = elements(spec)?.checked_mul(NUMBER_BYTES);
        let end = bytes
            .and_then(|bytes| start.checked_add(bytes))
            .ok_or_else(|| Error::internal(format!("a checkpoint beyond all sizes at {}", spec.name)))?;
        let info = TensorInfo { dtype: Dtype::F32, shape: spec.shape.clone(), data_offsets: (start, end) };
        header.insert(spec.name.clone(), serde_json::to_value(info).map_err(json)?);
        starts.push(start);
        start = end;
    }
    let mut bytes = serde_json::to_vec(&header).map_err(json)?;
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), b' ');
    let data = (size_of::<u64>() + bytes.len()) as u64;
    let place = |(spec, start): (&TensorSpec, usize)| {
        (spec.name.clone(), Stored { shape: spec.shape.clone(), start: data + start as u64 })
    };
    Ok(Header {
        bytes,
        tensors: tensors.iter().zip(starts).map(place).collect(),
        length: data + start as u64,
    })
}

fn elements(spec: &TensorSpec) -> Result<usize> {
    spec.elements().ok_or_else(|| {
        Error::internal(format!("the shape {:?} of {} is beyond all sizes", spec.shape, spec.name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replace_file::tests::names;

    fn specs() -> Vec<TensorSpec> {
        vec![
            TensorSpec::new("model.b", [2, 3]),
            TensorSpec::new("model.a", [4]),
            TensorSpec::new("adam.m.a", []),
        ]
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|number| number as f32 + 0.5).collect()
    }

    #[test]
    fn the_safetensors_crate_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.safetensors");
        let draft = Draft::begin(&path, &Metadata { step: 5, ..Metadata::default() }, &specs()).unwrap();
        specs()
            .iter()
            .for_each(|spec| draft.write_whole(&spec.name, &numbers(spec.elements().unwrap())).unwrap());
        draft.publish().unwrap();
        let bytes = std::fs::read(path).unwrap();
        let (length, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert!(length.is_multiple_of(ALIGNMENT));
        assert_eq!(header.metadata().as_ref().unwrap()["step"], "5");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor("model.b").unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &[2, 3][..]));
        assert_eq!(tensor.data()[20..], 5.5f32.to_le_bytes());
        assert_eq!(tensors.tensor("adam.m.a").unwrap().data(), 0.5f32.to_le_bytes());
    }

    /// A tensor of 6 × 8 in rectangles of two columns and in ranges of whole rows, by two ranks at once.
    #[test]
    fn ranks_write_their_parts_of_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.safetensors");
        let (metadata, specs) =
            (Metadata::default(), [TensorSpec::new("columns", [6, 8]), TensorSpec::new("rows", [6, 2, 4])]);
        let first = Draft::begin(&path, &metadata, &specs).unwrap();
        let second = Draft::join(&path, &metadata, &specs).unwrap();
        for (place, draft) in [&first, &second].into_iter().enumerate() {
            let columns = 4 * place..4 * place + 4;
            for elements in [0..7, 7..24] {
                let value = |element: usize| (element / 4 * 8 + columns.start + element % 4) as f32;
                let values: Vec<f32> = elements.clone().map(value).collect();
                draft.write("columns", (0..6, columns.clone()), elements, &values).unwrap();
            }
            let rows = 3 * place..3 * place + 3;
            let values: Vec<f32> = (0..24).map(|element| (24 * place + element) as f32).collect();
            draft.write("rows", (rows.clone(), 0..8), 0..13, &values[..13]).unwrap();
            draft.write("rows", (rows, 0..8), 13..24, &values[13..]).unwrap();
            draft.flush().unwrap();
        }
        assert_eq!(names(dir.path()), ["c.safetensors.tmp"]);
        first.publish().unwrap();
        assert_eq!(names(dir.path()), ["c.safetensors"]);
        let checkpoint = crate::checkpoint::Checkpoint::open(&path).unwrap();
        for name in ["columns", "rows"] {
            let mut read = vec![0.0; 48];
            checkpoint.read(name, &mut read).unwrap();
            assert_eq!(read, (0..48).map(|number| number as f32).collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_a_dropped_draft_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.safetensors");
        let draft = Draft::begin(&path, &Metadata::default(), &[TensorSpec::new("w", [4, 6])]).unwrap();
        for count in [0, 23, 25] {
            assert!(matches!(draft.write_whole("w", &vec![0.0; count]), Err(Error::Internal { .. })));
        }
        assert!(draft.write("w", (0..5, 0..6), 0..1, &[0.0]).is_err());
        assert!(draft.write("w", (0..4, 0..2), 7..9, &[0.0; 2]).is_err());
        assert!(draft.write_whole("v", &[]).is_err());
        drop(draft);
        assert!(names(dir.path()).is_empty());
        let lost = Draft::join(&path, &Metadata::default(), &[]).unwrap_err();
        assert!(lost.hint().unwrap().contains("share"), "{lost}");
    }

    #[test]
    fn impossible_tensors_are_refused() {
        for specs in [
            vec![TensorSpec::new("w", [1]), TensorSpec::new("w", [1])],
            vec![TensorSpec::new("__metadata__", [1])],
            vec![TensorSpec::new("w", [usize::MAX, 2])],
            vec![TensorSpec::new("w", [usize::MAX / 2])],
        ] {
            assert!(matches!(header(&Metadata::default(), &specs), Err(Error::Internal { .. })));
        }
    }
}
