//! The part of the arena that lives as long as the run: weights, gradients, optimizer moments, and the step's inputs.
//!
//! Weights, gradients and both moments are four copies of one region, so that a parameter has the same place in each.
//! The region is sorted by what its gradients need: those of blocks without replicas first, sharded ones, then whole ones; then
//! block by block those that replicas sum; then the partial ones. So every reduction is one collective, and what counts in a
//! rank's norm is few ranges. Where the optimizer is sharded, the regions of the moments hold one replica's slot of what replicas sum.
//!
//! A pipeline stage holds the parameters of its blocks; the last one also the table of a tied head, as a copy.

mod region;

use std::ops::Range;

use self::region::{Bucket, Region};
use crate::ids::BlockId;
use crate::mesh::Layout;
use crate::model::{Mask, Model, Positions};
use crate::parameters::{GradientKind, Parameter, Role};
use crate::schedule::Schedule;
use crate::stage::{Optimizer, Stage};
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
    /// The pipeline stage.
    pub stage: Stage,
    /// Where the moments are.
    pub optimizer: Optimizer,
    /// What the arena is for.
    pub purpose: Purpose,
    /// The full model's parameters.
    pub parameters: Vec<Parameter>,
    /// Offset of each parameter inside the region; `None` for what other stages hold.
    offsets: Vec<Option<usize>>,
    by_role: Vec<[Placed; Role::COUNT]>,
    /// Bytes of one copy of the region.
    region: usize,
    /// Bytes of one moment.
    moments: usize,
    buckets: Vec<Bucket>,
    partial: usize,
    /// Gradients that count in the norm, by rank.
    counted: Vec<Vec<Span>>,
    /// Input tokens of the step, `u32`, `[sequences, S]`.
    pub tokens: Span,
    /// Target tokens of the step, `u32`, `[sequences, S]`.
    pub targets: Span,
    /// Token types of the step, `u32`, `[sequences, S]`; empty where the model has none.
    pub types: Span,
    /// How many tokens of each sequence are no padding, `u32`, `[sequences]`; empty where no query sees what follows it.
    pub lengths: Span,
    /// Cosines and sines of rotary positions, see [`crate::Rotary::table`], `[S, head_dim]`; empty where the model has none.
    pub rotations: Span,
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

/// The blocks that own a bucket of gradients, where they have replicas.
fn chain(model: &Model) -> impl Iterator<Item = BlockId> {
    let layers = model.layers;
    (0..Schedule::blocks(layers)).map(move |position| BlockId::at(position, layers))
}

fn position(model: &Model, block: BlockId) -> usize {
    block.position(model.layers).expect("a block of the model")
}

/// What a rank updates of a parameter, and where: all that it holds of it, or with a sharded optimizer its replica's share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Elements of the rank's shard of the parameter, counted flat.
    pub elements: Range<usize>,
    /// Their values.
    pub weight: Span,
    /// Their gradients.
    pub gradient: Span,
    /// Their first and second moments.
    pub moments: [Span; 2],
}

impl Statics {
    /// Lays out `model` over the group of a single stage, with room for `sequences` sequences and `parts` parts in a step.
    pub fn new(model: &Model, layout: &Layout, purpose: Purpose, sequences: u32, parts: usize) -> Statics {
        let whole = (&Stage::whole(), Optimizer::Whole);
        Statics::lay_out(model, layout, whole, purpose, (sequences, parts))
    }

    /// Lays out what the stage of `schedule` holds of `model`, with room for `sequences` sequences in a step.
    pub fn of(model: &Model, schedule: &Schedule, purpose: Purpose, sequences: u32) -> Statics {
        let Schedule { layout, stage, optimizer, parts, .. } = schedule;
        Statics::lay_out(model, layout, (stage, *optimizer), purpose, (sequences, parts.len()))
    }

