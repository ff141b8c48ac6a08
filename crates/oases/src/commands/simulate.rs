//! `oases simulate`: predicts the steps of schedules from a profile or a machine description.

use std::path::Path;

use oases_plan::{Costs, Machine, MachineCosts, Profile, ProfileCosts, Ring, Shape, Timeline, simulate};
use oases_schedule::{Model, Purpose, Schedule, Statics, Workspace, plan};

use super::recipes::{self, Recipe};
use super::{machine_files, plan_run};
use crate::args::{Format, SimulateArgs};
use crate::config::{self, RunConfig};
use crate::environment::Environment;
use crate::error::UserError;
use crate::output_file::OutputFile;
use crate::report::prediction::{Prediction, Row, write_trace};
use crate::terminal::{self, Terminal};

/// The backend that a configuration trains on.
const BACKEND: &str = "cpu";

/// Predicts.
pub fn run(args: &SimulateArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    let config = config::load(&args.config.path, &args.config.overrides, environment)?;
    let configured = [config.schedule.name.clone()];
    let names = if args.schedules.is_empty() { &configured[..] } else { &args.schedules };
    let recipes = recipes::recipes(&args.config, names, environment, &mut |line| terminal.line(line))?;
    let options = plan_run::options(&config, false, None);
    recipes::request(&config)?;
    let source = Source::read(args, &config, &options.model, environment)?;
    let workspace = match source {
        Source::Machine(_) => Workspace::default(),
        Source::Profile(_) => plan_run::workspace(&options),
    };
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

/// Where durations come from.
enum Source {
    Machine(Machine),
    Profile(Profile),
}

impl Source {
    fn read(
        args: &SimulateArgs,
        config: &RunConfig,
        model: &Model,
        environment: &Environment,
    ) -> Result<Source, UserError> {
        if let Some(name) = &args.machine {
            return Ok(Source::Machine(machine_files::machine(name, environment)?));
        }
        let path = args.profile.as_ref().expect("the command line has one of the two");
        let profile = machine_files::profile(path, environment)?;
        profile.check_is_of(&Shape::of(&config.model.family, model), BACKEND).map_err(told)?;
        Ok(Source::Profile(profile))
    }

    fn costs<'a>(&'a self, model: &'a Model, link: Option<Ring>) -> Box<dyn Costs + 'a> {
        match self {
            Source::Machine(machine) => Box::new(MachineCosts::new(machine, model, link)),
            Source::Profile(profile) => Box::new(ProfileCosts::new(profile, link)),
        }
    }
}

fn predict(
    source: &Source,
    model: &Model,
    recipes: &[Recipe],
    config: &RunConfig,
    workspace: Workspace,
) -> Result<Vec<(Schedule, Timeline)>, UserError> {
    let costs = source.costs(model, link(config));
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

/// The link of the configuration.
pub fn link(config: &RunConfig) -> Option<Ring> {
    config.link.as_ref().map(|link| Ring {
        bandwidth_bytes_per_s: link.bandwidth.bytes_per_second(),
        latency_s: link.latency.duration().as_secs_f64(),
    })
}

pub fn told(error: oases_plan::Error) -> UserError {
    UserError::new(error.to_string(), error.hint())
}

fn prediction(
    source: &Source,
    config: &RunConfig,
    model: &Model,
    steps: &[(Schedule, Timeline)],
) -> Result<Prediction, UserError> {
    let (name, machine, estimates, device_bytes) = match source {
        Source::Machine(machine) => {
            let device_bytes = (machine.device.memory_gb * (1_u64 << 30) as f64) as u64;
            ("machine", machine.name.clone(), machine.estimates(), Some(device_bytes))
        }
        Source::Profile(profile) => {
            let origin = &profile.profile;
            let machine = format!("{}, {} backend, {}", origin.machine, origin.backend, origin.created);
            ("profile", machine, Vec::new(), None)
        }
    };
    Ok(Prediction {
        model: model_words(config, model),
        tensor: config.parallel.tensor as u32,
        batch: config.train.batch as u32,
        source: name,
        machine,
        estimates,
        link: link_words(source, config)?,
        device_bytes,
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
        "{} of {}, hidden {}, sequence {}; TMP degree {}; batch {batch} in {} of {}",
        config.model.family,
        counted(config.model.layers, "layer", "layers"),
        model.hidden,
        model.sequence,
        config.parallel.tensor,
        counted(schedule.micro_batches, "micro-batch", "micro-batches"),
        counted(schedule.sub_batches, "sub-batch", "sub-batches"),
    )
}

/// What is between the ranks.
fn link_words(source: &Source, config: &RunConfig) -> Result<String, UserError> {
    let tensor = config.parallel.tensor as u32;
    if tensor == 1 {
        return Ok("none, there is one rank".to_owned());
    }
    if let Some(link) = &config.link {
        return Ok(format!("{}, {} a hop; of the configuration", link.bandwidth, link.latency));
    }
    Ok(match source {
        Source::Machine(machine) => {
            let levels = machine.spanned(tensor).map_err(told)?.iter();
            let levels = levels.map(|level| {
                format!("{}, {} GB/s, {} us a hop", level.name, level.bandwidth_gb_s, level.latency_us)
            });
            levels.collect::<Vec<_>>().join("; ")
        }
        Source::Profile(profile) => match &profile.link {
            Some(link) => {
                format!("{} Gbit/s, {} us a hop; of the profile", link.bandwidth_gbit_s, link.latency_us)
            }
            None => "none but shared memory, as in the profile".to_owned(),
        },
    })
}
