//! The folder that holds a run's checkpoints.

use std::fs;
use std::path::PathBuf;

use super::{Checkpoint, Draft, Metadata, TensorSpec};
use crate::error::{Error, Result};
use crate::replace_file::TEMPORARY_SUFFIX;

const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";

/// The checkpoints of one run, each under the step that it was written after.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

/// The newest checkpoint that can be loaded.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Why each newer one was passed over, newest first. The user must be told.
    pub passed_over: Vec<Error>,
}

impl Checkpoints {
    /// The checkpoints in this folder, to be read only. The folder need not exist.
    pub fn view(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The checkpoints in this folder, to be written too: the folder is created, and what killed runs left half
    /// written is removed. Only the one process that holds the run's lock may do this.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let this = Self::view(folder);
        fs::create_dir_all(&this.folder)
            .map_err(|source| Error::input_output("create the folder", &this.folder, source))?;
        for name in this.names()? {
            if name.strip_suffix(TEMPORARY_SUFFIX).and_then(step_of).is_some() {
                let path = this.folder.join(name);
                fs::remove_file(&path).map_err(|source| Error::input_output("remove", &path, source))?;
            }
        }
        Ok(this)
    }

    /// The file of the checkpoint after this many steps.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{step:08}{SUFFIX}"))
    }

    /// The steps of all checkpoints, oldest first; whether they can be loaded is not looked at.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let mut steps: Vec<_> = self.names()?.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Begins to write the checkpoint of `metadata.step`; see [`Draft`].
    pub fn begin(&self, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Draft> {
        Draft::begin(&self.path(metadata.step), metadata, tensors)
    }

    /// Joins another rank that has begun the same.
    pub fn join(&self, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Draft> {
        Draft::join(&self.path(metadata.step), metadata, tensors)
    }

    /// Removes all but the newest `keep` checkpoints of the first `written` steps, and says which.
    ///
    /// `written` is the step of a checkpoint that has just been written: it always stays. Later ones can only be
    /// files that could not be loaded when the run was resumed; they do not count, and are left to their owner.
    pub fn prune(&self, written: u64, keep: usize) -> Result<Vec<PathBuf>> {
        let steps: Vec<_> = self.steps()?.into_iter().filter(|&step| step <= written).collect();
        let removed = &steps[..steps.len().saturating_sub(keep.max(1))];
        removed
            .iter()
            .map(|&step| {
                let path = self.path(step);
                match fs::remove_file(&path) {
                    Ok(()) => Ok(path),
                    Err(source) => Err(Error::input_output("remove the old checkpoint", &path, source)),
                }
            })
            .collect()
    }

    /// The newest checkpoint that can be loaded, or nothing if there is none at all. If there are some, and all are
    /// damaged, that is an error.
    pub fn latest(&self) -> Result<Option<Latest>> {
        let mut passed_over = Vec::new();
        for step in self.steps()?.into_iter().rev() {
            match Checkpoint::open(&self.path(step)) {
                Ok(checkpoint) => return Ok(Some(Latest { checkpoint, passed_over })),
                Err(error) => passed_over.push(error),
            }
        }
        let Some(newest) = passed_over.first() else { return Ok(None) };
        let all = passed_over.len();
        Err(Error::Checkpoint {
            message: format!("none of {all} checkpoints can be loaded; the newest: {newest}"),
            hint: Some(format!("start a new run, or put a good checkpoint into {}", self.folder.display())),
        })
    }

    /// The names of the files in the folder, none if there is no folder.
    fn names(&self) -> Result<Vec<String>> {
        let failed = |source| Error::input_output("read the folder", &self.folder, source);
        let entries = match fs::read_dir(&self.folder) {
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            // A folder or a pipe of such a name is none of ours, nor is a name that is not text.
            if entry.file_type().map_err(failed)?.is_file() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        Ok(names)
    }
}

/// The step in the name of a checkpoint.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let step = digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())??;
    // Only the spelling that `path` gives leads back to the file.
    (digits == format!("{step:08}")).then_some(step)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn save(checkpoints: &Checkpoints, step: u64) -> PathBuf {
        let metadata = Metadata { step, ..Metadata::default() };
        let draft = checkpoints.begin(&metadata, &[TensorSpec::new("w", [3])]).unwrap();
        draft.write_whole("w", &[1.0; 3]).unwrap();
        draft.publish().unwrap();
        checkpoints.path(step)
    }

    fn truncate(path: &Path, removed: u64) {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - removed).unwrap();
    }

    #[test]
    fn names_carry_the_step() {
        assert_eq!(step_of("step-00000500.safetensors"), Some(500));
        assert_eq!(step_of("step-123456789.safetensors"), Some(123_456_789));
        for other in [
            "step-500.safetensors",
            "step-+0000500.safetensors",
            "step-000000500.safetensors",
            "step-00000500.safetensors.tmp",
            "step-99999999999999999999.safetensors",
            "step-.safetensors",
        ] {
            assert_eq!(step_of(other), None, "{other}");
        }
    }

    #[test]
    fn the_newest_is_found_and_old_ones_are_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(dir.path().join("checkpoints")).unwrap();
        assert!(checkpoints.latest().unwrap().is_none());
        for step in [10, 200, 30] {
            save(&checkpoints, step);
        }
        assert_eq!(checkpoints.latest().unwrap().unwrap().checkpoint.metadata().step, 200);
        assert_eq!(checkpoints.prune(200, 2).unwrap(), [checkpoints.path(10)]);
        assert_eq!(checkpoints.steps().unwrap(), [30, 200]);
        assert_eq!(checkpoints.prune(200, 0).unwrap(), [checkpoints.path(30)]);
        assert_eq!(checkpoints.steps().unwrap(), [200]);
    }

    #[test]
    fn a_damaged_one_is_passed_over_and_said() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(dir.path()).unwrap();
        let (first, second) = (save(&checkpoints, 1), save(&checkpoints, 2));
        truncate(&second, 1);
        let latest = checkpoints.latest().unwrap().unwrap();
        assert_eq!(latest.checkpoint.metadata().step, 1);
        assert_eq!(latest.passed_over.len(), 1);
        assert!(latest.passed_over[0].to_string().contains("step-00000002.safetensors: is truncated"));
        truncate(&first, 1);
        let error = checkpoints.latest().unwrap_err();
        assert!(
            error.to_string().starts_with("none of 2 checkpoints can be loaded; the newest: checkpoint ")
        );
        assert!(error.hint().is_some());
    }

    #[test]
    fn pruning_never_trades_a_good_one_for_a_damaged_newer_one() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(dir.path()).unwrap();
        save(&checkpoints, 5);
        truncate(&save(&checkpoints, 9), 1);
        save(&checkpoints, 6);
        checkpoints.prune(6, 1).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [6, 9]);
        assert_eq!(checkpoints.latest().unwrap().unwrap().checkpoint.metadata().step, 6);
    }

    #[test]
    fn only_half_written_checkpoints_are_removed_at_start() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["step-00000003.safetensors.tmp", "notes.tmp", "step-x.safetensors.tmp"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        let checkpoints = Checkpoints::open(dir.path()).unwrap();
        assert_eq!(crate::replace_file::tests::names(dir.path()), ["notes.tmp", "step-x.safetensors.tmp"]);
        assert!(checkpoints.latest().unwrap().is_none());
    }
}
