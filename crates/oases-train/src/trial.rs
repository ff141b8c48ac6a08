//! Times schedules on synthetic tokens: the same ranks run all of them in turn, round after round, so that a machine
//! whose speed drifts treats all alike.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oases_exec::arena::{Arena, ArenaError, Region};
use oases_exec::comm::local::{LocalCommunicator, LocalOptions, group};
use oases_exec::comm::{HostGroup, Link};
use oases_exec::null::{NullBackend, scaled};
use oases_exec::philox::philox4x32;
use oases_exec::{AdamW, Backend, CpuBackend, Interpreter, Program, StepInputs, Timing};
use oases_schedule::{
    BlockId, Bytes, Instruction, Layout, Model, Optimizer, Purpose, Schedule, Span, Stage, Statics,
};

use crate::data::Batch;
use crate::error::{Error, Result};
use crate::weights::Shards;

/// A schedule, and the network that is emulated while it runs.
#[derive(Clone, Debug)]
pub struct Contender {
    /// The schedule of each pipeline stage. Contenders may differ in everything; ranks that one does not need wait for their turn.
    pub stages: Vec<Schedule>,
    /// The network; none leaves the ranks' memory as fast as it is.
    pub link: Option<Link>,
    /// Where given, nothing is computed, and each instruction of each stage lasts as long as this says: what schedule, executor and
    /// link do without the noise of a machine, and with more ranks than it has processors. For all contenders or for none.
    pub lasts: Option<Vec<Vec<Duration>>>,
}

impl Contender {
    /// A schedule of a single stage, which computes.
    pub fn new(schedule: Schedule, link: Option<Link>) -> Contender {
        Contender { stages: vec![schedule], link, lasts: None }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.stages[0].name
    }

    /// Ranks of a stage.
    fn group(&self) -> u32 {
        self.stages[0].layout.group()
    }

    fn ranks(&self) -> u32 {
        self.group() * self.stages.len() as u32
    }
}

/// What is to be timed.
pub struct Trial<'a> {
    /// The model.
    pub model: &'a Model,
    /// What runs in turn.
    pub contenders: &'a [Contender],
    /// Rounds that are not counted.
    pub warmup: usize,
    /// Rounds that are.
    pub rounds: usize,
    /// Set from outside, ends the trial after the step at hand.
    pub stop: &'a AtomicBool,
}

/// One step of one contender.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Wall time of the step on the slowest rank, in nanoseconds.
    pub step_ns: u64,
    /// When the step began, on the clock of the timings.
    pub began_ns: u64,
    /// Times of the instructions on each rank, those of the first stage first.
    pub timings: Vec<Vec<Timing>>,
    /// Mean loss.
    pub loss: f64,
    /// The highest byte of the arena that the step touched, plus one; on the rank with the most.
    pub touched: Bytes,
}

impl Sample {
    /// Time in which a rank waited for collectives, in nanoseconds: the mean over the ranks.
    pub fn exposed_ns(&self, stages: &[Schedule]) -> f64 {
        let exposed = self.on_stages(stages).map(|(stage, timings)| exposed_ns(stage, timings) as f64);
        exposed.sum::<f64>() / self.timings.len() as f64
    }

    /// The timings of each rank, with the schedule of its stage.
    pub fn on_stages<'a>(
        &'a self,
        stages: &'a [Schedule],
    ) -> impl Iterator<Item = (&'a Schedule, &'a [Timing])> {
        let group = self.timings.len() / stages.len();
        self.timings
            .iter()
            .enumerate()
            .map(move |(rank, timings)| (&stages[rank / group], timings.as_slice()))
    }
}

