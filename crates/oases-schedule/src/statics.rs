//! The part of the arena that lives as long as the run: weights, gradients, optimizer moments, and the step's inputs.
//!
//! Weights, gradients and both moments are four copies of one region, so that a parameter has the same place in each.
//! The region is sorted by what its gradients need: sharded first, then whole and complete, then whole and partial.
//! Therefore the norm reads one range, and the reduction of partial gradients is one collective.

use crate::ids::BlockId;
use crate::model::Model;
use crate::parameters::{GradientKind, Parameter, Role};
use crate::schedule::Schedule;
use crate::units::Span;

/// What the arena is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Weights, gradients and moments.
    Training,
    /// Weights only.
    Inference,
}

/// A parameter's (or a role's) weight and its gradient. Empty spans where the model has no such parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Where the values are.
    pub weight: Span,
    /// Where the gradient is.
    pub gradient: Span,
}

/// Places of everything that outlives a step.
#[derive(Clone, Debug)]
pub struct Statics {
    /// The model that is laid out.
    pub model: Model,
    /// TMP degree.
    pub tensor: u32,
    /// What the arena is for.
    pub purpose: Purpose,
    /// The full model's parameters.
    pub parameters: Vec<Parameter>,
    /// Offset of each parameter inside the region.
    offsets: Vec<usize>,
    by_role: Vec<[Placed; Role::COUNT]>,
    /// Bytes of one copy of the region.
    region: usize,
    sharded: usize,
    partial: usize,
    /// Input tokens of the step, `u32`, `[sequences, S]`.
    pub tokens: Span,
    /// Target tokens of the step, `u32`, `[sequences, S]`.
    pub targets: Span,
    /// Sum of the loss over the tokens of each part.
    pub losses: Span,
    /// Square of the gradient norm.
    pub norm: Span,
    /// Bytes of all this.
    pub bytes: usize,
}

fn align(offset: usize) -> usize {
    offset.next_multiple_of(Span::ALIGNMENT)
}

impl Statics {
    /// Lays out `model` over a TMP group, with room for `sequences` sequences and `parts` parts in a step.
    pub fn new(model: &Model, tensor: u32, purpose: Purpose, sequences: u32, parts: usize) -> Statics {
        let parameters = model.parameters();
        let mut offsets = vec![0; parameters.len()];
        let mut region = 0;
        let mut ends = [0; 3];
        let kinds = [GradientKind::Sharded, GradientKind::Full, GradientKind::Partial];
        for (kind, end) in kinds.into_iter().zip(&mut ends) {
            let mut previous = None;
            for (index, parameter) in parameters.iter().enumerate().filter(|(_, p)| p.gradient == kind) {
                // Neighbours of one role are one operand, without a gap between them.
                if previous != Some((parameter.block, parameter.role)) {
                    region = align(region);
                }
                previous = Some((parameter.block, parameter.role));
                offsets[index] = region;
                region += parameter.local_elements(tensor) * size_of::<f32>();
            }
            region = align(region);
            *end = region;
        }
        let copies = if purpose == Purpose::Training { 4 } else { 1 };
        let mut bytes = copies * region;
        let mut place = |elements: usize| {
            let span = Span { offset: bytes, bytes: elements * size_of::<u32>() };
            bytes = align(span.end());
            span
        };
        let tokens = place(sequences as usize * model.sequence);
        let targets = place(sequences as usize * model.sequence);
        let losses = place(parts);
        let norm = place(1);
        let mut statics = Statics {
            model: model.clone(),
            tensor,
            purpose,
            parameters,
            offsets,
            by_role: Vec::new(),
            region,
            sharded: ends[0],
            partial: ends[1],
            tokens,
            targets,
            losses,
            norm,
            bytes,
        };
        statics.by_role = statics.index_roles();
        statics
    }

    fn index_roles(&self) -> Vec<[Placed; Role::COUNT]> {
        let mut by_role = vec![[Placed::default(); Role::COUNT]; Schedule::blocks(self.model.layers)];
        for (index, parameter) in self.parameters.iter().enumerate() {
            let entry = &mut by_role[self.block_index(parameter.block)][parameter.role as usize];
            let own = self.placed(index);
            if entry.weight.bytes == 0 {
                *entry = own;
            } else {
                assert_eq!(
                    entry.weight.end(),
                    own.weight.offset,
                    "{} does not follow its role",
                    parameter.name
                );
                entry.weight.bytes += own.weight.bytes;
                entry.gradient.bytes += own.gradient.bytes;
            }
        }
        by_role
    }

