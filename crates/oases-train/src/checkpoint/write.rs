//! Writing a checkpoint, tensor by tensor.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorInfo};

use super::{Metadata, TensorSpec};
use crate::error::{Error, Result};
use crate::replace_file::replace_file;

const ACTION: &str = "write checkpoint";
/// The data begins at a multiple of this.
const ALIGNMENT: usize = 8;
const NUMBER_BYTES: usize = size_of::<f32>();
/// How many numbers are turned into bytes at a time.
const CHUNK_NUMBERS: usize = 4096;

/// Writes a checkpoint so that, at every instant, `path` is the whole old file (or none) or the whole new one.
///
/// `fetch` is called once for each tensor, in order, and hands over all its numbers, row by row, in as many pieces
/// as it likes: a tensor that is spread over ranks is never in memory as a whole. When this returns without an error
/// the file is on the device under its name; on an error nothing of it is left and an older file is as it was.
pub fn write(
    path: &Path,
    metadata: &Metadata,
    tensors: &[TensorSpec],
    fetch: &mut dyn FnMut(&TensorSpec, &mut TensorWriter<'_>) -> Result<()>,
) -> Result<()> {
    replace_file(path, ACTION, |out| encode(out, path, metadata, tensors, fetch))
}

/// Takes the numbers of one tensor.
pub struct TensorWriter<'a> {
    out: &'a mut dyn Write,
    path: &'a Path,
    spec: &'a TensorSpec,
    missing: usize,
}

impl TensorWriter<'_> {
    /// Appends the next numbers of the tensor.
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        self.missing = self.missing.checked_sub(values.len()).ok_or_else(|| {
            let TensorSpec { name, shape } = self.spec;
            Error::internal(format!("more numbers for {name} than its shape {shape:?} holds"))
        })?;
        let mut bytes = [0; CHUNK_NUMBERS * NUMBER_BYTES];
        for chunk in values.chunks(CHUNK_NUMBERS) {
            let bytes = &mut bytes[..chunk.len() * NUMBER_BYTES];
            for (number, value) in bytes.chunks_exact_mut(NUMBER_BYTES).zip(chunk) {
                number.copy_from_slice(&value.to_le_bytes());
            }
            self.out.write_all(bytes).map_err(|source| Error::input_output(ACTION, self.path, source))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        if self.missing > 0 {
            let TensorSpec { name, shape } = self.spec;
            return Err(Error::internal(format!("{} numbers of {name} {shape:?} are missing", self.missing)));
        }
        Ok(())
    }
}

/// The bytes of a checkpoint; `path` is for messages only.
fn encode(
    out: &mut dyn Write,
    path: &Path,
    metadata: &Metadata,
    tensors: &[TensorSpec],
    fetch: &mut dyn FnMut(&TensorSpec, &mut TensorWriter<'_>) -> Result<()>,
) -> Result<()> {
    let failed = |source| Error::input_output(ACTION, path, source);
    let header = header(metadata, tensors)?;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    out.write_all(&header).map_err(failed)?;
    for spec in tensors {
        let missing = elements(spec)?;
        let mut writer = TensorWriter { out: &mut *out, path, spec, missing };
        fetch(spec, &mut writer)?;
        writer.finish()?;
    }
    Ok(())
}

/// The file's JSON header, the same bytes for the same checkpoint, padded to [`ALIGNMENT`].
fn header(metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Vec<u8>> {
    let json = |error: serde_json::Error| Error::internal(format!("checkpoint header: {error}"));
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::to_value(metadata.to_map()).map_err(json)?);
    let (mut start, mut names) = (0usize, BTreeSet::from(["__metadata__"]));
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
        start = end;
    }
    let mut bytes = serde_json::to_vec(&header).map_err(json)?;
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), b' ');
    Ok(bytes)
}

fn elements(spec: &TensorSpec) -> Result<usize> {
    spec.elements().ok_or_else(|| {
        Error::internal(format!("the shape {:?} of {} is beyond all sizes", spec.shape, spec.name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replace_file::replace_file_through;
    use crate::replace_file::tests::{FullAfter, names};

    fn specs() -> Vec<TensorSpec> {
        vec![
            TensorSpec::new("model.b", [2, 3]),
            TensorSpec::new("model.a", [4]),
            TensorSpec::new("adam.m.a", []),
        ]
    }

    fn fetch(spec: &TensorSpec, out: &mut TensorWriter<'_>) -> Result<()> {
        for number in 0..spec.elements().unwrap() {
            out.write(&[number as f32 + 0.5])?;
        }
        Ok(())
    }

    #[test]
    fn the_safetensors_crate_reads_it() {
        let (mut bytes, metadata) = (Vec::new(), Metadata { step: 5, ..Metadata::default() });
        encode(&mut bytes, Path::new("x"), &metadata, &specs(), &mut fetch).unwrap();
        let (length, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert!(length.is_multiple_of(ALIGNMENT));
        assert_eq!(header.metadata().as_ref().unwrap()["step"], "5");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor("model.b").unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &[2, 3][..]));
        assert_eq!(tensor.data()[20..], 5.5f32.to_le_bytes());
        assert_eq!(tensors.tensor("adam.m.a").unwrap().data(), 0.5f32.to_le_bytes());
    }

    #[test]
    fn too_few_or_too_many_numbers_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.safetensors");
        for count in [0, 23, 25] {
            let mut fetch = |_: &TensorSpec, out: &mut TensorWriter<'_>| out.write(&vec![0.0; count]);
            let error =
                write(&path, &Metadata::default(), &[TensorSpec::new("w", [4, 6])], &mut fetch).unwrap_err();
            assert!(matches!(error, Error::Internal { .. }));
            assert!(names(dir.path()).is_empty());
        }
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

    #[test]
    fn a_full_disk_at_any_byte_leaves_the_old_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.safetensors");
        let metadata = Metadata::default();
        write(&path, &metadata, &specs(), &mut fetch).unwrap();
        let before = std::fs::read(&path).unwrap();
        for room in (0..before.len()).step_by(7) {
            let through = |file| FullAfter { inner: file, room };
            let error = replace_file_through(&path, ACTION, through, |out| {
                encode(out, &path, &metadata, &specs(), &mut fetch)
            })
            .unwrap_err();
            assert!(error.to_string().starts_with("cannot write checkpoint "), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
            assert_eq!(names(dir.path()), ["c.safetensors"]);
        }
    }
}
