//! A model's forward pass on its own: over the ranks of one TMP group, as threads, with the evaluation schedule.

use oases_exec::arena::Arena;
use oases_exec::comm::local::{LocalCommunicator, LocalOptions, group};
use oases_exec::{Backend, CpuBackend, Interpreter, Program, StepInputs};
use oases_schedule::passes::EVALUATE;
use oases_schedule::{
    BlockId, Instruction, Layout, Model, Operands, Purpose, Request, Schedule, Slot, Span, Statics, Workspace,
};

use crate::checkpoint::{Checkpoint, Kind};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::weights::Shards;

/// What a forward pass has made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The sum of the losses of all targets.
    pub loss: f64,
    /// What the head reads, behind the last normalisation. `[n, h]`
    pub hidden: Vec<f32>,
    /// Logits of all tokens. `[n, V]`
    pub logits: Vec<f32>,
}

/// One rank with its weights, ready to go forward.
pub(crate) struct ForwardRank {
    pub statics: Statics,
    pub backend: CpuBackend,
    program: Program,
    communicator: LocalCommunicator,
    interpreter: Interpreter,
    tp_rank: u32,
    head: usize,
}

impl ForwardRank {
    /// Reads what the rank holds of a checkpoint; room for `sequences` sequences.
    pub(crate) fn load(
        model: &Model,
        checkpoint: &Checkpoint,
        workspace: Workspace,
        sequences: u32,
        (communicator, tp_rank, tensor): (LocalCommunicator, u32, u32),
    ) -> Result<ForwardRank> {
        let layout = Layout::uniform(tensor, Schedule::blocks(model.layers));
        let request =
            Request { sub_batches: 1, layout: layout.clone(), ..Request::new(model.layers, 1, sequences) };
        let schedule = EVALUATE.build(&request);
        let is_head = |instruction: &Instruction| {
            matches!(instruction, Instruction::Forward { block: BlockId::Head, .. })
        };
        let head = schedule.instructions.iter().position(is_head).expect("an evaluation runs the head");
        let statics = Statics::new(model, &layout, Purpose::Inference, sequences, 1);
        let program = Program::new(schedule, &statics, workspace);
        let arena = Arena::new(program.plan.bytes.0 as usize).map_err(|error| {
            Error::configuration(error.to_string()).with_hint("the model needs more memory")
        })?;
        let mut backend = CpuBackend::new(arena);
        let shards = Shards { statics: &statics, tp_rank };
        shards.write_constants(&mut backend);
        shards.load(&mut backend, checkpoint, &[Kind::Weight])?;
        let interpreter = Interpreter::from_now(tp_rank);
        Ok(ForwardRank { statics, backend, program, communicator, interpreter, tp_rank, head })
    }

    /// A rank that needs no others.
    pub(crate) fn alone(
        model: &Model,
        checkpoint: &Checkpoint,
        workspace: Workspace,
        sequences: u32,
    ) -> Result<ForwardRank> {
        let communicator = group(1, LocalOptions::default()).pop().expect("a group of one");
        ForwardRank::load(model, checkpoint, workspace, sequences, (communicator, 0, 1))
    }

    /// Goes forward over a batch, and returns the sum of the losses.
    pub(crate) fn run(&mut self, batch: &Batch) -> Result<f64> {
        let bytes = size_of_val(batch.inputs.as_slice());
        self.backend.write_tokens(Span { bytes, ..self.statics.tokens }, &batch.inputs);
        self.backend.write_tokens(Span { bytes, ..self.statics.targets }, &batch.targets);
        batch.write_reading(&mut self.backend, &self.statics);
        let inputs = StepInputs {
            step: 0,
            first_sample: 0,
            loss_scale: 1.0,
            dropout: false,
            dropout_key: [0, 0],
            update: None,
        };
        self.interpreter
            .run(&self.program, &self.statics, &mut self.backend, &mut self.communicator, &inputs)
            .map_err(|interrupted| Error::rank(self.tp_rank as usize, interrupted.to_string()))?;
        let mut loss = [0.0];
        self.backend.read(Span { bytes: size_of::<f32>(), ..self.statics.losses }, &mut loss);
        Ok(f64::from(loss[0]))
    }

    /// Operands of the head. What it has made is still there behind a run.
    pub(crate) fn head(&self) -> &Operands {
        &self.program.plan.operands[self.head]
    }

    fn read(&mut self, slot: Slot) -> Vec<f32> {
        let span = self.head().span(slot);
        let mut values = vec![0.0; span.bytes / size_of::<f32>()];
        self.backend.read(span, &mut values);
        values
    }
}

/// Goes forward over a batch once, with the weights of a checkpoint cut over `tensor` ranks.
pub fn forward(
    model: &Model,
    checkpoint: &Checkpoint,
    workspace: Workspace,
    tensor: u32,
    batch: &Batch,
) -> Result<Output> {
    model
        .check(tensor)
        .map_err(|error| Error::configuration(error.message.clone()).with_hint(error.hint.clone()))?;
    let sequences = (batch.inputs.len() / model.sequence) as u32;
    let communicators = group(tensor as usize, LocalOptions::default());
    // Of each rank the loss, what the head reads, and its part of the logits.
    let ranks = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(communicators)
            .map(|(tp_rank, communicator)| {
                scope.spawn(move || {
                    let ends = (communicator, tp_rank, tensor);
                    let mut rank = ForwardRank::load(model, checkpoint, workspace, sequences, ends)?;
                    let loss = rank.run(batch)?;
                    Ok((loss, rank.read(Slot::Normalized), rank.read(Slot::Logits)))
                })
            })
            .collect();
        let panicked = || Err(Error::internal("a rank of a forward pass panicked"));
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked()));
        joined.collect::<Result<Vec<_>>>()
    })?;
    let (tokens, width) = (batch.inputs.len(), model.vocabulary.div_ceil(tensor as usize));
    let mut logits = vec![0.0; tokens * model.vocabulary];
    for (place, (_, _, part)) in ranks.iter().enumerate() {
        let first = (place * width).min(model.vocabulary);
        let valid = width.min(model.vocabulary - first);
        for (row, part) in logits.chunks_exact_mut(model.vocabulary).zip(part.chunks_exact(width)) {
            row[first..first + valid].copy_from_slice(&part[..valid]);
        }
    }
    let (loss, hidden, _) = ranks.into_iter().next().expect("a group has a rank");
    Ok(Output { loss, hidden, logits })
}
