//! What each instruction reads and writes: the one statement of an instruction's meaning, walked by the verifier and by
//! the lifetimes alike.

mod backward;
mod collectives;
mod crossing;
mod forward;
mod reshard;

use std::collections::{BTreeMap, BTreeSet};

use crate::activations::{Inside, Slot};
use crate::ids::{BlockId, CollectiveId, Cut, PartId, Pass, Piece};
use crate::instruction::Instruction;
use crate::schedule::{Schedule, Scope};
use crate::value::{Touch, Value};
use crate::verify::Rule;

/// Whether a value may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// One term of a sum over the group, which this collective completes.
    Partial(CollectiveId),
    /// This collective is writing it.
    InFlight(CollectiveId),
    /// Its pieces have conditions of their own.
    Cut,
    /// Complete.
    Whole,
}

/// The conditions of the pieces of a value, so far as they are written.
struct Pieces {
    of: u8,
    cut: Cut,
    conditions: Vec<Condition>,
}

/// The two halves of a backward, each of which adds to gradients of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Half {
    /// Those of the normalisation.
    Input,
    /// All others.
    Weight,
}

/// The turn of one backward among those that add to one place. A tied head adds to the table of the embedding, so these two
/// share a place: within a micro-batch first the head's parts, then the embedding's.
type Turn = (u32, bool, Option<u8>);

fn turn(block: BlockId, part: PartId, half: Half) -> ((BlockId, Half), Turn) {
    let tied = block == BlockId::Head && half == Half::Weight;
    let place = if tied { BlockId::Embed } else { block };
    ((place, half), (part.micro, block == BlockId::Embed, part.sub))
}

/// The state of a walk over a schedule.
pub(crate) struct Dataflow<'a> {
    schedule: &'a Schedule,
    /// Blocks of this stage.
    blocks: usize,
    values: BTreeMap<Value, Condition>,
    /// Inputs that no forward kept: they end with the next block's forward, the head's with the loss.
    passing: BTreeSet<Value>,
    /// What is written in pieces, while it lives.
    pieces: BTreeMap<Value, Pieces>,
    /// Passes through a block that wait for pieces, and the next one where some are there.
    bodies: BTreeMap<(Pass, BlockId, PartId), Option<Piece>>,
    /// Gradients that a `backward_weight` will read, and whether nobody else will.
    held: BTreeMap<Value, bool>,
    forwarded: BTreeSet<(BlockId, PartId)>,
    /// Gradients of inputs, and of weights.
    inputs_done: BTreeSet<(BlockId, PartId)>,
    weights_done: BTreeSet<(BlockId, PartId)>,
    lost: BTreeSet<PartId>,
    /// The last backward that added to each place of gradients.
    last_backward: BTreeMap<(BlockId, Half), (Turn, BlockId, PartId)>,
    /// Gradient buckets and the norm, once started; whole once synced.
    reductions: BTreeMap<CollectiveId, Condition>,
    started: BTreeSet<CollectiveId>,
    norm: bool,
    stepped: bool,
    touches: Vec<Touch>,
    violations: Vec<(Rule, String)>,
}