impl Trial<'_> {
    /// Samples of each contender, in the order of rounds. `finished` is told the contender after each step. Ended from
    /// outside, there may be fewer samples, of some contenders one fewer than of others.
    pub fn run(&self, finished: &(dyn Fn(usize) + Sync)) -> Result<Vec<Vec<Sample>>> {
        let Some(ranks) = self.contenders.iter().map(Contender::ranks).max() else {
            return Ok(Vec::new());
        };
        let programs =
            |contender: &Contender| contender.stages.iter().map(|stage| self.program(stage)).collect();
        let programs: Vec<Vec<(Statics, Program)>> = self.contenders.iter().map(programs).collect();
        let timed = self.contenders.iter().any(|contender| contender.lasts.is_some());
        let networks = Networks::new(self.contenders);
        let groups = networks.links.iter().map(|&link| {
            // The null backend hands communicators less than the real buffers.
            let link = if timed { link.map(scaled) } else { link };
            // Contenders differ in their stages, so no two ranks are known to make the same calls.
            group(ranks as usize, LocalOptions { link, stages: ranks as usize, ..LocalOptions::default() })
        });
        let ends = by_rank(groups.collect(), ranks as usize);
        let last = AtomicUsize::new(usize::MAX);
        let began = Instant::now();
        let of_ranks = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(ends)
                .map(|(rank, communicators)| {
                    let rank = Rank {
                        trial: self,
                        rank,
                        programs: &programs,
                        networks: &networks,
                        last: &last,
                        began,
                        finished,
                    };
                    scope.spawn(move || rank.run(communicators))
                })
                .collect();
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::internal("a rank of a trial panicked")))
            });
            joined.collect::<Result<Vec<_>>>()
        })?;
        Ok(joined(of_ranks, self.contenders, &programs))
    }

    fn program(&self, schedule: &Schedule) -> (Statics, Program) {
        let statics = Statics::of(self.model, schedule, Purpose::Training, schedule.batch());
        let workspace = CpuBackend::workspace(self.model);
        let program = Program::new(schedule.clone(), &statics, workspace);
        (statics, program)
    }

    /// Random tokens, the same for every schedule and round. Returns the number of targets.
    fn write_batch(&self, backend: &mut impl Backend, statics: &Statics, program: &Program) -> usize {
        let count = program.schedule.batch() as usize * self.model.sequence;
        let draw = |stream: u32| -> Vec<u32> {
            let token = |at: u32| philox4x32([at, 0, stream, 0], [0, 0])[0];
            (0..count as u32).map(|at| token(at) % self.model.vocabulary as u32).collect()
        };
        let bytes = count * size_of::<u32>();
        backend.write_tokens(Span { bytes, ..statics.tokens }, &draw(0));
        backend.write_tokens(Span { bytes, ..statics.targets }, &draw(1));
        let mut batch = Batch::default();
        batch.pad(count, self.model.sequence);
        batch.write_reading(backend, statics);
        Shards { statics, tp_rank: 0 }.write_constants(backend);
        count
    }
}

