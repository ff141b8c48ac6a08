//! What is to be planned.

use oases_schedule::{Bytes, Keeps, Layout, Model, Purpose, Request, Schedule, Statics, Variant, Workspace};

use crate::costs::Costs;
use crate::error::Error;

/// What is to be planned: a model on a group of ranks, by a schedule, in a budget.
#[derive(Clone)]
pub struct Task<'a> {
    /// The model.
    pub model: &'a Model,
    /// The schedule.
    pub variant: &'static Variant,
    /// Its batch. Of the layout only the group counts.
    pub request: Request,
    /// TMP degrees to choose from.
    pub degrees: Vec<u32>,
    /// What each block may keep.
    pub keeps: Vec<Keeps>,
    /// Bytes of a rank's arena, at most.
    pub budget: Option<Bytes>,
    /// What the backend's attention kernels want.
    pub workspace: Workspace,
    /// What instructions take.
    pub costs: &'a dyn Costs,
}

/// A degree that cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The degree.
    pub degree: u32,
    /// Why.
    pub reason: String,
    /// The cost that is not known, where that is why.
    pub cause: Option<Error>,
}

/// A degree that cannot follow another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barred {
    /// The degree of a block.
    pub before: u32,
    /// The degree that the next block cannot have.
    pub after: u32,
    /// Why.
    pub reason: String,
}

impl Task<'_> {
    /// The powers of two up to a group.
    pub fn powers_of_two(group: u32) -> Vec<u32> {
        (0..32).map(|exponent| 1 << exponent).take_while(|&degree| degree <= group && degree > 0).collect()
    }

    /// Why no block can have this degree, whatever it costs.
    pub fn refuses(&self, degree: u32) -> Option<String> {
        let group = self.request.layout.group();
        if degree == 0 || !group.is_multiple_of(degree) {
            return Some(format!("it does not divide the group of {group} ranks"));
        }
        if let Err(error) = self.model.check(degree) {
            return Some(error.message);
        }
        let replicas = group / degree;
        let Request { sequences, sub_batches, .. } = self.request;
        if !sequences.is_multiple_of(replicas) || sequences / replicas < sub_batches {
            return Some(format!(
                "a micro-batch of {sequences} sequences cannot be cut into {sub_batches} sub-batches for {replicas} replicas"
            ));
        }
        None
    }

    /// The same batch and schedule with these degrees and keeps.
    pub fn schedule(&self, layout: &Layout, keep: &Keeps) -> Schedule {
        self.variant.build(&Request { layout: layout.clone(), keep: keep.clone(), ..self.request.clone() })
    }

    /// Where everything that outlives a step of the schedule lies.
    pub(crate) fn statics(&self, schedule: &Schedule) -> Statics {
        let (sequences, parts) = (schedule.batch(), schedule.parts.len());
        Statics::new(self.model, &schedule.layout, Purpose::Training, sequences, parts)
    }
}
