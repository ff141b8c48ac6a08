//! The training windows: an endless, shuffled, resumable sequence of samples.

use std::ops::Range;

use super::{Batch, Tokens};
#[cfg(feature = "mpi")]
use crate::digest::Digest;
use crate::error::Result;
use crate::permutation::Permutation;
use crate::streams::{Stream, draw, words};

/// The training part of the text as an endless sequence of windows.
///
/// Sample `i` belongs to epoch `i / windows_per_epoch`. An epoch cuts the text into windows that overlap by one
/// token, so that each token is predicted once, and visits them in a pseudo-random order. The first window starts at
/// a place in `0..sequence` that differs between epochs, so windows are cut elsewhere each time; fewer than two
/// sequences of the text at its ends are left out of an epoch.
#[derive(Clone, Debug)]
pub struct TrainData {
    tokens: Tokens,
    length: u64,
    sequence: usize,
    seed: u64,
}

impl TrainData {
    /// The first `length` tokens, which must hold one window.
    pub(super) fn new(tokens: Tokens, length: u64, sequence: usize, seed: u64) -> Self {
        assert!(sequence > 0 && length > sequence as u64 && length <= tokens.count());
        Self { tokens, length, sequence, seed }
    }

    /// How many tokens a sample predicts.
    pub fn sequence(&self) -> usize {
        self.sequence
    }

    /// How many tokens there are to train on.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many samples make an epoch: what fits behind any start in `0..sequence`, and at least one.
    pub fn windows_per_epoch(&self) -> u64 {
        (self.length / self.sequence as u64 - 1).max(1)
    }

