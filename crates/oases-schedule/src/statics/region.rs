//! The parameters of a rank one behind the other, by what their gradients need.

use std::ops::Range;

use super::{align, position};
use crate::ids::BlockId;
use crate::mesh::Layout;
use crate::model::Model;
use crate::parameters::{GradientKind, Parameter};
use crate::stage::Stage;
use crate::units::Span;

/// What the replicas of a block sum: a range of the region that falls into equal slots, one per replica.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub block: BlockId,
    pub range: Range<usize>,
    replicas: u32,
    degree: u32,
    /// Offset of a slot's moments inside a moments' region, where these are sharded.
    pub moments: usize,
}

impl Bucket {
    pub(super) fn slot(&self, tp_rank: u32) -> Range<usize> {
        let bytes = self.range.len() / self.replicas as usize;
        let start = self.range.start + (tp_rank / self.degree % self.replicas) as usize * bytes;
        start..start + bytes
    }
}

/// Gradients that count alike in the norm.
pub(super) struct Section {
    range: Range<usize>,
    /// How many of the first ranks of a replica hold something that no rank before them does.
    holders: u32,
    /// Ranks of a replica.
    degree: u32,
}

/// Parameters one behind the other.
pub(super) struct Region<'a> {
    pub parameters: &'a [Parameter],
    pub model: &'a Model,
    pub layout: &'a Layout,
    pub stage: &'a Stage,
    pub offsets: Vec<Option<usize>>,
    pub end: usize,
    pub sections: Vec<Section>,
    pub buckets: Vec<Bucket>,
}

impl Region<'_> {
    pub(super) fn degree(&self, block: BlockId) -> u32 {
        self.layout.degree(position(self.model, block))
    }

    fn runs(&self, block: BlockId) -> bool {
        self.stage.runs(position(self.model, block))
    }

    /// The block with whose gradients those of a parameter are summed over replicas, or `None` where this stage does not hold it: on
    /// one stage the head's go with the embedding's, and of a shared table the last stage has the head's copy.
    pub(super) fn owner(&self, parameter: &Parameter) -> Option<BlockId> {
        match parameter.block {
            BlockId::Head if self.runs(BlockId::Embed) && self.runs(BlockId::Head) => Some(BlockId::Embed),
            block if self.runs(block) => Some(block),
            BlockId::Embed if self.is_copy(parameter) => Some(BlockId::Head),
            _ => None,
        }
    }

    /// Whether it is the table of an embedding that another stage runs.
    pub(super) fn is_copy(&self, parameter: &Parameter) -> bool {
        let shared = self.model.tied && parameter.is_table() && self.runs(BlockId::Head);
        shared && !self.runs(BlockId::Embed)
    }

    /// Appends the parameters of a kind that are wanted, and returns where they are.
    pub(super) fn section(
        &mut self,
        kind: GradientKind,
        wanted: impl Fn(&Self, &Parameter) -> bool,
    ) -> Range<usize> {
        let start = self.end;
        let mut previous = None;
        let (mut holders, mut degree) = (1, self.layout.group());
        for (index, parameter) in self.parameters.iter().enumerate() {
            let own = self.degree(parameter.block);
            if parameter.gradient(own) != kind || !wanted(self, parameter) {
                continue;
            }
            // Neighbours of one role are one operand, without a gap between them.
            let place = (parameter.block, parameter.role(own));
            if previous != Some(place) {
                self.end = align(self.end);
            }
            previous = Some(place);
            self.offsets[index] = Some(self.end);
            self.end += parameter.local_elements(own) * size_of::<f32>();
            if kind != GradientKind::Partial {
                degree = own;
            }
            if kind == GradientKind::Sharded {
                holders = own;
            }
            if self.is_copy(parameter) {
                holders = 0;
            }
        }
        self.end = align(self.end);
        self.sections.push(Section { range: start..self.end, holders, degree });
        start..self.end
    }

    /// What the replicas of a block sum.
    pub(super) fn bucket(&mut self, block: BlockId) {
        let start = self.end;
        let copy = |region: &Self, parameter: &Parameter| {
            region.owner(parameter) == Some(block) && region.is_copy(parameter)
        };
        let own = |region: &Self, parameter: &Parameter| {
            region.owner(parameter) == Some(block) && !region.is_copy(parameter)
        };
        self.section(GradientKind::Sharded, copy);
        self.section(GradientKind::Sharded, own);
        self.section(GradientKind::Full, own);
        if self.end == start {
            return;
        }
        let degree = self.degree(block);
        let replicas = self.layout.group() / degree;
        self.end = start + (self.end - start).next_multiple_of(replicas as usize * Span::ALIGNMENT);
        let range = start..self.end;
        self.buckets.push(Bucket { block, range, replicas, degree, moments: 0 });
    }

    /// Of the gradients, those that count in the norm of a rank, so that each counts once: neighbours as one span. What replicas sum,
    /// each of them counts in its own slot, whether it holds the others or not.
    pub(super) fn counted(&self, tp_rank: u32) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for Section { range, holders, degree } in &self.sections {
            let slot = self.buckets.iter().find(|bucket| bucket.range.contains(&range.start));
            let slot = slot.map_or(range.clone(), |bucket| bucket.slot(tp_rank));
            let range = range.start.max(slot.start)..range.end.min(slot.end);
            if tp_rank % degree >= *holders || range.is_empty() {
                continue;
            }
            let span = Span { offset: self.end + range.start, bytes: range.len() };
            match spans.last_mut().filter(|last| last.end() == span.offset) {
                Some(last) => last.bytes += span.bytes,
                None => spans.push(span),
            }
        }
        spans
    }
}