    fn lay_out(
        model: &Model,
        layout: &Layout,
        (stage, optimizer): (&Stage, Optimizer),
        purpose: Purpose,
        (sequences, parts): (u32, usize),
    ) -> Statics {
        let parameters = model.parameters();
        let offsets = vec![None; parameters.len()];
        let (sections, buckets) = (Vec::new(), Vec::new());
        let mut region =
            Region { parameters: &parameters, model, layout, stage, offsets, end: 0, sections, buckets };
        let alone = |region: &Region<'_>, parameter: &Parameter| {
            let alone = region.degree(parameter.block) == layout.group();
            alone && region.owner(parameter).is_some() && !region.is_copy(parameter)
        };
        let copy = |region: &Region<'_>, parameter: &Parameter| {
            region.degree(parameter.block) == layout.group() && region.is_copy(parameter)
        };
        region.section(GradientKind::Sharded, copy);
        region.section(GradientKind::Sharded, alone);
        region.section(GradientKind::Full, alone);
        let before_buckets = region.end;
        for block in chain(model).filter(|&block| layout.degree(position(model, block)) < layout.group()) {
            region.bucket(block);
        }
        let held = |region: &Region<'_>, parameter: &Parameter| region.owner(parameter).is_some();
        let partial = region.section(GradientKind::Partial, held).start;
        let counted = (0..layout.group()).map(|tp_rank| region.counted(tp_rank)).collect();
        let Region { offsets, end: region, mut buckets, .. } = region;
        let mut moments = before_buckets;
        for bucket in &mut buckets {
            bucket.moments = moments;
            moments += bucket.slot(0).len();
        }
        let moments = match optimizer {
            Optimizer::Whole => region,
            Optimizer::Sharded => moments + region - partial,
        };
        let mut bytes = if purpose == Purpose::Training { 2 * region + 2 * moments } else { region };
        let mut place = |elements: usize| {
            let span = Span { offset: bytes, bytes: elements * size_of::<u32>() };
            bytes = align(span.end());
            span
        };
        let tokens = place(sequences as usize * model.sequence);
        let targets = place(sequences as usize * model.sequence);
        let types = place(if model.token_types > 0 { sequences as usize * model.sequence } else { 0 });
        let lengths = place(if model.mask == Mask::Bidirectional { sequences as usize } else { 0 });
        let rotary = matches!(model.positions, Positions::Rotary(_));
        let rotations = place(if rotary { model.sequence * model.head_dim } else { 0 });
        let losses = place(parts);
        let norm = place(1);
        let mut statics = Statics {
            model: model.clone(),
            layout: layout.clone(),
            stage: stage.clone(),
            optimizer,
            purpose,
            parameters,
            offsets,
            by_role: Vec::new(),
            region,
            moments,
            buckets,
            partial,
            counted,
            tokens,
            targets,
            types,
            lengths,
            rotations,
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

    /// The indices of the parameters that this stage holds.
    pub fn held(&self) -> impl Iterator<Item = usize> {
        self.offsets.iter().enumerate().filter_map(|(index, offset)| offset.map(|_| index))
    }

    /// Whether parameter `index` is this stage's copy of a table that the first stage has as well.
    pub fn is_copy(&self, index: usize) -> bool {
        let position = position(&self.model, self.parameters[index].block);
        self.offsets[index].is_some() && !self.stage.runs(position)
    }

    fn index_roles(&self) -> Vec<[Placed; Role::COUNT]> {
        let mut by_role = vec![[Placed::default(); Role::COUNT]; Schedule::blocks(self.model.layers)];
        for index in self.held() {
            let parameter = &self.parameters[index];
            let role = parameter.role(self.degree(parameter.block));
            let entry = &mut by_role[position(&self.model, parameter.block)][role as usize];
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

    /// Where a parameter is in the region. Panics for one that another stage holds.
    fn range(&self, index: usize) -> Range<usize> {
        let parameter = &self.parameters[index];
        let start = self.offsets[index].unwrap_or_else(|| panic!("{} is on another stage", parameter.name));
        start..start + parameter.local_elements(self.degree(parameter.block)) * size_of::<f32>()
    }

    /// Weight and gradient of parameter `index`, which this stage holds. Without training, the gradient is empty.
    pub fn placed(&self, index: usize) -> Placed {
        let range = self.range(index);
        let copy = |copy: usize| Span { offset: copy * self.region + range.start, bytes: range.len() };
        let gradient = if self.purpose == Purpose::Training { copy(1) } else { Span::default() };
        Placed { weight: copy(0), gradient }
    }

    /// What a rank updates of parameter `index`, which this stage holds; no elements where other replicas update all of it. Without
    /// training there are no gradients and moments in these places.
    pub fn updated(&self, index: usize, tp_rank: u32) -> Updated {
        let all = self.range(index);
        let bucket = self.buckets.iter().find(|bucket| bucket.range.contains(&all.start));
        let (range, moments) = match (self.optimizer, bucket) {
            (Optimizer::Whole, _) => (all.clone(), all.start),
            (Optimizer::Sharded, Some(bucket)) => {
                let slot = bucket.slot(tp_rank);
                let range = all.start.max(slot.start)..all.end.min(slot.end);
                if range.is_empty() {
                    return Updated::default();
                }
                (range.clone(), bucket.moments + range.start - slot.start)
            }
            // Behind the buckets, by as much earlier as these are smaller.
            (Optimizer::Sharded, None) if all.start >= self.partial => {
                (all.clone(), all.start - (self.region - self.moments))
            }
            (Optimizer::Sharded, None) => (all.clone(), all.start),
        };
        let bytes = range.len();
        let at = |offset: usize| Span { offset, bytes };
        let first = 2 * self.region + moments;
        let elements =
            (range.start - all.start) / size_of::<f32>()..(range.end - all.start) / size_of::<f32>();
        Updated {
            elements,
            weight: at(range.start),
            gradient: at(self.region + range.start),
            moments: [at(first), at(first + self.moments)],
        }
    }

    /// Whether the replicas of parameter `index` share its moments.
    pub fn shares_moments(&self, index: usize) -> bool {
        let start = self.range(index).start;
        self.optimizer == Optimizer::Sharded
            && self.buckets.iter().any(|bucket| bucket.range.contains(&start))
    }

    /// First and second moment of parameter `index`. Panics without training, and where they are sharded.
    pub fn moments(&self, index: usize) -> [Span; 2] {
        assert_eq!(self.purpose, Purpose::Training, "inference keeps no moments");
        assert_eq!(self.optimizer, Optimizer::Whole, "each replica has its share of the moments");
        self.updated(index, 0).moments
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

    /// Gradients of a block that its replicas sum, as one bucket; the embedding's with the head's of one stage. Empty without replicas.
    /// It falls into equal slots, one per replica.
    pub fn replicated_gradients(&self, block: BlockId) -> Span {
        self.bucket(block, self.region)
    }

    /// The weights to [`Statics::replicated_gradients`].
    pub fn replicated_weights(&self, block: BlockId) -> Span {
        self.bucket(block, 0)
    }

    fn bucket(&self, block: BlockId, copy: usize) -> Span {
        let found = self.buckets.iter().find(|bucket| bucket.block == block);
        found.map_or(Span::default(), |Bucket { range, .. }| Span {
            offset: copy + range.start,
            bytes: range.len(),
        })
    }

    /// Gradients that are terms of a sum over the group, as one bucket.
    pub fn partial_gradients(&self) -> Span {
        Span { offset: self.region + self.partial, bytes: self.region - self.partial }
    }

    /// Gradient of the table that the first and the last stage share.
    pub fn table_gradient(&self) -> Span {
        self.role(BlockId::Embed, Role::Tokens).gradient
    }

    /// Bytes of one of the two moments: fewer than of the parameters where replicas share them.
    pub fn moment_bytes(&self) -> usize {
        self.moments
    }

    /// Bytes of one copy of the parameters, padding included.
    pub fn region_bytes(&self) -> usize {
        self.region
    }
}

#[cfg(test)]
mod tests;
