//! What each instruction reads and writes: the one statement of an instruction's meaning, walked by the verifier and by
//! the lifetimes alike.

use std::collections::{BTreeMap, BTreeSet};

use crate::activations::Slot;
use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::mesh::Axis;
use crate::schedule::{CollectiveKind, Extent, Instruction, Keep, Schedule};
use crate::verify::Rule;

/// A value that flows between instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    /// `x[k]`.
    Input(BlockId, PartId),
    /// What a block put out: partial until reduced.
    Output(BlockId, PartId),
    /// Everything backward reads besides the input.
    Saved(BlockId, PartId),
    /// Gradient of a block's input: partial until reduced.
    Gradient(BlockId, PartId),
}

/// Whether a value may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// One term of a sum over the group.
    Partial,
    /// A collective is writing it.
    InFlight,
    /// Complete.
    Whole,
}

/// One operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Reads or updates a value in place.
    Use(Value, Slot),
    /// Writes a new value.
    Create(Value, Slot),
    /// Completes the first value in place; from here on it is the second.
    Become(Value, Value, Slot),
}

/// The state of a walk over a schedule.
pub(crate) struct Dataflow<'a> {
    schedule: &'a Schedule,
    values: BTreeMap<Value, Condition>,
    /// Inputs that a forward kept, and whether backward or recomputation read them.
    kept: BTreeMap<Value, bool>,
    /// Inputs that end with the next block's forward.
    passing: BTreeSet<Value>,
    forwarded: BTreeSet<(BlockId, PartId)>,
    backwarded: BTreeSet<(BlockId, PartId)>,
    lost: BTreeSet<PartId>,
    last_backward: BTreeMap<BlockId, PartId>,
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
            values: BTreeMap::new(),
            kept: BTreeMap::new(),
            passing: BTreeSet::new(),
            forwarded: BTreeSet::new(),
            backwarded: BTreeSet::new(),
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
        if self.stepped {
            self.violate(Rule::Step, "an instruction follows the step".into());
        }
        if self.names_exist(instruction) {
            match *instruction {
                Instruction::Forward { block, part, keep } => self.forward(block, part, keep),
                Instruction::Recompute { block, part, extent } => self.recompute(block, part, extent),
                Instruction::Loss { part } => self.loss(part),
                Instruction::Backward { block, part } => self.backward(block, part),
                Instruction::Start { collective, kind, axis } => self.start(collective, kind, axis),
                Instruction::Sync { collective } => self.sync(collective),
                Instruction::Norm => self.norm(),
                Instruction::Step => self.step(),
            }
        }
        (std::mem::take(&mut self.touches), std::mem::take(&mut self.violations))
    }

    /// What is violated by the schedule ending here.
    pub(crate) fn finish(mut self) -> Vec<(Rule, String)> {
        let unfinished = |condition: &Condition| *condition == Condition::InFlight;
        let values = self.values.iter().filter(|(_, c)| unfinished(c)).map(|(value, _)| format!("{value:?}"));
        let reductions =
            self.reductions.iter().filter(|(_, c)| unfinished(c)).map(|(name, _)| name.to_string());
        for name in values.chain(reductions).collect::<Vec<_>>() {
            self.violate(Rule::Collectives, format!("the collective on {name} is never synced"));
        }
        for part in self.schedule.parts.iter().map(|part| part.id) {
            for block in self.schedule.chain() {
                if !self.forwarded.contains(&(block, part)) {
                    self.violate(Rule::Forward, format!("no forward {block} {part}"));
                }
                if self.schedule.trains() && !self.backwarded.contains(&(block, part)) {
                    self.violate(Rule::Backward, format!("no backward {block} {part}"));
                }
            }
            if !self.lost.contains(&part) {
                self.violate(Rule::Loss, format!("no loss {part}"));
            }
        }
        let unread: Vec<Value> =
            self.kept.iter().filter(|(_, read)| !**read).map(|(value, _)| *value).collect();
        for value in unread {
            self.violate(Rule::Kept, format!("{value:?} is kept and never read"));
        }
        self.violations
    }

    fn violate(&mut self, rule: Rule, message: String) {
        self.violations.push((rule, message));
    }

    fn names_exist(&mut self, instruction: &Instruction) -> bool {
        let block = match *instruction {
            Instruction::Forward { block, .. }
            | Instruction::Recompute { block, .. }
            | Instruction::Backward { block, .. } => Some(block),
            Instruction::Start { collective: CollectiveId::Block { block, .. }, .. }
            | Instruction::Sync { collective: CollectiveId::Block { block, .. } } => Some(block),
            _ => None,
        };
        if let Some(block) = block.filter(|&block| self.schedule.position(block).is_none()) {
            self.violate(Rule::Names, format!("the chain has no block {block}"));
            return false;
        }
        if let Some(part) = instruction.part().filter(|&part| self.schedule.sequences(part).is_none()) {
            self.violate(Rule::Names, format!("the batch has no part {part}"));
            return false;
        }
        true
    }

    /// Reads `value`, which must be complete.
    fn read(&mut self, value: Value, slot: Slot, missing: Rule) {
        match self.values.get(&value) {
            Some(Condition::Whole) => self.touches.push(Touch::Use(value, slot)),
            Some(Condition::Partial) => {
                self.violate(Rule::Whole, format!("{value:?} is read before it is reduced"));
            }
            Some(Condition::InFlight) => {
                self.violate(Rule::Whole, format!("{value:?} is read while a collective writes it"));
            }
            None => self.violate(missing, format!("{value:?} does not exist here")),
        }
        if let Some(read) = self.kept.get_mut(&value) {
            *read = true;
        }
    }

    fn create(&mut self, value: Value, slot: Slot, condition: Condition) {
        if self.values.insert(value, condition).is_some() {
            self.violate(Rule::Whole, format!("{value:?} is written while it is still alive"));
        }
        self.touches.push(Touch::Create(value, slot));
    }

    /// A fresh sum over the group of `block`.
    fn partial(&self, block: BlockId) -> Condition {
        if self.schedule.degree(block) == 1 { Condition::Whole } else { Condition::Partial }
    }

    /// Completes the input of `block` from the output of the block before, in place.
    fn join(&mut self, before: BlockId, block: BlockId, part: PartId) {
        let output = Value::Output(before, part);
        let input = Value::Input(block, part);
        self.read(output, Slot::Input, Rule::Whole);
        self.touches.pop_if(|touch| *touch == Touch::Use(output, Slot::Input));
        self.values.remove(&output);
        if before != BlockId::Embed {
            let residual = Value::Input(before, part);
            // Not through `read`: reading the residual is not what an input is kept for.
            match self.values.get(&residual) {
                Some(_) => self.touches.push(Touch::Use(residual, Slot::Residual)),
                None => self.violate(Rule::Whole, format!("{residual:?} does not exist here")),
            }
            if self.passing.remove(&residual) {
                self.values.remove(&residual);
            }
        }
        self.values.insert(input, Condition::Whole);
        self.touches.push(Touch::Become(output, input, Slot::Input));
    }

    fn forward(&mut self, block: BlockId, part: PartId, keep: Keep) {
        if !self.forwarded.insert((block, part)) {
            self.violate(Rule::Forward, format!("a second forward {block} {part}"));
            return;
        }
        let before = self.schedule.before(block);
        if let Some(before) = before {
            self.join(before, block, part);
            let input = Value::Input(block, part);
            // The head's forward reads its input for the last time, unless backward follows.
            match keep {
                Keep::Nothing => drop(self.passing.insert(input)),
                Keep::Input | Keep::All => drop(self.kept.insert(input, false)),
            }
        } else if keep != Keep::Nothing {
            self.violate(Rule::Kept, "the embedding has no input to keep".into());
        }
        // The loss reads the head's logits, so they live past the forward in any case.
        if (keep == Keep::All && before.is_some()) || block == BlockId::Head {
            self.create(Value::Saved(block, part), Slot::Normalized, Condition::Whole);
        }
        self.create(Value::Output(block, part), Slot::Output, self.partial(block));
    }

    fn recompute(&mut self, block: BlockId, part: PartId, extent: Extent) {
        let (Some(before), BlockId::Attn(_) | BlockId::Mlp(_)) = (self.schedule.before(block), block) else {
            self.violate(Rule::Recompute, format!("{block} cannot be recomputed"));
            return;
        };
        if !self.forwarded.contains(&(block, part)) || self.backwarded.contains(&(block, part)) {
            self.violate(Rule::Recompute, format!("{block} {part} is not between forward and backward"));
        }
        let input = Value::Input(block, part);
        if self.values.contains_key(&input) {
            self.read(input, Slot::Input, Rule::Whole);
        } else {
            self.join(before, block, part);
        }
        if self.values.contains_key(&Value::Saved(block, part)) {
            self.violate(Rule::Recompute, format!("{block} {part} is already there and is rebuilt"));
        } else {
            self.create(Value::Saved(block, part), Slot::Normalized, Condition::Whole);
        }
        if extent == Extent::Output {
            self.create(Value::Output(block, part), Slot::Output, self.partial(block));
        }
    }

    fn loss(&mut self, part: PartId) {
        if !self.lost.insert(part) {
            self.violate(Rule::Loss, format!("a second loss {part}"));
            return;
        }
        self.read(Value::Saved(BlockId::Head, part), Slot::Normalized, Rule::Loss);
        self.read(Value::Output(BlockId::Head, part), Slot::Output, Rule::Loss);
        self.values.remove(&Value::Output(BlockId::Head, part));
    }

    fn backward(&mut self, block: BlockId, part: PartId) {
        if !self.backwarded.insert((block, part)) {
            self.violate(Rule::Backward, format!("a second backward {block} {part}"));
            return;
        }
        if self.last_backward.insert(block, part).is_some_and(|last| last > part) {
            self.violate(
                Rule::Order,
                format!("{block} adds the gradients of {part} after those of a later part"),
            );
        }
        if block == BlockId::Head {
            if !self.lost.contains(&part) {
                self.violate(Rule::Loss, format!("backward head {part} comes before its loss"));
            }
        } else {
            self.incoming_gradient(block, part);
        }
        if block != BlockId::Embed {
            self.read(Value::Saved(block, part), Slot::Normalized, Rule::Recompute);
            self.read(Value::Input(block, part), Slot::Input, Rule::Kept);
            self.values.remove(&Value::Saved(block, part));
            self.values.remove(&Value::Input(block, part));
            self.create(Value::Gradient(block, part), Slot::InputGradient, self.partial(block));
        }
    }

    /// `G[k+1]` is completed in place by the gradient that arrived at the block after it.
    fn incoming_gradient(&mut self, block: BlockId, part: PartId) {
        let Some(after) = self.schedule.after(block) else { return };
        self.read(Value::Gradient(after, part), Slot::Gradient, Rule::Backward);
        if let Some(upstream) = self.schedule.after(after) {
            self.read(Value::Gradient(upstream, part), Slot::Upstream, Rule::Backward);
            self.values.remove(&Value::Gradient(upstream, part));
        }
        if block == BlockId::Embed {
            self.values.remove(&Value::Gradient(after, part));
        }
    }

    fn start(&mut self, collective: CollectiveId, kind: CollectiveKind, axis: Axis) {
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
            Some(value) => match self.values.get_mut(&value) {
                Some(condition @ Condition::Partial) => {
                    *condition = Condition::InFlight;
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
                self.reductions.insert(collective, Condition::InFlight);
            }
        }
    }

    fn sync(&mut self, collective: CollectiveId) {
        let condition = match collective_value(collective) {
            Some(value) => {
                self.touches.push(Touch::Use(value, Slot::Output));
                self.values.get_mut(&value)
            }
            None => self.reductions.get_mut(&collective),
        };
        match condition {
            Some(condition @ Condition::InFlight) if self.started.contains(&collective) => {
                *condition = Condition::Whole;
            }
            _ => {
                self.touches.clear();
                self.violate(Rule::Collectives, format!("{collective} is synced but not in flight"));
            }
        }
    }

    fn norm(&mut self) {
        if std::mem::replace(&mut self.norm, true) {
            self.violate(Rule::Step, "a second norm".into());
        }
        self.all_backwards_done("norm");
        self.reduction_done(CollectiveId::Gradients(0), "norm");
    }

    fn step(&mut self) {
        self.stepped = true;
        if !self.norm {
            self.violate(Rule::Step, "the step comes before the norm".into());
        }
        self.reduction_done(CollectiveId::Norm, "the step");
    }

    fn all_backwards_done(&mut self, before: &str) {
        let expected = self.schedule.parts.len() * Schedule::blocks(self.schedule.layers);
        if self.backwarded.len() < expected {
            let left = expected - self.backwarded.len();
            self.violate(Rule::Reduced, format!("{left} backwards come after {before}"));
        }
    }

    fn reduction_done(&mut self, collective: CollectiveId, before: &str) {
        let reduced = self.reductions.get(&collective) == Some(&Condition::Whole);
        if self.tensor_degree() > 1 && !reduced {
            self.violate(Rule::Reduced, format!("{collective} is not reduced before {before}"));
        }
    }

    fn tensor_degree(&self) -> u32 {
        self.schedule.layout.uniform_degree().unwrap_or(0)
    }
}

/// The value that a collective reduces, for those that belong to a block.
pub(crate) fn collective_value(collective: CollectiveId) -> Option<Value> {
    match collective {
        CollectiveId::Block { pass: Pass::Forward | Pass::Recompute, block, part } => {
            Some(Value::Output(block, part))
        }
        CollectiveId::Block { pass: Pass::Backward, block, part } => Some(Value::Gradient(block, part)),
        CollectiveId::Gradients(_) | CollectiveId::Norm => None,
    }
}

/// The head's statistics are gathered, everything else is summed.
pub(crate) fn expected_kind(collective: CollectiveId) -> CollectiveKind {
    match collective {
        CollectiveId::Block { pass: Pass::Forward, block: BlockId::Head, .. } => CollectiveKind::AllGather,
        _ => CollectiveKind::AllReduce,
    }
}
