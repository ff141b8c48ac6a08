//! Runs schedules over a group of ranks as threads and puts their shards together.

use std::collections::BTreeMap;
use std::time::Instant;

use oases_exec::arena::Arena;
use oases_exec::comm::local::{LocalCommunicator, LocalOptions, group};
use oases_exec::operators::IGNORE;
use oases_exec::{AdamW, Backend, CpuBackend, Interpreter, Program, StepInputs};
use oases_schedule::{
    BlockId, Layout, Model, Optimizer, Parameter, Positions, Purpose, Request, Schedule, Span, Statics,
};

/// A tensor for each parameter name, in full.
pub(crate) type Tensors = BTreeMap<String, Vec<f32>>;

/// Some steps of training.
pub(crate) struct Run<'a> {
    pub model: Model,
    pub layout: Layout,
    /// One per pipeline stage.
    pub stages: Vec<Schedule>,
    pub weights: &'a Tensors,
    /// Tokens and targets of each step.
    pub batches: Vec<(Vec<u32>, Vec<u32>)>,
    pub extras: Extras,
    pub hyper: AdamW,
}

/// What some models read besides tokens, the same in each step.
#[derive(Clone, Default)]
pub(crate) struct Extras {
    /// Token types; empty for none.
    pub types: Vec<u32>,
    /// Real tokens of each sequence; empty where nothing is padding.
    pub lengths: Vec<u32>,
}

/// What came out.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Mean loss per target of each step.
    pub losses: Vec<f64>,
    /// Gradient norm of each step.
    pub norms: Vec<f64>,
    /// Gradients of the last step; nothing where the optimizer is sharded, since each replica then has its share.
    pub gradients: Tensors,
    /// Weights after the last step.
    pub weights: Tensors,
    pub arena_planned: u64,
    pub arena_used: u64,
}

pub(crate) const HYPER: AdamW = AdamW {
    learning_rate: 1e-2,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
    update: 1,
    clip: 1.0,
};

/// The TMP degrees of a model's blocks, in the text form.
pub(crate) fn layout(model: &Model, degrees: &str) -> Layout {
    let layout = Layout::parse(degrees, Schedule::blocks(model.layers)).expect("degrees of every block");
    assert_eq!(layout.check(), Ok(()), "{degrees}");
    layout
}

pub(crate) fn request(model: &Model, degrees: &str, sequences: u32, micro: u32, sub: u32) -> Request {
    let layout = layout(model, degrees);
    Request { micro_batches: micro, sub_batches: sub, layout, ..Request::new(model.layers, 1, sequences) }
}

