//! A process killed at any moment leaves a checkpoint that loads and is not older than the last it reported.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use oases_train::checkpoint::{Checkpoint, Checkpoints, Metadata, TensorSpec};

use crate::child;

const KILLS: u32 = 50;
const KEEP: usize = 2;
const READY: &str = "ready";
const REPORT: &str = "written ";

fn specs() -> Vec<TensorSpec> {
    (0..6).map(|number| TensorSpec::new(format!("model.{number}"), [64, 128])).collect()
}

/// Each number says which step and tensor it belongs to.
fn value(step: u64, tensor: usize) -> f32 {
    (step * 8 + tensor as u64) as f32
}

fn assert_whole(checkpoint: &Checkpoint) {
    checkpoint.expect_tensors(&specs()).unwrap();
    let step = checkpoint.metadata().step;
    let mut out = vec![0.0; 64 * 128];
    for (tensor, spec) in specs().iter().enumerate() {
        checkpoint.read(&spec.name, &mut out).unwrap();
        assert!(out.iter().all(|&number| number == value(step, tensor)), "step {step}: {}", spec.name);
    }
}

#[test]
fn fifty_kills_lose_no_reported_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::view(dir.path());
    let (mut reported, mut half_written) = (0, 0);
    for kill in 0..KILLS {
        let mut process = child::command("kill::write_until_killed", dir.path()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        // However long the process takes to start: it is killed between its first checkpoint and some later one.
        assert!(output.any(|line| line == READY), "the process did not start");
        let reader = thread::spawn(move || output.collect::<Vec<_>>());
        // The golden ratio spreads the moments evenly.
        let moment = f64::from(kill) * 0.618_033_988_749_895 % 1.0;
        thread::sleep(Duration::from_secs_f64(moment * 0.040));
        process.kill().unwrap();
        process.wait().unwrap();
        for line in reader.join().unwrap() {
            // The process may have been killed within its last line.
            let step = line.strip_prefix(REPORT).and_then(|text| text.strip_suffix('.')).map(str::parse);
            reported = step.map_or(reported, Result::unwrap);
        }
        half_written += usize::from(has_temporary(dir.path()));
        let Some(latest) = checkpoints.latest().unwrap() else {
            assert_eq!(reported, 0);
            continue;
        };
        assert!(latest.passed_over.is_empty(), "{:?}", latest.passed_over);
        assert!(latest.checkpoint.metadata().step >= reported);
        assert_whole(&latest.checkpoint);
    }
    assert!(reported > 0, "no process lived long enough to write a checkpoint");
    assert!(half_written > 0, "no process was killed while it wrote a checkpoint");
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    assert!(!has_temporary(dir.path()));
    let newest = *checkpoints.steps().unwrap().last().unwrap();
    checkpoints.prune(newest, KEEP).unwrap();
    assert_eq!(checkpoints.steps().unwrap(), [newest - 1, newest]);
}

fn has_temporary(folder: &Path) -> bool {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.into_iter().any(|name| PathBuf::from(name).extension().is_some_and(|extension| extension == "tmp"))
}

#[test]
fn write_until_killed() {
    let Some(folder) = child::folder() else { return };
    let checkpoints = Checkpoints::open(folder).unwrap();
    let latest = checkpoints.latest().unwrap();
    let first = latest.map_or(1, |latest| latest.checkpoint.metadata().step + 1);
    // The test harness has begun the line with the test's name.
    println!("\n{READY}");
    for step in first..first + 10_000 {
        let metadata = Metadata { step, ..Metadata::default() };
        let draft = checkpoints.begin(&metadata, &specs()).unwrap();
        for (tensor, spec) in specs().iter().enumerate() {
            // In pieces, so that there are moments between them.
            for row in 0..spec.shape[0] {
                let values = [value(step, tensor); 128];
                draft.write(&spec.name, (row..row + 1, 0..128), 0..128, &values).unwrap();
            }
        }
        draft.publish().unwrap();
        println!("{REPORT}{step}.");
        checkpoints.prune(step, KEEP).unwrap();
    }
}
