//! What each instruction needs: slots, sizes and buffers, stated independently of the plan.

use std::collections::BTreeMap;

use oases_schedule::{
    BlockId, Bytes, CollectiveId, Extent, Instruction, Keep, Model, PartId, Pass, Schedule, Slot, Workspace,
};

pub(crate) const WORKSPACE: Workspace =
    Workspace { attention_forward: Bytes(1000), attention_backward: Bytes(3000) };

/// A value that outlives an instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Input(BlockId, PartId),
    Output(BlockId, PartId),
    Gradient(BlockId, PartId),
    Internal(BlockId, PartId, Slot),
}

/// One operand: a slot, its size, the buffer that must be there, and whether that begins here.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub slot: Slot,
    pub bytes: usize,
    pub buffer: usize,
    pub fresh: bool,
}

/// What every instruction of a schedule needs. Buffers are numbered from 1.
pub(crate) fn accesses(schedule: &Schedule, model: &Model, tensor: u32) -> Vec<Vec<Access>> {
    let mut needs = Needs {
        schedule,
        model,
        tensor: tensor as usize,
        values: BTreeMap::new(),
        buffers: 1,
        accesses: Vec::new(),
    };
    schedule.instructions.iter().map(|instruction| needs.of(*instruction)).collect()
}

/// The buffers in which values are, and the operands of the instruction at hand.
struct Needs<'a> {
    schedule: &'a Schedule,
    model: &'a Model,
    tensor: usize,
    values: BTreeMap<Value, usize>,
    buffers: usize,
    accesses: Vec<Access>,
}

impl Needs<'_> {
    fn bytes(&self, block: BlockId, part: PartId, slot: Slot) -> usize {
        let n = self.schedule.sequences(part).unwrap() as usize * self.model.sequence;
        let (h, f, v, t) = (self.model.hidden, self.model.ffn, self.model.vocabulary, self.tensor);
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
        self.accesses.push(Access { slot, bytes, buffer, fresh: false });
    }

    fn begin(&mut self, value: Option<Value>, slot: Slot, block: BlockId, part: PartId) {
        let bytes = self.bytes(block, part, slot);
        self.accesses.push(Access { slot, bytes, buffer: self.buffers, fresh: true });
        self.values.extend(value.map(|value| (value, self.buffers)));
        self.buffers += 1;
    }

    fn saved(block: BlockId) -> &'static [Slot] {
        match block {
            BlockId::Embed => &[],
            BlockId::Attn(_) => {
                &[Slot::Normalized, Slot::NormStats, Slot::Qkv, Slot::Context, Slot::LogSumExp]
            }
            BlockId::Mlp(_) => &[Slot::Normalized, Slot::NormStats, Slot::PreActivation],
            BlockId::Head => &[Slot::Normalized, Slot::NormStats, Slot::Logits, Slot::TokenLogSumExp],
        }
    }

    /// Forward and recompute: `keeps` says whether the internals stay, `output` whether the block is run to its end.
    fn run(&mut self, block: BlockId, part: PartId, keeps: bool, output: bool) {
        if self.values.contains_key(&Value::Input(block, part)) {
            self.find(Value::Input(block, part), Slot::Input, block, part);
        } else if let Some(before) = self.schedule.before(block) {
            self.find(Value::Output(before, part), Slot::Input, block, part);
            let buffer = self.values.remove(&Value::Output(before, part)).unwrap();
            self.values.insert(Value::Input(block, part), buffer);
            if before != BlockId::Embed {
                self.find(Value::Input(before, part), Slot::Residual, block, part);
            }
        }
        for &slot in Needs::saved(block) {
            self.begin(keeps.then_some(Value::Internal(block, part, slot)), slot, block, part);
        }
        match block {
            BlockId::Attn(_) => self.begin(None, Slot::Workspace, block, part),
            BlockId::Mlp(_) if output => self.begin(None, Slot::Activated, block, part),
            _ => {}
        }
        if output {
            self.begin(Some(Value::Output(block, part)), Slot::Output, block, part);
        }
    }

    fn backward(&mut self, block: BlockId, part: PartId) {
        if let Some(after) = self.schedule.after(block) {
            self.find(Value::Gradient(after, part), Slot::Gradient, block, part);
            if let Some(upstream) = self.schedule.after(after) {
                self.find(Value::Gradient(upstream, part), Slot::Upstream, block, part);
            }
        }
        if block != BlockId::Embed {
            self.find(Value::Input(block, part), Slot::Input, block, part);
            self.begin(Some(Value::Gradient(block, part)), Slot::InputGradient, block, part);
        }
        for &slot in Needs::saved(block) {
            self.find(Value::Internal(block, part, slot), slot, block, part);
        }
        let scratch: &[Slot] = match block {
            BlockId::Attn(_) => &[Slot::Workspace, Slot::ContextGradient, Slot::QkvGradient],
            BlockId::Mlp(_) => &[Slot::ActivationGradient],
            _ => &[],
        };
        scratch.iter().for_each(|&slot| self.begin(None, slot, block, part));
        if self.model.dropout > 0.0 && block != BlockId::Head {
            self.begin(None, Slot::BranchGradient, block, part);
        }
    }

    fn of(&mut self, instruction: Instruction) -> Vec<Access> {
        match instruction {
            Instruction::Forward { block, part, keep } => {
                self.run(block, part, keep == Keep::All || block == BlockId::Head, true);
                // An input that is not kept makes room for the one that recomputation builds.
                let before = self.schedule.before(block).filter(|&before| !self.keeps(before, part));
                before.and_then(|before| self.values.remove(&Value::Input(before, part)));
            }
            Instruction::Recompute { block, part, extent } => {
                self.run(block, part, true, extent == Extent::Output);
            }
            Instruction::Loss { part } => {
                for &slot in Needs::saved(BlockId::Head) {
                    self.find(Value::Internal(BlockId::Head, part, slot), slot, BlockId::Head, part);
                }
                self.find(Value::Output(BlockId::Head, part), Slot::Output, BlockId::Head, part);
            }
            Instruction::Backward { block, part } => self.backward(block, part),
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => {
                if let CollectiveId::Block { pass, block, part } = collective {
                    let (value, slot) = match pass {
                        Pass::Backward => (Value::Gradient(block, part), Slot::InputGradient),
                        Pass::Forward | Pass::Recompute => (Value::Output(block, part), Slot::Output),
                    };
                    self.find(value, slot, block, part);
                    // A collective finds its buffer in one slot, whatever it is.
                    self.accesses[0].slot = Slot::Output;
                }
            }
            Instruction::Norm | Instruction::Step => {}
        }
        std::mem::take(&mut self.accesses)
    }

    fn keeps(&self, block: BlockId, part: PartId) -> bool {
        self.schedule.instructions.iter().any(|instruction| {
            matches!(*instruction, Instruction::Forward { block: b, part: p, keep }
                if (b, p) == (block, part) && keep != Keep::Nothing)
        })
    }
}
