//! Lifetimes: one walk gives every buffer its birth and death, and from them its place in the arena and the exact peak.
//!
//! A buffer lives from the instruction that first writes it to the last that touches it; a collective's buffer is touched
//! by its `start` and its `sync`. Buffers that never live together may share bytes.

use std::collections::{BTreeMap, BTreeSet};

use crate::activations::{Moment, Need, Slot, Workspace, internals};
use crate::dataflow::Dataflow;
use crate::ids::{BlockId, CollectiveId, PartId};
use crate::placement::{Interval, place};
use crate::schedule::{Extent, Instruction, Schedule};
use crate::statics::{Purpose, Statics};
use crate::units::{Bytes, Span};
use crate::value::{Touch, Value};
use crate::verify::verify;

/// What a buffer holds, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BufferKind {
    /// Inputs of blocks, and outputs on their way to become inputs.
    Inputs,
    /// What backward reads besides the input, kept or rebuilt.
    Saved,
    /// Gradients of activations.
    Gradients,
    /// Alive inside one instruction only.
    Scratch,
}

impl BufferKind {
    /// All kinds, in the order of reports.
    pub const ALL: [BufferKind; 4] =
        [BufferKind::Inputs, BufferKind::Saved, BufferKind::Gradients, BufferKind::Scratch];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::Inputs => "block inputs",
            BufferKind::Saved => "saved for backward",
            BufferKind::Gradients => "activation gradients",
            BufferKind::Scratch => "scratch",
        }
    }
}

/// A buffer of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What it holds.
    pub kind: BufferKind,
    /// Its role where it is first written.
    pub slot: Slot,
    /// First instruction that touches it.
    pub birth: usize,
    /// Last instruction that touches it.
    pub death: usize,
    /// Its place in the arena.
    pub span: Span,
}

/// Operands of one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operands {
    spans: [Span; Slot::COUNT],
    /// Whether the instruction first completes its input: residual plus reduced output of the block before.
    pub joins: bool,
    /// Whether this is the first backward of its block in the step: gradients are written, not added. The embedding adds
    /// to the table of a tied head in any case, whose backward always comes before.
    pub first: bool,
    /// Index of the part in the schedule.
    pub part: usize,
    /// Index of the part's first sequence in the step.
    pub first_sequence: usize,
    /// Sequences of the part.
    pub sequences: usize,
}

impl Operands {
    /// The places of all slots; empty ones among them.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.spans.iter().copied()
    }

    /// The place of a slot; empty where the instruction has none.
    pub fn span(&self, slot: Slot) -> Span {
        self.spans[slot as usize]
    }
}

/// The memory plan of a schedule.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Operands of every instruction.
    pub operands: Vec<Operands>,
    /// Every buffer of the step.
    pub buffers: Vec<Buffer>,
    /// The highest byte of the arena that the step touches, plus one: the exact peak.
    pub bytes: Bytes,
    /// The most bytes that are alive at once, weights and all; the peak cannot be lower.
    pub live_bytes: Bytes,
    /// The instruction at which most bytes are alive.
    pub peak_instruction: usize,
}

impl Plan {
    /// Bytes of each kind that are alive at an instruction.
    pub fn alive(&self, instruction: usize) -> BTreeMap<BufferKind, Bytes> {
        let mut kinds: BTreeMap<BufferKind, Bytes> = BTreeMap::new();
        for buffer in self.buffers.iter().filter(|b| (b.birth..=b.death).contains(&instruction)) {
            let bytes = kinds.entry(buffer.kind).or_default();
            *bytes = *bytes + Bytes(buffer.span.bytes as u64);
        }
        kinds
    }
}

/// Plans the memory of a verified schedule behind `statics`.
///
/// # Panics
/// With the violations, if the schedule does not verify, or if `statics` has no room for its batch.
pub fn plan(schedule: &Schedule, statics: &Statics, workspace: Workspace) -> Plan {
    let violations = verify(schedule);
    assert!(violations.is_empty(), "schedule `{}` does not verify: {}", schedule.name, violations[0]);
    assert!(!schedule.trains() || statics.purpose == Purpose::Training, "a training step needs gradients");
    assert_eq!(
        schedule.layout.uniform_degree(),
        Some(statics.tensor),
        "schedule and arena differ in TMP degree"
    );
    let room = statics.tokens.bytes / statics.model.sequence / size_of::<u32>();
    assert!(schedule.batch() as usize <= room, "{} sequences in room for {room}", schedule.batch());

    let mut walk = Walk::new(schedule, statics, workspace);
    let mut dataflow = Dataflow::new(schedule);
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        let (touches, _) = dataflow.advance(instruction);
        walk.instruction(index, instruction, &touches);
    }
    walk.finish()
}

