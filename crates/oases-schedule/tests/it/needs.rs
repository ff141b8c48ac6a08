//! What each instruction needs: slots, sizes and buffers, stated independently of the plan.

use std::collections::BTreeMap;

use oases_schedule::{
    BlockId, Bytes, CollectiveId, Cut, Extent, Instruction, Keep, Model, PartId, Pass, Piece, Schedule,
    Scope, Slot, Workspace,
};

pub(crate) const WORKSPACE: Workspace =
    Workspace { attention_forward: Bytes(1000), attention_backward: Bytes(3000) };

/// A value that outlives an instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Input(BlockId, PartId),
    Output(BlockId, PartId),
    Gradient(BlockId, PartId),
    /// The gradient of a block's input, of the sequences that the block before has.
    Dealt(BlockId, PartId),
    Internal(BlockId, PartId, Slot),
    /// What pieces of the last product read and nobody else does.
    Operand(BlockId, PartId, Slot),
}

/// One operand: a slot, the size of its buffer, which must be there, where in it the operand lies, and whether the buffer
/// begins here.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub slot: Slot,
    pub bytes: usize,
    pub part: (usize, usize),
    pub buffer: usize,
    pub fresh: bool,
}

/// What every instruction of a schedule needs. Buffers are numbered from 1.
pub(crate) fn accesses(schedule: &Schedule, model: &Model) -> Vec<Vec<Access>> {
    let mut needs = Needs {
        schedule,
        model,
        values: BTreeMap::new(),
        columns: BTreeMap::new(),
        buffers: 1,
        accesses: Vec::new(),
    };
    schedule.instructions.iter().map(|instruction| needs.of(*instruction)).collect()
}

/// The buffers in which values are, and the operands of the instruction at hand.
struct Needs<'a> {
    schedule: &'a Schedule,
    model: &'a Model,
    values: BTreeMap<Value, usize>,
    /// Pieces by columns of outputs.
    columns: BTreeMap<(BlockId, PartId), u8>,
    buffers: usize,
    accesses: Vec<Access>,
}

