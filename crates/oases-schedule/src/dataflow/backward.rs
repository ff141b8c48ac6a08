//! Backward, whole and in halves, and the order in which gradients are added.

use super::{Dataflow, Half, turn};
use crate::activations::{Inside, Slot};
use crate::ids::{BlockId, PartId, Pass};
use crate::schedule::Scope;
use crate::value::Value;
use crate::verify::Rule;

impl Dataflow<'_> {
    pub(super) fn backward(&mut self, block: BlockId, part: PartId, scope: Scope) {
        let instance = (block, part);
        if block == BlockId::Embed && scope != Scope::All {
            self.violate(Rule::Backward, "the embedding has no input gradient to come first".into());
            return;
        }
        let begun = self.bodies.contains_key(&(Pass::Backward, block, part));
        if begun || self.inputs_done.contains(&instance) || self.weights_done.contains(&instance) {
            self.violate(Rule::Backward, format!("a second backward {block} {part}"));
            return;
        }
        let mut in_turn = true;
        if scope != Scope::Input {
            self.weights_done.insert(instance);
            in_turn = self.in_turn(block, part, Half::Weight);
        }
        if scope != Scope::Body {
            self.inputs_done.insert(instance);
            if in_turn {
                self.in_turn(block, part, Half::Input);
            }
        }
        if block == BlockId::Head {
            if !self.lost.contains(&part) {
                self.violate(Rule::Loss, format!("backward head {part} comes before its loss"));
            }
        } else {
            self.incoming_gradient(block, part, scope);
        }
        if block != BlockId::Embed {
            self.through_block(block, part, scope);
        }
    }

    /// Gradients are added in the order of the parts; returns whether these are.
    pub(super) fn in_turn(&mut self, block: BlockId, part: PartId, half: Half) -> bool {
        let (place, turn) = turn(block, part, half);
        match self.last_backward.insert(place, (turn, block, part)) {
            Some((last, late, of)) if last > turn => {
                let message = format!("backward {block} {part} adds its gradients after {late} {of}");
                self.violate(Rule::Order, message);
                false
            }
            _ => true,
        }
    }

    /// Everything that forward or recompute left for backward.
    pub(super) fn read_saved(&mut self, block: BlockId, part: PartId, missing: Rule) {
        let saved = Value::Inside(Inside::Saved, block, part);
        self.read(saved, Slot::Normalized, missing);
        // Where nothing is left, that is said once.
        if matches!(block, BlockId::Attn(_)) && self.values.contains_key(&saved) {
            self.read(Value::Inside(Inside::Core, block, part), Slot::Normalized, missing);
        }
    }

    /// Reads what was kept or rebuilt, and leaves what the rest of the backward needs.
    pub(super) fn through_block(&mut self, block: BlockId, part: PartId, scope: Scope) {
        self.read_saved(block, part, Rule::Recompute);
        self.read(Value::Input(block, part), Slot::Input, Rule::Kept);
        match scope {
            Scope::All => self.forget_inside(block, part),
            _ => self.create_inside(Inside::Delta, block, part),
        }
        if scope == Scope::Body {
            self.bodies.insert((Pass::Backward, block, part), None);
        } else {
            self.values.remove(&Value::Input(block, part));
            let condition = self.partial(block, part, Pass::Backward, None);
            self.create(Value::Gradient(block, part), Slot::InputGradient, condition);
        }
    }

    /// `G[k+1]` is completed in place by the gradient that arrived at the block after it.
    pub(super) fn incoming_gradient(&mut self, block: BlockId, part: PartId, scope: Scope) {
        let Some(after) = self.schedule.after(block) else { return };
        let gradient = self.arriving(after, part);
        let crosses = self.schedule.crosses(after);
        let completed = crosses || self.schedule.border(after).is_some();
        let missing = match (crosses, completed) {
            (true, _) => Rule::Stages,
            (_, true) => Rule::Reshard,
            _ => Rule::Backward,
        };
        self.read(gradient, Slot::Gradient, missing);
        if scope == Scope::Input {
            self.held.insert(gradient, false);
        }
        // What was resharded or came from another stage was completed before.
        if let Some(upstream) = self.schedule.after(after).filter(|_| !completed) {
            let upstream = self.arriving(upstream, part);
            self.read(upstream, Slot::Upstream, Rule::Backward);
            self.forget_gradient(upstream);
        }
        if block == BlockId::Embed {
            self.forget_gradient(gradient);
        }
    }

    /// A gradient that nobody but a `backward_weight` still reads ends with that one.
    pub(super) fn forget_gradient(&mut self, gradient: Value) {
        match self.held.get_mut(&gradient) {
            Some(unread) => *unread = true,
            None => {
                self.values.remove(&gradient);
                self.pieces.remove(&gradient);
            }
        }
    }

    pub(super) fn backward_weight(&mut self, block: BlockId, part: PartId) {
        let instance = (block, part);
        if !self.inputs_done.contains(&instance) || !self.weights_done.insert(instance) {
            self.violate(
                Rule::Backward,
                format!("backward_weight {block} {part} does not follow its input's"),
            );
            return;
        }
        self.in_turn(block, part, Half::Weight);
        self.read_saved(block, part, Rule::Backward);
        self.read(Value::Inside(Inside::Delta, block, part), Slot::Normalized, Rule::Backward);
        self.forget_inside(block, part);
        if let Some(after) = self.schedule.after(block) {
            let gradient = self.arriving(after, part);
            self.read(gradient, Slot::Gradient, Rule::Backward);
            if self.held.remove(&gradient) == Some(true) {
                self.forget_gradient(gradient);
            }
        }
    }

    pub(super) fn backward_tail(&mut self, block: BlockId, part: PartId, last: bool) {
        self.in_turn(block, part, Half::Input);
        let insides = [Inside::Saved, Inside::Delta].map(|inside| Value::Inside(inside, block, part));
        insides.iter().for_each(|&value| self.read(value, Slot::Normalized, Rule::Pieces));
        let input = Value::Input(block, part);
        self.read(input, Slot::Input, Rule::Kept);
        if last {
            self.forget_inside(block, part);
            self.values.remove(&input);
            self.inputs_done.insert((block, part));
        }
    }

    pub(super) fn forget_inside(&mut self, block: BlockId, part: PartId) {
        for inside in [Inside::Saved, Inside::Core, Inside::Delta] {
            self.values.remove(&Value::Inside(inside, block, part));
        }
    }
}
