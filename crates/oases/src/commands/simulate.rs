//! `oases simulate`: predicts the steps of schedules from a profile or a machine description.

use std::path::Path;

use oases_plan::{Timeline, simulate};
use oases_schedule::{Model, Purpose, Schedule, Statics, Workspace, plan};

use super::plan_run;
use super::recipes::{self, Recipe};
use super::sources::{self, Source, told};
use crate::args::{Format, SimulateArgs};
use crate::config::{self, RunConfig};
use crate::environment::Environment;
use crate::error::UserError;
use crate::output_file::OutputFile;
use crate::report::layout;
use crate::report::prediction::{Prediction, Row, write_trace};
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
) -> Result<Vec<(Schedule, Timeline)>, UserError> {
    let costs = source.costs(model, sources::link(config))?;
    let predict = |recipe: &Recipe| {
        let schedule = recipe.build();
        let (sequences, parts) = (schedule.batch(), schedule.parts.len());
        let statics = Statics::new(model, &schedule.layout, Purpose::Training, sequences, parts);
        let plan = plan(&schedule, &statics, workspace);
        let timeline = simulate(&schedule, &plan, &*costs).map_err(told)?;
        Ok((schedule, timeline))
    };
    recipes.iter().map(predict).collect()
}

fn prediction(
    source: &Source,
    config: &RunConfig,
    model: &Model,
    steps: &[(Schedule, Timeline)],
) -> Result<Prediction, UserError> {
    Ok(Prediction {
        model: model_words(config, model),
        tensor: config.parallel.tensor as u32,
        degrees: config.layout().to_string(),
        batch: config.train.batch as u32,
        source: source.name(),
        machine: source.machine_words(),
        estimates: source.estimates(),
        link: source.link_words(config)?,
        device_bytes: source.device_bytes().map(|bytes| bytes.0),
        rows: steps.iter().map(|(_, timeline)| Row::new(timeline, model.sequence)).collect(),
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
        layout::words(&config.layout()),
        counted(schedule.micro_batches, "micro-batch", "micro-batches"),
        counted(schedule.sub_batches, "sub-batch", "sub-batches"),
    )
}
