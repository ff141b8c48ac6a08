//! Lifetimes: one walk gives every buffer its birth and death, and from them its place in the arena and the exact peak.
//!
//! A buffer lives from the instruction that first writes it to the last that touches it; a collective's buffer is touched
//! by its `start` and its `sync`. Buffers that never live together may share bytes.

use std::collections::{BTreeMap, BTreeSet};

use crate::activations::{Inside, Slot, Workspace, inside, internals};
use crate::dataflow::{Dataflow, Half};
use crate::ids::{BlockId, CollectiveId, Cut, Pass, Piece};
use crate::instruction::Instruction;
use crate::placement::{Interval, place};
use crate::schedule::{Schedule, Scope};
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
    /// Not 0 where the instruction first completes its input: residual plus reduced output of the block before, which lies
    /// in so many pieces by columns.
    pub joins: u8,
    /// Whether this is the first in the step that adds to these gradients of its block: they are written, not added. The embedding adds
    /// to the table of a tied head in any case, whose backward always comes before.
    pub first: bool,
    /// The piece that the instruction works on, and the slot that holds it: the span of that slot is the piece's.
    pub piece: Option<(Piece, Slot)>,
    /// Index of the part in the schedule.
    pub part: usize,
    /// Index of the part's first sequence in the step.
    pub first_sequence: usize,
    /// Sequences of the part on one rank: its share where the block has replicas.
    pub sequences: usize,
    /// TMP degree of the block; of the group for what is on none.
    pub degree: u32,
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
    /// For each TMP degree among the blocks, ascending: the elements of parameters that a rank updates of the blocks with that
    /// degree, over those that it would hold of all blocks if all had it. What takes as long as a rank has parameters takes
    /// the sum of these times what it takes at each degree.
    pub parameter_shares: Vec<(u32, f64)>,
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
    assert_eq!(schedule.layout, statics.layout, "schedule and arena differ in their TMP degrees");
    assert_eq!(
        (&schedule.stage, schedule.optimizer),
        (&statics.stage, statics.optimizer),
        "schedule and arena are of different stages"
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
    backwarded: BTreeSet<(BlockId, Half)>,
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
                Touch::Use(value @ Value::Inside(what, block, _), _) => {
                    for &slot in inside(block.into(), what) {
                        if self.alive.contains_key(&(value, slot)) {
                            self.touch(index, value, slot, slot);
                        }
                    }
                }
                Touch::Use(value, slot) => self.touch(index, value, home(value), slot),
                Touch::Create(value @ Value::Inside(what, block, _), _) => {
                    let kind = if what == Inside::Delta { BufferKind::Gradients } else { BufferKind::Saved };
                    for &slot in inside(block.into(), what) {
                        self.create(index, kind, slot, Some(value));
                    }
                }
                Touch::Create(value, slot) => {
                    let kind = match value {
                        Value::Gradient(..) | Value::Resharded(..) => BufferKind::Gradients,
                        _ => BufferKind::Inputs,
                    };
                    self.create(index, kind, slot, Some(value));
                }
                Touch::Become(from, into, columns) => {
                    operands.joins = columns;
                    self.touch(index, from, home(from), Slot::Input);
                    if columns > 1 {
                        self.create(index, BufferKind::Scratch, Slot::Joined, None);
                    }
                    let buffer = self.alive.remove(&(from, home(from))).expect("the value was alive");
                    self.alive.insert((into, home(into)), buffer);
                }
            }
        }
        self.scratch(index, instruction);
        if let Instruction::Start { collective, .. } | Instruction::Sync { collective } = *instruction {
            operands.spans[Slot::Output as usize] = self.static_span(collective);
        }
        operands.piece = piece(instruction);
        self.operands.push(operands);
    }

    /// Operands without the buffers, which have no place yet.
    fn bare_operands(&mut self, instruction: &Instruction) -> Operands {
        let parts = &self.schedule.parts;
        let part = instruction.part().and_then(|id| parts.iter().position(|part| part.id == id)).unwrap_or(0);
        let first = match *instruction {
            // Where one half is the first of its block, so is the other.
            Instruction::Backward { block, scope: Scope::All, .. } => {
                self.backwarded.insert((block, Half::Input));
                self.backwarded.insert((block, Half::Weight))
            }
            Instruction::Backward { block, scope: Scope::Input, .. } => {
                self.backwarded.insert((block, Half::Input))
            }
            Instruction::Backward { block, .. } => self.backwarded.insert((block, Half::Weight)),
            Instruction::Tail { pass: Pass::Backward, block, .. } => {
                self.backwarded.insert((block, Half::Input))
            }
            _ => false,
        };
        let block = at(self.schedule, instruction);
        let share = block.and_then(|block| self.schedule.share(block, parts[part].id));
        let share = share.unwrap_or(parts[part].sequences);
        let degree = block.map_or(self.schedule.layout.group(), |block| self.schedule.degree(block));
        Operands {
            spans: [Span::default(); Slot::COUNT],
            joins: 0,
            first,
            piece: None,
            part,
            first_sequence: parts[..part].iter().map(|part| part.sequences as usize).sum(),
            sequences: share as usize,
            degree,
        }
    }

    fn static_span(&self, collective: CollectiveId) -> Span {
        match collective {
            CollectiveId::Gradients(_) => self.statics.partial_gradients(),
            CollectiveId::Norm => self.statics.norm,
            CollectiveId::Replicas(block) => self.statics.replicated_gradients(block),
            CollectiveId::Weights(block) => self.statics.replicated_weights(block),
            CollectiveId::Table => self.statics.table_gradient(),
            CollectiveId::Block { .. } | CollectiveId::Reshard { .. } | CollectiveId::Transfer { .. } => {
                Span::default()
            }
        }
    }

    fn touch(&mut self, index: usize, value: Value, home: Slot, slot: Slot) {
        let buffer = *self.alive.get(&(value, home)).expect("a verified schedule reads what is alive");
        self.buffers[buffer].death = index;
        self.used[index].push((slot, buffer));
    }

    fn create(&mut self, index: usize, kind: BufferKind, slot: Slot, value: Option<Value>) {
        let instruction = &self.schedule.instructions[index];
        let part = instruction.part().expect("only instructions on parts write buffers");
        let block = match (*instruction, slot) {
            (Instruction::Reshard { pass, block, .. }, Slot::Resharded) => {
                self.schedule.resharded(pass, block)[1]
            }
            _ => at(self.schedule, instruction).expect("what writes buffers is on a block"),
        };
        let sequences = self.schedule.share(block, part).expect("a part of the batch") as usize;
        let tokens = sequences * self.statics.model.sequence;
        let degree = self.schedule.degree(block);
        let bytes = match instruction.operation() {
            Some(operation) => self.statics.model.slot_bytes(operation, slot, tokens, degree, self.workspace),
            // What is received: an input, or the gradient of one.
            None => Bytes((tokens * self.statics.model.hidden * size_of::<f32>()) as u64),
        };
        if bytes.0 == 0 {
            return;
        }
        let span = Span { offset: 0, bytes: bytes.0 as usize };
        self.buffers.push(Buffer { kind, slot, birth: index, death: index, span });
        let buffer = self.buffers.len() - 1;
        self.used[index].push((slot, buffer));
        if let Some(value) = value {
            let home = if matches!(value, Value::Inside(..)) { slot } else { home(value) };
            self.alive.insert((value, home), buffer);
        }
    }

    /// Internal buffers that this instruction needs and nobody gave it.
    fn scratch(&mut self, index: usize, instruction: &Instruction) {
        let Some(operation) = instruction.operation() else { return };
        for &slot in internals(operation) {
            if !self.used[index].iter().any(|(used, _)| *used == slot) {
                self.create(index, BufferKind::Scratch, slot, None);
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
            if let Some((piece, slot)) = operands.piece {
                let tokens = operands.sequences * self.statics.model.sequence;
                let whole = &mut operands.spans[slot as usize];
                *whole = piece_of(*whole, piece, tokens, self.statics.model.hidden);
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
            parameter_shares: parameter_shares(self.statics),
        }
    }
}

/// What [`Plan::parameter_shares`] holds.
fn parameter_shares(statics: &Statics) -> Vec<(u32, f64)> {
    let degrees: BTreeSet<u32> = statics.layout.degrees().iter().copied().collect();
    let share = |degree: u32| {
        let all: usize = statics.parameters.iter().map(|parameter| parameter.local_elements(degree)).sum();
        let of_degree = |index: &usize| statics.degree(statics.parameters[*index].block) == degree;
        let updated = |index| statics.updated(index, 0).elements.len();
        let own: usize = statics.held().filter(of_degree).map(updated).sum();
        (degree, own as f64 / all as f64)
    };
    degrees.into_iter().map(share).collect()
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

/// The block whose degree and share an instruction works with. The loss is the head's; what is resharded is read as it was.
fn at(schedule: &Schedule, instruction: &Instruction) -> Option<BlockId> {
    match *instruction {
        Instruction::Reshard { pass, block, .. } => Some(schedule.resharded(pass, block)[0]),
        Instruction::Complete { pass: Pass::Forward, block, .. } => schedule.before(block),
        Instruction::Loss { .. } => Some(BlockId::Head),
        Instruction::Start { collective, .. } | Instruction::Sync { collective } => collective.block(),
        _ => instruction.block(),
    }
}

/// The slot under which a value's single buffer is remembered.
fn home(value: Value) -> Slot {
    match value {
        Value::Input(..) | Value::Leaving(..) => Slot::Input,
        Value::Output(..) => Slot::Output,
        Value::Gradient(..) | Value::Resharded(..) => Slot::InputGradient,
        Value::Inside(..) => unreachable!("what lives inside a block has a buffer per slot"),
    }
}

/// The piece that an instruction works on, and the slot of the buffer that it is a piece of.
fn piece(instruction: &Instruction) -> Option<(Piece, Slot)> {
    match *instruction {
        Instruction::Tail { pass: Pass::Backward, piece, .. } => Some((piece, Slot::InputGradient)),
        Instruction::Tail { piece, .. } => Some((piece, Slot::Output)),
        Instruction::Start { collective: CollectiveId::Block { piece, .. }, .. }
        | Instruction::Sync { collective: CollectiveId::Block { piece, .. } } => Some((piece?, Slot::Output)),
        _ => None,
    }
}

/// Where a piece of a `[tokens, hidden]` buffer lies: some of its rows, or some of its columns in a place of their own.
fn piece_of(whole: Span, piece: Piece, tokens: usize, hidden: usize) -> Span {
    let (extent, other) = match piece.cut {
        Cut::Rows => (tokens, hidden),
        Cut::Columns => (hidden, tokens),
    };
    let range = piece.range(extent);
    let unit = other * size_of::<f32>();
    Span { offset: whole.offset + range.start * unit, bytes: range.len() * unit }
}

/// Bytes of the buffer that a `start` of a planned schedule works on; `None` for any other instruction.
pub fn collective_bytes(schedule: &Schedule, plan: &Plan, instruction: usize) -> Option<Bytes> {
    let Instruction::Start { .. } = schedule.instructions[instruction] else { return None };
    Some(Bytes(plan.operands[instruction].span(Slot::Output).bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Layout;
    use crate::model::Model;

    /// One layer, h = 16, f = 64, 8 positions, 32 tokens, untied. At degree t a rank holds 32·16/t + 8·16 elements of the
    /// embedding and 2·16 + 32·16/t of the head; of attention 2·16 + (3·16·16 + 3·16)/t + 16·16/t + 16, and of the MLP
    /// 2·16 + (16·64 + 64)/t + 64·16/t + 16.
    #[test]
    fn shares_of_parameters_by_hand() {
        let model = Model { tied: false, ..Model::gpt(1, 16, 4, 8, 32) };
        let shares = |text: &str| {
            let layout = Layout::parse(text, 4).unwrap();
            parameter_shares(&Statics::new(&model, &layout, Purpose::Training, 4, 1))
        };
        assert_eq!([shares("2"), shares("2 of 8")], [[(2, 1.0)], [(2, 1.0)]]);
        let at = |t: f64| [512.0 / t + 128.0, 1072.0 / t + 48.0, 2112.0 / t + 48.0, 32.0 + 512.0 / t];
        let all = |t: f64| at(t).iter().sum::<f64>();
        let expected = [
            (1, at(1.0)[1] / all(1.0)),
            (2, at(2.0)[2] / all(2.0)),
            (4, (at(4.0)[0] + at(4.0)[3]) / all(4.0)),
        ];
        let found = shares("4*1 1*1 2*1 4*1");
        assert_eq!(found.len(), 3);
        for ((degree, share), (expected_degree, expected)) in found.into_iter().zip(expected) {
            assert_eq!(degree, expected_degree);
            assert!((share - expected).abs() < 1e-15, "{degree}: {share} instead of {expected}");
        }
    }
}
