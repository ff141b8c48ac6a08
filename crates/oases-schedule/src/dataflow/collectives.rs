//! Collectives, and what ends a step.

use super::{Condition, Dataflow};
use crate::activations::Slot;
use crate::ids::{BlockId, CollectiveId, PartId, Pass, Piece};
use crate::mesh::Axis;
use crate::schedule::CollectiveKind;
use crate::value::{Touch, Value, collective_value, expected_kind};
use crate::verify::Rule;

impl Dataflow<'_> {
    pub(super) fn start(&mut self, collective: CollectiveId, kind: CollectiveKind, axis: Axis) {
        if !self.started.insert(collective) {
            self.violate(Rule::Collectives, format!("{collective} is started twice"));
            return;
        }
        if self.tensor_degree() == 1 {
            self.violate(Rule::Collectives, format!("{collective} runs over a group of one"));
        }
        let expected = expected_kind(collective);
        if kind != expected || axis != Axis::Tensor {
            let expected = expected.name();
            self.violate(Rule::Collectives, format!("{collective} must be {expected} @tensor"));
        }
        match collective_value(collective) {
            Some(value) => match self.condition(value, collective) {
                Some(condition) if *condition == Condition::Partial(collective) => {
                    *condition = Condition::InFlight(collective);
                    self.touches.push(Touch::Use(value, Slot::Output));
                }
                _ => self.violate(Rule::Collectives, format!("{collective} has no partial sum to reduce")),
            },
            None => {
                if collective == CollectiveId::Norm && !self.norm {
                    self.violate(Rule::Collectives, "norm is started before it is computed".into());
                }
                if let CollectiveId::Gradients(bucket) = collective {
                    if bucket != 0 {
                        self.violate(Rule::Names, format!("there is no gradient bucket {bucket}"));
                    }
                    self.all_backwards_done(&collective.to_string());
                }
                self.reductions.insert(collective, Condition::InFlight(collective));
            }
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
        let value = collective_value(collective);
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
                }
            }
            _ => self.violate(Rule::Collectives, format!("{collective} is synced but not in flight")),
        }
    }

    pub(super) fn norm(&mut self) {
        if std::mem::replace(&mut self.norm, true) {
            self.violate(Rule::Step, "a second norm".into());
        }
        self.all_backwards_done("norm");
        self.reduction_done(CollectiveId::Gradients(0), "norm");
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

    pub(super) fn reduction_done(&mut self, collective: CollectiveId, before: &str) {
        let reduced = self.reductions.get(&collective) == Some(&Condition::Whole);
        if self.tensor_degree() > 1 && !reduced {
            self.violate(Rule::Reduced, format!("{collective} is not reduced before {before}"));
        }
    }

    pub(super) fn tensor_degree(&self) -> u32 {
        self.schedule.layout.uniform_degree().unwrap_or(0)
    }

    /// What an instruction leaves for its collective; a group of one has nothing to sum.
    pub(super) fn partial(
        &self,
        block: BlockId,
        part: PartId,
        pass: Pass,
        piece: Option<Piece>,
    ) -> Condition {
        match self.schedule.degree(block) {
            1 => Condition::Whole,
            _ => Condition::Partial(CollectiveId::Block { pass, block, part, piece }),
        }
    }
}
