//! `metrics.jsonl`: appended to step by step, and cut back on resume.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::metrics::StepMetrics;

/// The open metrics of a run.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
}

/// What cutting needs to know of a line.
#[derive(Deserialize)]
struct Step {
    step: u64,
}

impl MetricsLog {
    /// Opens or creates the file, cut after the last line of a step up to `resumed_at`. A last line that is not whole,
    /// as a killed process leaves it, is cut too; any other line that is not metrics is an error, and nothing is cut.
    pub(super) fn open(path: &Path, resumed_at: u64) -> Result<Self> {
        let failed = |source| Error::input_output("open the metrics", path, source);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(failed)?;
        let kept = kept_bytes(&file, path, resumed_at)?;
        file.set_len(kept).map_err(failed)?;
        file.seek(SeekFrom::Start(kept)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, line: Vec::new() })
    }

    /// Appends a line. It is with the operating system when this returns, so it outlives the process.
    pub fn append(&mut self, metrics: &StepMetrics) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, metrics)
            .map_err(|error| Error::internal(format!("a line of metrics: {error}")))?;
        self.line.push(b'\n');
        self.file
            .write_all(&self.line)
            .map_err(|source| Error::input_output("write the metrics", &self.path, source))
    }

    /// Makes all lines outlive the machine. Before a checkpoint is written this must be called, or after a power
    /// failure the checkpoint could be ahead of the metrics, with steps missing for good.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| Error::input_output("write the metrics", &self.path, source))
    }
}

/// The lines of the file; none if there is no file.
pub(super) fn read(path: &Path) -> Result<Vec<StepMetrics>> {
    let file = match File::open(path) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.map_err(|source| Error::input_output("read the metrics", path, source))?,
    };
    let line = |line: std::io::Result<String>| {
        let line = line.map_err(|source| Error::input_output("read the metrics", path, source))?;
        serde_json::from_str(&line)
            .map_err(|error| Error::data(format!("{} is not lines of metrics: {error}", path.display())))
    };
    BufReader::new(file).lines().map(line).collect()
}

/// How many bytes the lines up to step `resumed_at` take.
fn kept_bytes(file: &File, path: &Path, resumed_at: u64) -> Result<u64> {
    let mut reader = BufReader::new(file);
    let (mut line, mut kept) = (Vec::new(), 0);
    for number in 1.. {
        line.clear();
        let length = reader
            .read_until(b'\n', &mut line)
            .map_err(|source| Error::input_output("read the metrics", path, source))?;
        let whole = line.ends_with(b"\n");
        match serde_json::from_slice::<Step>(&line) {
            Ok(Step { step }) if whole && step <= resumed_at => kept += length as u64,
            Err(error) if whole => {
                return Err(Error::data(format!(
                    "line {number} of {} is not a line of metrics: {error}",
                    path.display()
                ))
                .with_hint("take the line out, or move the file away to begin a new one"));
            }
            _ => break,
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            loss: 1.0 / step as f64,
            grad_norm: 1.0,
            lr: 1e-3,
            step_ms: 2.0,
            exposed_comm_ms: 0.5,
            tokens_per_s: 100.0,
            val_loss: step.is_multiple_of(2).then_some(3.0),
            eval_ms: None,
        }
    }

    fn append(path: &Path, resumed_at: u64, steps: std::ops::RangeInclusive<u64>) {
        let mut log = MetricsLog::open(path, resumed_at).unwrap();
        steps.for_each(|step| log.append(&metrics(step)).unwrap());
        log.sync().unwrap();
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str::<StepMetrics>(line).unwrap().step).collect()
    }

    #[test]
    fn each_step_is_there_once_after_a_resume() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        append(&path, 0, 1..=7);
        append(&path, 5, 6..=9);
        assert_eq!(steps(&path), (1..=9).collect::<Vec<_>>());
        append(&path, 0, 1..=2);
        assert_eq!(steps(&path), [1, 2]);
        append(&path, 2, 3..=3);
        assert_eq!(steps(&path), [1, 2, 3]);
    }

    #[test]
    fn a_last_line_that_is_not_whole_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        append(&path, 0, 1..=3);
        let whole = fs::read(&path).unwrap();
        let second = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for length in (0..=whole.len()).step_by(7).chain([whole.len() - 1, whole.len()]) {
            fs::write(&path, &whole[..length]).unwrap();
            append(&path, 3, 4..=4);
            let found = steps(&path);
            assert_eq!(found.last(), Some(&4));
            assert_eq!(found.len(), whole[..length].iter().filter(|&&byte| byte == b'\n').count() + 1);
        }
        fs::write(&path, [&whole[..second], &[0; 50]].concat()).unwrap();
        append(&path, 3, 4..=4);
        assert_eq!(steps(&path), [1, 4]);
    }

    #[test]
    fn a_damaged_line_is_named_and_nothing_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        for damage in ["{}\n", "\n", "{\"step\":-1}\n", "{\"step\":2\n"] {
            let text = format!("{{\"step\":1}}\n{damage}{{\"step\":3}}\n");
            fs::write(&path, &text).unwrap();
            let error = MetricsLog::open(&path, 3).unwrap_err();
            assert!(error.to_string().starts_with("line 2 of "), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
