//! `oases train`: trains a model and writes its run folder.

#[cfg_attr(not(feature = "mpi"), path = "train/no_processes.rs")]
mod processes;

use std::path::Path;

use oases_schedule::Bytes;
use oases_train::metrics::Summary;
use oases_train::run_dir::RunPaths;
use oases_train::{Event, Job, Outcome};

use super::{plan_run, text_files};
use crate::args::{Format, TrainArgs};
use crate::config::{self, RunConfig};
use crate::doctor;
use crate::environment::Environment;
use crate::error::UserError;
use crate::interrupt;
use crate::launched;
use crate::output_file::OutputFile;
use crate::progress::{CheckpointReport, EvaluationReport, Progress, StepReport, thousands};
use crate::report::write_measured_trace;
use crate::terminal::{self, Terminal};

/// Trains, with ranks as threads of this process or as one of several processes.
pub fn run(args: &TrainArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    match launched::detect(&environment.launch, (args.rank, args.ranks))? {
        Some(launched) if launched.ranks > 1 => processes::run(args, environment, terminal, &launched),
        launched => {
            if let Some(note) = launched::alone(&environment.launch, launched.as_ref()) {
                terminal.line(&note);
            }
            let mut prepared = Prepared::new(args, environment)?;
            let ranks = prepared.job.options.ranks();
            prepared.check_memory(prepared.job.total_arena_bytes(), ranks)?;
            prepared.job.stop = interrupt::requested(Some(*terminal));
            prepared.run(args, terminal, oases_train::train)
        }
    }
}

/// A run that is about to start. Nothing has been written.
struct Prepared {
    config: RunConfig,
    job: Job,
    trace: Option<OutputFile>,
    /// Of the text that is held in memory.
    text: Bytes,
    /// Asked before the text was read.
    available: Option<u64>,
}

impl Prepared {
    fn new(args: &TrainArgs, environment: &Environment) -> anyhow::Result<Prepared> {
        let config = config::load(&args.config.path, &args.config.overrides, environment)?;
        let fault = environment.fault(config.parallel.ranks())?;
        // Asked before the text is read, which it then holds: asked later, it would be without the text.
        let available = doctor::available_memory();
        let text = text_files::check(&config, environment, available)?;
        let mut options = plan_run::options(&config, args.resume, fault);
        options.trace = args.trace.is_some();
        let texts = config.data.text.iter().map(|path| path.as_path());
        let inputs: Vec<&Path> = texts.chain([args.config.path.as_path()]).collect();
        let trace = args.trace.as_ref().map(|path| OutputFile::new(path, "trace", &inputs)).transpose()?;
        oases_train::request(&options).map_err(plan_run::told)?;
        let workspace = plan_run::workspace(&options);
        let job = Job::prepare(options, workspace).map_err(plan_run::told)?;
        Ok(Prepared { config, job, trace, text, available })
    }

    /// Whether this process has memory for `ranks` ranks, which need `arenas` together.
    fn check_memory(&self, arenas: Bytes, ranks: u32) -> Result<(), UserError> {
        check_memory((arenas, self.job.arena_bytes(), ranks), self.text, self.available)
    }

    /// Runs it by `train`, and shows what happens.
    fn run(
        self,
        args: &TrainArgs,
        terminal: &Terminal,
        train: impl FnOnce(Job, &mut dyn FnMut(&Event)) -> oases_train::Result<Outcome>,
    ) -> anyhow::Result<()> {
        let Prepared { config, job, trace, .. } = self;
        let steps = config.train.steps;
        let changes = if args.resume { changes(&config) } else { Vec::new() };
        let mut first = 0;
        let mut progress: Option<Progress> = None;
        let mut traced = Ok(());
        let link = plan_run::link(&config);
        let outcome = train(job, &mut |event| {
            if let Event::Started { step, .. } = event {
                first = *step;
            }
            let progress = progress.get_or_insert_with(|| Progress::new(*terminal, first, steps));
            show(progress, event, steps);
            if let (Event::Traced { programs, timings, .. }, Some(trace)) = (event, &trace) {
                traced = trace.write(|file| write_measured_trace(file, programs, link, timings));
            }
            if let Event::Started { resumed_from, .. } = event {
                if args.resume && resumed_from.is_none() {
                    progress.line("no checkpoint yet, starting from step 1");
                }
                if !changes.is_empty() {
                    progress.line(&format!("resuming with other settings: {}", changes.join(", ")));
                }
            }
        });
        if let Some(progress) = progress {
            progress.finish();
        }
        let outcome = outcome.map_err(plan_run::told)?;
        traced?;
        match (outcome, args.format) {
            (Outcome::ToldByRankZero, _) => Ok(()),
            (Outcome::Stopped { step }, format) => {
                if format == Format::Json {
                    terminal::print(&format!("{}\n", serde_json::json!({ "stopped_after_step": step })))?;
                }
                terminal.line(&format!(
                    "stopped after step {} with a checkpoint; go on by the same command with --resume",
                    thousands(step as f64)
                ));
                Ok(())
            }
            (Outcome::Finished(summary), Format::Json) => {
                terminal::print(&format!("{}\n", serde_json::to_string_pretty(&summary)?))
            }
            (Outcome::Finished(summary), Format::Text) => {
                terminal.line(&outcome_line(first, &summary));
                terminal.line(&format!("the run is in {}", config.run.dir.display()));
                Ok(())
            }
        }
    }
}

