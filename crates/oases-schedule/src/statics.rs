//! The part of the arena that lives as long as the run: weights, gradients, optimizer moments, and the step's inputs.
//!
//! Weights, gradients and both moments are four copies of one region, so that a parameter has the same place in each.
//! The region is sorted by what its gradients need: those of blocks without replicas first, sharded ones, then whole ones; then
//! block by block those that replicas sum; then the partial ones. So every reduction is one collective, and what counts in a
//! rank's norm is few ranges.

use std::ops::Range;

use crate::ids::BlockId;
use crate::mesh::Layout;
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
    /// TMP degree of every block.
    pub layout: Layout,
    /// What the arena is for.
    pub purpose: Purpose,
    /// The full model's parameters.
    pub parameters: Vec<Parameter>,
    /// Offset of each parameter inside the region.
    offsets: Vec<usize>,
    by_role: Vec<[Placed; Role::COUNT]>,
    /// Bytes of one copy of the region.
    region: usize,
    /// Of each block with replicas, what its replicas sum: a range of the region.
    replicated: Vec<(BlockId, Range<usize>)>,
    partial: usize,
    /// Gradients that count in the norm, by rank.
    counted: Vec<Vec<Span>>,
    /// Input tokens of the step, `u32`, `[sequences, S]`.
    pub tokens: Span,
    /// Target tokens of the step, `u32`, `[sequences, S]`.
    pub targets: Span,
    /// Sum of the loss over the tokens of each part; of a rank's share of it where the head has replicas.
    pub losses: Span,
    /// Square of the gradient norm.
    pub norm: Span,
    /// Bytes of all this.
    pub bytes: usize,
}

fn align(offset: usize) -> usize {
    offset.next_multiple_of(Span::ALIGNMENT)
}

/// Where a block stands in the chain.
fn position(model: &Model, block: BlockId) -> usize {
    match block {
        BlockId::Embed => 0,
        BlockId::Attn(layer) => 1 + 2 * layer as usize,
        BlockId::Mlp(layer) => 2 + 2 * layer as usize,
        BlockId::Head => 1 + 2 * model.layers as usize,
    }
}

/// The blocks that own a bucket of gradients, where they have replicas.
fn chain(model: &Model) -> impl Iterator<Item = BlockId> {
    let layers = (0..model.layers).flat_map(|layer| [BlockId::Attn(layer), BlockId::Mlp(layer)]);
    std::iter::once(BlockId::Embed).chain(layers)
}

/// The block with whose gradients those of this one are summed over replicas: the head's with the embedding's.
fn summed_with(block: BlockId) -> BlockId {
    if block == BlockId::Head { BlockId::Embed } else { block }
}

/// Parameters one behind the other.
struct Region<'a> {
    parameters: &'a [Parameter],
    model: &'a Model,
    layout: &'a Layout,
    offsets: Vec<usize>,
    end: usize,
    /// The gradients of each section: how many of the first ranks hold something that no rank before them does, and where.
    sections: Vec<(u32, Range<usize>)>,
}

impl Region<'_> {
    fn degree(&self, parameter: &Parameter) -> u32 {
        self.layout.degree(position(self.model, parameter.block))
    }

    /// Appends the parameters of a kind that are wanted, and returns where they are.
    fn section(&mut self, kind: GradientKind, wanted: impl Fn(&Parameter) -> bool) -> Range<usize> {
        let start = self.end;
        let mut previous = None;
        let mut holders = 1;
        for (index, parameter) in self.parameters.iter().enumerate() {
            if parameter.gradient != kind || !wanted(parameter) {
                continue;
            }
            // Neighbours of one role are one operand, without a gap between them.
            if previous != Some((parameter.block, parameter.role)) {
                self.end = align(self.end);
            }
            previous = Some((parameter.block, parameter.role));
            let degree = self.degree(parameter);
            self.offsets[index] = self.end;
            self.end += parameter.local_elements(degree) * size_of::<f32>();
            if kind == GradientKind::Sharded {
                holders = degree;
            }
        }
        self.end = align(self.end);
        self.sections.push((holders, start..self.end));
        start..self.end
    }

    /// Of the gradients, those that count in the norm of a rank, so that each counts once: neighbours as one span.
    fn counted(&self, tp_rank: u32) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for (_, range) in
            self.sections.iter().filter(|(holders, range)| tp_rank < *holders && !range.is_empty())
        {
            let span = Span { offset: self.end + range.start, bytes: range.len() };
            match spans.last_mut().filter(|last| last.end() == span.offset) {
                Some(last) => last.bytes += span.bytes,
                None => spans.push(span),
            }
        }
        spans
    }
}