impl Needs<'_> {
    fn degree(&self, block: BlockId) -> usize {
        let position = self.schedule.chain().position(|found| found == block).unwrap();
        self.schedule.layout.degrees()[position] as usize
    }

    /// Whether a block has other sequences than the block before.
    fn border(&self, block: BlockId) -> bool {
        self.schedule.before(block).is_some_and(|before| self.degree(before) != self.degree(block))
    }

    /// Tokens of a part on one rank of a block.
    fn tokens(&self, block: BlockId, part: PartId) -> usize {
        let replicas = self.schedule.layout.group() as usize / self.degree(block);
        self.schedule.sequences(part).unwrap() as usize / replicas * self.model.sequence
    }

    fn bytes(&self, block: BlockId, part: PartId, slot: Slot) -> usize {
        let (n, t) = (self.tokens(block, part), self.degree(block));
        let (h, f, v) = (self.model.hidden, self.model.ffn, self.model.vocabulary);
        // A gradient that arrives tells a backward from the rest.
        let workspace = match self.accesses.iter().any(|access| access.slot == Slot::Gradient) {
            true => WORKSPACE.attention_backward,
            false => WORKSPACE.attention_forward,
        };
        match slot {
            Slot::Output if block == BlockId::Head => 4 * 3 * n * t,
            Slot::NormStats => 4 * 2 * n,
            Slot::Qkv | Slot::QkvGradient => 4 * n * 3 * h / t,
            Slot::Context | Slot::ContextGradient => 4 * n * h / t,
            Slot::LogSumExp => 4 * n * self.model.heads / t,
            Slot::PreActivation | Slot::Activated | Slot::ActivationGradient => 4 * n * f / t,
            Slot::Logits => 4 * n * v.div_ceil(t),
            Slot::TokenLogSumExp => 4 * n,
            Slot::Workspace => workspace.0 as usize,
            _ => 4 * n * h,
        }
    }

    fn find(&mut self, value: Value, slot: Slot, block: BlockId, part: PartId) {
        let buffer = *self.values.get(&value).expect("a valid schedule reads what is there");
        let bytes = self.bytes(block, part, slot);
        self.accesses.push(Access { slot, bytes, part: (0, bytes), buffer, fresh: false });
    }

    fn begin(&mut self, value: Option<Value>, slot: Slot, block: BlockId, part: PartId) {
        let bytes = self.bytes(block, part, slot);
        self.accesses.push(Access { slot, bytes, part: (0, bytes), buffer: self.buffers, fresh: true });
        self.values.extend(value.map(|value| (value, self.buffers)));
        self.buffers += 1;
    }

    fn saved(block: BlockId) -> &'static [Slot] {
        match block {
            BlockId::Embed => &[],
            BlockId::Attn(_) => &[Slot::Normalized, Slot::NormStats, Slot::Qkv],
            BlockId::Mlp(_) => &[Slot::Normalized, Slot::NormStats, Slot::PreActivation],
            BlockId::Head => &[Slot::Normalized, Slot::NormStats, Slot::Logits, Slot::TokenLogSumExp],
        }
    }

    /// The attention core's output.
    fn core(block: BlockId) -> &'static [Slot] {
        if let BlockId::Attn(_) = block { &[Slot::Context, Slot::LogSumExp] } else { &[] }
    }

    fn delta(&self, block: BlockId) -> Vec<Slot> {
        let mut slots = match block {
            BlockId::Attn(_) => vec![Slot::QkvGradient],
            BlockId::Mlp(_) => vec![Slot::ActivationGradient],
            _ => return Vec::new(),
        };
        slots.extend((self.model.dropout > 0.0).then_some(Slot::BranchGradient));
        slots
    }

    fn find_inside(&mut self, block: BlockId, part: PartId, slots: &[Slot]) {
        slots.iter().for_each(|&slot| self.find(Value::Internal(block, part, slot), slot, block, part));
    }

    fn begin_inside(&mut self, block: BlockId, part: PartId, slots: &[Slot], stays: bool) {
        for &slot in slots {
            self.begin(stays.then_some(Value::Internal(block, part, slot)), slot, block, part);
        }
    }

    fn input(&mut self, block: BlockId, part: PartId) {
        if self.values.contains_key(&Value::Input(block, part)) {
            self.find(Value::Input(block, part), Slot::Input, block, part);
        } else if let Some(before) = self.schedule.before(block) {
            assert!(!self.border(block), "the input comes from a reshard");
            let buffer = self.join(before, part);
            self.values.insert(Value::Input(block, part), buffer);
        }
    }

    /// The output of a block becomes the input of the next. Returns its buffer.
    fn join(&mut self, before: BlockId, part: PartId) -> usize {
        self.find(Value::Output(before, part), Slot::Input, before, part);
        if before != BlockId::Embed {
            self.find(Value::Input(before, part), Slot::Residual, before, part);
        }
        if self.columns.remove(&(before, part)).is_some_and(|pieces| pieces > 1) {
            self.begin(None, Slot::Joined, before, part);
        }
        self.values.remove(&Value::Output(before, part)).unwrap()
    }

    /// An input that is not kept makes room for the one that recomputation builds.
    fn fed(&mut self, block: BlockId, part: PartId) {
        let before = self.schedule.before(block).filter(|&before| !self.keeps(before, part));
        before.and_then(|before| self.values.remove(&Value::Input(before, part)));
    }

    /// The side that a border comes from has the sequences before, the side that it goes to has those after.
    fn reshard(&mut self, pass: Pass, block: BlockId, part: PartId) {
        let before = self.schedule.before(block).unwrap();
        if pass == Pass::Backward {
            self.gradient(block, part, Slot::Gradient, Some(Slot::Upstream));
            self.begin(Some(Value::Dealt(block, part)), Slot::Resharded, before, part);
            return;
        }
        self.join(before, part);
        self.begin(Some(Value::Input(block, part)), Slot::Resharded, block, part);
        if pass == Pass::Forward {
            self.fed(block, part);
        }
    }

    /// The gradient of a block's input as the block has it, and that of its output, which completes it.
    fn gradient(&mut self, block: BlockId, part: PartId, slot: Slot, upstream: Option<Slot>) {
        self.find(Value::Gradient(block, part), slot, block, part);
        if let (Some(after), Some(upstream)) = (self.schedule.after(block), upstream) {
            self.find(self.arrival(after, part), upstream, block, part);
        }
    }

    /// The gradient of a block's input as the block before has it.
    fn arrival(&self, block: BlockId, part: PartId) -> Value {
        if self.border(block) { Value::Dealt(block, part) } else { Value::Gradient(block, part) }
    }

    /// Forward and recompute: what of it stays for backward, and how far it goes.
    fn run(&mut self, block: BlockId, part: PartId, keep: Keep, extent: Extent) {
        if extent == Extent::Core {
            self.find_inside(block, part, Needs::saved(block));
        } else {
            self.input(block, part);
            self.begin_inside(block, part, Needs::saved(block), keep >= Keep::Selective);
        }
        let operand = match block {
            BlockId::Attn(_) => {
                let operand = (keep < Keep::All && extent == Extent::Body).then_some(Slot::Context);
                for &slot in Needs::core(block).iter().filter(|slot| Some(**slot) != operand) {
                    let stays = (keep == Keep::All).then_some(Value::Internal(block, part, slot));
                    self.begin(stays, slot, block, part);
                }
                self.begin(None, Slot::Workspace, block, part);
                operand
            }
            BlockId::Mlp(_) if extent == Extent::Output => {
                self.begin(None, Slot::Activated, block, part);
                None
            }
            _ => (extent == Extent::Body).then_some(Slot::Activated),
        };
        if let Some(slot) = operand {
            self.begin(Some(Value::Operand(block, part, slot)), slot, block, part);
        }
        if extent == Extent::Output {
            self.begin(Some(Value::Output(block, part)), Slot::Output, block, part);
        }
    }

    fn tail(&mut self, pass: Pass, block: BlockId, part: PartId, piece: Piece) {
        let last = piece.index + 1 == piece.of;
        let (value, slot) = if pass == Pass::Backward {
            self.find_inside(block, part, Needs::saved(block));
            self.find_inside(block, part, &self.delta(block));
            self.find(Value::Input(block, part), Slot::Input, block, part);
            (Value::Gradient(block, part), Slot::InputGradient)
        } else {
            let operand = if let BlockId::Attn(_) = block { Slot::Context } else { Slot::Activated };
            let alone = Value::Operand(block, part, operand);
            if self.values.contains_key(&alone) {
                self.find(alone, operand, block, part);
            } else {
                self.find_inside(block, part, Needs::core(block));
            }
            if last {
                self.values.remove(&alone);
            }
            if piece.cut == Cut::Columns {
                self.columns.insert((block, part), piece.of);
            }
            (Value::Output(block, part), Slot::Output)
        };
        match piece.index {
            0 => self.begin(Some(value), slot, block, part),
            _ => self.find(value, slot, block, part),
        }
        self.narrow(block, part, piece);
    }

    /// The operand added last is a piece of its buffer.
    fn narrow(&mut self, block: BlockId, part: PartId, piece: Piece) {
        let (n, h) = (self.tokens(block, part), self.model.hidden);
        let (extent, other) = if piece.cut == Cut::Rows { (n, h) } else { (h, n) };
        let [begin, end] =
            [piece.index, piece.index + 1].map(|i| extent * usize::from(i) / usize::from(piece.of));
        self.accesses.last_mut().unwrap().part = (4 * begin * other, 4 * (end - begin) * other);
    }

    fn backward(&mut self, block: BlockId, part: PartId, scope: Scope) {
        if let Some(after) = self.schedule.after(block) {
            if self.border(after) {
                self.find(Value::Dealt(after, part), Slot::Gradient, block, part);
            } else {
                self.gradient(
                    after,
                    part,
                    Slot::Gradient,
                    (scope != Scope::Weight).then_some(Slot::Upstream),
                );
            }
        }
        self.find_inside(block, part, Needs::saved(block));
        self.find_inside(block, part, Needs::core(block));
        if scope == Scope::Weight {
            self.find_inside(block, part, &self.delta(block));
            return;
        }
        if block != BlockId::Embed {
            self.find(Value::Input(block, part), Slot::Input, block, part);
        }
        if matches!(scope, Scope::All | Scope::Input) && block != BlockId::Embed {
            self.begin(Some(Value::Gradient(block, part)), Slot::InputGradient, block, part);
        }
        self.begin_inside(block, part, &self.delta(block), scope != Scope::All);
        match block {
            BlockId::Attn(_) => {
                self.begin_inside(block, part, &[Slot::Workspace, Slot::ContextGradient], false)
            }
            BlockId::Embed if self.model.dropout > 0.0 => self.begin(None, Slot::BranchGradient, block, part),
            _ => {}
        }
    }

    fn of(&mut self, instruction: Instruction) -> Vec<Access> {
        match instruction {
            Instruction::Forward { block, part, keep, extent } => {
                let keep = if block == BlockId::Head { Keep::All } else { keep };
                self.run(block, part, keep, extent);
                if !self.border(block) {
                    self.fed(block, part);
                }
            }
            Instruction::Reshard { pass, block, part } => self.reshard(pass, block, part),
            Instruction::Recompute { block, part, extent } => self.run(block, part, Keep::All, extent),
            Instruction::Tail { pass, block, part, piece } => self.tail(pass, block, part, piece),
            Instruction::Loss { part } => {
                self.find_inside(BlockId::Head, part, Needs::saved(BlockId::Head));
                self.find(Value::Output(BlockId::Head, part), Slot::Output, BlockId::Head, part);
            }
            Instruction::Backward { block, part, scope } => self.backward(block, part, scope),
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => {
                self.moved(collective);
            }
            Instruction::Complete { .. } => panic!("a single stage has nobody to send to"),
            Instruction::Norm | Instruction::Step => {}
        }
        std::mem::take(&mut self.accesses)
    }

    fn moved(&mut self, collective: CollectiveId) {
        let (value, slot, block, part) = match collective {
            CollectiveId::Block { pass: Pass::Backward, block, part, .. } => {
                (Value::Gradient(block, part), Slot::InputGradient, block, part)
            }
            CollectiveId::Block { block, part, .. } => {
                (Value::Output(block, part), Slot::Output, block, part)
            }
            CollectiveId::Reshard { pass: Pass::Backward, block, part } => {
                let before = self.schedule.before(block).unwrap();
                (Value::Dealt(block, part), Slot::Resharded, before, part)
            }
            CollectiveId::Reshard { block, part, .. } => {
                (Value::Input(block, part), Slot::Resharded, block, part)
            }
            CollectiveId::Transfer { .. } => panic!("a single stage has nobody to send to"),
            CollectiveId::Replicas(_)
            | CollectiveId::Weights(_)
            | CollectiveId::Gradients(_)
            | CollectiveId::Table
            | CollectiveId::Norm => return,
        };
        self.find(value, slot, block, part);
        if let CollectiveId::Block { piece: Some(piece), .. } = collective {
            self.narrow(block, part, piece);
        }
        // A collective finds its buffer in one slot, whatever it is.
        self.accesses[0].slot = Slot::Output;
    }

    fn keeps(&self, block: BlockId, part: PartId) -> bool {
        self.schedule.instructions.iter().any(|instruction| {
            matches!(*instruction, Instruction::Forward { block: b, part: p, keep, .. }
                if (b, p) == (block, part) && keep != Keep::Nothing)
        })
    }
}
