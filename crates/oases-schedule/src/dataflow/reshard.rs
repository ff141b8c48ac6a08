//! What happens where the TMP degree changes from one block to the next.

use super::{Condition, Dataflow};
use crate::activations::Slot;
use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::value::Value;
use crate::verify::Rule;

impl Dataflow<'_> {
    pub(super) fn reshard(&mut self, pass: Pass, block: BlockId, part: PartId) {
        let Some(before) = self.schedule.border(block) else {
            self.violate(Rule::Reshard, format!("the degree does not change before {block}"));
            return;
        };
        let forwarded = self.forwarded.contains(&(block, part));
        if forwarded == (pass == Pass::Forward) {
            let when = if forwarded { "after" } else { "before" };
            let message = format!("{} {block} {part} reshard comes {when} the block's forward", pass.name());
            self.violate(Rule::Reshard, message);
            return;
        }
        match pass {
            Pass::Forward | Pass::Recompute => self.reshard_input(pass, before, block, part),
            Pass::Backward => self.reshard_gradient(block, part),
        }
    }

    /// The input is completed as the block before has it, and then gathered or sliced into a buffer of its own.
    fn reshard_input(&mut self, pass: Pass, before: BlockId, block: BlockId, part: PartId) {
        let leaving = Value::Leaving(block, part);
        self.join(before, leaving, part);
        self.values.remove(&leaving);
        let condition = self.gathered(pass, block, part);
        self.create(Value::Input(block, part), Slot::Resharded, condition);
    }

    /// The same for the gradient of the input, which the block after has completed up to its own block.
    fn reshard_gradient(&mut self, block: BlockId, part: PartId) {
        let gradient = Value::Gradient(block, part);
        self.read(gradient, Slot::Gradient, Rule::Backward);
        if let Some(after) = self.schedule.after(block) {
            let upstream = self.arriving(after, part);
            self.read(upstream, Slot::Upstream, Rule::Backward);
            self.forget_gradient(upstream);
        }
        self.forget_gradient(gradient);
        let condition = self.gathered(Pass::Backward, block, part);
        self.create(Value::Resharded(block, part), Slot::Resharded, condition);
    }

    /// The gradient of the input of `block`, as the block before reads it.
    pub(super) fn arriving(&self, block: BlockId, part: PartId) -> Value {
        match self.schedule.border(block).is_some() || self.schedule.crosses(block) {
            true => Value::Resharded(block, part),
            false => Value::Gradient(block, part),
        }
    }

    /// Where every rank has less than it needs, the rest is gathered.
    fn gathered(&self, pass: Pass, block: BlockId, part: PartId) -> Condition {
        let collective = CollectiveId::Reshard { pass, block, part };
        match self.schedule.collective(collective) {
            Some(_) => Condition::Partial(collective),
            None => Condition::Whole,
        }
    }
}
