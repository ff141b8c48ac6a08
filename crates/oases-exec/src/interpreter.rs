//! The interpreter: one `match` from instruction to a short function. It never chooses; policy is in the schedule.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use oases_schedule::{
    Axis, BlockId, CollectiveId, CollectiveKind, Grouping, Instruction, Plan, Schedule, Slot, Statics,
    Workspace, plan,
};

use crate::backend::Backend;
use crate::blocks::BlockCall;
use crate::comm::{Communicator, CommunicatorError, Ticket};
use crate::inputs::StepInputs;
use crate::operators::ParameterState;
use crate::place::Place;

/// A schedule with its memory plan, ready to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The step.
    pub schedule: Schedule,
    /// Its operands.
    pub plan: Plan,
}

impl Program {
    /// Plans a verified schedule. See [`plan()`] for when it panics.
    pub fn new(schedule: Schedule, statics: &Statics, workspace: Workspace) -> Program {
        let plan = plan(&schedule, statics, workspace);
        Program { schedule, plan }
    }
}

/// A step that could not be finished, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{source} ({at})")]
pub struct Interrupted {
    /// Where.
    pub at: Position,
    /// Why.
    pub source: Box<CommunicatorError>,
}

/// When an instruction was issued and returned, in nanoseconds since the run began. On a device that computes while the
/// host goes on, this is host time; on the CPU it is the computation itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Before.
    pub start_ns: u64,
    /// After.
    pub end_ns: u64,
}

impl Timing {
    /// How long it took.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The step, from 0.
    pub step: u32,
    /// Index of the instruction in its schedule.
    pub index: usize,
    /// The instruction.
    pub instruction: Instruction,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}, instruction {}: `{}`", self.step + 1, self.index, self.instruction)
    }
}

/// A view of where an interpreter is, for whoever must say so when its rank fails.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Option<Position>>>);

impl Progress {
    /// The instruction that runs, or ran last; `None` before the first.
    pub fn position(&self) -> Option<Position> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, position: Position) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(position);
    }
}

/// Executes programs on one rank. It owns what a step needs besides the arena, so that a step allocates nothing.
#[derive(Debug)]
pub struct Interpreter {
    tp_rank: u32,
    began: Instant,
    in_flight: Vec<(CollectiveId, Ticket)>,
    timings: Vec<Timing>,
    progress: Progress,
    panic_at: Option<usize>,
    frozen: Vec<usize>,
}

impl Interpreter {
    /// For rank `tp_rank` of the group of its pipeline stage; times count from `began`.
    pub fn new(tp_rank: u32, began: Instant) -> Interpreter {
        Interpreter {
            tp_rank,
            began,
            in_flight: Vec::new(),
            timings: Vec::new(),
            progress: Progress::default(),
            panic_at: None,
            frozen: Vec::new(),
        }
    }

    /// The same, with times that count from now.
    pub fn from_now(tp_rank: u32) -> Interpreter {
        Interpreter::new(tp_rank, Instant::now())
    }

    /// A view of where this interpreter is.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Times of the instructions of the last run.
    pub fn timings(&self) -> &[Timing] {
        &self.timings
    }

    /// Leaves these parameters as they are from here on: they have no gradient, so they count for nothing in the norm either.
    pub fn freeze(&mut self, parameters: &[usize]) {
        self.frozen = parameters.to_vec();
    }

    /// Makes the next run panic at an instruction, to test what becomes of the other ranks.
    pub fn panic_at(&mut self, index: usize) {
        self.panic_at = Some(index);
    }

