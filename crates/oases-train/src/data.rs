//! Training text as windows of tokens: where they come from, how they are split, and the batch that holds them.
//!
//! A sample is a number. Which text it holds depends on the seed and the number alone, never on the layout, so a
//! run resumes from the number of samples seen, and each data-parallel rank computes its own share.

mod blend;
mod documents;
pub mod indexed;
pub mod masking;
pub mod tokenize;
pub mod tokenizer;
mod tokens;
mod train;
mod validation;

use std::ops::Range;

pub use blend::Blend;
use oases_exec::Backend;
use oases_schedule::{Span, Statics};
pub use tokens::Tokens;
pub use train::TrainData;
pub use validation::ValidationData;

use crate::error::{Error, Result};

/// The target of a position that is not to be predicted: padding.
pub const IGNORE: u32 = u32::MAX;

/// Inputs and targets of some sequences, row by row. It is filled in place and keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Tokens, `[sequences, sequence]`.
    pub inputs: Vec<u32>,
    /// The token after each input, or [`IGNORE`], `[sequences, sequence]`.
    pub targets: Vec<u32>,
    /// The type of each token, for models that have types, `[sequences, sequence]`.
    pub types: Vec<u32>,
    /// How many tokens of each sequence are no padding that a query could see, `[sequences]`.
    pub lengths: Vec<u32>,
}

impl Batch {
    /// An empty batch with room for this many sequences, so that filling it does not allocate.
    pub fn with_capacity(sequences: usize, sequence: usize) -> Self {
        let tokens = sequences * sequence;
        Self {
            inputs: Vec::with_capacity(tokens),
            targets: Vec::with_capacity(tokens),
            types: Vec::with_capacity(tokens),
            lengths: Vec::with_capacity(sequences),
        }
    }

    /// How many targets count in the loss.
    pub fn predicted(&self) -> usize {
        self.targets.iter().filter(|&&target| target != IGNORE).count()
    }

    /// All padding, at this size.
    fn reset(&mut self, sequences: usize, sequence: usize) {
        self.inputs.clear();
        self.targets.clear();
        self.types.clear();
        self.lengths.clear();
        self.pad(sequences * sequence, sequence);
    }

    /// Fills up with padding that counts for nothing, to so many tokens.
    pub(crate) fn pad(&mut self, tokens: usize, sequence: usize) {
        self.inputs.resize(tokens, 0);
        self.targets.resize(tokens, IGNORE);
        self.types.resize(tokens, 0);
        self.lengths.resize(tokens / sequence, sequence as u32);
    }

    /// Tells a model that reads more than tokens how to read these.
    pub(crate) fn write_reading(&self, backend: &mut impl Backend, statics: &Statics) {
        let mut write = |place: Span, values: &[u32]| {
            if place.bytes > 0 {
                backend.write_tokens(Span { bytes: size_of_val(values), ..place }, values);
            }
        };
        write(statics.types, &self.types);
        write(statics.lengths, &self.lengths);
    }

    /// Row `row` becomes the window that starts at token `start` and predicts `targets` tokens.
    fn set_row(
        &mut self,
        row: usize,
        sequence: usize,
        tokens: &Tokens,
        start: u64,
        targets: usize,
    ) -> Result<()> {
        let place = row * sequence..row * sequence + targets;
        self.lengths[row] = targets as u32;
        tokens.copy_to(start, &mut self.inputs[place.clone()])?;
        tokens.copy_to(start + 1, &mut self.targets[place])
    }

    /// Refuses tokens that the model does not have: data of another tokenizer.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<()> {
        let unknown = |token: &&u32| **token as usize >= vocabulary && **token != IGNORE;
        match self.inputs.iter().chain(&self.targets).find(unknown) {
            None => Ok(()),
            Some(token) => Err(Error::data(format!(
                "the data has the token {token}, and model.vocabulary is {vocabulary}"
            ))
            .with_hint(
                "the data was tokenised for another model; its tokenizer says how many tokens there are",
            )),
        }
    }
}

/// The samples of a step, counted from 0: the same for every layout.
pub fn samples_of_step(step: u64, batch: u64) -> Range<u64> {
    step * batch..(step + 1) * batch
}

/// The contiguous part of `samples` that part `index` of `count` takes (a data-parallel rank, a micro-batch).
pub fn share(samples: Range<u64>, index: u64, count: u64) -> Result<Range<u64>> {
    let total = samples.end - samples.start;
    if count == 0 || index >= count {
        return Err(Error::internal(format!("part {index} of {count} of a batch")));
    }
    if !total.is_multiple_of(count) {
        let below = total - total % count;
        let fitting = if below == 0 { count.to_string() } else { format!("{below} or {}", below + count) };
        return Err(Error::configuration(format!(
            "a batch of {total} sequences cannot be shared evenly among {count}"
        ))
        .with_hint(format!("train.batch = {fitting} would do")));
    }
    let part = total / count;
    let start = samples.start + index * part;
    Ok(start..start + part)
}

