//! Memory plans against a memory: every instruction finds what it needs, where it was left, and writes over nothing that
//! is still to be read.
//!
//! The memory remembers which buffer owns each 64 bytes. A buffer that has been used for the last time loses its bytes at
//! once, so nothing can be read that is not meant to be alive.

use std::collections::BTreeMap;

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::{
    BlockId, Bytes, CollectiveId, Instruction, Model, Pass, Plan, Purpose, Request, Schedule, Scope, Slot,
    Span, Statics, collective_bytes, plan, random,
};

use crate::needs::{Access, WORKSPACE, accesses};

/// Which buffer owns each granule of the arena; 0 owns nothing.
struct Memory {
    owners: Vec<usize>,
    places: BTreeMap<usize, Span>,
}

impl Memory {
    fn granules(span: Span) -> std::ops::Range<usize> {
        span.offset / Span::ALIGNMENT..span.end().div_ceil(Span::ALIGNMENT)
    }

    fn begin(&mut self, buffer: usize, span: Span) {
        let granules = &mut self.owners[Memory::granules(span)];
        assert!(granules.iter().all(|&owner| owner == 0), "{span:?} is written over what is alive");
        granules.fill(buffer);
        self.places.insert(buffer, span);
    }

    fn check(&self, buffer: usize, span: Span) {
        assert_eq!(self.places.get(&buffer), Some(&span), "the buffer lies elsewhere");
        assert!(self.owners[Memory::granules(span)].iter().all(|&owner| owner == buffer));
    }

    fn end(&mut self, buffer: usize) {
        let span = self.places.remove(&buffer).unwrap();
        self.owners[Memory::granules(span)].fill(0);
    }
}

fn check_plan(schedule: &Schedule, statics: &Statics, plan: &Plan) {
    let accesses = accesses(schedule, &statics.model, statics.tensor);
    let mut last = BTreeMap::new();
    for (index, accesses) in accesses.iter().enumerate() {
        last.extend(accesses.iter().map(|access| (access.buffer, index)));
    }

    let granules = plan.bytes.0.div_ceil(Span::ALIGNMENT as u64) as usize;
    let mut memory = Memory { owners: vec![0; granules], places: BTreeMap::new() };
    let (mut highest, mut most) = (statics.bytes, 0);
    for (index, accesses) in accesses.iter().enumerate() {
        let operands = &plan.operands[index];
        for access in accesses {
            let found = operands.span(access.slot);
            assert_eq!(found.bytes, access.part.1, "{:?}", access.slot);
            let span = Span { offset: found.offset - access.part.0, bytes: access.bytes };
            assert!(span.offset.is_multiple_of(Span::ALIGNMENT) && span.offset >= statics.bytes);
            if access.fresh {
                memory.begin(access.buffer, span);
            }
            memory.check(access.buffer, span);
            highest = highest.max(span.end());
        }
        check_operands(schedule, statics, plan, index, accesses);
        let alive: usize = memory.places.values().map(|span| span.bytes).sum();
        let counted: u64 = plan.alive(index).values().map(|bytes| bytes.0).sum();
        assert_eq!(alive as u64, counted, "alive at {}", schedule.instructions[index]);
        if alive > most {
            most = alive;
            assert!(index <= plan.peak_instruction);
        }
        let ended: Vec<usize> =
            memory.places.keys().copied().filter(|buffer| last.get(buffer) == Some(&index)).collect();
        ended.into_iter().for_each(|buffer| memory.end(buffer));
    }
    assert!(memory.places.is_empty());
    assert_eq!(plan.bytes, Bytes(highest as u64));
    assert_eq!(plan.live_bytes, Bytes((statics.bytes + most) as u64));
}