    /// Runs a program once.
    pub fn run<B: Backend, C: Communicator<B::Region>>(
        &mut self,
        program: &Program,
        statics: &Statics,
        backend: &mut B,
        communicator: &mut C,
        inputs: &StepInputs,
    ) -> Result<(), Interrupted> {
        self.timings.clear();
        self.timings.reserve(program.schedule.instructions.len());
        for (index, instruction) in program.schedule.instructions.iter().enumerate() {
            let at = Position { step: inputs.step, index, instruction: *instruction };
            self.progress.set(at);
            assert!(self.panic_at != Some(index), "a panic was asked for");
            let start_ns = self.now_ns();
            let mut step = Step {
                program,
                statics,
                backend,
                communicator,
                inputs,
                tp_rank: self.tp_rank,
                index,
                frozen: &self.frozen,
            };
            step.execute(instruction, &mut self.in_flight)
                .map_err(|source| Interrupted { at, source: Box::new(source) })?;
            self.timings.push(Timing { start_ns, end_ns: self.now_ns() });
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// One instruction in its context.
struct Step<'a, B, C> {
    program: &'a Program,
    statics: &'a Statics,
    backend: &'a mut B,
    communicator: &'a mut C,
    inputs: &'a StepInputs,
    tp_rank: u32,
    index: usize,
    frozen: &'a [usize],
}

impl<B: Backend, C: Communicator<B::Region>> Step<'_, B, C> {
    fn execute(
        &mut self,
        instruction: &Instruction,
        in_flight: &mut Vec<(CollectiveId, Ticket)>,
    ) -> Result<(), CommunicatorError> {
        let operands = &self.program.plan.operands[self.index];
        self.backend.begin(self.index, instruction, operands);
        match *instruction {
            Instruction::Forward { block, extent, .. } => self.on(block).forward(extent),
            Instruction::Recompute { block, extent, .. } => self.on(block).recompute(extent),
            Instruction::Loss { .. } => self.on(BlockId::Head).loss(),
            Instruction::Tail { pass, block, piece, .. } => self.on(block).tail(pass, piece),
            Instruction::Backward { block, scope, .. } => self.on(block).backward(scope),
            Instruction::Reshard { pass, block, .. } => self.on(block).reshard(pass),
            Instruction::Complete { pass, block, .. } => {
                self.on(block).complete(pass);
            }
            Instruction::Start { collective, kind, axis, grouping } => {
                let ticket = self.start(collective, kind, axis, grouping);
                in_flight.push((collective, ticket));
            }
            Instruction::Sync { collective } => self.sync(collective, in_flight)?,
            Instruction::Norm => self.norm(),
            Instruction::Step => self.update(),
        }
        Ok(())
    }

    fn on(&mut self, block: BlockId) -> BlockCall<'_, B> {
        BlockCall {
            backend: self.backend,
            statics: self.statics,
            operands: &self.program.plan.operands[self.index],
            inputs: self.inputs,
            tp_rank: self.tp_rank,
            block,
            before: self.program.schedule.before(block),
        }
    }

    fn start(
        &mut self,
        collective: CollectiveId,
        kind: CollectiveKind,
        axis: Axis,
        grouping: Grouping,
    ) -> Ticket {
        let region = self.backend.lend(self.program.plan.operands[self.index].span(Slot::Output));
        let place = Place { schedule: &self.program.schedule, tp_rank: self.tp_rank };
        let group = place.group(collective, axis, grouping);
        self.communicator.start(kind.into(), group, place.tag(collective, axis, self.index), region)
    }

    fn sync(
        &mut self,
        collective: CollectiveId,
        in_flight: &mut Vec<(CollectiveId, Ticket)>,
    ) -> Result<(), CommunicatorError> {
        let at = in_flight.iter().position(|(id, _)| *id == collective);
        let at = at.unwrap_or_else(|| panic!("`sync {collective}` without its start passed the verifier"));
        let (_, ticket) = in_flight.remove(at);
        let region = self.communicator.sync(ticket)?;
        self.backend.give_back(region);
        Ok(())
    }

    /// What several ranks hold counts on one of them, so that the sum over ranks is the norm of the full gradient.
    fn norm(&mut self) {
        let held = self.frozen.iter().filter(|&&index| self.statics.held().any(|held| held == index));
        for &index in held {
            self.backend.clear(self.statics.placed(index).gradient);
        }
        self.backend.square_norm(self.statics.counted_gradients(self.tp_rank), self.statics.norm);
    }

    /// Updates what this rank holds; where the optimizer is sharded, its share.
    fn update(&mut self) {
        let hyper = self.inputs.update.as_ref().expect("a training step has an optimizer");
        for index in self.statics.held() {
            let updated = self.statics.updated(index, self.tp_rank);
            if updated.elements.is_empty() || self.frozen.contains(&index) {
                continue;
            }
            let state = ParameterState {
                weight: updated.weight,
                gradient: updated.gradient,
                moments: updated.moments,
                decays: !self.statics.parameters[index].vector,
            };
            self.backend.adamw(&state, self.statics.norm, hyper);
        }
    }
}