    fn block_index(&self, block: BlockId) -> usize {
        match block {
            BlockId::Embed => 0,
            BlockId::Attn(layer) => 1 + 2 * layer as usize,
            BlockId::Mlp(layer) => 2 + 2 * layer as usize,
            BlockId::Head => 1 + 2 * self.model.layers as usize,
        }
    }

    fn copy(&self, copy: usize, index: usize) -> Span {
        let bytes = self.parameters[index].local_elements(self.tensor) * size_of::<f32>();
        Span { offset: copy * self.region + self.offsets[index], bytes }
    }

    /// Weight and gradient of parameter `index`. Without training, the gradient is empty.
    pub fn placed(&self, index: usize) -> Placed {
        let gradient = if self.purpose == Purpose::Training { self.copy(1, index) } else { Span::default() };
        Placed { weight: self.copy(0, index), gradient }
    }

    /// First and second moment of parameter `index`. Panics without training.
    pub fn moments(&self, index: usize) -> [Span; 2] {
        assert_eq!(self.purpose, Purpose::Training, "inference keeps no moments");
        [self.copy(2, index), self.copy(3, index)]
    }

    /// All parameters of one role in a block, as one operand.
    pub fn role(&self, block: BlockId, role: Role) -> Placed {
        self.by_role[self.block_index(block)][role as usize]
    }

    /// Weight of the head: its own, or the embedding's where tied.
    pub fn logits(&self) -> Placed {
        if self.model.tied {
            self.role(BlockId::Embed, Role::Tokens)
        } else {
            self.role(BlockId::Head, Role::Logits)
        }
    }

    /// All weights of the rank.
    pub fn weights(&self) -> Span {
        Span { offset: 0, bytes: self.region }
    }

    /// Gradients that this rank alone holds: they count in the norm of every rank.
    pub fn sharded_gradients(&self) -> Span {
        Span { offset: self.region, bytes: self.sharded }
    }

    /// Gradients that all ranks of the group hold: they count in the norm of one rank.
    pub fn replicated_gradients(&self) -> Span {
        Span { offset: self.region + self.sharded, bytes: self.region - self.sharded }
    }

    /// Gradients that are terms of a sum over the group, as one bucket.
    pub fn partial_gradients(&self) -> Span {
        Span { offset: self.region + self.partial, bytes: self.region - self.partial }
    }

    /// Bytes of one copy of the parameters, padding included.
    pub fn region_bytes(&self) -> usize {
        self.region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_disjoint_and_inside() {
        for (tensor, tied) in [(1, true), (4, true), (2, false), (4, false)] {
            let model = Model { tied, ..Model::gpt(2, 16, 4, 8, 30) };
            let statics = Statics::new(&model, tensor, Purpose::Training, 3, 2);
            let mut spans = vec![statics.tokens, statics.targets, statics.losses, statics.norm];
            for index in 0..statics.parameters.len() {
                let placed = statics.placed(index);
                spans.extend([placed.weight, placed.gradient]);
                spans.extend(statics.moments(index));
            }
            for (index, span) in spans.iter().enumerate() {
                assert!(span.end() <= statics.bytes);
                assert!(spans[..index].iter().all(|other| !other.overlaps(*span)));
            }
        }
    }

    #[test]
    fn queries_keys_and_values_are_one_operand() {
        let statics = Statics::new(&Model::gpt(2, 16, 4, 8, 30), 4, Purpose::Training, 1, 1);
        let fused = statics.role(BlockId::Attn(1), Role::InWeight);
        assert_eq!(fused.weight.bytes, 3 * 4 * 16 * 4);
        assert_eq!(statics.role(BlockId::Attn(1), Role::InBias).gradient.bytes, 3 * 4 * 4);
        assert_eq!(statics.role(BlockId::Attn(1), Role::Tokens), Placed::default());
    }

    #[test]
    fn gradients_are_sorted_by_what_they_need() {
        let statics = Statics::new(&Model::gpt(2, 16, 4, 8, 30), 2, Purpose::Training, 1, 1);
        for (index, parameter) in statics.parameters.iter().enumerate() {
            let gradient = statics.placed(index).gradient;
            let inside = |range: Span| gradient.offset >= range.offset && gradient.end() <= range.end();
            assert_eq!(inside(statics.sharded_gradients()), parameter.gradient == GradientKind::Sharded);
            assert_eq!(inside(statics.partial_gradients()), parameter.gradient == GradientKind::Partial);
        }
    }
}