    /// Writes the `sequence + 1` tokens of a sample.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn window(&self, sample: u64, out: &mut [u32]) -> Result<()> {
        assert_eq!(out.len(), self.sequence + 1, "a window holds sequence + 1 tokens");
        self.tokens.copy_to(self.start(sample), out)
    }

    /// A digest of the text, the validation part included: of all of it, or where it is large of evenly spread parts.
    #[cfg(feature = "mpi")]
    pub(crate) fn digest(&self, mut digest: Digest) -> Result<Digest> {
        const PARTS: u64 = 4096;
        let mut room = [0; 4096];
        let count = self.tokens.count();
        let stride = (count / PARTS).max(room.len() as u64);
        digest = digest.word(count as u32);
        for start in (0..count).step_by(stride as usize) {
            let tokens = &mut room[..(count - start).min(4096) as usize];
            self.tokens.copy_to(start, tokens)?;
            digest = tokens.iter().fold(digest, |digest, token| digest.word(*token));
        }
        Ok(digest)
    }

    /// Row `row` of the batch becomes a sample.
    pub(super) fn fill_row(&self, row: usize, sample: u64, batch: &mut Batch) -> Result<()> {
        batch.set_row(row, self.sequence, &self.tokens, self.start(sample), self.sequence)
    }

    /// Fills the batch with these samples, one a row.
    pub fn fill(&self, samples: Range<u64>, batch: &mut Batch) -> Result<()> {
        batch.reset((samples.end - samples.start) as usize, self.sequence);
        samples.enumerate().try_for_each(|(row, sample)| self.fill_row(row, sample, batch))
    }

    /// The place of a sample's first token.
    fn start(&self, sample: u64) -> u64 {
        let windows = self.windows_per_epoch();
        let (epoch, place) = (sample / windows, sample % windows);
        let window = Permutation::new(windows, self.seed, epoch).apply(place);
        self.phase(epoch) + window * self.sequence as u64
    }

    /// Where the first window of an epoch starts.
    fn phase(&self, epoch: u64) -> u64 {
        let sequence = self.sequence as u64;
        let starts = sequence.min(self.length - self.windows_per_epoch() * sequence);
        let [epoch_low, epoch_high] = words(epoch);
        let [low, high, ..] = draw(Stream::DataPhase, self.seed, [epoch_low, epoch_high, 0]);
        (u64::from(high) << 32 | u64::from(low)) % starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens that tell their own place, modulo 256.
    fn data(length: u64, sequence: usize, seed: u64) -> TrainData {
        let tokens = Tokens::from_bytes((0..length).map(|place| place as u8).collect());
        TrainData::new(tokens, length, sequence, seed)
    }

    #[test]
    fn an_epoch_predicts_each_token_once() {
        for (length, sequence) in [(9, 8), (15, 8), (16, 8), (17, 8), (100, 8), (1000, 7), (64, 1), (2, 1)] {
            let data = data(length, sequence, 5);
            let windows = data.windows_per_epoch();
            for epoch in 0..10 {
                let mut predicted = vec![0; length as usize];
                for sample in epoch * windows..(epoch + 1) * windows {
                    let start = data.start(sample);
                    for place in start + 1..=start + sequence as u64 {
                        predicted[place as usize] += 1;
                    }
                }
                assert!(predicted.iter().all(|&count| count <= 1), "length {length} sequence {sequence}");
                let missed = predicted.iter().filter(|&&count| count == 0).count();
                assert!(missed <= 2 * sequence, "length {length} sequence {sequence}: {missed} missed");
            }
        }
    }

    #[test]
    fn windows_hold_the_text_and_targets_follow_inputs() {
        let data = data(1000, 8, 5);
        let (mut window, mut batch) = ([0; 9], Batch::default());
        data.fill(100..140, &mut batch).unwrap();
        assert_eq!(batch.predicted(), 40 * 8);
        for row in 0..40 {
            data.window(100 + row as u64, &mut window).unwrap();
            assert!(window.iter().zip(&window[1..]).all(|(token, next)| (token + 1) % 256 == *next));
            assert_eq!(batch.inputs[row * 8..(row + 1) * 8], window[..8]);
            assert_eq!(batch.targets[row * 8..(row + 1) * 8], window[1..]);
        }
    }

    #[test]
    fn order_and_cuts_differ_between_epochs_and_seeds() {
        let first = data(10_000, 16, 1);
        let windows = first.windows_per_epoch();
        let starts = |data: &TrainData, epoch: u64| {
            (epoch * windows..(epoch + 1) * windows).map(|sample| data.start(sample)).collect::<Vec<_>>()
        };
        assert_ne!(starts(&first, 0), starts(&first, 1));
        assert_ne!(starts(&first, 0), starts(&data(10_000, 16, 2), 0));
        let mut phases: Vec<_> = (0..100).map(|epoch| first.phase(epoch)).collect();
        phases.sort_unstable();
        phases.dedup();
        assert!(phases.len() > 12, "{phases:?}");
        assert!(!starts(&first, 0).is_sorted());
    }

    #[test]
    fn parts_of_a_batch_are_the_batch() {
        let data = data(500, 8, 9);
        let (mut whole, mut part) = (Batch::default(), Batch::default());
        data.fill(40..52, &mut whole).unwrap();
        let mut joined = Batch::default();
        for index in 0..3 {
            data.fill(super::super::share(40..52, index, 3).unwrap(), &mut part).unwrap();
            joined.inputs.extend(&part.inputs);
            joined.targets.extend(&part.targets);
            joined.types.extend(&part.types);
            joined.lengths.extend(&part.lengths);
        }
        assert_eq!(whole, joined);
    }

    #[test]
    fn filling_keeps_the_memory() {
        let data = data(500, 8, 9);
        let mut batch = Batch::with_capacity(4, 8);
        let (inputs, targets) = (batch.inputs.as_ptr(), batch.targets.as_ptr());
        for step in 0..5 {
            data.fill(super::super::samples_of_step(step, 4), &mut batch).unwrap();
        }
        assert_eq!((inputs, targets), (batch.inputs.as_ptr(), batch.targets.as_ptr()));
    }
}