/// A learning rate of 0: the optimizer does its work and changes no weight, so every step computes the same, and losses of
/// schedules can be compared.
fn inputs(targets: usize) -> StepInputs {
    let update = AdamW {
        learning_rate: 0.0,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        update: 1,
        clip: 1.0,
    };
    StepInputs {
        step: 0,
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

/// The different links, and which of them each contender uses.
struct Networks {
    links: Vec<Option<Link>>,
    of: Vec<usize>,
}

impl Networks {
    fn new(contenders: &[Contender]) -> Networks {
        let mut links: Vec<Option<Link>> = Vec::new();
        let of = contenders
            .iter()
            .map(|contender| {
                links.iter().position(|link| *link == contender.link).unwrap_or_else(|| {
                    links.push(contender.link);
                    links.len() - 1
                })
            })
            .collect();
        Networks { links, of }
    }
}

/// The ends of all groups, by rank.
fn by_rank(groups: Vec<Vec<LocalCommunicator>>, ranks: usize) -> Vec<Vec<LocalCommunicator>> {
    let mut ends: Vec<Vec<LocalCommunicator>> = (0..ranks).map(|_| Vec::new()).collect();
    for group in groups {
        for (ends, communicator) in ends.iter_mut().zip(group) {
            ends.push(communicator);
        }
    }
    ends
}

/// One rank of a trial.
struct Rank<'a> {
    trial: &'a Trial<'a>,
    /// In the world.
    rank: u32,
    /// Of each contender, by stage.
    programs: &'a [Vec<(Statics, Program)>],
    networks: &'a Networks,
    /// The turn before which all ranks stop.
    last: &'a AtomicUsize,
    began: Instant,
    finished: &'a (dyn Fn(usize) + Sync),
}

impl Rank<'_> {
    fn run(&self, communicators: Vec<LocalCommunicator>) -> Result<Vec<Vec<Sample>>> {
        let own = (0..self.programs.len()).filter_map(|index| self.place(index));
        let bytes = own.map(|((_, program), _)| program.plan.bytes).max().unwrap_or_default();
        let too_large = |error: ArenaError| Error::configuration(error.to_string());
        let contenders = self.trial.contenders;
        let lasts: Vec<&[Duration]> = contenders
            .iter()
            .filter_map(|contender| {
                let lasts = contender.lasts.as_ref()?;
                let stage = (self.rank / contender.group()) as usize;
                Some(lasts.get(stage).map_or(&[][..], Vec::as_slice))
            })
            .collect();
        // The contender whose turn it is.
        let turn = Cell::new(0);
        if lasts.is_empty() {
            let backend = CpuBackend::new(Arena::new(bytes.0 as usize).map_err(too_large)?);
            return self.run_on(backend, communicators, &turn);
        }
        if lasts.len() < contenders.len() {
            return Err(Error::internal("a trial of timed and untimed contenders"));
        }
        // Only ranks of one stage gather or scatter.
        let slots = contenders.iter().fold(1, |slots, contender| multiple_of_both(slots, contender.group()));
        let duration = |index: usize| lasts[turn.get()][index];
        let backend = NullBackend::new(bytes, slots as usize, duration).map_err(too_large)?;
        self.run_on(backend, communicators, &turn)
    }

    fn run_on<B: Backend<Region = Region>>(
        &self,
        mut backend: B,
        mut communicators: Vec<LocalCommunicator>,
        current: &Cell<usize>,
    ) -> Result<Vec<Vec<Sample>>> {
        let host = communicators[0].host_group();
        let mut samples = vec![Vec::new(); self.programs.len()];
        let mut laid_out: Option<(&Layout, &Stage, Optimizer)> = None;
        'rounds: for round in 0..self.trial.warmup + self.trial.rounds {
            for (index, samples) in samples.iter_mut().enumerate() {
                let turn = round * self.programs.len() + index;
                if self.rank == 0 && self.trial.stop.load(Ordering::Relaxed) {
                    self.last.fetch_min(turn, Ordering::Relaxed);
                }
                host.barrier().map_err(|error| Error::communicator(&error, " (trial)"))?;
                if self.last.load(Ordering::Relaxed) <= turn {
                    break 'rounds;
                }
                current.set(index);
                let communicator = &mut communicators[self.networks.of[index]];
                let Some(((statics, program), tp_rank)) = self.place(index) else {
                    // As many barriers as those who run.
                    let host = communicator.host_group();
                    host.barrier().map_err(|error| Error::communicator(&error, " (trial)"))?;
                    continue;
                };
                let computes = self.trial.contenders[index].lasts.is_none();
                let layout = (&statics.layout, &statics.stage, program.schedule.optimizer);
                if computes && laid_out != Some(layout) {
                    // Another layout has weights and moments in other places.
                    Shards { statics, tp_rank }.initialize(&mut backend, 0);
                    laid_out = Some(layout);
                }
                let sample = self.step(index, &mut backend, communicator)?;
                if round >= self.trial.warmup {
                    samples.push(sample);
                }
                if self.rank == 0 {
                    (self.finished)(index);
                }
            }
        }
        Ok(samples)
    }

    /// What this rank runs of a contender, and its place in the group of its stage.
    fn place(&self, index: usize) -> Option<(&(Statics, Program), u32)> {
        let group = self.trial.contenders[index].group();
        let program = self.programs[index].get((self.rank / group) as usize)?;
        Some((program, self.rank % group))
    }

    fn step<B: Backend<Region = Region>>(
        &self,
        index: usize,
        backend: &mut B,
        communicator: &mut LocalCommunicator,
    ) -> Result<Sample> {
        let ((statics, program), tp_rank) = self.place(index).expect("a rank of the contender");
        let mut interpreter = Interpreter::new(tp_rank, self.began);
        backend.forget_touched();
        let targets = self.trial.write_batch(backend, statics, program);
        let inputs = inputs(targets);
        let host = communicator.host_group();
        host.barrier().map_err(|error| Error::communicator(&error, " (trial)"))?;
        let began_ns = self.began.elapsed().as_nanos() as u64;
        interpreter
            .run(program, statics, backend, communicator, &inputs)
            .map_err(|interrupted| Error::rank(self.rank as usize, interrupted.to_string()))?;
        let step_ns = self.began.elapsed().as_nanos() as u64 - began_ns;
        let touched = backend.touched();
        let mut losses = vec![0.0; program.schedule.parts.len()];
        backend.read(Span { bytes: 4 * losses.len(), ..statics.losses }, &mut losses);
        let loss = losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / targets as f64;
        Ok(Sample { step_ns, began_ns, timings: vec![interpreter.timings().to_vec()], loss, touched })
    }
}

/// The least that is a multiple of both.
fn multiple_of_both(left: u32, right: u32) -> u32 {
    (1..=right).map(|factor| factor * left).find(|multiple| multiple.is_multiple_of(right)).unwrap_or(right)
}

/// A step lasts as long as on its slowest rank. Its loss is the sum of those of the head's replicas.
fn joined(
    of_ranks: Vec<Vec<Vec<Sample>>>,
    contenders: &[Contender],
    programs: &[Vec<(Statics, Program)>],
) -> Vec<Vec<Sample>> {
    let mut all: Vec<Vec<Sample>> = vec![Vec::new(); contenders.len()];
    for (rank, samples) in (0_u32..).zip(of_ranks) {
        for (index, (all, own)) in all.iter_mut().zip(samples).enumerate() {
            let group = contenders[index].group();
            let Some((statics, program)) = programs[index].get((rank / group) as usize) else { continue };
            let head = program.schedule.runs(BlockId::Head);
            let counts = head && statics.place_in(BlockId::Head, rank % group) == 0;
            for (at, mut sample) in own.into_iter().enumerate() {
                sample.loss = if counts { sample.loss } else { 0.0 };
                match all.get_mut(at) {
                    None => all.push(sample),
                    Some(joined) => {
                        joined.step_ns = joined.step_ns.max(sample.step_ns);
                        joined.touched = joined.touched.max(sample.touched);
                        joined.loss += sample.loss;
                        joined.timings.extend(sample.timings);
                    }
                }
            }
        }
    }
    all
}
