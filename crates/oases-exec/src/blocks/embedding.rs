//! The embedding: rows of the token table, to which positions and token types are added where the next block begins.

use oases_schedule::{BlockId, Role, Schedule, Slot};

use super::BlockCall;
use crate::backend::Backend;
use crate::operators::{Accumulate, Term, VocabularyShard};

impl<B: Backend> BlockCall<'_, B> {
    pub(super) fn embed(&mut self) {
        let (tokens, table) = (self.tokens(self.statics.tokens), self.weight(Role::Tokens));
        let (shard, out) = (self.vocabulary(), self.at(Slot::Output));
        self.backend.embed(tokens, table, shard, self.statics.model.hidden, out);
    }

    pub(super) fn embed_backward(&mut self) {
        let branch = self.incoming_gradient();
        let (hidden, accumulate) = (self.model().hidden, self.accumulate());
        let positions = self.gradient(Role::Positions);
        if positions.bytes > 0 {
            let used = self.model().sequence * hidden;
            self.backend.positions_backward(branch, positions, used, accumulate);
        }
        let types = self.gradient(Role::TokenTypes);
        if types.bytes > 0 {
            let rows = self.model().token_types;
            let all = VocabularyShard { first_row: 0, width: rows, valid: rows };
            let of = self.tokens(self.statics.types);
            self.backend.embed_backward(of, branch, all, hidden, types, accumulate);
        }
        // A tied table already holds the head's gradient, if on this stage: every part's head goes backward before its embedding.
        let head = Schedule::blocks(self.model().layers) - 1;
        let shared = self.model().tied && self.statics.stage.runs(head);
        let accumulate = if shared { Accumulate::Add } else { accumulate };
        let (tokens, table) = (self.tokens(self.statics.tokens), self.gradient(Role::Tokens));
        let shard = self.vocabulary();
        self.backend.embed_backward(tokens, branch, shard, hidden, table, accumulate);
    }

    /// What joins the embedding's reduced output.
    pub(super) fn embedding_term(&self) -> Term {
        let mut positions = self.statics.role(BlockId::Embed, Role::Positions).weight;
        // The rows of a sequence; the table can have more.
        positions.bytes = positions.bytes.min(self.model().sequence * self.model().hidden * size_of::<f32>());
        let table = self.statics.role(BlockId::Embed, Role::TokenTypes).weight;
        match (positions.bytes > 0, table.bytes > 0) {
            (false, _) => Term::None,
            (true, false) => Term::Positions(positions),
            (true, true) => {
                Term::PositionsAndTypes { positions, types: self.tokens(self.statics.types), table }
            }
        }
    }
}