/// Cuts the last `validation` share of the tokens off for validation, by position.
///
/// Each part must hold at least one window of `sequence + 1` tokens. With `validation = 0` all tokens are for
/// training and [`ValidationData::windows`] is 0.
pub fn split(
    tokens: Tokens,
    validation: f64,
    sequence: usize,
    seed: u64,
) -> Result<(TrainData, ValidationData)> {
    if !(0.0..1.0).contains(&validation) {
        return Err(Error::configuration(format!("data.validation is {validation}, outside 0 to 1"))
            .with_hint("0.05 keeps the last twentieth of the text for validation"));
    }
    if sequence == 0 {
        return Err(Error::configuration("a sequence of 0 tokens").with_hint("set model.sequence"));
    }
    let total = tokens.count();
    let window = sequence as u64 + 1;
    let held_out = held_out(total, validation);
    // At the beginning of a document where one leaves both parts a window.
    let cut = tokens.nearest_start(total - held_out)?;
    let whole = cut >= window && total - cut >= window && validation > 0.0;
    let train = if whole { cut } else { total - held_out };
    let held_out = total - train;
    if train < window || (validation > 0.0 && held_out < window) {
        let (part, has) = if train < window { ("training", train) } else { ("validation", held_out) };
        let needed = shortest(validation, window);
        let unit = if let Tokens::Bytes(_) = tokens { "bytes" } else { "tokens" };
        return Err(Error::data(format!(
            "the text is too short: its {part} part has {has} of the {window} tokens that one window of \
             sequence {sequence} takes"
        ))
        .with_hint(format!(
            "with data.validation = {validation} the text needs at least {needed} {unit}, it has {total}; add \
             text or lower model.sequence"
        )));
    }
    Ok((
        TrainData::new(tokens.clone(), train, sequence, seed),
        ValidationData::new(tokens, train..total, sequence),
    ))
}

/// How many of `total` tokens are for validation.
fn held_out(total: u64, validation: f64) -> u64 {
    (total as f64 * validation) as u64
}

/// The length of the shortest text whose parts both hold a window.
fn shortest(validation: f64, window: u64) -> u64 {
    let enough = |total| {
        total - held_out(total, validation) >= window
            && (validation == 0.0 || held_out(total, validation) >= window)
    };
    // Sharing out rounds the training part up. The estimate is at most a rounding error off; the search ends it.
    let held_out_needs = if validation == 0.0 { 0.0 } else { window as f64 / validation };
    let train_needs = (window - 1) as f64 / (1.0 - validation);
    let mut total = (held_out_needs.max(train_needs) as u64).saturating_sub(2).max(window);
    while !enough(total) {
        total += 1;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_contiguous_and_disjoint() {
        let samples = samples_of_step(3, 12);
        assert_eq!(samples, 36..48);
        let parts: Vec<_> = (0..4).map(|index| share(samples.clone(), index, 4).unwrap()).collect();
        assert_eq!(parts, [36..39, 39..42, 42..45, 45..48]);
    }

    #[test]
    fn uneven_share_names_values_that_would_do() {
        let error = share(0..10, 0, 4).unwrap_err();
        assert_eq!(error.to_string(), "a batch of 10 sequences cannot be shared evenly among 4");
        assert_eq!(error.hint(), Some("train.batch = 8 or 12 would do"));
        assert_eq!(share(0..3, 0, 4).unwrap_err().hint(), Some("train.batch = 4 would do"));
    }

    #[test]
    fn parts_follow_the_fraction() {
        let (train, validation) = split(Tokens::from_bytes(vec![1; 1000]), 0.05, 8, 0).unwrap();
        assert_eq!(validation.windows(), 49u64.div_ceil(8));
        assert_eq!(train.windows_per_epoch(), 950 / 8 - 1);
        let (train, validation) = split(Tokens::from_bytes(vec![1; 9]), 0.0, 8, 0).unwrap();
        assert_eq!((train.windows_per_epoch(), validation.windows()), (1, 0));
    }

    #[test]
    fn too_short_says_how_much_is_needed() {
        for fraction in [0.0, 0.05, 0.1, 0.5, 0.9, 0.999] {
            for sequence in [1, 8, 128] {
                let needed = shortest(fraction, sequence as u64 + 1);
                let attempt = |total| split(Tokens::from_bytes(vec![0; total]), fraction, sequence, 0);
                assert!(attempt(needed as usize).is_ok(), "{fraction} {sequence} {needed}");
                let error = attempt(needed as usize - 1).unwrap_err();
                assert!(matches!(error, Error::Data { .. }));
                assert!(error.hint().unwrap().contains(&format!("at least {needed} bytes")), "{error:?}");
            }
        }
    }

    #[test]
    fn refuses_a_fraction_outside_0_to_1() {
        for fraction in [-0.1, 1.0, 2.0, f64::NAN] {
            let error = split(Tokens::from_bytes(vec![0; 100]), fraction, 4, 0).unwrap_err();
            assert!(matches!(error, Error::Configuration { .. }));
        }
    }
}