/// A run that would not fit is refused before anything is allocated or written.
fn check_memory(
    (arenas, largest, ranks): (Bytes, Bytes, u32),
    text: Bytes,
    available: Option<u64>,
) -> Result<(), UserError> {
    let Some(available) = available else { return Ok(()) };
    let needed = Bytes(arenas.0.saturating_add(text.0));
    if needed.0 <= available {
        return Ok(());
    }
    Err(UserError::new(
        format!(
            "the run needs {needed} (up to {largest} for each of {ranks} ranks, {text} for the text); {} are available",
            Bytes(available)
        ),
        "lower train.batch or raise schedule.micro_batches; `oases explain` shows what fills the memory",
    ))
}

/// How the settings differ from those that the run in the folder has had so far. Asked before the run starts, which
/// replaces those.
fn changes(config: &RunConfig) -> Vec<String> {
    // A folder that cannot be read is not told here: the run is about to be refused for it.
    let saved = std::fs::read_to_string(RunPaths::new(&config.run.dir).config()).unwrap_or_default();
    if saved.is_empty() { Vec::new() } else { config::changes(&saved, &config.to_toml()) }
}

/// What this process did, after the `first` steps that were done before it, and where the run stands.
fn outcome_line(first: u64, summary: &Summary) -> String {
    let steps = match (first, summary.steps) {
        (0, 1) => "1 step".to_string(),
        (0, steps) => format!("{} steps", thousands(steps as f64)),
        (first, steps) if first >= steps => "no step was left to do; finished".to_string(),
        (first, steps) if first + 1 == steps => format!("step {}", thousands(steps as f64)),
        (first, steps) => format!("steps {} to {}", thousands((first + 1) as f64), thousands(steps as f64)),
    };
    format!(
        "{steps} in {:.1} s, {} tokens/s including evaluations, {:.1} % of a step exposed communication; loss {:.4}{}",
        summary.seconds,
        thousands(summary.tokens_per_s),
        100.0 * summary.exposed_comm_ms / summary.step_ms,
        summary.train_loss,
        summary.val_loss.map_or(String::new(), |loss| format!(", validation {loss:.4}")),
    )
}

fn show(progress: &mut Progress, event: &Event, steps: u64) {
    match event {
        Event::Started { resumed_from, passed_over, .. } => {
            for reason in passed_over {
                progress.line(&format!("passed over a newer checkpoint: {reason}"));
            }
            if let Some(path) = resumed_from {
                progress.line(&format!("resuming from {}", path.display()));
            }
        }
        Event::Step(metrics) => {
            progress.step(&StepReport {
                step: metrics.step,
                steps,
                loss: metrics.loss,
                grad_norm: metrics.grad_norm,
                learning_rate: metrics.lr,
                step_ms: metrics.step_ms,
                exposed_comm_ms: metrics.exposed_comm_ms,
                tokens_per_s: metrics.tokens_per_s,
            });
            if let Some(loss) = metrics.val_loss {
                let seconds = metrics.eval_ms.unwrap_or_default() / 1e3;
                progress.evaluation(&EvaluationReport { step: metrics.step, loss, seconds });
            }
        }
        Event::Traced { step, .. } => progress.line(&format!("step {} is traced", thousands(*step as f64))),
        Event::Checkpoint { step, path } => progress.checkpoint(&CheckpointReport { step: *step, path }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_count_for_each_rank_and_the_text_once() {
        let check = |available| check_memory((Bytes(200), Bytes(100), 2), Bytes(50), available);
        assert_eq!((check(Some(250)), check(None)), (Ok(()), Ok(())));
        let message = check(Some(249)).unwrap_err().to_string();
        let [needed, arena, text, available] = [250, 100, 50, 249].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(
            message,
            format!(
                "the run needs {needed} (up to {arena} for each of 2 ranks, {text} for the text); {available} are available"
            )
        );
        let all = (Bytes(u64::MAX), Bytes(1), 2);
        assert!(check_memory(all, Bytes(1), Some(1)).is_err(), "no overflow");
    }

    #[test]
    fn the_last_line_tells_what_this_process_did() {
        let summary = Summary {
            steps: 1300,
            tokens: 1300 * 2048,
            train_loss: 1.5,
            val_loss: Some(1.84),
            seconds: 11.84,
            tokens_per_s: 10240.4,
            step_ms: 200.0,
            compute_ms: 175.0,
            exposed_comm_ms: 25.0,
            arena_bytes_planned: 0,
            arena_bytes_used: 0,
            schedule: "oases".to_string(),
            ranks: 2,
            data: 1,
            pipeline: 1,
            order: "1f1b".to_owned(),
            zero: false,
            tensor: 2,
            degrees: "2".to_owned(),
            parameters: 0,
            checkpoint: None,
        };
        let rest = "in 11.8 s, 10,240 tokens/s including evaluations, 12.5 % of a step exposed communication; \
                    loss 1.5000, validation 1.8400";
        for (first, steps) in [
            (0, "1,300 steps"),
            (1000, "steps 1,001 to 1,300"),
            (1299, "step 1,300"),
            (1300, "no step was left to do; finished"),
        ] {
            assert_eq!(outcome_line(first, &summary), format!("{steps} {rest}"));
        }
    }
}