impl Run<'_> {
    pub(crate) fn run(&self) -> Outcome {
        let group_ranks = self.layout.group();
        let stages: Vec<(Statics, Program)> = self.stages.iter().map(|stage| self.program(stage)).collect();
        let options = LocalOptions { stages: stages.len(), ..LocalOptions::default() };
        let communicators = group(stages.len() * group_ranks as usize, options);
        let shards: Vec<Shard> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(communicators)
                .map(|(rank, communicator)| {
                    let (statics, program) = &stages[(rank / group_ranks) as usize];
                    scope.spawn(move || self.rank(rank % group_ranks, communicator, statics, program))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
        });
        let of_stages: Vec<&[Shard]> = shards.chunks(group_ranks as usize).collect();
        let last = of_stages[stages.len() - 1];
        let head = stages[0].0.degree(BlockId::Head) as usize;
        for (tp_rank, shard) in last.iter().enumerate() {
            assert_eq!(shard.losses, last[tp_rank / head * head].losses, "ranks of a replica have one loss");
        }
        assert!(shards.iter().all(|shard| shard.norms == shards[0].norms), "all ranks have one norm");
        let losses = (0..self.batches.len())
            .map(|step| last.iter().step_by(head).map(|shard| shard.losses[step]).sum())
            .collect();
        let whole = |pick: fn(&Shard) -> &Vec<Vec<f32>>| {
            let statics = &stages[0].0;
            let parameters = statics.parameters.iter().enumerate();
            parameters
                .map(|(index, parameter)| {
                    let holds = |(statics, _): &(Statics, Program)| statics.held().any(|held| held == index);
                    let holders = stages.iter().zip(&of_stages).filter(|(stage, _)| holds(stage));
                    let copies = holders.map(|(_, shards)| {
                        let parts: Vec<&[f32]> = shards.iter().map(|shard| &*pick(shard)[index]).collect();
                        assemble(statics, parameter, &parts)
                    });
                    let copies: Vec<Vec<f32>> = copies.collect();
                    assert!(
                        copies.iter().all(|copy| *copy == copies[0]),
                        "{}: stages differ",
                        parameter.name
                    );
                    (parameter.name.clone(), copies[0].clone())
                })
                .collect()
        };
        let sharded = self.stages[0].optimizer == Optimizer::Sharded;
        Outcome {
            losses,
            norms: shards[0].norms.clone(),
            gradients: if sharded { Tensors::new() } else { whole(|shard| &shard.gradients) },
            weights: whole(|shard| &shard.weights),
            arena_planned: stages.iter().map(|(_, program)| program.plan.bytes.0).max().unwrap_or(0),
            arena_used: shards.iter().map(|shard| shard.arena_used).max().unwrap_or(0),
        }
    }

    fn program(&self, stage: &Schedule) -> (Statics, Program) {
        let statics = Statics::of(&self.model, stage, Purpose::Training, stage.batch());
        let program = Program::new(stage.clone(), &statics, CpuBackend::workspace(&self.model));
        (statics, program)
    }

    fn rank(
        &self,
        tp_rank: u32,
        mut communicator: LocalCommunicator,
        statics: &Statics,
        program: &Program,
    ) -> Shard {
        let arena = Arena::new(program.plan.bytes.0 as usize).expect("a small arena");
        let mut backend = CpuBackend::new(arena);
        for index in statics.held() {
            let parameter = &statics.parameters[index];
            let local = cut(statics, parameter, &self.weights[&parameter.name], tp_rank);
            backend.write(statics.placed(index).weight, &local);
        }
        if let Positions::Rotary(rotary) = self.model.positions {
            backend.write(statics.rotations, &rotary.table(self.model.head_dim, self.model.sequence));
        }
        let mut interpreter = Interpreter::new(tp_rank, Instant::now());
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for (step, (tokens, targets)) in self.batches.iter().enumerate() {
            let bytes = tokens.len() * 4;
            backend.write_tokens(Span { bytes, ..statics.tokens }, tokens);
            backend.write_tokens(Span { bytes, ..statics.targets }, targets);
            let Extras { types, lengths } = &self.extras;
            backend.write_tokens(Span { bytes: types.len() * 4, ..statics.types }, types);
            backend.write_tokens(Span { bytes: lengths.len() * 4, ..statics.lengths }, lengths);
            let predicted = targets.iter().filter(|&&target| target != IGNORE).count();
            let inputs = StepInputs {
                step: step as u32,
                first_sample: 0,
                loss_scale: 1.0 / predicted as f32,
                dropout: true,
                dropout_key: [11, 12],
                update: Some(AdamW { update: step as u64 + 1, ..self.hyper }),
            };
            interpreter
                .run(program, statics, &mut backend, &mut communicator, &inputs)
                .expect("a sound group");
            let mut parts = vec![0.0; program.schedule.parts.len()];
            backend.read(Span { bytes: 4 * parts.len(), ..statics.losses }, &mut parts);
            losses.push(parts.iter().map(|&loss| f64::from(loss)).sum::<f64>() / predicted as f64);
            let mut norm = [0.0];
            backend.read(statics.norm, &mut norm);
            norms.push(f64::from(norm[0]).sqrt());
        }
        let mut all = |place: &dyn Fn(usize) -> Span| -> Vec<Vec<f32>> {
            let mut all = vec![Vec::new(); statics.parameters.len()];
            for index in statics.held() {
                let span = place(index);
                all[index].resize(span.bytes / 4, 0.0);
                backend.read(span, &mut all[index]);
            }
            all
        };
        let gradients = all(&|index| statics.placed(index).gradient);
        let weights = all(&|index| statics.placed(index).weight);
        Shard { losses, norms, gradients, weights, arena_used: backend.touched().0 }
    }
}

struct Shard {
    losses: Vec<f64>,
    norms: Vec<f64>,
    gradients: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    arena_used: u64,
}

/// The part of a full tensor that a rank holds, with its padding.
fn cut(statics: &Statics, parameter: &Parameter, full: &[f32], tp_rank: u32) -> Vec<f32> {
    let degree = statics.degree(parameter.block);
    let (rows, columns) = parameter.slice(tp_rank % degree, degree);
    let mut local: Vec<f32> = rows
        .flat_map(|row| columns.clone().map(move |column| row * parameter.columns + column))
        .map(|element| full[element])
        .collect();
    local.resize(parameter.local_elements(degree), 0.0);
    local
}

/// The full tensor from the parts; where several ranks hold an element, they must agree.
fn assemble(statics: &Statics, parameter: &Parameter, parts: &[&[f32]]) -> Vec<f32> {
    let degree = statics.degree(parameter.block);
    let mut full: Vec<Option<f32>> = vec![None; parameter.elements()];
    for (tp_rank, part) in (0..).zip(parts) {
        let (rows, columns) = parameter.slice(tp_rank % degree, degree);
        let mut values = part.iter();
        for row in rows {
            for (column, value) in columns.clone().zip(&mut values) {
                let element = &mut full[row * parameter.columns + column];
                assert!(
                    element.is_none_or(|other| other.to_bits() == value.to_bits()),
                    "{}: replicas differ",
                    parameter.name
                );
                *element = Some(*value);
            }
        }
        assert!(values.all(|padding| *padding == 0.0), "{}: padding was written", parameter.name);
    }
    full.into_iter().map(|element| element.expect("the ranks cover every element")).collect()
}
