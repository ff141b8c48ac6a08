//! The loop of one rank. Every rank of the group runs the same loop on the same samples; rank 0 also keeps the run folder.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Instant;

use oases_exec::comm::{Communicator, CommunicatorError, HostGroup};
use oases_exec::philox::key_from_seed;
use oases_exec::{AdamW, Backend, Interpreter, Interrupted, Program, StepInputs, Timing};
use oases_schedule::{BlockId, Bytes, Role, Span};

use crate::agreement::{all_succeed, same_where_shared};
use crate::checkpoint::{Checkpoint, Checkpoints, Kind};
use crate::data::masking::Of;
use crate::data::{Batch, samples_of_step};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::job::{Job, StageJob};
use crate::launch::Message;
use crate::metrics::StepMetrics;
use crate::options::FaultKind;
use crate::run_dir::MetricsLog;
use crate::trial::exposed_ns;
use crate::weights::Shards;

/// Dropout has a key of its own, so that its draws are none of the weights' or the data's.
const DROPOUT_SEED: u64 = 0xD509_0000_0000_0000;

/// What ranks are doing when they cannot agree whether a checkpoint is written.
const CHECKPOINT: &str = "checkpoint";

/// What rank 0 has besides: the run folder's writable parts, and who listens.
pub(crate) struct Chronicle {
    pub log: MetricsLog,
    pub messages: Sender<Message>,
}

/// A rank, with its device and its ends of the group.
pub(crate) struct Rank<'a, B, C, H> {
    pub job: &'a Job,
    pub stage: &'a StageJob,
    /// In the world.
    pub rank: u32,
    /// In the group of its stage.
    pub tp_rank: u32,
    pub backend: B,
    pub communicator: C,
    pub host: H,
    pub interpreter: Interpreter,
    /// Of the run folder.
    pub checkpoints: Checkpoints,
    /// On rank 0 only.
    pub chronicle: Option<Chronicle>,
    pub batch: Batch,
    /// Room for the losses of the parts.
    pub losses: Vec<f32>,
}

/// What a rank reports at its end.
#[derive(Clone, Debug)]
pub(crate) struct RankReport {
    pub rank: u32,
    pub arena_used: Bytes,
    /// Steps done, of this run and of what it went on from.
    pub done: u64,
    /// Of the last training step, where that was asked for.
    pub timings: Vec<Timing>,
}

