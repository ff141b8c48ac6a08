//! Memory plans against a memory: every instruction finds what it needs, where it was left, and writes over nothing that
//! is still to be read.
//!
//! The memory remembers which buffer owns each 64 bytes. A buffer that has been used for the last time loses its bytes at
//! once, so nothing can be read that is not meant to be alive.

use std::collections::BTreeMap;

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::random::Numbers;
use oases_schedule::{
    BlockId, BufferKind, Bytes, CollectiveId, Instruction, Layout, Model, Pass, Plan, Purpose, Request,
    Schedule, Scope, Slot, Span, Statics, Variant, Workspace, collective_bytes, plan, random,
};

use crate::layouts::{LAYOUTS, drawn, over, request};
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
    let accesses = accesses(schedule, &statics.model);
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
        Instruction::Start { collective: CollectiveId::Replicas(block), .. }
        | Instruction::Sync { collective: CollectiveId::Replicas(block) } => {
            expected.push(statics.replicated_gradients(block));
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
        // Behind a border the input is there.
        Instruction::Forward { block, .. } => block != BlockId::Embed && schedule.border(block).is_none(),
        Instruction::Reshard { pass, .. } => pass != Pass::Backward,
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
        let block = match instruction {
            // On the side that it comes from.
            Instruction::Reshard { pass, block, .. } if pass != Pass::Backward => {
                schedule.before(block).unwrap()
            }
            Instruction::Loss { .. } => BlockId::Head,
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => {
                collective.block().unwrap()
            }
            _ => instruction.block().unwrap(),
        };
        let degree = schedule.layout.degree(schedule.chain().position(|found| found == block).unwrap());
        assert_eq!(operands.degree, degree, "{instruction}");
        assert_eq!(
            operands.sequences as u32 * schedule.layout.group(),
            schedule.parts[part].sequences * degree
        );
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
    Slot::NormalizedHeads,
    Slot::Context,
    Slot::LogSumExp,
    Slot::PreActivation,
    Slot::Activated,
    Slot::TransformInput,
    Slot::Transformed,
    Slot::TransformStats,
    Slot::LogitsOperand,
    Slot::Logits,
    Slot::TokenLogSumExp,
    Slot::Upstream,
    Slot::Gradient,
    Slot::InputGradient,
    Slot::BranchGradient,
    Slot::StreamGradient,
    Slot::QkvGradient,
    Slot::ContextGradient,
    Slot::ActivationGradient,
    Slot::Joined,
    Slot::Resharded,
    Slot::TransformGradient,
    Slot::Workspace,
];

fn check(schedule: &Schedule, dropout: f32) {
    let model = Model { dropout, ..Model::gpt(schedule.layers, 24, 8, 5, 33) };
    let purpose = if schedule.trains() { Purpose::Training } else { Purpose::Inference };
    let statics = Statics::new(&model, &schedule.layout, purpose, schedule.batch(), schedule.parts.len());
    check_plan(schedule, &statics, &plan(schedule, &statics, WORKSPACE));
}

#[test]
fn variants_find_what_they_left_in_memory() {
    for variant in VARIANTS.iter().chain([&EVALUATE]) {
        for layout in LAYOUTS {
            for (micro, sub, dropout) in [(1, 1, 0.0), (2, 2, 0.1), (1, 3, 0.0), (3, 2, 0.0)] {
                check(&variant.build(&request(layout, micro, sub)), dropout);
            }
        }
    }
}

#[test]
fn random_schedules_find_what_they_left_in_memory() {
    let mut numbers = Numbers::new(5);
    for seed in 0..60 {
        let layout = drawn(&mut numbers, 2, [1, 2, 4, 8][seed as usize % 4]);
        check(&random::schedule(seed, &over(2, layout, 2, 2)), [0.0, 0.1][seed as usize % 2]);
    }
}

