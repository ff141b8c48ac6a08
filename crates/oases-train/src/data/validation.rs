//! The validation windows: all of them, in order, nothing dropped.

use std::ops::Range;

use super::{Batch, Tokens};
use crate::error::Result;

/// The validation part of the text as windows in order, each token but the first predicted exactly once.
///
/// The last window may predict fewer tokens than a sequence; the rest of it is padding whose targets are
/// [`super::IGNORE`], and so are whole rows of the last batch.
#[derive(Clone, Debug)]
pub struct ValidationData {
    /// The sources, each with its part of the tokens.
    parts: Vec<(Tokens, Range<u64>)>,
    sequence: usize,
}

impl ValidationData {
    pub(super) fn new(tokens: Tokens, part: Range<u64>, sequence: usize) -> Self {
        Self { parts: vec![(tokens, part)], sequence }
    }

    /// All tokens of a source, for an evaluation of it.
    pub fn whole(tokens: Tokens, sequence: usize) -> Self {
        let all = 0..tokens.count();
        Self::new(tokens, all, sequence)
    }

    /// The windows of these, then those of the others.
    pub(crate) fn and(mut self, others: ValidationData) -> Self {
        self.parts.extend(others.parts);
        self
    }

    fn targets_of(part: &Range<u64>) -> u64 {
        (part.end - part.start).saturating_sub(1)
    }

    /// How many windows there are, the last one of each source possibly short.
    pub fn windows(&self) -> u64 {
        self.parts.iter().map(|(_, part)| Self::targets_of(part).div_ceil(self.sequence as u64)).sum()
    }

    /// How many tokens are predicted in all.
    pub fn targets(&self) -> u64 {
        self.parts.iter().map(|(_, part)| Self::targets_of(part)).sum()
    }

    /// The windows of each batch of `sequences` rows. Every range has that length: the last may reach past
    /// [`ValidationData::windows`], which [`ValidationData::fill`] pads. [`super::share`] splits a range among ranks.
    pub fn batches(&self, sequences: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let sequences = sequences.max(1);
        (0..self.windows().div_ceil(sequences)).map(move |batch| batch * sequences..(batch + 1) * sequences)
    }

    /// Fills the batch with these windows, one a row; rows past the last window are padding.
    pub fn fill(&self, windows: Range<u64>, batch: &mut Batch) -> Result<()> {
        batch.reset((windows.end - windows.start) as usize, self.sequence);
        let (sequence, first) = (self.sequence as u64, windows.start);
        let mut before = 0;
        for (tokens, part) in &self.parts {
            let targets = Self::targets_of(part);
            let own = before..before + targets.div_ceil(sequence);
            for window in windows.start.max(own.start)..windows.end.min(own.end) {
                let at = (window - own.start) * sequence;
                let predicted = sequence.min(targets - at) as usize;
                let row = (window - first) as usize;
                batch.set_row(row, self.sequence, tokens, part.start + at, predicted)?;
            }
            before = own.end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::IGNORE;
    use super::*;

    fn data(total: u64, part: Range<u64>, sequence: usize) -> ValidationData {
        ValidationData::new(Tokens::from_bytes((0..total).map(|place| place as u8).collect()), part, sequence)
    }

    #[test]
    fn every_token_is_predicted_once_in_order() {
        for (length, sequence, rows) in
            [(9, 8, 4), (10, 8, 1), (41, 8, 2), (100, 7, 4), (2, 1, 3), (50, 1, 16)]
        {
            let data = data(200, 100..100 + length, sequence);
            let (mut batch, mut predicted) = (Batch::default(), Vec::new());
            for windows in data.batches(rows) {
                assert_eq!(windows.end - windows.start, rows);
                data.fill(windows, &mut batch).unwrap();
                assert_eq!(batch.inputs.len(), rows as usize * sequence);
                for (input, target) in batch.inputs.iter().zip(&batch.targets) {
                    if *target != IGNORE {
                        assert_eq!(input + 1, *target);
                        predicted.push(u64::from(*target));
                    }
                }
            }
            assert_eq!(predicted, (101..100 + length).collect::<Vec<_>>(), "{length} {sequence} {rows}");
        }
    }

    #[test]
    fn padding_is_ignored() {
        let data = data(30, 20..30, 4);
        let mut batch = Batch::default();
        data.fill(2..4, &mut batch).unwrap();
        assert_eq!(batch.inputs, [28, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(batch.targets, [29, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE]);
        assert_eq!(batch.predicted(), 1);
        data.fill(5..6, &mut batch).unwrap();
        assert_eq!(batch.predicted(), 0);
    }

    #[test]
    fn without_validation_there_is_no_batch() {
        let data = data(30, 30..30, 4);
        assert_eq!((data.windows(), data.batches(4).count()), (0, 0));
    }

    #[test]
    fn sources_come_one_after_the_other() {
        let (mut batch, mut predicted) = (Batch::default(), Vec::new());
        let both = data(200, 10..31, 8).and(data(200, 100..104, 8));
        assert_eq!((both.windows(), both.targets()), (4, 23));
        for windows in both.batches(3) {
            both.fill(windows, &mut batch).unwrap();
            predicted.extend(batch.targets.iter().copied().filter(|&target| target != IGNORE));
        }
        assert_eq!(predicted, (11..31).chain(101..104).collect::<Vec<u32>>());
    }
}
