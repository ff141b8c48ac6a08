//! The loss of a checkpoint over a text, every target counted once.

use oases_schedule::{Mask, Model, Workspace};

use crate::checkpoint::Checkpoint;
use crate::data::masking::{Masking, Of};
use crate::data::tokenizer::Tokenizer;
use crate::data::{Batch, Tokens, ValidationData};
use crate::error::{Error, Result};
use crate::forward::ForwardRank;
use crate::job::{describe_model, read_text};
use crate::options::DataOptions;

/// What an evaluation is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluateOptions {
    /// Text files with their tokenizer, or tokenised data sets.
    pub data: DataOptions,
    /// Share of tokens that a masked language model predicts.
    pub mask_rate: f64,
    /// Sequences at a time.
    pub batch: u32,
}

/// What an evaluation has found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// Mean loss of a target, in nats.
    pub loss: f64,
    /// Targets.
    pub targets: u64,
    /// Tokens.
    pub tokens: u64,
    /// Bytes of the text; `None` where only its tokens are known.
    pub bytes: Option<u64>,
}

impl Evaluated {
    /// e to the mean loss: as many tokens to choose from evenly would be as hard.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// Bits that the text takes, by its bytes: what does not depend on the tokenizer. Of a masked model it is no code length.
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bits = self.loss * self.targets as f64 / std::f64::consts::LN_2;
        self.bytes.map(|bytes| bits / bytes as f64)
    }
}

/// Evaluates the weights of a checkpoint, which must be of this model, on one rank. `progress` hears of windows done and of all.
pub fn evaluate(
    model: &Model,
    checkpoint: &Checkpoint,
    workspace: Workspace,
    options: &EvaluateOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Evaluated> {
    checkpoint.metadata().expect_model(&describe_model(model), checkpoint.path())?;
    let data = &options.data;
    let tokenizer = data.tokenizer.as_deref().map_or_else(|| Ok(Tokenizer::bytes()), Tokenizer::open)?;
    let masked = model.mask == Mask::Bidirectional;
    let masking = masked.then(|| Masking::new(options.mask_rate, &tokenizer, 0)).transpose()?;
    let (tokens, bytes) = match data.files.as_slice() {
        [] => {
            let lengths = data.text.iter().map(|path| std::fs::metadata(path).map_or(0, |about| about.len()));
            // Of JSONL the bytes of the file are not those of the text.
            let plain = data.text.iter().all(|path| path.extension().is_none_or(|end| end != "jsonl"));
            let bytes = lengths.sum();
            (read_text(data, &tokenizer, model.vocabulary)?, plain.then_some(bytes))
        }
        [prefix] => (Tokens::open(prefix)?, None),
        _ => return Err(Error::configuration("several data sets").with_hint("evaluate one at a time")),
    };
    let count = tokens.count();
    if count < 2 {
        return Err(Error::data(format!("the text has {count} tokens, and nothing to predict"))
            .with_hint("give a text of at least two tokens"));
    }
    let windows = ValidationData::whole(tokens, model.sequence);
    let mut rank = ForwardRank::alone(model, checkpoint, workspace, options.batch)?;
    let (mut batch, mut loss, mut targets) = (Batch::default(), 0.0, 0);
    for range in windows.batches(u64::from(options.batch)) {
        let (first, done) = (range.start, range.end.min(windows.windows()));
        windows.fill(range, &mut batch)?;
        batch.check(model.vocabulary)?;
        if let Some(masking) = &masking {
            masking.apply(Of::Validation, first, model.sequence, &mut batch);
        }
        loss += rank.run(&batch)?;
        targets += batch.predicted() as u64;
        progress(done, windows.windows());
    }
    Ok(Evaluated { loss: loss / targets as f64, targets, tokens: count, bytes })
}