impl Statics {
    /// Lays out `model` over a TMP group, with room for `sequences` sequences and `parts` parts in a step.
    pub fn new(model: &Model, layout: &Layout, purpose: Purpose, sequences: u32, parts: usize) -> Statics {
        let parameters = model.parameters();
        let offsets = vec![0; parameters.len()];
        let mut region =
            Region { parameters: &parameters, model, layout, offsets, end: 0, sections: Vec::new() };
        let alone = |parameter: &Parameter| layout.degree(position(model, parameter.block)) == layout.group();
        region.section(GradientKind::Sharded, alone);
        region.section(GradientKind::Full, alone);
        let mut replicated = Vec::new();
        for block in chain(model).filter(|&block| layout.degree(position(model, block)) < layout.group()) {
            let own = |parameter: &Parameter| summed_with(parameter.block) == block;
            let start = region.section(GradientKind::Sharded, own).start;
            let end = region.section(GradientKind::Full, own).end;
            replicated.push((block, start..end));
        }
        let partial = region.section(GradientKind::Partial, |_| true).start;
        let counted = (0..layout.group()).map(|tp_rank| region.counted(tp_rank)).collect();
        let Region { offsets, end: region, .. } = region;
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
            layout: layout.clone(),
            purpose,
            parameters,
            offsets,
            by_role: Vec::new(),
            region,
            replicated,
            partial,
            counted,
            tokens,
            targets,
            losses,
            norm,
            bytes,
        };
        statics.by_role = statics.index_roles();
        statics
    }

    /// TMP degree of a block.
    pub fn degree(&self, block: BlockId) -> u32 {
        self.layout.degree(position(&self.model, block))
    }

    /// The place of a rank in its replica of a block, which says what shards of it the rank holds.
    pub fn place_in(&self, block: BlockId, tp_rank: u32) -> u32 {
        tp_rank % self.degree(block)
    }

    fn index_roles(&self) -> Vec<[Placed; Role::COUNT]> {
        let mut by_role = vec![[Placed::default(); Role::COUNT]; Schedule::blocks(self.model.layers)];
        for (index, parameter) in self.parameters.iter().enumerate() {
            let entry = &mut by_role[position(&self.model, parameter.block)][parameter.role as usize];
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

    fn copy(&self, copy: usize, index: usize) -> Span {
        let parameter = &self.parameters[index];
        let bytes = parameter.local_elements(self.degree(parameter.block)) * size_of::<f32>();
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
        self.by_role[position(&self.model, block)][role as usize]
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

    /// The gradients that count in the norm of a rank: every gradient of the full model counts on one rank.
    pub fn counted_gradients(&self, tp_rank: u32) -> &[Span] {
        &self.counted[tp_rank as usize]
    }

    /// Gradients of a block that its replicas sum, as one bucket; the embedding's with the head's. Empty without replicas.
    pub fn replicated_gradients(&self, block: BlockId) -> Span {
        let found = self.replicated.iter().find(|(replicated, _)| *replicated == block);
        found.map_or(Span::default(), |(_, range)| Span {
            offset: self.region + range.start,
            bytes: range.len(),
        })
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
            let statics = Statics::new(&model, &Layout::uniform(tensor, 6), Purpose::Training, 3, 2);
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
        let statics =
            Statics::new(&Model::gpt(2, 16, 4, 8, 30), &Layout::uniform(4, 6), Purpose::Training, 1, 1);
        let fused = statics.role(BlockId::Attn(1), Role::InWeight);
        assert_eq!(fused.weight.bytes, 3 * 4 * 16 * 4);
        assert_eq!(statics.role(BlockId::Attn(1), Role::InBias).gradient.bytes, 3 * 4 * 4);
        assert_eq!(statics.role(BlockId::Attn(1), Role::Tokens), Placed::default());
    }

    fn layouts() -> Vec<Layout> {
        let mixed = ["2", "1", "4", "1 of 4", "2 of 4", "4*2 1*3 4*1", "2*1 4*2 1*1 2*2"];
        mixed.iter().map(|text| Layout::parse(text, 6).unwrap()).collect()
    }

    #[test]
    fn a_bucket_holds_what_its_replicas_sum() {
        for layout in layouts() {
            let statics = Statics::new(
                &Model { tied: false, ..Model::gpt(2, 16, 4, 8, 30) },
                &layout,
                Purpose::Training,
                1,
                1,
            );
            for (index, parameter) in statics.parameters.iter().enumerate() {
                let gradient = statics.placed(index).gradient;
                let inside = |range: Span| gradient.offset >= range.offset && gradient.end() <= range.end();
                let partial = parameter.gradient == GradientKind::Partial;
                assert_eq!(inside(statics.partial_gradients()), partial);
                let block = summed_with(parameter.block);
                let replicated = statics.degree(block) < layout.group() && !partial;
                assert_eq!(
                    inside(statics.replicated_gradients(block)),
                    replicated,
                    "{} {layout}",
                    parameter.name
                );
            }
        }
    }

    /// Counts how often each element of the full gradient is in a range of some rank.
    #[test]
    fn every_gradient_counts_once_in_the_norm() {
        for layout in layouts() {
            let statics = Statics::new(&Model::gpt(2, 16, 4, 8, 30), &layout, Purpose::Training, 1, 1);
            for (index, parameter) in statics.parameters.iter().enumerate() {
                let mut seen = vec![0; parameter.elements()];
                for tp_rank in 0..layout.group() {
                    let gradient = statics.placed(index).gradient;
                    let counts = statics
                        .counted_gradients(tp_rank)
                        .iter()
                        .any(|range| gradient.offset >= range.offset && gradient.end() <= range.end());
                    let place = statics.place_in(parameter.block, tp_rank);
                    let (rows, columns) = parameter.slice(place, statics.degree(parameter.block));
                    for row in rows.filter(|_| counts) {
                        columns.clone().for_each(|column| seen[row * parameter.columns + column] += 1);
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{} with degrees {layout}", parameter.name);
            }
        }
    }
}
