//! Masked language modelling: which tokens are hidden, and what stands in their place (Devlin et al., arXiv 1810.04805, section 3.1).
//!
//! Dynamic masking: a sample has other masks in every epoch, since it has another number there. A token's fate is a function of the seed,
//! the sample's number and the position, so it does not depend on the layout.

use super::{Batch, IGNORE};
use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::streams::{Stream, draw, words};

/// How tokens are hidden.
#[derive(Clone, Debug, PartialEq)]
pub struct Masking {
    rate: f64,
    mask: u32,
    special: Vec<u32>,
    vocabulary: u32,
    seed: u64,
}

/// What the number of a sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Samples of training.
    Training,
    /// Windows of a validation, which have the same masks each time.
    Validation,
}

impl Masking {
    /// Hides this share of the tokens that stand for text, with the mask of a tokenizer.
    pub fn new(rate: f64, tokenizer: &Tokenizer, seed: u64) -> Result<Masking> {
        let mask = tokenizer.mask().ok_or_else(|| {
            let who =
                if tokenizer.is_bytes() { "text that is read as bytes has" } else { "the tokenizer has" };
            Error::configuration(format!("{who} no mask token, which a masked language model needs"))
                .with_hint("set data.tokenizer to the model's own tokenizer.json, with [MASK] or <mask>")
        })?;
        let (special, vocabulary) = (tokenizer.special().to_vec(), tokenizer.vocabulary() as u32);
        Ok(Masking { rate, mask, special, vocabulary, seed })
    }

    /// Hides tokens of a batch whose rows are numbered from `first` on. What is hidden is what is to be predicted: in its place stands the
    /// mask in 8 of 10 cases, any token in 1, itself in 1.
    pub fn apply(&self, of: Of, first: u64, sequence: usize, batch: &mut Batch) {
        let rows = batch.inputs.chunks_exact_mut(sequence).zip(batch.targets.chunks_exact_mut(sequence));
        let stream = if of == Of::Training { Stream::Masking } else { Stream::ValidationMasking };
        for (row, (inputs, targets)) in rows.enumerate() {
            let [low, high] = words(first + row as u64);
            let real = batch.lengths[row] as usize;
            if targets.iter().all(|&target| target == IGNORE) {
                continue;
            }
            targets.fill(IGNORE);
            let mut hidden = 0;
            for position in 0..real {
                let [choice, fate, other, _] = draw(stream, self.seed, [low, high, position as u32]);
                if f64::from(choice) < self.rate * 4_294_967_296.0 {
                    hidden += self.hide(&mut inputs[position], &mut targets[position], fate, other);
                }
            }
            // A row without a target would teach nothing: one token is hidden all the same.
            if hidden == 0 && real > 0 {
                let [at, fate, other, _] = draw(stream, self.seed, [low, high, u32::MAX]);
                let from = at as usize % real;
                for position in (from..real).chain(0..from) {
                    if self.hide(&mut inputs[position], &mut targets[position], fate, other) > 0 {
                        break;
                    }
                }
            }
        }
    }

    fn hide(&self, input: &mut u32, target: &mut u32, fate: u32, other: u32) -> usize {
        if self.special.binary_search(input).is_ok() {
            return 0;
        }
        *target = *input;
        match fate % 10 {
            0..8 => *input = self.mask,
            8 => *input = other % self.vocabulary,
            _ => {}
        }
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masking() -> Masking {
        Masking { rate: 0.15, mask: 3, special: vec![0, 1, 2, 3], vocabulary: 1000, seed: 7 }
    }

    fn batch(rows: usize, sequence: usize) -> Batch {
        let mut batch = Batch::default();
        batch.reset(rows, sequence);
        for (at, token) in batch.inputs.iter_mut().enumerate() {
            *token = if at % 16 == 0 { 1 } else { 4 + (at * 7 % 900) as u32 };
        }
        batch.targets.fill(5);
        batch
    }

    /// Shares of 200,000 draws are within four standard deviations, half a per cent here.
    #[test]
    fn as_many_are_hidden_as_asked_for() {
        let original = batch(800, 256);
        let mut hidden = original.clone();
        masking().apply(Of::Training, 40, 256, &mut hidden);
        let (mut chosen, mut masked, mut kept) = (0.0, 0.0, 0.0);
        for ((&before, &after), &target) in original.inputs.iter().zip(&hidden.inputs).zip(&hidden.targets) {
            if target == IGNORE {
                assert_eq!(before, after);
                continue;
            }
            assert!(target == before && before > 3);
            chosen += 1.0;
            masked += f64::from(after == 3);
            kept += f64::from(after == before);
        }
        let texts = 800.0 * 256.0 * 15.0 / 16.0;
        assert!((chosen / texts - 0.15_f64).abs() < 0.004, "{chosen} of {texts}");
        assert!((masked / chosen - 0.8_f64).abs() < 0.01 && (kept / chosen - 0.1_f64).abs() < 0.01);
    }

    #[test]
    fn a_row_has_the_same_masks_in_any_batch_and_others_in_any_epoch() {
        let (mut whole, mut later) = (batch(4, 64), batch(4, 64));
        masking().apply(Of::Training, 100, 64, &mut whole);
        masking().apply(Of::Training, 104, 64, &mut later);
        assert_ne!(whole.targets, later.targets);
        let mut one = batch(4, 64);
        one.inputs.drain(..128);
        one.targets.drain(..128);
        masking().apply(Of::Training, 102, 64, &mut one);
        assert_eq!((&one.inputs[..], &one.targets[..]), (&whole.inputs[128..], &whole.targets[128..]));
        let mut validation = batch(4, 64);
        masking().apply(Of::Validation, 100, 64, &mut validation);
        assert_ne!(whole.targets, validation.targets);
    }

    #[test]
    fn every_row_with_text_has_a_target_and_padding_has_none() {
        let mut short = batch(300, 5);
        short.lengths[7] = 2;
        short.targets[10..15].fill(IGNORE);
        masking().apply(Of::Training, 0, 5, &mut short);
        for (row, targets) in short.targets.chunks(5).enumerate() {
            let predicted = targets.iter().filter(|&&target| target != IGNORE).count();
            assert_eq!(predicted > 0, row != 2, "row {row}");
        }
        assert!(short.targets[37..40].iter().all(|&target| target == IGNORE));
    }
}