struct Walk<'a> {
    schedule: &'a Schedule,
    statics: &'a Statics,
    workspace: Workspace,
    buffers: Vec<Buffer>,
    /// Buffers of each value that is alive; `Saved` has one per internal slot.
    alive: BTreeMap<(Value, Slot), usize>,
    /// Buffer of each slot of each instruction.
    used: Vec<Vec<(Slot, usize)>>,
    operands: Vec<Operands>,
    backwarded: BTreeSet<BlockId>,
}

impl<'a> Walk<'a> {
    fn new(schedule: &'a Schedule, statics: &'a Statics, workspace: Workspace) -> Walk<'a> {
        Walk {
            schedule,
            statics,
            workspace,
            buffers: Vec::new(),
            alive: BTreeMap::new(),
            used: Vec::new(),
            operands: Vec::new(),
            backwarded: BTreeSet::new(),
        }
    }

    fn instruction(&mut self, index: usize, instruction: &Instruction, touches: &[Touch]) {
        self.used.push(Vec::new());
        let mut operands = self.bare_operands(instruction);
        for touch in touches {
            match *touch {
                Touch::Use(value @ Value::Saved(block, _), _) => {
                    for slot in saved_slots(block) {
                        self.touch(index, value, slot, slot);
                    }
                }
                Touch::Use(value, slot) => self.touch(index, value, home(value), slot),
                Touch::Create(value @ Value::Saved(block, part), _) => {
                    for slot in saved_slots(block) {
                        self.create(index, block, part, BufferKind::Saved, slot, Some(value));
                    }
                }
                Touch::Create(value, slot) => {
                    let (block, part) = owner(value);
                    let kind = match value {
                        Value::Gradient(..) => BufferKind::Gradients,
                        _ => BufferKind::Inputs,
                    };
                    self.create(index, block, part, kind, slot, Some(value));
                }
                Touch::Become(from, into, slot) => {
                    operands.joins = true;
                    self.touch(index, from, home(from), slot);
                    let buffer = self.alive.remove(&(from, home(from))).expect("the value was alive");
                    self.alive.insert((into, home(into)), buffer);
                }
            }
        }
        self.scratch(index, instruction);
        if let Instruction::Start { collective, .. } | Instruction::Sync { collective } = *instruction {
            operands.spans[Slot::Output as usize] = self.static_span(collective);
        }
        self.operands.push(operands);
    }

    /// Operands without the buffers, which have no place yet.
    fn bare_operands(&mut self, instruction: &Instruction) -> Operands {
        let parts = &self.schedule.parts;
        let part = instruction.part().and_then(|id| parts.iter().position(|part| part.id == id)).unwrap_or(0);
        let first = match *instruction {
            Instruction::Backward { block, .. } => self.backwarded.insert(block),
            _ => false,
        };
        Operands {
            spans: [Span::default(); Slot::COUNT],
            joins: false,
            first,
            part,
            first_sequence: parts[..part].iter().map(|part| part.sequences as usize).sum(),
            sequences: parts[part].sequences as usize,
        }
    }

    fn static_span(&self, collective: CollectiveId) -> Span {
        match collective {
            CollectiveId::Gradients(_) => self.statics.partial_gradients(),
            CollectiveId::Norm => self.statics.norm,
            CollectiveId::Block { .. } => Span::default(),
        }
    }

    fn touch(&mut self, index: usize, value: Value, home: Slot, slot: Slot) {
        let buffer = *self.alive.get(&(value, home)).expect("a verified schedule reads what is alive");
        self.buffers[buffer].death = index;
        self.used[index].push((slot, buffer));
    }

    fn create(
        &mut self,
        index: usize,
        block: BlockId,
        part: PartId,
        kind: BufferKind,
        slot: Slot,
        value: Option<Value>,
    ) {
        let instruction = &self.schedule.instructions[index];
        let moment = moment(instruction).expect("only instructions on blocks write buffers");
        let sequences = self.schedule.sequences(part).expect("a part of the batch") as usize;
        let tokens = sequences * self.statics.model.sequence;
        let model = &self.statics.model;
        let bytes = model.slot_bytes(block, slot, moment, tokens, self.statics.tensor, self.workspace);
        if bytes.0 == 0 {
            return;
        }
        let span = Span { offset: 0, bytes: bytes.0 as usize };
        self.buffers.push(Buffer { kind, slot, birth: index, death: index, span });
        let buffer = self.buffers.len() - 1;
        self.used[index].push((slot, buffer));
        if let Some(value) = value {
            let home = if kind == BufferKind::Saved { slot } else { home(value) };
            self.alive.insert((value, home), buffer);
        }
    }

    /// Internal buffers that this instruction needs and nobody gave it.
    fn scratch(&mut self, index: usize, instruction: &Instruction) {
        let (Some(moment), Some((block, part))) = (moment(instruction), target(instruction)) else { return };
        for (slot, need) in internals(block) {
            let present = self.used[index].iter().any(|(used, _)| used == slot);
            let needed = match need {
                Need::Saved => !present && moment == Moment::Forward,
                Need::Scratch(moments) => moments.contains(&moment),
            };
            if needed {
                self.create(index, block, part, BufferKind::Scratch, *slot, None);
            }
        }
    }

    fn finish(mut self) -> Plan {
        let base = self.statics.bytes;
        let intervals: Vec<Interval> = self
            .buffers
            .iter()
            .map(|buffer| Interval { birth: buffer.birth, death: buffer.death, bytes: buffer.span.bytes })
            .collect();
        let offsets = place(&intervals, self.schedule.instructions.len());
        for (buffer, offset) in self.buffers.iter_mut().zip(offsets) {
            buffer.span.offset = base + offset;
        }
        for (operands, used) in self.operands.iter_mut().zip(&self.used) {
            for (slot, buffer) in used {
                operands.spans[*slot as usize] = self.buffers[*buffer].span;
            }
        }
        let bytes = self.buffers.iter().map(|buffer| buffer.span.end()).max().unwrap_or(base);
        let (peak_instruction, live) = most_alive(&self.buffers, self.schedule.instructions.len());
        Plan {
            operands: self.operands,
            buffers: self.buffers,
            bytes: Bytes(bytes as u64),
            live_bytes: Bytes((base + live) as u64),
            peak_instruction,
        }
    }
}

