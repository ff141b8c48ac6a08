//! The folder of a run: its configuration, metrics, checkpoints and summary, and the lock that makes it one run's.

mod metrics_log;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

pub use metrics_log::MetricsLog;

use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::metrics::{StepMetrics, Summary};
use crate::replace_file::replace_file;

/// Where the parts of a run are. Needs no lock, and does not look whether they exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPaths {
    root: PathBuf,
}

impl RunPaths {
    /// The parts of the run in this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The resolved configuration, `config.toml`.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// One line for each step, `metrics.jsonl`.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// The folder of the checkpoints, `checkpoints`.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// What came out, `summary.json`; absent until the run has ended for the first time.
    pub fn summary(&self) -> PathBuf {
        self.root.join("summary.json")
    }

    /// Whether something of a run is there.
    pub fn holds_run(&self) -> bool {
        [self.config(), self.metrics(), self.checkpoints(), self.summary()].iter().any(|path| path.exists())
    }

    /// The text of the resolved configuration; a folder without one is an error that says so.
    pub fn read_config(&self) -> Result<String> {
        let path = self.config();
        fs::read_to_string(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Error::configuration(format!("{} holds no run: it has no config.toml", self.root.display()))
                    .with_hint("name the folder of a run, the run.dir of its configuration")
            }
            _ => Error::input_output("read", &path, source),
        })
    }
}

/// The folder of the run that this process is making. No other process can open it until this value is dropped or the
/// process ends, however it ends.
#[derive(Debug)]
pub struct RunDir {
    paths: RunPaths,
    /// The operating system releases the lock with the file.
    _lock: File,
}

impl RunDir {
    /// Makes the folder of a new run and writes its resolved configuration. A folder that already holds a run is
    /// refused, so that nothing of it can be overwritten.
    pub fn create(root: &Path, config: &str) -> Result<Self> {
        fs::create_dir_all(root)
            .map_err(|source| Error::input_output("create the run folder", root, source))?;
        let this = Self::lock(root)?;
        if this.paths.config().exists() && !this.paths.checkpoints().exists() {
            return Err(Error::configuration(format!(
                "{} has a config.toml that is no run's",
                root.display()
            ))
            .with_hint("choose another run.dir; a run writes its configuration under that name"));
        }
        if this.paths.holds_run() {
            return Err(Error::configuration(format!("{} already holds a run", root.display()))
                .with_hint("go on with it by --resume, or choose another run.dir"));
        }
        // The configuration is what makes the folder a run: without it, this may be tried again.
        this.write_config(config)?;
        this.checkpoints()?;
        Ok(this)
    }

    /// Opens the folder of an earlier run to go on with it. It may have no checkpoint yet: then the run begins anew.
    pub fn resume(root: &Path) -> Result<Self> {
        let nothing_to_resume = || {
            Error::configuration(format!("{} holds no run to resume", root.display()))
                .with_hint("start it without --resume, or check run.dir")
        };
        // Its own configuration may lie in a folder that has been no run yet.
        let paths = RunPaths::new(root);
        if !paths.config().exists() || !paths.checkpoints().is_dir() {
            return Err(nothing_to_resume());
        }
        Self::lock(root)
    }

    /// Where its parts are.
    pub fn paths(&self) -> &RunPaths {
        &self.paths
    }

    /// Its checkpoints, cleared of what a killed run left half written.
    pub fn checkpoints(&self) -> Result<Checkpoints> {
        Checkpoints::open(self.paths.checkpoints())
    }

    /// Opens `metrics.jsonl` to append to it, after cutting every line of a later step than `resumed_at` (0 for a new
    /// run), so that each step is there once.
    pub fn metrics(&self, resumed_at: u64) -> Result<MetricsLog> {
        MetricsLog::open(&self.paths.metrics(), resumed_at)
    }

    /// All lines of `metrics.jsonl`.
    pub fn read_metrics(&self) -> Result<Vec<StepMetrics>> {
        metrics_log::read(&self.paths.metrics())
    }