impl<'a> Dataflow<'a> {
    pub(crate) fn new(schedule: &'a Schedule) -> Dataflow<'a> {
        Dataflow {
            schedule,
            blocks: schedule.chain().count(),
            values: BTreeMap::new(),
            passing: BTreeSet::new(),
            pieces: BTreeMap::new(),
            bodies: BTreeMap::new(),
            held: BTreeMap::new(),
            forwarded: BTreeSet::new(),
            inputs_done: BTreeSet::new(),
            weights_done: BTreeSet::new(),
            lost: BTreeSet::new(),
            last_backward: BTreeMap::new(),
            reductions: BTreeMap::new(),
            started: BTreeSet::new(),
            norm: false,
            stepped: false,
            touches: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Advances by one instruction; returns its operands and what it violates.
    pub(crate) fn advance(&mut self, instruction: &Instruction) -> (Vec<Touch>, Vec<(Rule, String)>) {
        let weights = matches!(
            instruction,
            Instruction::Start { collective: CollectiveId::Weights(_), .. }
                | Instruction::Sync { collective: CollectiveId::Weights(_) }
        );
        if self.stepped && !weights {
            self.violate(Rule::Step, "an instruction follows the step".into());
        }
        if self.names_exist(instruction) {
            match *instruction {
                Instruction::Forward { block, part, keep, extent } => self.forward(block, part, keep, extent),
                Instruction::Recompute { block, part, extent } => self.recompute(block, part, extent),
                Instruction::Loss { part } => self.loss(part),
                Instruction::Tail { pass, block, part, piece } => self.tail(pass, block, part, piece),
                Instruction::Backward { block, part, scope: Scope::Weight } => {
                    self.backward_weight(block, part)
                }
                Instruction::Backward { block, part, scope } => self.backward(block, part, scope),
                Instruction::Reshard { pass, block, part } => self.reshard(pass, block, part),
                Instruction::Complete { pass, block, part } => self.complete(pass, block, part),
                Instruction::Start { collective, kind, axis, grouping } => {
                    self.start(collective, kind, (axis, grouping));
                }
                Instruction::Sync { collective } => self.sync(collective),
                Instruction::Norm => self.norm(),
                Instruction::Step => self.step(),
            }
        }
        (std::mem::take(&mut self.touches), std::mem::take(&mut self.violations))
    }

    /// What is violated by the schedule ending here.
    pub(crate) fn finish(mut self) -> Vec<(Rule, String)> {
        for ((pass, block, part), _) in std::mem::take(&mut self.bodies) {
            self.violate(Rule::Pieces, format!("pieces of {} {block} {part} are missing", pass.name()));
        }
        let left = std::mem::take(&mut self.values);
        let saved = |block, part| left.contains_key(&Value::Inside(Inside::Saved, block, part));
        for (&value, &condition) in &left {
            let pieces = self.pieces.remove(&value).filter(|_| condition == Condition::Cut);
            for condition in pieces.map_or(vec![condition], |pieces| pieces.conditions) {
                self.never_reduced(value, condition);
            }
            match value {
                // Where all of it is left, that is said once.
                Value::Inside(Inside::Core, block, part) if saved(block, part) => {}
                Value::Input(..) | Value::Inside(Inside::Saved | Inside::Core, ..)
                    if !self.passing.contains(&value) =>
                {
                    self.violate(Rule::Kept, format!("the {value} is kept and never read"));
                }
                // The output of a layer that is recomputed to its end goes unread, as in Megatron-LM.
                _ => {}
            }
        }
        self.weights_gathered();
        for (collective, condition) in std::mem::take(&mut self.reductions) {
            if condition != Condition::Whole {
                self.never_synced(collective);
            }
        }
        self.missing(Rule::Forward, "forward", |walk| &walk.forwarded);
        if self.stepped {
            let before = self.violations.len();
            self.missing(Rule::Backward, "backward", |walk| &walk.inputs_done);
            if self.violations.len() == before {
                self.missing(Rule::Backward, "backward_weight", |walk| &walk.weights_done);
            }
        } else if self.norm || !self.inputs_done.is_empty() || !self.weights_done.is_empty() {
            self.violate(Rule::Step, "gradients without a step".into());
        }
        self.crossings();
        for part in self.schedule.parts.iter().filter(|_| self.schedule.runs(BlockId::Head)) {
            if !self.lost.contains(&part.id) {
                self.violations.push((Rule::Loss, format!("no loss {}", part.id)));
            }
        }
        self.violations
    }

    fn never_reduced(&mut self, value: Value, condition: Condition) {
        match condition {
            Condition::InFlight(collective) => self.never_synced(collective),
            Condition::Partial(_) => {
                self.violate(Rule::Collectives, format!("the {value} is never reduced"));
            }
            Condition::Cut | Condition::Whole => {}
        }
    }

    fn never_synced(&mut self, collective: CollectiveId) {
        self.violate(Rule::Collectives, format!("{collective} is never synced"));
    }

    /// One violation for all missing instructions of a kind; there can be as many as layers times parts.
    fn missing(&mut self, rule: Rule, kind: &str, done: impl Fn(&Self) -> &BTreeSet<(BlockId, PartId)>) {
        let count = self.instances() - done(self).len();
        if count == 0 {
            return;
        }
        let parts = self.schedule.parts.iter().map(|part| part.id);
        let mut all = parts.flat_map(|part| self.schedule.chain().map(move |block| (block, part)));
        let (block, part) = all.find(|instance| !done(self).contains(instance)).expect("one is missing");
        let others = if count > 1 { format!(", nor {} others", count - 1) } else { String::new() };
        self.violate(rule, format!("no {kind} {block} {part}{others}"));
    }

    /// Blocks times parts.
    fn instances(&self) -> usize {
        self.schedule.parts.len() * self.blocks
    }

    fn violate(&mut self, rule: Rule, message: String) {
        self.violations.push((rule, message));
    }

    fn names_exist(&mut self, instruction: &Instruction) -> bool {
        let block = instruction.block().or(match *instruction {
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => collective.block(),
            _ => None,
        });
        if let Some(block) = block.filter(|&block| self.schedule.position(block).is_none()) {
            self.violate(Rule::Names, format!("the chain has no block {block}"));
            return false;
        }
        // What crosses has the name of a block of one of two stages.
        let crosses = match *instruction {
            Instruction::Complete { .. } => true,
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => {
                matches!(collective, CollectiveId::Transfer { .. })
            }
            _ => false,
        };
        let runs = |block: &BlockId| crosses || self.schedule.runs(*block);
        let loss = matches!(instruction, Instruction::Loss { .. }).then_some(BlockId::Head);
        if let Some(block) = block.or(loss).filter(|block| !runs(block)) {
            self.violate(Rule::Names, format!("stage {} does not run {block}", self.schedule.stage.index));
            return false;
        }
        // A sound header has its parts in order.
        let known = |part: &PartId| self.schedule.parts.binary_search_by_key(part, |known| known.id).is_ok();
        if let Some(part) = instruction.part().filter(|part| !known(part)) {
            self.violate(Rule::Names, format!("the batch has no part {part}"));
            return false;
        }
        true
    }

    /// Reads `value`, which must be whole; `missing` is the rule that is broken where it does not exist.
    fn read(&mut self, value: Value, slot: Slot, missing: Rule) {
        match self.values.get(&value) {
            Some(Condition::Whole) => self.touches.push(Touch::Use(value, slot)),
            Some(Condition::Partial(_) | Condition::Cut) => {
                self.violate(Rule::Whole, format!("the {value} is read before it is reduced"));
            }
            Some(Condition::InFlight(collective)) => {
                let message = format!("the {value} is read while {collective} writes it");
                self.violate(Rule::Whole, message);
            }
            None => self.violate(missing, format!("the {value} does not exist here")),
        }
    }

    fn create(&mut self, value: Value, slot: Slot, condition: Condition) {
        if self.values.insert(value, condition).is_some() {
            self.violate(Rule::Whole, format!("the {value} is written while it is still alive"));
        }
        self.touches.push(Touch::Create(value, slot));
    }
}
