//! Next-token logits from a checkpoint: the evaluation schedule on one sequence, on one rank.
//!
//! Every token runs the whole window again. Attention is causal, so what stands behind the last token has no effect.

use oases_exec::arena::Arena;
use oases_exec::comm::local::{LocalCommunicator, LocalOptions, group};
use oases_exec::{Backend, CpuBackend, Interpreter, Program, StepInputs};
use oases_schedule::passes::EVALUATE;
use oases_schedule::{
    BlockId, Instruction, Layout, Model, Purpose, Request, Schedule, Slot, Span, Statics, Workspace,
};

use crate::checkpoint::{Checkpoint, Kind};
use crate::data::IGNORE;
use crate::error::{Error, Result};
use crate::job::describe_model;
use crate::weights::Shards;

/// A model with its weights, ready to continue a text.
pub struct Generator {
    statics: Statics,
    program: Program,
    backend: CpuBackend,
    communicator: LocalCommunicator,
    interpreter: Interpreter,
    /// Logits of all positions.
    logits: Span,
    /// The window, padded to the model's sequence length.
    window: Vec<u32>,
}

impl Generator {
    /// Reads the weights of a checkpoint, which must be of this model.
    pub fn load(model: &Model, checkpoint: &Checkpoint, workspace: Workspace) -> Result<Generator> {
        checkpoint.metadata().expect_model(&describe_model(model), checkpoint.path())?;
        let request = Request { sub_batches: 1, ..Request::new(model.layers, 1, 1) };
        let schedule = EVALUATE.build(&request);
        let head = |instruction: &Instruction| {
            matches!(instruction, Instruction::Forward { block: BlockId::Head, .. })
        };
        let head = schedule.instructions.iter().position(head).expect("an evaluation runs the head");
        let statics = Statics::new(
            model,
            &Layout::uniform(1, Schedule::blocks(model.layers)),
            Purpose::Inference,
            1,
            1,
        );
        let program = Program::new(schedule, &statics, workspace);
        let arena = Arena::new(program.plan.bytes.0 as usize).map_err(|error| {
            Error::configuration(error.to_string()).with_hint("the model needs more memory")
        })?;
        let mut backend = CpuBackend::new(arena);
        let shards = Shards { statics: &statics, tp_rank: 0 };
        shards.write_constants(&mut backend);
        shards.load(&mut backend, checkpoint, &[Kind::Weight])?;
        let communicator = group(1, LocalOptions::default()).pop().expect("a group of one");
        Ok(Generator {
            logits: program.plan.operands[head].span(Slot::Logits),
            window: vec![0; model.sequence],
            statics,
            program,
            backend,
            communicator,
            interpreter: Interpreter::from_now(0),
        })
    }

    /// Logits `[vocabulary]` of the token that follows `tokens`, of which the model sees the last window.
    pub fn logits(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        let length = self.window.len();
        let seen = &tokens[tokens.len().saturating_sub(length)..];
        let last = seen.len().checked_sub(1).ok_or_else(|| Error::internal("no token to continue"))?;
        self.window.fill(0);
        self.window[..seen.len()].copy_from_slice(seen);
        self.backend.write_tokens(self.statics.tokens, &self.window);
        self.backend.write_tokens(self.statics.targets, &vec![IGNORE; length]);
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
            .map_err(|interrupted| Error::rank(0, interrupted.to_string()))?;
        let vocabulary = self.statics.model.vocabulary;
        logits.resize(vocabulary, 0.0);
        let bytes = vocabulary * size_of::<f32>();
        self.backend.read(Span { offset: self.logits.offset + last * bytes, bytes }, logits);
        Ok(())
    }
}
