//! `oases simulate`: predicts the steps of schedules from a profile or a machine description.

use std::path::Path;

use oases_plan::simulate_stages;
use oases_schedule::{Model, Plan, Purpose, Schedule, Statics, Workspace, plan};

use super::plan_run;
use super::recipes::{self, Recipe};
use super::sources::{self, Source, told};
use crate::args::{Format, SimulateArgs};
use crate::config::{self, RunConfig};
use crate::environment::Environment;
use crate::error::UserError;
use crate::output_file::OutputFile;
use crate::report::layout;
use crate::report::prediction::{Prediction, Row, SameStep, Step, write_trace};
use crate::terminal::{self, Terminal};

/// Predicts.
pub fn run(args: &SimulateArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    let config = config::load(&args.config.path, &args.config.overrides, environment)?;
    let configured = [config.schedule.name.clone()];
    let names = if args.schedules.is_empty() { &configured[..] } else { &args.schedules };
    let recipes = recipes::recipes(&args.config, names, environment, &mut |line| terminal.line(line))?;
    let options = plan_run::options(&config, false, None);
    recipes::request(&config)?;
    let (machine, profile) = (args.machine.as_deref(), args.profile.as_deref());
    let source = Source::read(machine, profile, &config, &options.model, environment)?;
    let workspace = source.workspace(plan_run::workspace(&options));
    let steps = predict(&source, &options.model, &recipes, &config, workspace)?;
    if let Some(path) = &args.trace {
        let trace = OutputFile::new(path, "trace", &inputs(args))?;
        trace.write(|file| write_trace(file, &steps))?;
    }
    let prediction = prediction(&source, &config, &options.model, &steps)?;
    match args.format {
        Format::Json => terminal::print(&format!("{}\n", serde_json::to_string_pretty(&prediction)?)),
        Format::Text => terminal::print(&prediction.to_string()),
    }
}

/// Files that are read, which no trace may replace.
fn inputs(args: &SimulateArgs) -> Vec<&Path> {
    let named = args.machine.iter().chain(&args.profile).map(|path| path.as_path());
    std::iter::once(args.config.path.as_path()).chain(named).collect()
}

fn predict(
    source: &Source,
    model: &Model,
    recipes: &[Recipe],
    config: &RunConfig,
    workspace: Workspace,
) -> Result<Vec<Step>, UserError> {
    let costs = source.costs(model, sources::link(config))?;
    let planned = |stage: &Schedule| {
        let statics = Statics::of(model, stage, Purpose::Training, stage.batch());
        plan(stage, &statics, workspace)
    };
    let predict = |recipe: &Recipe| {
        let schedules = recipe.build();
        let plans: Vec<Plan> = schedules.iter().map(planned).collect();
        let timelines = simulate_stages(&schedules, &plans, &*costs).map_err(told)?;
        Ok(Step { schedules, timelines })
    };
    recipes.iter().map(predict).collect()
}

fn prediction(
    source: &Source,
    config: &RunConfig,
    model: &Model,
    steps: &[Step],
) -> Result<Prediction, UserError> {
    Ok(Prediction {
        model: model_words(config, model),
        data: config.parallel.data as u32,
        pipeline: config.parallel.pipeline as u32,
        tensor: config.parallel.tensor as u32,
        degrees: config.layout().to_string(),
        batch: config.train.batch as u32,
        source: source.name(),
        machine: source.machine_words(),
        estimates: source.estimates(),
        link: source.link_words(config)?,
        device_bytes: source.device_bytes().map(|bytes| bytes.0),
        rows: steps.iter().map(|step| Row::new(step, model.sequence)).collect(),
        same: SameStep::all(steps),
    })
}

fn model_words(config: &RunConfig, model: &Model) -> String {
    let (schedule, batch) = (&config.schedule, config.train.batch);
    let counted = |count: usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    };
    format!(
        "{} of {}, hidden {}, sequence {}; {}; batch {batch} in {} of {}",
        config.model.family,
        counted(config.model.layers, "layer", "layers"),
        model.hidden,
        model.sequence,
        layout::words_of_all_stages(config),
        counted(schedule.micro_batches, "micro-batch", "micro-batches"),
        counted(schedule.sub_batches, "sub-batch", "sub-batches"),
    )
}
