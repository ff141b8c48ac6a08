//! `oases plan`: the TMP degree of every block, so that a step is as short as memory allows.

mod draw;
mod measure;
mod memory;
mod output;
mod planner;
mod rows;
mod search;
mod too_large;
mod verify;

use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use oases_plan::assign::Ilp;
use oases_plan::planner::Planned;
use oases_schedule::{Bytes, Variant};

use self::memory::Memory;
use self::planner::{Planner, Setting};
use self::search::{Best, Space};
use self::verify::{Field, Trial};
use super::measuring::{self, Subject};
use super::sources::{self, Source};
use super::{plan_run, recipes};
use crate::args::{Format, PlanArgs};
use crate::config::{self, Override, RunConfig};
use crate::environment::Environment;
use crate::error::{Interrupted, UserError};
use crate::interrupt;
use crate::output_file::OutputFile;
use crate::progress::Counter;
use crate::report::plan::PlanReport;
use crate::terminal::{self, Terminal};

/// A plan is of the degrees inside one group.
fn check_ranks(config: &RunConfig) -> Result<(), UserError> {
    let (data, pipeline) = (config.parallel.data, config.parallel.pipeline);
    if data == 1 && pipeline == 1 {
        return Ok(());
    }
    Err(UserError::new(
        format!(
            "`oases plan` plans one group of ranks, and `parallel.data` = {data}, `parallel.pipeline` = {pipeline}"
        ),
        "set both to 1: a group has replicas of the blocks with lower degrees than `parallel.tensor`",
    ))
}

/// Plans.
pub fn run(args: &PlanArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    let overrides = overrides(args)?;
    let config = load(&args.config.path, &overrides, environment)?;
    check_ranks(&config)?;
    let model = recipes::model(&config)?;
    let budget = args.memory.as_deref().map(budget).transpose()?;
    check_degrees(args, &config)?;
    let link = args.verify.map(|_| verify::link(&config, args.timed)).transpose()?.flatten();
    let files = Files::new(args)?;
    // While nothing runs, Ctrl-C ends the program as it does by itself.
    let runs = args.measure || args.verify.is_some();
    let stop = if runs { interrupt::requested(Some(*terminal)) } else { Arc::default() };

    let subject =
        Subject { family: &config.model.family, model: &model, ranks: config.parallel.tensor as u32 };
    let configured = Setting::of(&config);
    let space = args
        .search
        .then(|| Space::new(&args.config, &overrides, args.schedule.as_deref(), &config, environment));
    let source = if args.measure {
        let settings = space.as_ref().map_or(slice::from_ref(&configured), |space| &space.settings);
        let degrees = planner::degrees(&args.degrees, subject.ranks);
        Source::Measured(measure::profile(&subject, settings, &degrees, &stop, terminal)?)
    } else {
        Source::read(args.machine.as_deref(), args.profile.as_deref(), &config, &model, environment)?
    };
    let costs = source.costs(&model, sources::link(&config))?;
    let workspace = plan_run::workspace(&plan_run::options(&config, false, None));
    let planner = Planner {
        model: &model,
        costs: &*costs,
        workspace: source.workspace(workspace),
        budget: budget.or(source.device_bytes()),
        degrees: args.degrees.clone(),
        solver: args.solver,
    };
    let mut report = PlanReport::default();
    let (setting, planned) = plan(&planner, &configured, space, terminal, &mut report)?;
    header(&mut report, &config, &planner, &setting, &source)?;
    files.write_plan(args, &overrides, (&setting, &planned), &report, environment)?;

    if let Some(count) = args.verify {
        let field = Field::new(&planner.task(&setting), &planned, count as usize, args.seed)?;
        let trial =
            Trial { field: &field, subject: &subject, link, rounds: args.rounds as usize, seed: args.seed };
        let counter = |steps: usize| Counter::new(*terminal, steps as u64);
        report.verification = match link.filter(|_| args.timed) {
            Some(link) => {
                let lasting = source.lasting(&model, measuring::ring(link))?;
                trial.timed(&lasting, &stop, counter)?
            }
            None => trial.real(&stop, counter)?,
        };
    }
    match args.format {
        Format::Json => terminal::print(&format!("{}\n", report.to_json()?))?,
        Format::Text => terminal::print(&report.to_string())?,
    }
    terminal.line(&format!("the plan is in {}", files.plan.path().display()));
    if let Some((page, html)) = files.page.as_ref().zip(report.to_html()) {
        page.write(|file| file.write_all(html.as_bytes()))?;
        terminal.line(&format!("the report is in {}", page.path().display()));
    }
    match report.verification.as_ref().map(verify::fault) {
        Some(Some(fault)) => Err(fault.into()),
        None if args.verify.is_some() => Err(Interrupted.into()),
        _ => Ok(()),
    }
}

