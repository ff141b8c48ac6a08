//! Forward, recomputation and the pieces of products.

use super::{Condition, Dataflow, Pieces};
use crate::activations::{Inside, Slot};
use crate::ids::{BlockId, Cut, PartId, Pass, Piece};
use crate::schedule::{Extent, Keep};
use crate::value::{Touch, Value};
use crate::verify::Rule;

impl Dataflow<'_> {
    /// Completes the input of the block after `before`, in place of the output of `before`.
    pub(super) fn join(&mut self, before: BlockId, input: Value, part: PartId) {
        let output = Value::Output(before, part);
        self.read(output, Slot::Input, Rule::Whole);
        self.touches.pop_if(|touch| *touch == Touch::Use(output, Slot::Input));
        self.values.remove(&output);
        if before != BlockId::Embed {
            let residual = Value::Input(before, part);
            match self.values.get(&residual) {
                Some(_) => self.touches.push(Touch::Use(residual, Slot::Residual)),
                None => self.violate(Rule::Whole, format!("the {residual} does not exist here")),
            }
            if self.passing.remove(&residual) {
                self.values.remove(&residual);
            }
        }
        self.values.insert(input, Condition::Whole);
        let pieces = self.pieces.remove(&output).filter(|pieces| pieces.cut == Cut::Columns);
        let columns = pieces.map_or(1, |pieces| pieces.of);
        self.touches.push(Touch::Become(output, input, columns));
    }

    pub(super) fn forward(&mut self, block: BlockId, part: PartId, keep: Keep, extent: Extent) {
        if !self.forwarded.insert((block, part)) {
            self.violate(Rule::Forward, format!("a second forward {block} {part}"));
            return;
        }
        let inner = matches!(block, BlockId::Attn(_) | BlockId::Mlp(_));
        if !(extent == Extent::Output || extent == Extent::Body && inner) {
            self.violate(Rule::Pieces, format!("forward {block} {part} must go to the block's output"));
            return;
        }
        let before = self.schedule.before(block);
        if let Some(before) = before {
            let input = Value::Input(block, part);
            match (self.schedule.crosses(block), self.schedule.border(block)) {
                (true, _) => self.read(input, Slot::Input, Rule::Stages),
                (_, Some(_)) => self.read(input, Slot::Input, Rule::Reshard),
                _ => self.join(before, input, part),
            }
            if keep == Keep::Nothing {
                self.passing.insert(input);
            }
        } else if keep != Keep::Nothing {
            self.violate(Rule::Kept, "the embedding has no input to keep".into());
        }
        if block == BlockId::Head && keep == Keep::Input {
            self.violate(Rule::Kept, "the head is not recomputed: it keeps all or nothing".into());
        }
        let attention = matches!(block, BlockId::Attn(_));
        if keep == Keep::Selective && !attention {
            self.violate(Rule::Kept, format!("{block} has no attention core to leave out"));
        }
        // The loss reads the head's logits, so they live past the forward in any case.
        if (keep >= Keep::Selective && before.is_some()) || block == BlockId::Head {
            self.create_inside(Inside::Saved, block, part);
        }
        if keep == Keep::All && attention {
            self.create_inside(Inside::Core, block, part);
        }
        self.end_of_forward(Pass::Forward, block, part, extent);
    }

    pub(super) fn recompute(&mut self, block: BlockId, part: PartId, extent: Extent) {
        let (Some(before), BlockId::Attn(_) | BlockId::Mlp(_)) = (self.schedule.before(block), block) else {
            self.violate(Rule::Recompute, format!("{block} cannot be recomputed"));
            return;
        };
        let instance = (block, part);
        let done = self.inputs_done.contains(&instance) || self.weights_done.contains(&instance);
        if !self.forwarded.contains(&instance) || done {
            self.violate(Rule::Recompute, format!("{block} {part} is not between forward and backward"));
        }
        let saved = Value::Inside(Inside::Saved, block, part);
        let core = Value::Inside(Inside::Core, block, part);
        let attention = matches!(block, BlockId::Attn(_));
        if extent == Extent::Core {
            if !attention {
                self.violate(Rule::Recompute, format!("{block} has no attention core"));
                return;
            }
            self.read(saved, Slot::Normalized, Rule::Recompute);
        } else {
            let input = Value::Input(block, part);
            if self.schedule.crosses(block) {
                self.read(input, Slot::Input, Rule::Kept);
            } else if self.values.contains_key(&input) || self.schedule.border(block).is_some() {
                self.read(input, Slot::Input, Rule::Reshard);
            } else {
                self.join(before, input, part);
            }
            if self.values.contains_key(&saved) {
                self.violate(Rule::Recompute, format!("{block} {part} is already there and is rebuilt"));
            } else {
                self.create_inside(Inside::Saved, block, part);
            }
        }
        if attention && self.values.contains_key(&core) && extent == Extent::Core {
            self.violate(
                Rule::Recompute,
                format!("the core of {block} {part} is already there and is rebuilt"),
            );
        } else if attention && !self.values.contains_key(&core) {
            self.create_inside(Inside::Core, block, part);
        }
        self.end_of_forward(Pass::Recompute, block, part, extent);
    }

    /// What a forward or a recomputation leaves behind at its end.
    pub(super) fn end_of_forward(&mut self, pass: Pass, block: BlockId, part: PartId, extent: Extent) {
        match extent {
            Extent::Output => {
                self.create(Value::Output(block, part), Slot::Output, self.partial(block, part, pass, None));
            }
            Extent::Body => {
                if !self.values.contains_key(&Value::Inside(Inside::Core, block, part)) {
                    self.create_inside(Inside::Operand, block, part);
                }
                self.bodies.insert((pass, block, part), None);
            }
            Extent::Core | Extent::Saved => {}
        }
    }

    /// A piece of the last product: the next one of its body.
    pub(super) fn tail(&mut self, pass: Pass, block: BlockId, part: PartId, piece: Piece) {
        let next = self.bodies.get(&(pass, block, part)).copied();
        let fits = match next {
            None => false,
            Some(None) => piece.index == 0 && piece.of > 1,
            Some(Some(next)) => piece == next,
        };
        if !fits || (pass == Pass::Backward && piece.cut == Cut::Columns) {
            let message = format!("piece {piece} of {} {block} {part} is not the next", pass.name());
            self.violate(Rule::Pieces, message);
            return;
        }
        let last = piece.index + 1 == piece.of;
        let after = Piece { index: piece.index + 1, ..piece };
        self.bodies.insert((pass, block, part), Some(after));
        match pass {
            Pass::Forward | Pass::Recompute => self.forward_tail(block, part, last),
            Pass::Backward => self.backward_tail(block, part, last),
        }
        if last {
            self.bodies.remove(&(pass, block, part));
        }
        let (value, slot) = match pass {
            Pass::Forward | Pass::Recompute => (Value::Output(block, part), Slot::Output),
            Pass::Backward => (Value::Gradient(block, part), Slot::InputGradient),
        };
        if piece.index == 0 {
            self.create(value, slot, Condition::Cut);
            let conditions = Vec::with_capacity(usize::from(piece.of));
            self.pieces.insert(value, Pieces { of: piece.of, cut: piece.cut, conditions });
        } else {
            self.touches.push(Touch::Use(value, slot));
        }
        let condition = self.partial(block, part, pass, Some(piece));
        if let Some(pieces) = self.pieces.get_mut(&value) {
            pieces.conditions.push(condition);
        }
        self.join_pieces(value);
    }

    /// The operand of the last product goes with its last piece, unless backward reads it.
    pub(super) fn forward_tail(&mut self, block: BlockId, part: PartId, last: bool) {
        let operand = Value::Inside(Inside::Operand, block, part);
        if self.values.contains_key(&operand) {
            self.read(operand, Slot::Normalized, Rule::Pieces);
        } else {
            self.read(Value::Inside(Inside::Core, block, part), Slot::Normalized, Rule::Pieces);
        }
        if last {
            self.values.remove(&operand);
        }
    }

    /// A value all of whose pieces are complete is complete.
    pub(super) fn join_pieces(&mut self, value: Value) {
        let whole = self.pieces.get(&value).is_some_and(|pieces| {
            pieces.conditions.len() == usize::from(pieces.of)
                && pieces.conditions.iter().all(|condition| *condition == Condition::Whole)
        });
        if whole {
            self.values.insert(value, Condition::Whole);
        }
    }

    pub(super) fn create_inside(&mut self, inside: Inside, block: BlockId, part: PartId) {
        self.create(Value::Inside(inside, block, part), Slot::Normalized, Condition::Whole);
    }

    pub(super) fn loss(&mut self, part: PartId) {
        if !self.lost.insert(part) {
            self.violate(Rule::Loss, format!("a second loss {part}"));
            return;
        }
        self.read(Value::Inside(Inside::Saved, BlockId::Head, part), Slot::Normalized, Rule::Loss);
        self.read(Value::Output(BlockId::Head, part), Slot::Output, Rule::Loss);
        self.values.remove(&Value::Output(BlockId::Head, part));
        if self.passing.contains(&Value::Input(BlockId::Head, part)) {
            self.values.remove(&Value::Input(BlockId::Head, part));
            self.values.remove(&Value::Inside(Inside::Saved, BlockId::Head, part));
        }
    }
}
