//! Starts the ranks of a run as threads of this process, follows them, and ends the run when one of them fails. Ranks that are
//! processes are in `processes`.

#[cfg(feature = "mpi")]
pub mod processes;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use oases_exec::arena::{Arena, Region};
use oases_exec::comm::local::{LocalOptions, group};
use oases_exec::comm::{Communicator, HostGroup, probe};
use oases_exec::{CpuBackend, Interpreter, Progress};
use oases_schedule::{Bytes, Optimizer};

use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::job::Job;
use crate::metrics::{StepMetrics, Summary, median};
use crate::rank::{Chronicle, Rank, RankReport};
use crate::run_dir::RunDir;

/// How long the other ranks get to end by themselves after one has failed.
const GRACE: Duration = Duration::from_secs(2);

/// How a run ended that did not fail.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// All its steps are done.
    Finished(Box<Summary>),
    /// It was asked to stop, and has left a checkpoint of this step.
    Stopped {
        /// Steps done.
        step: u64,
    },
    /// This process runs another rank than 0, which tells.
    ToldByRankZero,
}

/// Trains with ranks as threads, each on the CPU backend. `listen` is told what happens, on the calling thread.
pub fn train(job: Job, listen: &mut dyn FnMut(&Event)) -> Result<Outcome> {
    let opened = Opened::new(&job)?;
    opened.tell(listen);
    let job = Arc::new(job);
    let (messages, inbox) = channel();
    let checkpoints = opened.folder.checkpoints()?;
    let chronicle = opened.chronicle(&messages)?;
    let mut course = opened.course()?;
    let began = Instant::now();
    start_ranks(&job, opened.checkpoint.clone(), &checkpoints, chronicle, &messages)?;
    drop(messages);
    let reports = follow(&inbox, job.options.ranks() as usize, &mut course, listen)?;
    opened.finish(&job, &course, reports, began.elapsed(), listen)
}

/// The run folder, and where the run stands.
struct Opened {
    folder: RunDir,
    checkpoint: Option<Arc<Checkpoint>>,
    passed_over: Vec<Error>,
    /// Steps already done.
    step: u64,
}

impl Opened {
    fn new(job: &Job) -> Result<Opened> {
        let options = &job.options;
        let folder = if options.resume {
            RunDir::resume(&options.dir)?
        } else {
            RunDir::create(&options.dir, &options.config)?
        };
        let latest = if options.resume { folder.checkpoints()?.latest()? } else { None };
        let (checkpoint, passed_over) = match latest {
            Some(latest) => (Some(latest.checkpoint), latest.passed_over),
            None => (None, Vec::new()),
        };
        if let Some(checkpoint) = &checkpoint {
            job.expect(checkpoint)?;
        }
        let step = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.metadata().step);
        if options.resume {
            if step == options.steps && folder.paths().summary().exists() {
                let message = format!("{} has done all its {step} steps", options.dir.display());
                return Err(Error::configuration(message).with_hint("raise train.steps to go on with it"));
            }
            folder.write_config(&options.config)?;
            folder.remove_summary()?;
        }
        Ok(Opened { folder, checkpoint: checkpoint.map(Arc::new), passed_over, step })
    }

    fn tell(&self, listen: &mut dyn FnMut(&Event)) {
        listen(&Event::Started {
            step: self.step,
            resumed_from: self.checkpoint.as_ref().map(|checkpoint| checkpoint.path().to_owned()),
            passed_over: self.passed_over.iter().map(Error::to_string).collect(),
        });
    }

    fn chronicle(&self, messages: &Sender<Message>) -> Result<Chronicle> {
        Ok(Chronicle { log: self.folder.metrics(self.step)?, messages: messages.clone() })
    }

    fn course(&self) -> Result<Course> {
        Ok(Course { metrics: self.folder.read_metrics()?, checkpoint: None })
    }

    /// Tells how the last step went, and writes the summary, unless the run was stopped before its end.
    fn finish(
        &self,
        job: &Job,
        course: &Course,
        mut reports: Vec<RankReport>,
        elapsed: Duration,
        listen: &mut dyn FnMut(&Event),
    ) -> Result<Outcome> {
        reports.sort_by_key(|report| report.rank);
        if let Some(step) = reports.iter().map(|report| report.done).find(|done| *done < job.options.steps) {
            return Ok(Outcome::Stopped { step });
        }
        let timings: Vec<_> = reports.iter_mut().map(|report| std::mem::take(&mut report.timings)).collect();
        if timings.iter().all(|timings| !timings.is_empty()) {
            let programs = job.stages.iter().map(|stage| stage.train.clone()).collect();
            listen(&Event::Traced { step: job.options.steps, programs, timings });
        }
        let summary = course.summary(job, self.step, elapsed, &reports);
        self.folder.write_summary(&summary)?;
        Ok(Outcome::Finished(Box::new(summary)))
    }
}

