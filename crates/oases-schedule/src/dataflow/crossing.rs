//! What happens where the chain crosses from one pipeline stage to another.

use super::{Condition, Dataflow};
use crate::activations::Slot;
use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::schedule::CollectiveKind;
use crate::value::{Touch, Value};
use crate::verify::Rule;

impl Dataflow<'_> {
    /// Completes what is sent next.
    pub(super) fn complete(&mut self, pass: Pass, block: BlockId, part: PartId) {
        let transfer = CollectiveId::Transfer { pass, block, part };
        if !self.sends(transfer) {
            self.violate(Rule::Stages, format!("nothing of {block} is sent in {} from here", pass.name()));
            return;
        }
        let value = self.transferred(pass, block, part);
        if pass == Pass::Backward {
            self.read(value, Slot::Gradient, Rule::Backward);
            if let Some(after) = self.schedule.after(block) {
                let upstream = self.arriving(after, part);
                self.read(upstream, Slot::Upstream, Rule::Backward);
                self.forget_gradient(upstream);
            }
        } else {
            let before = self.schedule.before(block).expect("the chain crosses before the block");
            self.join(before, value, part);
        }
        self.values.insert(value, Condition::Partial(transfer));
    }

    /// The value that a transfer carries, as this stage knows it.
    pub(super) fn transferred(&self, pass: Pass, block: BlockId, part: PartId) -> Value {
        let sends = self.sends(CollectiveId::Transfer { pass, block, part });
        match pass {
            Pass::Backward if sends => Value::Gradient(block, part),
            Pass::Backward => Value::Resharded(block, part),
            Pass::Forward | Pass::Recompute => Value::Input(block, part),
        }
    }

    fn sends(&self, transfer: CollectiveId) -> bool {
        self.schedule.collective(transfer).is_some_and(|(kind, ..)| kind == CollectiveKind::Send)
    }

    /// What arrives has a buffer from the start of its receive.
    pub(super) fn receive(&mut self, transfer: CollectiveId, value: Value) {
        if self.values.insert(value, Condition::InFlight(transfer)).is_some() {
            self.violate(Rule::Whole, format!("the {value} is written while it is still alive"));
        }
        self.touches.push(Touch::Create(value, Slot::Output));
    }

    /// What was sent is of no more use here.
    pub(super) fn sent(&mut self, value: Value) {
        self.values.remove(&value);
        self.pieces.remove(&value);
    }

    /// Everything that crosses here does so once, for every part.
    pub(super) fn crossings(&mut self) {
        let passes = if self.stepped { &[Pass::Forward, Pass::Backward][..] } else { &[Pass::Forward] };
        let starts = self.schedule.stage.stages.starts();
        let layers = self.schedule.layers;
        let mut missing = Vec::new();
        for (&start, &pass) in starts.iter().flat_map(|start| passes.iter().map(move |pass| (start, pass))) {
            let block = BlockId::at(start, layers);
            let parts = self.schedule.parts.iter().map(|part| part.id);
            let transfers = parts.map(|part| CollectiveId::Transfer { pass, block, part });
            let here = transfers.filter(|&transfer| self.schedule.collective(transfer).is_some());
            missing.extend(here.filter(|transfer| !self.started.contains(transfer)));
        }
        if let [first, others @ ..] = missing.as_slice() {
            let others =
                if others.is_empty() { String::new() } else { format!(", nor {} others", others.len()) };
            self.violate(Rule::Stages, format!("{first} does not happen{others}"));
        }
    }
}
