//! Next-token logits from a checkpoint: the evaluation schedule on a sequence of one token, on one rank, with the keys and values of the
//! tokens before.

use oases_exec::Backend;
use oases_schedule::{Mask, Model, Positions, Slot, Workspace};

use crate::checkpoint::Checkpoint;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::forward::ForwardRank;
use crate::job::describe_model;

/// A model with its weights, ready to continue a text.
pub struct Generator {
    rank: ForwardRank,
    /// Tokens that a context can have.
    length: usize,
    /// Cosines and sines of all positions; empty where positions are not rotated.
    rotations: Vec<f32>,
    /// The tokens whose keys and values are there, and where in the text they begin.
    context: Vec<u32>,
    first: usize,
    token: Batch,
}

impl Generator {
    /// Reads the weights of a checkpoint, which must be of this model.
    pub fn load(model: &Model, checkpoint: &Checkpoint, workspace: Workspace) -> Result<Generator> {
        checkpoint.metadata().expect_model(&describe_model(model), checkpoint.path())?;
        if model.mask == Mask::Bidirectional {
            return Err(Error::configuration("this model fills in hidden tokens and continues no text")
                .with_hint("`oases eval` takes its loss; models of the family bert are not for generation"));
        }
        let one = Model { sequence: 1, ..model.clone() };
        let rotations = match model.positions {
            Positions::Rotary(rotary) => rotary.table(model.head_dim, model.sequence),
            Positions::Learned(_) => Vec::new(),
        };
        let mut token = Batch::default();
        token.pad(1, 1);
        Ok(Generator {
            rank: ForwardRank::alone(&one, checkpoint, workspace, 1)?,
            length: model.sequence,
            rotations,
            context: Vec::new(),
            first: 0,
            token,
        })
    }

    /// Logits `[vocabulary]` of the token that follows `tokens`. The model sees a window of them, which ends with the last. Where it is full
    /// the next begins with its latter half, so of a long text at least half a window is seen.
    pub fn logits(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::internal("no token to continue"));
        }
        if tokens.len() - self.first.min(tokens.len()) > self.length || tokens.len() <= self.first {
            self.first = if tokens.len() > self.length { tokens.len() - self.length.div_ceil(2) } else { 0 };
        }
        let seen = &tokens[self.first..];
        // What goes on from before is not computed again; the last token is, for its logits.
        let same = self.context.iter().zip(seen).take_while(|(kept, token)| kept == token).count();
        let known = same.min(seen.len() - 1);
        self.context.truncate(known);
        for &token in &seen[known..] {
            self.advance(token)?;
        }
        logits.resize(self.rank.statics.model.vocabulary, 0.0);
        let all = self.rank.head().span(Slot::Logits);
        self.rank.backend.read(all, logits);
        Ok(())
    }

    fn advance(&mut self, token: u32) -> Result<()> {
        let position = self.context.len();
        let rank = &mut self.rank;
        let row = rank.statics.rotations.bytes / size_of::<f32>();
        if row > 0 {
            rank.backend.write(rank.statics.rotations, &self.rotations[position * row..][..row]);
        }
        rank.backend.at_position(position);
        self.token.inputs[0] = token;
        rank.run(&self.token)?;
        self.context.push(token);
        Ok(())
    }
}