/// What reaches the thread that follows the ranks.
pub(crate) enum Message {
    Event(Event),
    Ended(Result<RankReport>),
}

/// Starts a thread per rank. They own all they need: a rank that hangs cannot be joined, only left behind.
fn start_ranks(
    job: &Arc<Job>,
    checkpoint: Option<Arc<Checkpoint>>,
    checkpoints: &Checkpoints,
    chronicle: Chronicle,
    messages: &Sender<Message>,
) -> Result<()> {
    let ranks = job.options.ranks();
    // All arenas first: a machine that cannot hold them says so before any rank runs.
    let arena = |rank| new_arena(job.place_of(rank).0.arena_bytes());
    let arenas = (0..ranks).map(arena).collect::<Result<Vec<Arena>>>()?;
    let options = LocalOptions {
        link: job.options.link,
        timeout: job.options.timeout,
        stages: job.options.stages.count() as usize,
        ..LocalOptions::default()
    };
    let communicators = group(ranks as usize, options);
    let began = Instant::now();
    let mut chronicle = Some(chronicle);
    for (rank, (arena, communicator)) in arenas.into_iter().zip(communicators).enumerate() {
        let (job, checkpoint, checkpoints) = (Arc::clone(job), checkpoint.clone(), checkpoints.clone());
        let (chronicle, messages) = (chronicle.take(), messages.clone());
        let body = move || {
            let host = communicator.host_group();
            let ends = (communicator, host);
            let outcome = run_rank(&job, arena, ends, began, (checkpoints, chronicle), checkpoint.as_deref());
            // The follower may be gone already, if another rank's failure has ended the run.
            let _ = messages.send(Message::Ended(outcome));
        };
        thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(body)
            .map_err(|error| Error::rank(rank, format!("cannot start its thread: {error}")))?;
    }
    Ok(())
}

fn new_arena(bytes: Bytes) -> Result<Arena> {
    Arena::new(bytes.0 as usize).map_err(|error| {
        Error::configuration(error.to_string()).with_hint(
            "lower train.batch or raise schedule.micro_batches; `oases explain` shows what fills the arena",
        )
    })
}

/// Runs one rank on this thread. A panic becomes an error; it has failed the communicator.
fn run_rank<C: Communicator<Region>, H: HostGroup>(
    job: &Job,
    arena: Arena,
    (mut communicator, host): (C, H),
    began: Instant,
    (checkpoints, chronicle): (Checkpoints, Option<Chronicle>),
    checkpoint: Option<&Checkpoint>,
) -> Result<RankReport> {
    let rank = communicator.rank();
    let (stage, tp_rank) = job.place_of(rank as u32);
    let interpreter = Interpreter::new(tp_rank, began);
    let progress = interpreter.progress();
    let run = AssertUnwindSafe(|| {
        probe(&mut communicator, job.stages.len())
            .map_err(|error| Error::communicator(&error, " (start-up probe)"))?;
        let batch = Batch::with_capacity(job.options.batch as usize, job.options.model.sequence);
        let backend = CpuBackend::new(arena);
        let parts = stage.train.schedule.parts.len().max(stage.evaluate.schedule.parts.len());
        let losses = vec![0.0; parts];
        let rank = rank as u32;
        let mut rank = Rank {
            job,
            stage,
            rank,
            tp_rank,
            backend,
            communicator,
            host,
            interpreter,
            checkpoints,
            chronicle,
            batch,
            losses,
        };
        rank.run(checkpoint)
    });
    catch_unwind(run).unwrap_or_else(|panic| Err(panicked(rank, &progress, panic.as_ref())))
}