/// The instruction at which most bytes are alive, and how many.
fn most_alive(buffers: &[Buffer], instructions: usize) -> (usize, usize) {
    let mut change = vec![0_i64; instructions + 1];
    for buffer in buffers {
        change[buffer.birth] += buffer.span.bytes as i64;
        change[buffer.death + 1] -= buffer.span.bytes as i64;
    }
    let (mut alive, mut peak) = (0, (0, 0));
    for (index, change) in change.iter().take(instructions).enumerate() {
        alive += change;
        if alive > peak.1 {
            peak = (index, alive);
        }
    }
    (peak.0, peak.1 as usize)
}

/// The slot under which a value's single buffer is remembered.
fn home(value: Value) -> Slot {
    match value {
        Value::Input(..) => Slot::Input,
        Value::Output(..) => Slot::Output,
        Value::Gradient(..) => Slot::InputGradient,
        Value::Saved(..) => unreachable!("saved values have a buffer per internal slot"),
    }
}

fn owner(value: Value) -> (BlockId, PartId) {
    let (Value::Input(block, part)
    | Value::Output(block, part)
    | Value::Saved(block, part)
    | Value::Gradient(block, part)) = value;
    (block, part)
}

fn saved_slots(block: BlockId) -> impl Iterator<Item = Slot> {
    internals(block).iter().filter(|(_, need)| *need == Need::Saved).map(|(slot, _)| *slot)
}

/// The block and part that an instruction computes on.
fn target(instruction: &Instruction) -> Option<(BlockId, PartId)> {
    match *instruction {
        Instruction::Forward { block, part, .. }
        | Instruction::Recompute { block, part, .. }
        | Instruction::Backward { block, part } => Some((block, part)),
        _ => None,
    }
}

fn moment(instruction: &Instruction) -> Option<Moment> {
    match instruction {
        Instruction::Forward { .. } => Some(Moment::Forward),
        Instruction::Recompute { extent: Extent::Saved, .. } => Some(Moment::RecomputeSaved),
        Instruction::Recompute { extent: Extent::Output, .. } => Some(Moment::RecomputeOutput),
        Instruction::Backward { .. } => Some(Moment::Backward),
        _ => None,
    }
}

/// Bytes of the buffer that a `start` of a planned schedule works on; `None` for any other instruction.
pub fn collective_bytes(schedule: &Schedule, plan: &Plan, instruction: usize) -> Option<Bytes> {
    let Instruction::Start { .. } = schedule.instructions[instruction] else { return None };
    Some(Bytes(plan.operands[instruction].span(Slot::Output).bytes as u64))
}