/// The configuration. Its degrees are what is planned, so a group that cuts no block of the model into equal parts will do, as
/// long as some degree does.
fn load(path: &Path, overrides: &[Override], environment: &Environment) -> anyhow::Result<RunConfig> {
    let as_written = config::load(path, overrides, environment);
    let with = |degree: u32| {
        let degrees = Override { key: "parallel.degrees".to_owned(), value: degree.to_string().into() };
        config::load(path, &[overrides, &[degrees]].concat(), environment).ok()
    };
    match as_written {
        Ok(config) => Ok(config),
        Err(error) => (0..6).rev().find_map(|exponent| with(1 << exponent)).ok_or_else(|| error.into()),
    }
}

/// The plan of the configuration, or the best of a space, with all that follows from it in the report.
fn plan(
    planner: &Planner<'_>,
    configured: &Setting,
    space: Option<Space>,
    terminal: &Terminal,
    report: &mut PlanReport,
) -> Result<(Setting, Planned), UserError> {
    let began = Instant::now();
    let best = match space {
        None => planner.plan(configured).map(|planned| Best {
            setting: configured.clone(),
            planned,
            search: None,
        }),
        Some(space) => {
            let counter = Counter::new(*terminal, space.settings.len() as u64);
            let best = search::search(planner, space, configured, &counter);
            counter.finish();
            best
        }
    };
    let planning_ms = began.elapsed().as_secs_f64() * 1e3;
    let Best { setting, planned, search } =
        best.map_err(|no_plan| too_large::told(no_plan, planner, configured))?;
    rows::fill(report, planner, &setting, &planned);
    report.proof.planning_ms = planning_ms;
    report.search = search;
    Ok((setting, planned))
}

/// What the options set of the configuration.
fn overrides(args: &PlanArgs) -> Result<Vec<Override>, UserError> {
    let mut overrides = args.config.overrides.clone();
    if let Some(name) = &args.schedule {
        if Variant::find(name).is_none() {
            return Err(recipes::unknown(name));
        }
        overrides.push(Override { key: "schedule.name".to_owned(), value: name.as_str().into() });
    }
    if let Some(batch) = args.batch {
        overrides.push(Override { key: "train.batch".to_owned(), value: i64::from(batch).into() });
    }
    Ok(overrides)
}

fn budget(text: &str) -> Result<Bytes, UserError> {
    let memory: Result<Memory, String> = text.parse();
    memory.map(|memory| memory.0).map_err(|problem| {
        UserError::new(
            format!("--memory \"{text}\": {problem}"),
            "give the memory of a rank, for example `--memory 24GB`",
        )
    })
}

fn check_degrees(args: &PlanArgs, config: &RunConfig) -> Result<(), UserError> {
    let group = config.parallel.tensor as u32;
    let Some(degree) = args.degrees.iter().find(|&&degree| degree == 0 || !group.is_multiple_of(degree))
    else {
        return Ok(());
    };
    let fitting: Vec<String> =
        (1..=group).filter(|one| group.is_multiple_of(*one)).map(|one| one.to_string()).collect();
    Err(UserError::new(
        format!("--degrees has {degree}, which does not divide the group of {group} ranks"),
        format!("degrees that do: {}; the group is `parallel.tensor`", fitting.join(", ")),
    ))
}

/// What is written.
struct Files {
    plan: OutputFile,
    problem: Option<OutputFile>,
    page: Option<OutputFile>,
}