fn panicked(rank: usize, progress: &Progress, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let said = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    match progress.position() {
        Some(at) => Error::rank(rank, format!("panicked at {at}: {said}")),
        None => Error::rank(rank, format!("panicked before its first instruction: {said}")),
    }
}

/// Listens until all ranks have ended. When one fails, the others get [`GRACE`] to end; the first cause is the error.
fn follow(
    inbox: &Receiver<Message>,
    ranks: usize,
    course: &mut Course,
    listen: &mut dyn FnMut(&Event),
) -> Result<Vec<RankReport>> {
    let mut reports = Vec::new();
    let mut failures: Vec<Error> = Vec::new();
    let mut deadline: Option<Instant> = None;
    while reports.len() + failures.len() < ranks {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let message = match left {
            Some(left) => inbox.recv_timeout(left),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match message {
            Ok(Message::Event(event)) => {
                course.record(&event);
                listen(&event);
            }
            Ok(Message::Ended(Ok(report))) => reports.push(report),
            Ok(Message::Ended(Err(error))) => {
                failures.push(error);
                deadline.get_or_insert_with(|| Instant::now() + GRACE);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    match failures.into_iter().min_by_key(Error::is_consequence) {
        Some(error) => Err(error),
        None => Ok(reports),
    }
}

/// What has been recorded of the run so far, also before a resume.
#[derive(Default)]
struct Course {
    metrics: Vec<StepMetrics>,
    checkpoint: Option<String>,
}

impl Course {
    fn record(&mut self, event: &Event) {
        match event {
            Event::Step(metrics) => self.metrics.push(metrics.clone()),
            Event::Checkpoint { path, .. } => {
                self.checkpoint =
                    path.file_name().map(|name| format!("checkpoints/{}", name.to_string_lossy()));
            }
            Event::Started { .. } | Event::Traced { .. } => {}
        }
    }

    fn summary(&self, job: &Job, first: u64, elapsed: Duration, reports: &[RankReport]) -> Summary {
        let of =
            |value: fn(&StepMetrics) -> f64| median(&mut self.metrics.iter().map(value).collect::<Vec<_>>());
        let done = self.metrics.last().map_or(first, |last| last.step);
        let seconds = elapsed.as_secs_f64();
        let tensor = job.options.layout.degrees().iter().copied().max().unwrap_or(1);
        Summary {
            steps: done,
            tokens: done * job.tokens_per_step(),
            train_loss: self.metrics.last().map_or(f64::NAN, |last| last.loss),
            val_loss: self.metrics.iter().rev().find_map(|metrics| metrics.val_loss),
            seconds,
            tokens_per_s: (done - first) as f64 * job.tokens_per_step() as f64 / seconds,
            step_ms: of(|metrics| metrics.step_ms),
            compute_ms: of(|metrics| metrics.step_ms - metrics.exposed_comm_ms),
            exposed_comm_ms: of(|metrics| metrics.exposed_comm_ms),
            arena_bytes_planned: job.arena_bytes().0,
            arena_bytes_used: reports.iter().map(|report| report.arena_used.0).max().unwrap_or(0),
            schedule: job.stages[0].train.schedule.name.clone(),
            ranks: job.options.ranks() as usize,
            data: (job.options.layout.group() / tensor) as usize,
            pipeline: job.stages.len(),
            order: job.options.order.name().to_owned(),
            zero: job.options.moments == Optimizer::Sharded,
            tensor: tensor as usize,
            degrees: job.options.layout.to_string(),
            parameters: job.options.model.parameter_count(),
            checkpoint: self.checkpoint.clone(),
        }
    }
}