/// A layer in two replicas between whole ends, over two ranks, with nothing but kept inputs; by hand.
#[test]
fn every_block_keeps_its_share() {
    let layout = Layout::parse("2*1 1*2 2*1", 4).unwrap();
    let request = Request { sequences: 6, ..over(1, layout, 1, 2) };
    let schedule = Variant::find("oases").unwrap().build(&request);
    let model = Model::gpt(1, 64, 4, 16, 100);
    let statics = Statics::new(&model, &schedule.layout, Purpose::Training, 6, 2);
    // Half of the tokens' table, whole positions; whole weights of the layer and their biases; three normalisations.
    let region = 4 * (50 * 64 + 16 * 64)
        + 4 * (3 * 64 * 64 + 64 * 64 + 3 * 64 + 64)
        + 4 * (256 * 64 + 64 * 256 + 256 + 64)
        + 3 * 4 * (64 + 64);
    assert_eq!(statics.region_bytes(), region);
    // Tokens and targets of six sequences; losses and norm take 64 bytes each.
    assert_eq!(statics.bytes, 4 * region + 2 * 4 * 6 * 16 + 64 + 64);
    // What two ranks sum of attention and perceptron, and what all do of the normalisations.
    let bucket = |block| statics.replicated_gradients(block).bytes;
    assert_eq!(bucket(BlockId::Attn(0)), 4 * (4 * 64 * 64 + 4 * 64));
    assert_eq!(bucket(BlockId::Mlp(0)), 4 * (2 * 64 * 256 + 256 + 64));
    assert_eq!([bucket(BlockId::Embed), bucket(BlockId::Head)], [0, 0]);
    assert_eq!(statics.partial_gradients().bytes, 3 * 4 * (64 + 64));

    let plan = plan(&schedule, &statics, Workspace::default());
    // Parts of 4 and 2 sequences: a rank has 64 and 32 tokens at the ends, and 32 and 16 in the layer.
    let rows = |tokens: usize| tokens * 64 * 4;
    let size = |text: &str, slot: Slot| {
        let at = schedule.instructions.iter().position(|i| i.to_string() == text).unwrap();
        plan.operands[at].span(slot).bytes
    };
    let table = [
        ("forward   embed m0.a keep=nothing", Slot::Output, rows(64)),
        ("forward   attn.0 m0.a reshard", Slot::Input, rows(64)),
        ("forward   attn.0 m0.a reshard", Slot::Resharded, rows(32)),
        ("forward   attn.0 m0.b keep=input", Slot::Input, rows(16)),
        ("forward   mlp.0 m0.a keep=input", Slot::Residual, rows(32)),
        ("forward   head m0.b reshard", Slot::Residual, rows(16)),
        ("forward   head m0.b reshard", Slot::Resharded, rows(32)),
        ("start     f.head.m0.b:in all_gather @tensor", Slot::Output, rows(32)),
        ("start     f.head.m0.a all_gather @tensor", Slot::Output, 2 * 64 * 3 * 4),
        ("backward  head m0.a reshard", Slot::Gradient, rows(64)),
        ("backward  head m0.a reshard", Slot::Upstream, 0),
        ("backward  head m0.a reshard", Slot::Resharded, rows(32)),
        ("backward  mlp.0 m0.a", Slot::Gradient, rows(32)),
        ("backward  mlp.0 m0.a", Slot::Upstream, 0),
        ("backward  attn.0 m0.a", Slot::Upstream, rows(32)),
        ("backward  attn.0 m0.a reshard", Slot::Upstream, rows(32)),
        ("backward  attn.0 m0.a reshard", Slot::Resharded, rows(64)),
        ("start     b.attn.0.m0.a:in all_gather @tensor", Slot::Output, rows(64)),
        ("backward  embed m0.a", Slot::Gradient, rows(64)),
        ("backward  embed m0.a", Slot::Upstream, 0),
    ];
    for (text, slot, bytes) in table {
        assert_eq!(size(text, slot), bytes, "{slot:?} of {text}");
    }
    // Most is alive in the first backward of attention. Both kept inputs of attention are there, and what was rebuilt of the
    // first part: normalised input with its statistics; queries, keys and values; context and its denominators.
    assert_eq!(schedule.instructions[plan.peak_instruction].to_string(), "backward  attn.0 m0.a");
    let alive = plan.alive(plan.peak_instruction);
    assert_eq!(alive[&BufferKind::Inputs].0 as usize, rows(32) + rows(16));
    assert_eq!(alive[&BufferKind::Saved].0 as usize, 5 * rows(32) + 32 * (2 + 4) * 4);
    // Two gradients that meet, of both parts, and the one that comes of it; inside, those of the context and of queries, keys
    // and values.
    assert_eq!(alive[&BufferKind::Gradients].0 as usize, 2 * (rows(32) + rows(16)) + rows(32));
    assert_eq!(alive[&BufferKind::Scratch].0 as usize, 4 * rows(32));
    assert!(plan.live_bytes <= plan.bytes);
}