    /// Removes the summary of an earlier end, which does not tell of the run as it goes on.
    pub fn remove_summary(&self) -> Result<()> {
        let path = self.paths.summary();
        match fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::input_output("remove the old summary", &path, source))
            }
            _ => Ok(()),
        }
    }

    /// Replaces the resolved configuration, for a resumed run that changes some of it.
    pub fn write_config(&self, config: &str) -> Result<()> {
        self.write("write", &self.paths.config(), config.as_bytes())
    }

    /// Writes `summary.json`, as a whole or not at all.
    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        let mut json = serde_json::to_vec_pretty(summary)
            .map_err(|error| Error::internal(format!("summary.json: {error}")))?;
        json.push(b'\n');
        self.write("write", &self.paths.summary(), &json)
    }

    fn write(&self, action: &'static str, path: &Path, bytes: &[u8]) -> Result<()> {
        replace_file(path, action, |out| {
            out.write_all(bytes).map_err(|source| Error::input_output(action, path, source))
        })
    }

    fn lock(root: &Path) -> Result<Self> {
        let path = root.join(".lock");
        let failed = |source| Error::input_output("lock the run folder by", &path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::configuration(format!(
                    "{} is in use by another run{}",
                    root.display(),
                    owner(&mut file)
                ))
                .with_hint("wait for it to end, or choose another run.dir"));
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // The number only serves the message above; a disk that cannot take it fails in what matters soon enough.
        let _ = file.set_len(0).and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
        Ok(Self { paths: RunPaths::new(root), _lock: file })
    }
}

/// Who holds the lock, as far as the file tells.
fn owner(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(20).read_to_string(&mut text) {
        Ok(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!(" (process {text})")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replace_file::tests::names;

    #[test]
    fn a_new_run_has_its_parts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("runs/first");
        let run = RunDir::create(&root, "steps = 1\n").unwrap();
        assert_eq!(names(&root), [".lock", "checkpoints", "config.toml"]);
        assert_eq!(run.paths().read_config().unwrap(), "steps = 1\n");
        run.write_config("steps = 2\n").unwrap();
        assert_eq!(RunPaths::new(&root).read_config().unwrap(), "steps = 2\n");
    }

    #[test]
    fn a_run_is_not_overwritten_but_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        drop(RunDir::create(&root, "x").unwrap());
        let error = RunDir::create(&root, "y").unwrap_err();
        assert_eq!(error.to_string(), format!("{} already holds a run", root.display()));
        assert!(error.hint().unwrap().contains("--resume"));
        let run = RunDir::resume(&root).unwrap();
        assert_eq!(run.paths().read_config().unwrap(), "x");
    }

    #[test]
    fn a_folder_with_other_files_will_do() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("notes.txt"), "x").unwrap();
        assert!(RunDir::create(dir.path(), "x").is_ok());
    }

    #[test]
    fn nothing_to_resume_is_said() {
        let dir = tempfile::tempdir().unwrap();
        for root in [dir.path().to_owned(), dir.path().join("absent")] {
            let error = RunDir::resume(&root).unwrap_err();
            assert_eq!(error.to_string(), format!("{} holds no run to resume", root.display()));
        }
        assert!(
            RunPaths::new(dir.path()).read_config().unwrap_err().to_string().contains("has no config.toml")
        );
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn two_runs_cannot_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "x").unwrap();
        for error in [RunDir::create(dir.path(), "y").unwrap_err(), RunDir::resume(dir.path()).unwrap_err()] {
            let (root, process) = (dir.path().display(), std::process::id());
            assert_eq!(error.to_string(), format!("{root} is in use by another run (process {process})"));
        }
        drop(run);
        assert!(RunDir::resume(dir.path()).is_ok());
    }

    #[test]
    fn a_place_that_cannot_be_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let root = dir.path().join("file/run");
        let error = RunDir::create(&root, "x").unwrap_err();
        let wanted = format!("cannot create the run folder {}: Not a directory", root.display());
        assert!(error.to_string().starts_with(&wanted), "{error}");
        assert!(error.hint().is_some());
        let error = RunDir::create(Path::new("/proc/oases"), "x").unwrap_err();
        assert!(error.to_string().starts_with("cannot create the run folder /proc/oases: "), "{error}");
    }

    #[test]
    fn the_summary_is_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "x").unwrap();
        let summary = Summary {
            steps: 5,
            tokens: 1280,
            train_loss: 2.5,
            val_loss: None,
            seconds: 1.0,
            tokens_per_s: 1280.0,
            step_ms: f64::NAN,
            compute_ms: 150.0,
            exposed_comm_ms: 0.25,
            arena_bytes_planned: 10,
            arena_bytes_used: 10,
            schedule: "oases".to_owned(),
            ranks: 2,
            data: 1,
            pipeline: 1,
            order: "1f1b".to_owned(),
            zero: false,
            tensor: 2,
            degrees: "2".to_owned(),
            parameters: 100,
            checkpoint: Some("checkpoints/step-00000005.safetensors".to_owned()),
        };
        run.write_summary(&summary).unwrap();
        let text = fs::read_to_string(run.paths().summary()).unwrap();
        assert!(text.contains("\"step_ms\": null") && text.contains("\"val_loss\": null"), "{text}");
        let back: Summary = serde_json::from_str(&text).unwrap();
        assert_eq!(Summary { step_ms: 0.0, ..back }, Summary { step_ms: 0.0, ..summary });
    }
}
