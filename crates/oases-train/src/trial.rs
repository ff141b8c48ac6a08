//! Times schedules on synthetic tokens: the same ranks run all of them in turn, round after round, so that a machine
//! whose speed drifts treats all alike.

use std::time::Instant;

use oases_exec::arena::Arena;
use oases_exec::comm::local::{LocalCommunicator, LocalOptions, group};
use oases_exec::comm::{HostGroup, Link};
use oases_exec::philox::philox4x32;
use oases_exec::{AdamW, Backend, CpuBackend, Interpreter, Program, StepInputs, Timing};
use oases_schedule::{Instruction, Model, Purpose, Schedule, Span, Statics};

use crate::error::{Error, Result};
use crate::weights::Shards;

/// What is to be timed.
pub struct Trial<'a> {
    /// The model.
    pub model: &'a Model,
    /// Ranks of the TMP group.
    pub tensor: u32,
    /// Schedules of equal batch.
    pub schedules: &'a [Schedule],
    /// The network to emulate.
    pub link: Option<Link>,
    /// Rounds that are not counted.
    pub warmup: usize,
    /// Rounds that are.
    pub rounds: usize,
}

/// One step of one schedule.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Wall time of the step on the slowest rank, in nanoseconds.
    pub step_ns: u64,
    /// Time in which the slowest rank waited for collectives, in nanoseconds.
    pub exposed_ns: u64,
    /// Times of the instructions on rank 0.
    pub timings: Vec<Timing>,
    /// Mean loss.
    pub loss: f64,
}

impl Trial<'_> {
    /// Samples of each schedule, in the order of rounds.
    pub fn run(&self) -> Result<Vec<Vec<Sample>>> {
        let sequences = self.schedules.iter().map(Schedule::batch).max().unwrap_or(0);
        let parts = self.schedules.iter().map(|schedule| schedule.parts.len()).max().unwrap_or(0);
        let statics = Statics::new(self.model, self.tensor, Purpose::Training, sequences, parts);
        let workspace = CpuBackend::workspace(self.model, self.tensor);
        let programs: Vec<Program> = self
            .schedules
            .iter()
            .map(|schedule| Program::new(schedule.clone(), &statics, workspace))
            .collect();
        let options = LocalOptions { link: self.link, ..LocalOptions::default() };
        let communicators = group(self.tensor as usize, options);
        let of_ranks = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(communicators)
                .map(|(rank, communicator)| {
                    let (statics, programs) = (&statics, &programs);
                    scope.spawn(move || self.rank(rank, communicator, statics, programs))
                })
                .collect();
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::internal("a rank of a trial panicked")))
            });
            joined.collect::<Result<Vec<_>>>()
        })?;
        Ok(slowest(of_ranks))
    }

    fn rank(
        &self,
        tp_rank: u32,
        mut communicator: LocalCommunicator,
        statics: &Statics,
        programs: &[Program],
    ) -> Result<Vec<Vec<Sample>>> {
        let lost = |error| Error::communicator(&error, " (trial)");
        let bytes = programs.iter().map(|program| program.plan.bytes).max().unwrap_or_default();
        let arena = Arena::new(bytes.0 as usize).map_err(|error| Error::configuration(error.to_string()))?;
        let mut backend = CpuBackend::new(arena);
        Shards { statics, tp_rank }.initialize(&mut backend, 0);
        let host = communicator.host_group();
        let mut interpreter = Interpreter::new(tp_rank, Instant::now());
        let mut samples = vec![Vec::new(); programs.len()];
        for round in 0..self.warmup + self.rounds {
            for (program, samples) in programs.iter().zip(&mut samples) {
                let targets = self.write_batch(&mut backend, statics, program, round);
                let inputs = inputs(round as u32, targets);
                host.barrier().map_err(lost)?;
                let began = Instant::now();
                interpreter
                    .run(program, statics, &mut backend, &mut communicator, &inputs)
                    .map_err(|interrupted| Error::rank(tp_rank as usize, interrupted.to_string()))?;
                let step_ns = began.elapsed().as_nanos() as u64;
                let mut losses = vec![0.0; program.schedule.parts.len()];
                backend.read(Span { bytes: 4 * losses.len(), ..statics.losses }, &mut losses);
                if round >= self.warmup {
                    let timings = interpreter.timings().to_vec();
                    let loss = losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / targets as f64;
                    let exposed_ns = exposed_ns(&program.schedule, &timings);
                    samples.push(Sample { step_ns, exposed_ns, timings, loss });
                }
            }
        }
        Ok(samples)
    }

    /// Random tokens, the same for every schedule of a round. Returns the number of targets.
    fn write_batch(
        &self,
        backend: &mut CpuBackend,
        statics: &Statics,
        program: &Program,
        round: usize,
    ) -> usize {
        let count = program.schedule.batch() as usize * self.model.sequence;
        let draw = |stream: u32| -> Vec<u32> {
            let token = |at: u32| philox4x32([at, round as u32, stream, 0], [0, 0])[0];
            (0..count as u32).map(|at| token(at) % self.model.vocabulary as u32).collect()
        };
        let bytes = count * size_of::<u32>();
        backend.write_tokens(Span { bytes, ..statics.tokens }, &draw(0));
        backend.write_tokens(Span { bytes, ..statics.targets }, &draw(1));
        count
    }
}

fn inputs(step: u32, targets: usize) -> StepInputs {
    let update = AdamW {
        learning_rate: 1e-4,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        update: u64::from(step) + 1,
        clip: 1.0,
    };
    StepInputs {
        step,
        first_sample: 0,
        loss_scale: 1.0 / targets as f32,
        dropout: true,
        dropout_key: [0, 0],
        update: Some(update),
    }
}

/// Time in which a rank waited for collectives.
pub(crate) fn exposed_ns(schedule: &Schedule, timings: &[Timing]) -> u64 {
    let waits = schedule.instructions.iter().zip(timings);
    waits.filter(|(i, _)| matches!(i, Instruction::Sync { .. })).map(|(_, timing)| timing.duration_ns()).sum()
}

/// A step lasts as long as on its slowest rank.
fn slowest(of_ranks: Vec<Vec<Vec<Sample>>>) -> Vec<Vec<Sample>> {
    let mut ranks = of_ranks.into_iter();
    let mut all = ranks.next().unwrap_or_default();
    for rank in ranks {
        for (sample, other) in all.iter_mut().flatten().zip(rank.into_iter().flatten()) {
            sample.step_ns = sample.step_ns.max(other.step_ns);
            sample.exposed_ns = sample.exposed_ns.max(other.exposed_ns);
        }
    }
    all
}
