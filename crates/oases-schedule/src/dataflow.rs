//! What each instruction reads and writes: the one statement of an instruction's meaning, walked by the verifier and by
//! the lifetimes alike.

use std::collections::{BTreeMap, BTreeSet};

use crate::activations::Slot;
use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::mesh::Axis;
use crate::schedule::{CollectiveKind, Extent, Instruction, Keep, Schedule};
use crate::value::{Touch, Value, collective_value, expected_kind};
use crate::verify::Rule;

/// Whether a value may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// One term of a sum over the group, which this collective completes.
    Partial(CollectiveId),
    /// This collective is writing it.
    InFlight(CollectiveId),
    /// Complete.
    Whole,
}

/// The gradients that are added up in one place, and the turn of one backward there. A tied head adds to the table of the
/// embedding, so these two share a place: within a micro-batch first the head's parts, then the embedding's.
type Turn = (u32, bool, Option<u8>);

fn turn(block: BlockId, part: PartId) -> (BlockId, Turn) {
    let place = if block == BlockId::Head { BlockId::Embed } else { block };
    (place, (part.micro, block == BlockId::Embed, part.sub))
}

/// The state of a walk over a schedule.
pub(crate) struct Dataflow<'a> {
    schedule: &'a Schedule,
    values: BTreeMap<Value, Condition>,
    /// Inputs that no forward kept: they end with the next block's forward, the head's with the loss.
    passing: BTreeSet<Value>,
    forwarded: BTreeSet<(BlockId, PartId)>,
    backwarded: BTreeSet<(BlockId, PartId)>,
    lost: BTreeSet<PartId>,
    /// The last backward that added to each place of gradients.
    last_backward: BTreeMap<BlockId, (Turn, BlockId, PartId)>,
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
        for (value, condition) in std::mem::take(&mut self.values) {
            match (value, condition) {
                (_, Condition::InFlight(collective)) => self.never_synced(collective),
                (_, Condition::Partial(_)) => {
                    self.violate(Rule::Collectives, format!("the {value} is never reduced"));
                }
                (Value::Input(..) | Value::Saved(..), _) if !self.passing.contains(&value) => {
                    self.violate(Rule::Kept, format!("the {value} is kept and never read"));
                }
                // The output of a layer that is recomputed to its end goes unread, as in Megatron-LM.
                _ => {}
            }
        }
        for (collective, condition) in std::mem::take(&mut self.reductions) {
            if condition != Condition::Whole {
                self.never_synced(collective);
            }
        }
        self.missing(Rule::Forward, "forward", |walk| &walk.forwarded);
        if self.stepped {
            self.missing(Rule::Backward, "backward", |walk| &walk.backwarded);
        } else if self.norm || !self.backwarded.is_empty() {
            self.violate(Rule::Step, "gradients without a step".into());
        }
        for part in &self.schedule.parts {
            if !self.lost.contains(&part.id) {
                self.violations.push((Rule::Loss, format!("no loss {}", part.id)));
            }
        }
        self.violations
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
        self.schedule.parts.len() * Schedule::blocks(self.schedule.layers)
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
            Some(Condition::Partial(_)) => {
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

    /// What an instruction leaves for its collective; a group of one has nothing to sum.
    fn partial(&self, block: BlockId, part: PartId, pass: Pass) -> Condition {
        match self.schedule.degree(block) {
            1 => Condition::Whole,
            _ => Condition::Partial(CollectiveId::Block { pass, block, part }),
        }
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
            match self.values.get(&residual) {
                Some(_) => self.touches.push(Touch::Use(residual, Slot::Residual)),
                None => self.violate(Rule::Whole, format!("the {residual} does not exist here")),
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
            if keep == Keep::Nothing {
                self.passing.insert(Value::Input(block, part));
            }
        } else if keep != Keep::Nothing {
            self.violate(Rule::Kept, "the embedding has no input to keep".into());
        }
        if block == BlockId::Head && keep == Keep::Input {
            self.violate(Rule::Kept, "the head is not recomputed: it keeps all or nothing".into());
        }
        // The loss reads the head's logits, so they live past the forward in any case.
        if (keep == Keep::All && before.is_some()) || block == BlockId::Head {
            self.create(Value::Saved(block, part), Slot::Normalized, Condition::Whole);
        }
        self.create(Value::Output(block, part), Slot::Output, self.partial(block, part, Pass::Forward));
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
            let condition = self.partial(block, part, Pass::Recompute);
            self.create(Value::Output(block, part), Slot::Output, condition);
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
        if self.passing.contains(&Value::Input(BlockId::Head, part)) {
            self.values.remove(&Value::Input(BlockId::Head, part));
            self.values.remove(&Value::Saved(BlockId::Head, part));
        }
    }

    fn backward(&mut self, block: BlockId, part: PartId) {
        if !self.backwarded.insert((block, part)) {
            self.violate(Rule::Backward, format!("a second backward {block} {part}"));
            return;
        }
        let (place, turn) = turn(block, part);
        match self.last_backward.insert(place, (turn, block, part)) {
            Some((last, late, of)) if last > turn => {
                let message = format!("backward {block} {part} adds its gradients after {late} {of}");
                self.violate(Rule::Order, message);
            }
            _ => {}
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
            let condition = self.partial(block, part, Pass::Backward);
            self.create(Value::Gradient(block, part), Slot::InputGradient, condition);
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

    fn sync(&mut self, collective: CollectiveId) {
        let value = collective_value(collective);
        let condition = match value {
            Some(value) => self.values.get_mut(&value),
            None => self.reductions.get_mut(&collective),
        };
        match condition {
            Some(condition) if *condition == Condition::InFlight(collective) => {
                *condition = Condition::Whole;
                self.touches.extend(value.map(|value| Touch::Use(value, Slot::Output)));
            }
            _ => self.violate(Rule::Collectives, format!("{collective} is synced but not in flight")),
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
        let left = self.instances() - self.backwarded.len();
        if left > 0 {
            self.violate(Rule::Reduced, format!("{left} of the backwards come after {before}"));
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