impl<B: Backend, C: Communicator<B::Region>, H: HostGroup> Rank<'_, B, C, H> {
    /// Trains from the checkpoint, or from the beginning, to the last step.
    pub(crate) fn run(&mut self, from: Option<&Checkpoint>) -> Result<RankReport> {
        let job = self.job;
        let shards = Shards { statics: &self.stage.statics, tp_rank: self.tp_rank };
        shards.write_constants(&mut self.backend);
        match from {
            Some(checkpoint) => shards.load(&mut self.backend, checkpoint, &Kind::ALL)?,
            None => {
                shards.initialize(&mut self.backend, job.options.seed);
                if let Some(weights) = &job.init {
                    shards.load(&mut self.backend, weights, &[Kind::Weight])?;
                }
            }
        }
        self.interpreter.freeze(&job.frozen);
        let first = from.map_or(0, |checkpoint| checkpoint.metadata().step);
        self.compare_weights(first)?;
        let (mut timings, mut reached) = (Vec::new(), first);
        for step in first..job.options.steps {
            let (mut metrics, mut stop) = self.train_step(step)?;
            let done = step + 1;
            reached = done;
            let last = done == job.options.steps;
            if last && job.options.trace {
                timings = self.interpreter.timings().to_vec();
            }
            if last || (!stop && done.is_multiple_of(job.options.eval_every)) {
                let began = Instant::now();
                let Evaluation { loss, stopped } = self.evaluate(step)?;
                if let Some(loss) = loss.filter(|loss| !loss.is_finite()) {
                    return Err(Error::NonFinite { step: done, loss, grad_norm: metrics.grad_norm });
                }
                metrics.val_loss = loss;
                metrics.eval_ms = (!stopped).then(|| began.elapsed().as_secs_f64() * 1e3);
                stop |= stopped;
            }
            self.record(metrics)?;
            if !last && done.is_multiple_of(job.options.check_every) {
                self.compare_weights(done)?;
            }
            if last || stop || done.is_multiple_of(job.options.checkpoint_every) {
                self.refuse_weights_that_are_no_numbers(done)?;
                self.checkpoint(done)?;
            }
            if stop {
                break;
            }
        }
        Ok(RankReport { rank: self.rank, arena_used: self.backend.touched(), done: reached, timings })
    }

    /// The line is in the log before a checkpoint of its step can be, so that no step is missing after a resume.
    fn record(&mut self, metrics: StepMetrics) -> Result<()> {
        if let Some(chronicle) = &mut self.chronicle {
            chronicle.log.append(&metrics)?;
        }
        self.tell(Event::Step(metrics));
        Ok(())
    }

    fn tell(&self, event: Event) {
        if let Some(chronicle) = &self.chronicle {
            // Nobody listens any more when the run is being given up; the rank then ends by its own error.
            let _ = chronicle.messages.send(Message::Event(event));
        }
    }

    /// Also whether the ranks shall stop after this step.
    fn train_step(&mut self, step: u64) -> Result<(StepMetrics, bool)> {
        let job = self.job;
        let began = Instant::now();
        self.provoke(step);
        let samples = samples_of_step(step, u64::from(job.options.batch));
        job.train_data.fill(samples.clone(), &mut self.batch)?;
        self.hide(Of::Training, samples.start)?;
        let targets = self.batch.predicted();
        let learning_rate = job.learning_rate.at(step + 1);
        let inputs = self.inputs(step, targets, Some(self.hyper(step, learning_rate)));
        let train = &self.stage.train;
        self.execute(train, &inputs)?;

        let closing = self.close(train.schedule.parts.len())?;
        let loss = closing.loss / targets as f64;
        let mut square_norm = [0.0];
        self.backend.read(self.stage.statics.norm, &mut square_norm);
        let grad_norm = f64::from(square_norm[0]).sqrt();
        let step_ms = began.elapsed().as_secs_f64() * 1e3;
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(Error::NonFinite { step: step + 1, loss, grad_norm });
        }
        let metrics = StepMetrics {
            step: step + 1,
            loss,
            grad_norm,
            lr: learning_rate,
            step_ms,
            exposed_comm_ms: exposed_ns(&train.schedule, self.interpreter.timings()) as f64 / 1e6,
            tokens_per_s: targets as f64 / step_ms * 1e3,
            val_loss: None,
            eval_ms: None,
        };
        Ok((metrics, closing.stop))
    }

    fn hyper(&self, step: u64, learning_rate: f64) -> AdamW {
        let optimizer = &self.job.options.optimizer;
        AdamW {
            learning_rate: learning_rate as f32,
            beta1: optimizer.beta1 as f32,
            beta2: optimizer.beta2 as f32,
            epsilon: optimizer.epsilon as f32,
            weight_decay: optimizer.weight_decay as f32,
            update: step + 1,
            clip: optimizer.clip as f32,
        }
    }

    fn inputs(&self, step: u64, targets: usize, update: Option<AdamW>) -> StepInputs {
        StepInputs {
            step: step as u32,
            first_sample: 0,
            loss_scale: 1.0 / targets as f32,
            dropout: update.is_some(),
            dropout_key: key_from_seed(self.job.options.seed ^ DROPOUT_SEED),
            update,
        }
    }

    /// Hands the batch to the device and runs the program.
    fn execute(&mut self, program: &Program, inputs: &StepInputs) -> Result<()> {
        let statics = &self.stage.statics;
        let bytes = self.batch.inputs.len() * size_of::<u32>();
        self.backend.write_tokens(Span { bytes, ..statics.tokens }, &self.batch.inputs);
        self.backend.write_tokens(Span { bytes, ..statics.targets }, &self.batch.targets);
        self.batch.write_reading(&mut self.backend, statics);
        self.interpreter
            .run(program, statics, &mut self.backend, &mut self.communicator, inputs)
            .map_err(|Interrupted { at, source }| Error::communicator(&source, &format!(" ({at})")))
    }

    /// All ranks meet, and hear the loss of all replicas.
    fn close(&mut self, parts: usize) -> Result<Closing> {
        let losses = &mut self.losses[..parts];
        let bytes = parts * size_of::<f32>();
        self.backend.read(Span { bytes, ..self.stage.statics.losses }, losses);
        let statics = &self.stage.statics;
        let last = statics.stage.index + 1 == statics.stage.stages.count();
        // The ranks of a replica have the same value.
        let tells = last && statics.place_in(BlockId::Head, self.tp_rank) == 0;
        let own = if tells { losses.iter().map(|&loss| f64::from(loss)).sum() } else { 0.0 };
        Closing::meet(&self.host, own, self.job.stop.load(Ordering::Relaxed))
            .map_err(|error| Error::communicator(&error, " (loss)"))
    }

    /// Mean loss over the held-out text, every target counted once. Given up where the ranks are asked to stop, unless it is the
    /// last of the run.
    fn evaluate(&mut self, step: u64) -> Result<Evaluation> {
        let job = self.job;
        let data = &job.validation_data;
        let evaluate = &self.stage.evaluate;
        let sequences = evaluate.schedule.batch();
        let (mut loss, mut targets) = (0.0, 0);
        for windows in data.batches(u64::from(sequences)) {
            let first = windows.start;
            data.fill(windows, &mut self.batch)?;
            self.hide(Of::Validation, first)?;
            targets += self.batch.predicted();
            self.pad(sequences as usize);
            let inputs = self.inputs(step, 1, None);
            self.execute(evaluate, &inputs)?;
            let closing = self.close(evaluate.schedule.parts.len())?;
            if closing.stop && step + 1 < job.options.steps {
                return Ok(Evaluation { loss: None, stopped: true });
            }
            loss += closing.loss;
        }
        Ok(Evaluation { loss: (targets > 0).then(|| loss / targets as f64), stopped: false })
    }

    /// Refuses what the model does not know, and hides what a masked language model is to predict.
    fn hide(&mut self, of: Of, first: u64) -> Result<()> {
        let model = &self.job.options.model;
        self.batch.check(model.vocabulary)?;
        if let Some(masking) = &self.job.masking {
            masking.apply(of, first, model.sequence, &mut self.batch);
        }
        Ok(())
    }

    /// The last batch may be short; the rest of it counts for nothing.
    fn pad(&mut self, sequences: usize) {
        let length = sequences * self.job.options.model.sequence;
        self.batch.pad(length, self.job.options.model.sequence);
    }

    /// The loss of a step is that of the weights before it; what the update made of them, the next step would notice, after
    /// the checkpoint. Each rank looks at its own shards; one that fails keeps rank 0 from finishing the file.
    fn refuse_weights_that_are_no_numbers(&mut self, done: u64) -> Result<()> {
        let statics = &self.stage.statics;
        // The place of the norm is free between steps.
        self.backend.square_norm(&[statics.weights()], statics.norm);
        let mut square = [0.0];
        self.backend.read(statics.norm, &mut square);
        if square[0].is_finite() { Ok(()) } else { Err(Error::NonFiniteWeights { step: done }) }
    }

    /// All ranks write their parts of one file, which rank 0 begins and publishes.
    fn checkpoint(&mut self, done: u64) -> Result<()> {
        let job = self.job;
        let (metadata, tensors) = (job.metadata(done), job.tensors());
        let begun = match &self.chronicle {
            None => Ok(None),
            Some(chronicle) => {
                let logged = chronicle.log.sync();
                logged.and_then(|()| self.checkpoints.begin(&metadata, &tensors)).map(Some)
            }
        };
        let begun = all_succeed(&self.host, begun, CHECKPOINT)?;
        let joined = match begun {
            Some(draft) => Ok(draft),
            None => self.checkpoints.join(&metadata, &tensors),
        };
        // A rank that cannot write ends with an error, and takes the draft with it: by then all others must have found it.
        let draft = all_succeed(&self.host, joined, CHECKPOINT)?;
        let shards = Shards { statics: &self.stage.statics, tp_rank: self.tp_rank };
        let written = shards.write(&mut self.backend, &draft).and_then(|()| draft.flush());
        all_succeed(&self.host, written, CHECKPOINT)?;
        let published = match &self.chronicle {
            None => Ok(()),
            Some(_) => draft
                .publish()
                .and_then(|()| self.checkpoints.prune(done, job.options.keep_checkpoints).map(|_| ())),
        };
        all_succeed(&self.host, published, CHECKPOINT)?;
        self.tell(Event::Checkpoint { step: done, path: self.checkpoints.path(done) });
        Ok(())
    }

    /// Ranks that hold the same weights compare them.
    fn compare_weights(&mut self, done: u64) -> Result<()> {
        let statics = &self.stage.statics;
        let own = Shards { statics, tp_rank: self.tp_rank }.digests(&mut self.backend);
        let name = |[index, _]: [u32; 2]| format!("weights of {}", statics.parameters[index as usize].name);
        same_where_shared(&self.host, &own, name, format!("after step {done}"))
    }

    fn poison_weights(&mut self) {
        let statics = &self.stage.statics;
        let block = self.stage.train.schedule.chain().next_back().expect("a stage has blocks");
        let role = if block == BlockId::Embed { Role::Tokens } else { Role::NormGain };
        let gain = statics.role(block, role).weight;
        self.backend.write(Span { bytes: size_of::<f32>(), ..gain }, &[f32::NAN]);
    }

    /// Brings about the failure that the options ask for, if it is this rank's turn.
    fn provoke(&mut self, step: u64) {
        let Some(fault) = self.job.options.fault else { return };
        if fault.step != step || fault.rank != self.rank {
            return;
        }
        match fault.kind {
            FaultKind::Panic => self.interpreter.panic_at(self.stage.train.schedule.instructions.len() / 2),
            FaultKind::Hang => loop {
                std::thread::park();
            },
            FaultKind::NonFinite => self.poison_weights(),
        }
    }
}

/// What an evaluation found.
struct Evaluation {
    /// `None` where nothing is held out, or it was given up.
    loss: Option<f64>,
    /// Whether it was given up.
    stopped: bool,
}

/// What all ranks know at the end of a step or of a batch.
struct Closing {
    /// The sum over the replicas of the head.
    loss: f64,
    /// Whether some rank was asked to stop.
    stop: bool,
}

impl Closing {
    /// All ranks meet. `own` is the loss of a replica on the rank that tells it, and 0 on the others.
    fn meet(host: &impl HostGroup, own: f64, stop: bool) -> std::result::Result<Closing, CommunicatorError> {
        let number = |bytes: &[u8]| f64::from_le_bytes(bytes[..8].try_into().expect("the bytes of a number"));
        let pack = |loss: f64, stop: bool| [&loss.to_le_bytes()[..], &[u8::from(stop)]].concat();
        let all = host.gather(pack(own, stop))?;
        let closing = all.map(|all| {
            let loss = all.iter().map(|bytes| number(bytes)).sum();
            pack(loss, all.iter().any(|bytes| bytes[8] != 0))
        });
        let bytes = host.broadcast(closing)?;
        Ok(Closing { loss: number(&bytes), stop: bytes[8] != 0 })
    }
}
