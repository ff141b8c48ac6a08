//! Schedules as they are named in a list: `oases`, or `decomposed sub_batches=1 pieces=8`, with what differs from the
//! configuration's `[schedule]`.

use oases_schedule::passes::VARIANTS;
use oases_schedule::{Model, Request, Schedule, Variant};

use super::plan_run;
use crate::args::ConfigArgs;
use crate::config::{self, Override, RunConfig};
use crate::environment::Environment;
use crate::error::UserError;

/// Keys of `[schedule]` that may differ from one schedule of a list to another. Micro-batches may not: schedules are
/// compared on equal batches.
const CHANGEABLE: [&str; 4] = ["sub_batches", "keep", "pieces", "cut"];

/// A schedule of a list, ready to be built.
#[derive(Clone)]
pub struct Recipe {
    /// As it was named, with single spaces.
    pub label: String,
    /// Which schedule.
    pub variant: &'static Variant,
    /// For what.
    pub request: Request,
}

impl Recipe {
    /// Builds the schedule, under the name of the recipe.
    pub fn build(&self) -> Schedule {
        Schedule { name: self.label.clone(), ..self.variant.build(&self.request) }
    }
}

/// The recipes of a list, each once. `all` stands for every schedule that is possible with the configuration, and may be
/// followed by changes as well.
///
/// What `all` left out because it is not possible is handed to `left_out`, each with the reason.
pub fn recipes(
    args: &ConfigArgs,
    names: &[String],
    environment: &Environment,
    left_out: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<Recipe>> {
    let mut recipes: Vec<Recipe> = Vec::new();
    for name in names {
        match name.trim().split_once(' ').unwrap_or((name.trim(), "")) {
            ("all", changes) => {
                let before = recipes.len();
                let mut impossible = Vec::new();
                for variant in VARIANTS {
                    match recipe(args, &format!("{} {changes}", variant.name), environment) {
                        Ok(recipe) => recipes.push(recipe),
                        Err(error) => impossible.push((variant.name, error)),
                    }
                }
                if recipes.len() == before {
                    return Err(impossible.swap_remove(0).1);
                }
                impossible.iter().for_each(|(name, error)| left_out(&format!("left out {name}: {error}")));
            }
            _ => recipes.push(recipe(args, name, environment)?),
        }
    }
    let mut seen: Vec<String> = Vec::new();
    recipes.retain(|recipe| {
        let new = !seen.contains(&recipe.label);
        seen.push(recipe.label.clone());
        new
    });
    Ok(recipes)
}

fn recipe(args: &ConfigArgs, name: &str, environment: &Environment) -> anyhow::Result<Recipe> {
    let words: Vec<&str> = name.split_whitespace().collect();
    let label = words.join(" ");
    let (schedule, changes) = words.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
    let variant = Variant::find(schedule).ok_or_else(|| unknown(schedule))?;
    let mut overrides = args.overrides.clone();
    overrides.push(Override { key: "schedule.name".into(), value: schedule.into() });
    for change in changes {
        let known = change.split_once('=').filter(|(key, _)| CHANGEABLE.contains(key));
        let parsed = known.and_then(|_| format!("schedule.{change}").parse().ok());
        overrides.push(parsed.ok_or_else(|| {
            UserError::new(
                format!("`{change}` in the schedule `{label}` is not a change of the configuration"),
                format!("write KEY=VALUE; the keys are {}", CHANGEABLE.join(", ")),
            )
        })?);
    }
    let config = config::load(&args.path, &overrides, environment)?;
    Ok(Recipe { label, variant, request: request(&config)? })
}

/// The schedule that a configuration asks for.
pub fn request(config: &RunConfig) -> anyhow::Result<Request> {
    let options = plan_run::options(config, false, None);
    oases_train::request(&options).map_err(plan_run::told)
}

fn unknown(name: &str) -> UserError {
    let known: Vec<&str> = VARIANTS.iter().map(|variant| variant.name).collect();
    UserError::new(
        format!("there is no schedule `{name}`"),
        format!("the schedules are {}; `all` means each of them", known.join(", ")),
    )
}

/// The model of a configuration, checked for its TMP degree.
pub fn model(config: &RunConfig) -> Result<Model, UserError> {
    let model = plan_run::model(config);
    match model.check(config.parallel.tensor as u32) {
        Ok(()) => Ok(model),
        Err(error) => Err(UserError::new(error.message, error.hint)),
    }
}
