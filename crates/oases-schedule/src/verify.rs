//! The verifier: one function, which returns every violation with its line in the printed schedule.
//!
//! 1. *header*: layers, parts and sequences are at least one, all sequences can be counted, parts are distinct and in
//!    sample order, and a micro-batch is whole or cut. The degrees of the blocks divide the group and, of neighbours, one the
//!    other; embedding and head have one degree; every part gives all replicas of a block equally many sequences.
//! 2. *names*: blocks, parts and buckets that an instruction names exist.
//! 3. *forward*: each block runs forward on each part exactly once.
//! 4. *whole*: nothing is read before it is written and reduced, while a collective writes it, or after its life; nothing
//!    is overwritten while it lives.
//! 5. *kept*: what is kept or rebuilt is read by recomputation or backward; the embedding keeps nothing, the head all of
//!    it or nothing.
//! 6. *recompute*: what backward reads is kept or rebuilt, once, between forward and backward; the attention core by itself
//!    where the rest was kept.
//! 7. *loss*: each part has one loss, between the head's forward and its backward.
//! 8. *backward*: in a training step, each block runs backward on each part exactly once, on a gradient that has arrived:
//!    in one instruction, or first for its input and then for its weights.
//! 9. *order*: each block adds up the gradients of the parts in sample order, so that every schedule rounds alike. The
//!    embedding adds to the same table as a tied head: in each micro-batch after the head's parts.
//! 10. *collectives*: each reduces the partial sum that it is named after, with the operation and axis that belong to it and
//!     between the ranks that hold its terms, is started once and synced once after that; none is left out; a group of one
//!     has none. All ranks run the same list, so all start them in the same order.
//! 11. *reduced*: the gradient of a table that two stages share is reduced between them before anything else is done with it; the gradients of a block with replicas are reduced once after the block's last backward, partial parameter
//!     gradients once after the last of all; both before the norm, and the norm before the step.
//! 12. *step*: where there are gradients, norm and step come once each and end the schedule, but for the weights that replicas gather
//!     from each other behind the step where the optimizer is sharded.
//! 13. *pieces*: a pass through a block that stops before its last product is followed by at least two pieces of that product,
//!     each once and in order, all by rows or all by columns; in backward by rows, since the normalisation needs whole ones.
//! 14. *reshard*: where the TMP degree changes before a block, and only there, the block's input is resharded before its
//!     forward and, where it was not kept, again before its recomputation, and its gradient before the backward of the block
//!     before.
//! 15. *stages*: a stage runs its own blocks. Where the chain crosses to another stage, the block's input is completed and sent, or
//!     received before the block's forward, once for every part, and its gradient the other way.
//!
//! Rules between the stages of a pipeline are those of [`verify_stages`](crate::verify_stages).

mod stages;

use std::fmt;

use crate::dataflow::Dataflow;
use crate::ids::PartId;
use crate::schedule::{Part, Schedule};
use crate::stage::Stage;
use crate::text::printed_line;

pub use stages::verify_stages;

/// A rule of the list above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the module's list describes each")]
pub enum Rule {
    Header = 1,
    Names,
    Forward,
    Whole,
    Kept,
    Recompute,
    Loss,
    Backward,
    Order,
    Collectives,
    Reduced,
    Step,
    Pieces,
    Reshard,
    Stages,
    Pipeline,
}

/// A broken rule and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Line of the printed schedule, from 1; the line after the last where something is missing.
    pub line: usize,
    /// Which rule.
    pub rule: Rule,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = format!("{:?}", self.rule).to_lowercase();
        write!(f, "line {}: {} (rule {}, {rule})", self.line, self.message, self.rule as u32)
    }
}

/// Checks every rule. An empty list means that the schedule can be planned, simulated and executed.
pub fn verify(schedule: &Schedule) -> Vec<Violation> {
    let mut violations = header(schedule);
    if !violations.is_empty() {
        // The rules below speak of blocks and parts; without a sound header they would only repeat its faults.
        return violations;
    }
    let mut dataflow = Dataflow::new(schedule);
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        let (_, broken) = dataflow.advance(instruction);
        let line = printed_line(schedule, index);
        violations.extend(broken.into_iter().map(|(rule, message)| Violation { line, rule, message }));
    }
    let line = printed_line(schedule, schedule.instructions.len());
    violations.extend(dataflow.finish().into_iter().map(|(rule, message)| Violation { line, rule, message }));
    violations
}

fn header(schedule: &Schedule) -> Vec<Violation> {
    let mut messages = Vec::new();
    // A blank line stands between the parts and the first instruction.
    let parts = printed_line(schedule, 0) - 2;
    let mut check = |holds: bool, line: usize, message: &str| {
        if !holds {
            messages.push(Violation { line, rule: Rule::Header, message: message.to_owned() });
        }
    };
    check(schedule.layers > 0, 2, "a chain has at least one layer");
    let layout = schedule.layout.check();
    check(layout.is_ok(), 3, &layout.err().unwrap_or_default());
    check(!schedule.parts.is_empty(), parts, "a batch has at least one part");
    check(schedule.parts.iter().all(|part| part.sequences > 0), parts, "a part has at least one sequence");
    let covered = schedule.layout.degrees().len() == Schedule::blocks(schedule.layers);
    check(covered, 3, "every block of the chain has a degree");
    let Stage { stages, index } = &schedule.stage;
    let cut = stages.check(Schedule::blocks(schedule.layers));
    let cut = cut.and_then(|()| {
        let stage = format!("there is no stage {index} of {}", stages.count());
        (*index < stages.count()).then_some(()).ok_or(stage)
    });
    check(cut.is_ok(), 4, &cut.clone().err().unwrap_or_default());
    if covered && cut.is_ok() {
        let degrees = schedule.layout.degrees();
        let even = stages.starts().windows(2).all(|pair| degrees[pair[1] - 1] == degrees[pair[1]]);
        check(even, 3, "where the chain crosses to another stage, both sides have one degree");
    }
    let granularity = schedule.layout.granularity();
    let even = schedule.parts.iter().all(|part| part.sequences.is_multiple_of(granularity));
    let message = format!(
        "the sequences of every part must be a multiple of {granularity}, so that all replicas of a block get as many"
    );
    check(even, parts, &message);
    let ordered = schedule.parts.is_sorted_by(|left, right| left.id < right.id);
    check(ordered, parts, "parts are distinct and in sample order");
    // In order, the whole micro-batch stands right before its sub-batches.
    let both = schedule.parts.windows(2).any(|pair| {
        let [left, right] = [pair[0].id, pair[1].id];
        left.micro == right.micro && left.sub.is_none() && right.sub.is_some()
    });
    check(!both, parts, "a micro-batch is whole or cut into sub-batches");
    let named = |part: &Part| part.id.sub.is_none_or(|sub| u32::from(sub) < PartId::MAX_SUB_BATCHES);
    check(schedule.parts.iter().all(named), parts, "a micro-batch has at most 26 sub-batches");
    let sequences: u64 = schedule.parts.iter().map(|part| u64::from(part.sequences)).sum();
    check(u32::try_from(sequences).is_ok(), parts, "a batch has fewer than 2^32 sequences");
    messages
}
