//! Next-token logits from a checkpoint: the evaluation schedule on one sequence, on one rank.
//!
//! Every token runs the whole window again. Attention is causal, so what stands behind the last token has no effect.

use oases_exec::Backend;
use oases_schedule::{Model, Slot, Span, Workspace};

use crate::checkpoint::Checkpoint;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::forward::ForwardRank;
use crate::job::describe_model;

/// A model with its weights, ready to continue a text.
pub struct Generator {
    rank: ForwardRank,
    /// The window, padded to the model's sequence length.
    window: Batch,
}

impl Generator {
    /// Reads the weights of a checkpoint, which must be of this model.
    pub fn load(model: &Model, checkpoint: &Checkpoint, workspace: Workspace) -> Result<Generator> {
        checkpoint.metadata().expect_model(&describe_model(model), checkpoint.path())?;
        let mut window = Batch::default();
        window.pad(model.sequence, model.sequence);
        Ok(Generator { rank: ForwardRank::alone(model, checkpoint, workspace, 1)?, window })
    }

    /// Logits `[vocabulary]` of the token that follows `tokens`, of which the model sees the last window.
    pub fn logits(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        let length = self.window.inputs.len();
        let seen = &tokens[tokens.len().saturating_sub(length)..];
        let last = seen.len().checked_sub(1).ok_or_else(|| Error::internal("no token to continue"))?;
        self.window.inputs.fill(0);
        self.window.inputs[..seen.len()].copy_from_slice(seen);
        self.rank.run(&self.window)?;
        let vocabulary = self.rank.statics.model.vocabulary;
        logits.resize(vocabulary, 0.0);
        let (bytes, all) = (vocabulary * size_of::<f32>(), self.rank.head().span(Slot::Logits));
        self.rank.backend.read(Span { offset: all.offset + last * bytes, bytes }, logits);
        Ok(())
    }
}
