//! `oases train`: trains a model and writes its run folder.

use oases_schedule::Bytes;
use oases_train::{Event, Job};

use super::{plan_run, text_files};
use crate::args::{Format, TrainArgs};
use crate::config;
use crate::doctor;
use crate::environment::Environment;
use crate::error::UserError;
use crate::progress::{CheckpointReport, EvaluationReport, Progress, StepReport};
use crate::terminal::{self, Terminal};

/// Trains.
pub fn run(args: &TrainArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    let config = config::load(&args.config.path, &args.config.overrides, environment)?;
    text_files::check(&config, environment)?;
    let options = plan_run::options(&config, args.resume, environment.fault);
    oases_train::request(&options).map_err(plan_run::told)?;
    let workspace = plan_run::workspace(&options);
    let job = Job::prepare(options, workspace).map_err(plan_run::told)?;

    check_memory(&job)?;

    let steps = config.train.steps;
    let mut progress: Option<Progress> = None;
    let outcome = oases_train::train(job, &mut |event| {
        let progress = progress.get_or_insert_with(|| Progress::new(*terminal, first_step(event), steps));
        show(progress, event, steps);
    });
    if let Some(progress) = progress {
        progress.finish();
    }
    let summary = outcome.map_err(plan_run::told)?;
    match args.format {
        Format::Json => terminal::print(&format!("{}\n", serde_json::to_string_pretty(&summary)?)),
        Format::Text => {
            let exposed = 100.0 * summary.exposed_comm_ms / summary.step_ms;
            terminal.line(&format!(
                "{} steps in {:.1} s, {:.0} tokens/s, {exposed:.1} % of a step exposed communication; loss {:.4}{}",
                summary.steps,
                summary.seconds,
                summary.tokens_per_s,
                summary.train_loss,
                summary.val_loss.map_or(String::new(), |loss| format!(", validation {loss:.4}")),
            ));
            terminal.line(&format!("the run is in {}", config.run.dir.display()));
            Ok(())
        }
    }
}

/// A run that would not fit is refused before anything is allocated or written.
fn check_memory(job: &Job) -> Result<(), UserError> {
    let Some(available) = doctor::available_memory() else { return Ok(()) };
    let (arena, ranks) = (job.arena_bytes(), u64::from(job.options.tensor));
    let needed = Bytes(arena.0.saturating_mul(ranks));
    if needed.0 <= available {
        return Ok(());
    }
    Err(UserError::new(
        format!(
            "the run needs {needed} ({arena} for each of {ranks} ranks); {} are available",
            Bytes(available)
        ),
        "lower train.batch or raise schedule.micro_batches; `oases explain` shows what fills the memory",
    ))
}

fn first_step(event: &Event) -> u64 {
    match event {
        Event::Started { step, .. } => *step,
        _ => 0,
    }
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
        Event::Checkpoint { step, path } => progress.checkpoint(&CheckpointReport { step: *step, path }),
    }
}