impl Files {
    /// Tries all places before the work.
    fn new(args: &PlanArgs) -> Result<Files, UserError> {
        let named = args.machine.iter().chain(&args.profile).map(PathBuf::as_path);
        let inputs: Vec<&Path> = std::iter::once(args.config.path.as_path()).chain(named).collect();
        let stem = args.output.file_stem().unwrap_or("plan".as_ref());
        let default = Path::new("runs").join(stem).with_extension("html");
        let page = args.verify.map(|_| args.report.clone().unwrap_or(default));
        let outputs: Vec<&PathBuf> =
            std::iter::once(&args.output).chain(&args.dump_lp).chain(&page).collect();
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let twice = (1..outputs.len())
            .map(|index| outputs.split_at(index))
            .find(|(before, after)| before.iter().any(|path| whole(path) == whole(after[0])));
        if let Some((_, [path, ..])) = twice {
            let message = format!("two results would be written to {}", path.display());
            return Err(UserError::new(message, "give each file a name of its own"));
        }
        Ok(Files {
            plan: OutputFile::new(&args.output, "plan", &inputs)?,
            problem: args
                .dump_lp
                .as_ref()
                .map(|path| OutputFile::new(path, "problem", &inputs))
                .transpose()?,
            page: page.map(|path| OutputFile::new(&path, "report", &inputs)).transpose()?,
        })
    }

    /// The configuration with the plan in it, and the problem.
    fn write_plan(
        &self,
        args: &PlanArgs,
        overrides: &[Override],
        (setting, planned): (&Setting, &Planned),
        report: &PlanReport,
        environment: &Environment,
    ) -> anyhow::Result<()> {
        let typed = (args.config.path.as_path(), overrides);
        let config = output::planned_config(typed, self.plan.path(), setting, &planned.best, environment)?;
        let text = output::text(&config, report, &command(args));
        self.plan.write(|file| file.write_all(text.as_bytes()))?;
        if let Some(problem) = &self.problem {
            problem.write(|file| write!(file, "{}", Ilp::new(&planned.problem)))?;
        }
        Ok(())
    }
}

/// What it was planned for.
fn header(
    report: &mut PlanReport,
    config: &RunConfig,
    planner: &Planner<'_>,
    setting: &Setting,
    source: &Source,
) -> Result<(), UserError> {
    let counted = |count: u32, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    };
    let (request, model) = (&setting.request, planner.model);
    report.model = format!(
        "{} of {}, hidden {}, sequence {}; batch {} in {} of {}; schedule {}",
        config.model.family,
        counted(model.layers, "layer", "layers"),
        model.hidden,
        model.sequence,
        setting.batch(),
        counted(request.micro_batches, "micro-batch", "micro-batches"),
        counted(request.sub_batches, "sub-batch", "sub-batches"),
        setting.variant,
    );
    report.group = request.layout.group();
    report.batch = setting.batch();
    report.schedule = setting.variant.to_owned();
    report.source = source.name();
    report.machine = source.machine_words();
    report.estimates = source.estimates();
    report.link = source.link_words(config)?;
    report.budget_bytes = planner.budget.map(|budget| budget.0);
    Ok(())
}

/// What repeats the plan.
fn command(args: &PlanArgs) -> String {
    let mut words = vec!["oases plan".to_owned(), args.config.path.display().to_string()];
    words.extend(args.config.overrides.iter().map(|set| format!("--set '{}={}'", set.key, set.value)));
    let path = |path: &PathBuf| path.display().to_string();
    let list: Vec<String> = args.degrees.iter().map(u32::to_string).collect();
    let options = [
        ("--machine", args.machine.as_ref().map(path)),
        ("--profile", args.profile.as_ref().map(path)),
        ("--memory", args.memory.as_ref().map(|memory| format!("'{memory}'"))),
        ("--batch", args.batch.map(|batch| batch.to_string())),
        ("--degrees", (!list.is_empty()).then(|| list.join(","))),
        ("--schedule", args.schedule.clone()),
    ];
    words.extend(options.into_iter().filter_map(|(option, value)| Some(format!("{option} {}", value?))));
    words.extend(args.measure.then(|| "--measure".to_owned()));
    words.extend(args.search.then(|| "--search".to_owned()));
    words.join(" ")
}
