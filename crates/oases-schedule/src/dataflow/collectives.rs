//! Collectives, and what ends a step.

use super::{Condition, Dataflow};
use crate::activations::Slot;
use crate::ids::{BlockId, CollectiveId, PartId, Pass, Piece};
use crate::mesh::{Axis, Grouping};
use crate::schedule::CollectiveKind;
use crate::value::{Touch, Value, collective_value};
use crate::verify::Rule;

impl Dataflow<'_> {
    pub(super) fn start(
        &mut self,
        collective: CollectiveId,
        kind: CollectiveKind,
        (axis, grouping): (Axis, Grouping),
    ) {
        if !self.started.insert(collective) {
            self.violate(Rule::Collectives, format!("{collective} is started twice"));
            return;
        }
        match self.schedule.collective(collective) {
            None => self.violate(Rule::Collectives, format!("{collective} has nothing to do between ranks")),
            Some(expected) if (kind, axis, grouping) != expected => {
                let (kind, axis, among) = expected;
                let message = format!("{collective} must be {} @{}{among}", kind.name(), axis.name());
                self.violate(Rule::Collectives, message);
            }
            Some(_) => {}
        }
        let value = self.value_of(collective);
        match value {
            Some(value) if kind == CollectiveKind::Recv => self.receive(collective, value),
            Some(value) => match self.condition(value, collective) {
                Some(condition) if *condition == Condition::Partial(collective) => {
                    *condition = Condition::InFlight(collective);
                    self.touches.push(Touch::Use(value, Slot::Output));
                }
                _ => self.violate(Rule::Collectives, format!("{collective} has nothing to work on yet")),
            },
            None => {
                self.may_reduce(collective);
                self.reductions.insert(collective, Condition::InFlight(collective));
            }
        }
    }

    /// What a collective that belongs to a part of the batch works on.
    fn value_of(&self, collective: CollectiveId) -> Option<Value> {
        match collective {
            CollectiveId::Transfer { pass, block, part } => Some(self.transferred(pass, block, part)),
            _ => collective_value(collective),
        }
    }

    /// Whether what belongs to no part of the batch is ready for its collective.
    fn may_reduce(&mut self, collective: CollectiveId) {
        match collective {
            CollectiveId::Norm if !self.norm => {
                self.violate(Rule::Collectives, "norm is started before it is computed".into());
            }
            CollectiveId::Gradients(bucket) => {
                if bucket != 0 {
                    self.violate(Rule::Names, format!("there is no gradient bucket {bucket}"));
                }
                self.all_backwards_done(&collective.to_string());
            }
            CollectiveId::Table => {
                let ends = [BlockId::Embed, BlockId::Head];
                let own = ends.into_iter().filter(|&end| self.schedule.runs(end)).collect::<Vec<_>>();
                own.into_iter().for_each(|end| self.backwards_done(end, collective));
            }
            CollectiveId::Replicas(block) => {
                self.backwards_done(block, collective);
                // What the stages share is summed between them first: their buckets have different slots.
                if matches!(block, BlockId::Embed | BlockId::Head) {
                    self.reduction_done(CollectiveId::Table, &collective.to_string());
                }
            }
            CollectiveId::Weights(_) if !self.stepped => {
                self.violate(Rule::Step, format!("{collective} comes before the step"));
            }
            _ => {}
        }
    }

    /// The condition of what a collective of a block works on.
    pub(super) fn condition(&mut self, value: Value, collective: CollectiveId) -> Option<&mut Condition> {
        match collective {
            CollectiveId::Block { piece: Some(piece), .. } => {
                let pieces = self.pieces.get_mut(&value)?;
                pieces.conditions.get_mut(usize::from(piece.index))
            }
            _ => self.values.get_mut(&value),
        }
    }

    pub(super) fn sync(&mut self, collective: CollectiveId) {
        let value = self.value_of(collective);
        let condition = match value {
            Some(value) => self.condition(value, collective),
            None => self.reductions.get_mut(&collective),
        };
        match condition {
            Some(condition) if *condition == Condition::InFlight(collective) => {
                *condition = Condition::Whole;
                if let Some(value) = value {
                    self.touches.push(Touch::Use(value, Slot::Output));
                    self.join_pieces(value);
                    let kind = self.schedule.collective(collective).map(|(kind, ..)| kind);
                    if kind == Some(CollectiveKind::Send) {
                        self.sent(value);
                    }
                }
            }
            _ => self.violate(Rule::Collectives, format!("{collective} is synced but not in flight")),
        }
    }

    pub(super) fn norm(&mut self) {
        if std::mem::replace(&mut self.norm, true) {
            self.violate(Rule::Step, "a second norm".into());
            return;
        }
        self.all_backwards_done("norm");
        self.reduction_done(CollectiveId::Gradients(0), "norm");
        self.reduction_done(CollectiveId::Table, "norm");
        // One violation for all blocks; there can be many.
        let replicas = self.schedule.chain().map(CollectiveId::Replicas);
        let missing: Vec<CollectiveId> = replicas.filter(|&replicas| !self.reduced(replicas)).collect();
        if let [first, others @ ..] = missing.as_slice() {
            let others =
                if others.is_empty() { String::new() } else { format!(", nor {} others", others.len()) };
            self.violate(Rule::Reduced, format!("{first} is not reduced before norm{others}"));
        }
    }

    pub(super) fn step(&mut self) {
        self.stepped = true;
        if !self.norm {
            self.violate(Rule::Step, "the step comes before the norm".into());
        }
        self.reduction_done(CollectiveId::Norm, "the step");
    }

    pub(super) fn all_backwards_done(&mut self, before: &str) {
        let left = self.instances() - self.inputs_done.len().min(self.weights_done.len());
        if left > 0 {
            self.violate(Rule::Reduced, format!("{left} of the backwards come after {before}"));
        }
    }

    /// Of each block whose moments are sharded, every replica has what the others have updated.
    pub(super) fn weights_gathered(&mut self) {
        if !self.stepped {
            return;
        }
        let weights = self.schedule.chain().map(CollectiveId::Weights);
        let missing: Vec<CollectiveId> = weights.filter(|&weights| !self.reduced(weights)).collect();
        if let [first, ..] = missing.as_slice() {
            self.violate(
                Rule::Step,
                format!("{first} is not gathered behind the step ({} such)", missing.len()),
            );
        }
    }

    /// The weights of a block have all their gradients; the embedding's come with the head's of the same stage.
    fn backwards_done(&mut self, block: BlockId, before: CollectiveId) {
        let together = block == BlockId::Embed && self.schedule.runs(BlockId::Head);
        let blocks = if together { &[BlockId::Embed, BlockId::Head][..] } else { &[block] };
        let parts = self.schedule.parts.iter().map(|part| part.id);
        let mut all = parts.flat_map(|part| blocks.iter().map(move |&block| (block, part)));
        if let Some((block, part)) = all.find(|instance| !self.weights_done.contains(instance)) {
            self.violate(Rule::Reduced, format!("backward {block} {part} comes after {before}"));
        }
    }

    pub(super) fn reduction_done(&mut self, collective: CollectiveId, before: &str) {
        if !self.reduced(collective) {
            self.violate(Rule::Reduced, format!("{collective} is not reduced before {before}"));
        }
    }

    /// Whether a reduction has arrived, or has nothing to do.
    fn reduced(&self, collective: CollectiveId) -> bool {
        let arrived = self.reductions.get(&collective) == Some(&Condition::Whole);
        arrived || self.schedule.collective(collective).is_none()
    }

    /// What an instruction leaves for its collective; a group of one has nothing to sum.
    pub(super) fn partial(
        &self,
        block: BlockId,
        part: PartId,
        pass: Pass,
        piece: Option<Piece>,
    ) -> Condition {
        let collective = CollectiveId::Block { pass, block, part, piece };
        match self.schedule.collective(collective) {
            None => Condition::Whole,
            Some(_) => Condition::Partial(collective),
        }
    }
}