/// Everything in the operands besides the places of buffers.
fn check_operands(schedule: &Schedule, statics: &Statics, plan: &Plan, index: usize, accesses: &[Access]) {
    let instruction = schedule.instructions[index];
    let operands = &plan.operands[index];
    let mut expected: Vec<Span> = accesses.iter().map(|access| operands.span(access.slot)).collect();
    match instruction {
        Instruction::Start { collective: CollectiveId::Gradients(_), .. }
        | Instruction::Sync { collective: CollectiveId::Gradients(_) } => {
            expected.push(statics.partial_gradients());
        }
        Instruction::Start { collective: CollectiveId::Norm, .. }
        | Instruction::Sync { collective: CollectiveId::Norm } => expected.push(statics.norm),
        _ => {}
    }
    let mut found: Vec<Span> =
        ALL_SLOTS.iter().map(|&slot| operands.span(slot)).filter(|span| span.bytes > 0).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected, "no more and no fewer slots than `{instruction}` needs");

    let joins = match instruction {
        Instruction::Forward { block, .. } => block != BlockId::Embed,
        // What follows the embedding is never rebuilt without its input, so a rebuilt input has a residual.
        Instruction::Recompute { .. } => accesses.iter().any(|access| access.slot == Slot::Residual),
        _ => false,
    };
    assert_eq!(operands.joins > 0, joins, "{instruction}");
    let columns = accesses.iter().any(|access| access.slot == Slot::Joined);
    assert_eq!(operands.joins > 1, columns, "{instruction}");
    let earlier = schedule.instructions[..index].iter();
    // Gain and shift of the normalisation get theirs on the way to the input, all others with the weights.
    let adds = |i: &Instruction, weights: bool| match *i {
        Instruction::Backward { scope: Scope::All, .. } => true,
        Instruction::Backward { scope, .. } => weights == (scope != Scope::Input),
        Instruction::Tail { pass: Pass::Backward, .. } => !weights,
        _ => false,
    };
    let weights = adds(&instruction, true);
    let first = (weights || adds(&instruction, false))
        && !earlier.into_iter().any(|i| i.block() == instruction.block() && adds(i, weights));
    assert_eq!(operands.first, first, "{instruction}");
    if let Some(id) = instruction.part() {
        let part = schedule.parts.iter().position(|part| part.id == id).unwrap();
        assert_eq!(operands.part, part);
        assert_eq!(operands.sequences, schedule.parts[part].sequences as usize);
        let before: u32 = schedule.parts[..part].iter().map(|part| part.sequences).sum();
        assert_eq!(operands.first_sequence, before as usize);
    }
    let moved = matches!(instruction, Instruction::Start { .. })
        .then(|| Bytes(operands.span(Slot::Output).bytes as u64));
    assert_eq!(collective_bytes(schedule, plan, index), moved);
}

const ALL_SLOTS: [Slot; Slot::COUNT] = [
    Slot::Input,
    Slot::Residual,
    Slot::Output,
    Slot::Normalized,
    Slot::NormStats,
    Slot::Qkv,
    Slot::Context,
    Slot::LogSumExp,
    Slot::PreActivation,
    Slot::Activated,
    Slot::Logits,
    Slot::TokenLogSumExp,
    Slot::Upstream,
    Slot::Gradient,
    Slot::InputGradient,
    Slot::BranchGradient,
    Slot::QkvGradient,
    Slot::ContextGradient,
    Slot::ActivationGradient,
    Slot::Joined,
    Slot::Workspace,
];

fn request(layers: u32, tensor: u32, micro_batches: u32, sub_batches: u32) -> Request {
    Request { micro_batches, sub_batches, ..Request::new(layers, tensor, 5) }
}

fn check(schedule: &Schedule, tensor: u32, dropout: f32) {
    let model = Model { dropout, ..Model::gpt(schedule.layers, 24, 4, 5, 33) };
    let purpose = if schedule.trains() { Purpose::Training } else { Purpose::Inference };
    let statics = Statics::new(&model, tensor, purpose, schedule.batch(), schedule.parts.len());
    check_plan(schedule, &statics, &plan(schedule, &statics, WORKSPACE));
}

#[test]
fn variants_find_what_they_left_in_memory() {
    for variant in VARIANTS.iter().chain([&EVALUATE]) {
        for (layers, tensor, micro, sub) in [(1, 1, 1, 1), (2, 2, 2, 2), (3, 4, 1, 3), (2, 1, 3, 2)] {
            for dropout in [0.0, 0.1] {
                check(&variant.build(&request(layers, tensor, micro, sub)), tensor, dropout);
            }
        }
    }
}

#[test]
fn random_schedules_find_what_they_left_in_memory() {
    for seed in 0..40 {
        let (tensor, dropout) = ([1, 2, 4][seed as usize % 3], [0.0, 0.1][seed as usize % 2]);
        check(&random::schedule(seed, &request(3, tensor, 2, 2)), tensor, dropout);
    }
}
