//! A run that stops and goes on sees the data, and the learning rate, of a run that did not stop.

use std::path::PathBuf;

use oases_train::checkpoint::{Checkpoints, Metadata};
use oases_train::data::{self, Batch, Tokens};

const SEQUENCE: usize = 32;
const BATCH: u64 = 12;

fn text() -> Tokens {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Tokens::read_bytes(&[root.join("../../data/moby_dick.txt")], 256).unwrap()
}

/// The batches of some steps as one batch, put together from the shares of `ranks` data-parallel ranks.
fn batches(seed: u64, samples: std::ops::Range<u64>, ranks: u64) -> Vec<Batch> {
    let (train, _) = data::split(text(), 0.05, SEQUENCE, seed).unwrap();
    let mut part = Batch::with_capacity((BATCH / ranks) as usize, SEQUENCE);
    let mut all = Vec::new();
    for first in samples.step_by(BATCH as usize) {
        let mut batch = Batch::default();
        for rank in 0..ranks {
            train.fill(data::share(first..first + BATCH, rank, ranks).unwrap(), &mut part).unwrap();
            batch.inputs.extend(&part.inputs);
            batch.targets.extend(&part.targets);
        }
        all.push(batch);
    }
    all
}

#[test]
fn resumed_at_another_layout_the_batches_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let undisturbed = batches(7, 0..40 * BATCH, 1);
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    let metadata = Metadata { step: 15, samples: 15 * BATCH, seed: 7, ..Metadata::default() };
    checkpoints.begin(&metadata, &[]).unwrap().publish().unwrap();
    let latest = checkpoints.latest().unwrap().unwrap().checkpoint;
    let Metadata { samples, seed, .. } = *latest.metadata();
    for ranks in [1, 2, 4] {
        let resumed = batches(seed, samples..40 * BATCH, ranks);
        assert_eq!(resumed, undisturbed[15..], "{ranks} data-parallel ranks");
    }
}

#[test]
fn samples_of_an_epoch_are_all_different() {
    let (train, validation) = data::split(text(), 0.05, SEQUENCE, 1).unwrap();
    let mut window = [0; SEQUENCE + 1];
    let mut windows: Vec<_> = (0..train.windows_per_epoch())
        .map(|sample| {
            train.window(sample, &mut window).unwrap();
            window
        })
        .collect();
    let all = windows.len();
    windows.sort_unstable();
    windows.dedup();
    // Some lines of the text, such as rules and blanks, may repeat.
    assert!(windows.len() * 1000 > all * 995, "{} of {all} are different", windows.len());
    let predicted: usize = validation.batches(64).fold(0, |predicted, windows| {
        let mut batch = Batch::default();
        validation.fill(windows, &mut batch).unwrap();
        predicted + batch.predicted()
    });
    assert_eq!(predicted as u64, validation.targets());
}
