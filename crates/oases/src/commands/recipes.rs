//! Schedules as they are named in a list: `oases`, `decomposed sub_batches=1 pieces=8`, or `oases degrees=2*3+1*4+2*3`, with
//! what differs from the configuration's `[schedule]` and its TMP degrees.

use oases_schedule::passes::VARIANTS;
use oases_schedule::{Model, Request, Schedule, Variant};

use super::plan_run;
use crate::args::ConfigArgs;
use crate::config::{self, Override, RunConfig};
use crate::environment::Environment;
use crate::error::UserError;

/// Keys that may differ from one schedule of a list to another. Micro-batches may not: schedules are compared on equal
/// batches.
const CHANGEABLE: [(&str, &str); 8] = [
    ("sub_batches", "schedule"),
    ("keep", "schedule"),
    ("pieces", "schedule"),
    ("cut", "schedule"),
    ("degrees", "parallel"),
    ("order", "parallel"),
    ("chunks", "parallel"),
    ("zero", "parallel"),
];

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
    /// Builds the schedule of each stage, under the name of the recipe.
    pub fn build(&self) -> Vec<Schedule> {
        let named = |stage| Schedule { name: self.label.clone(), ..stage };
        self.variant.build_stages(&self.request).into_iter().map(named).collect()
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
        overrides.push(overriding(change).ok_or_else(|| {
            UserError::new(
                format!("`{change}` in the schedule `{label}` is not a change of the configuration"),
                format!("write KEY=VALUE; the keys are {}", CHANGEABLE.map(|(key, _)| key).join(", ")),
            )
        })?);
    }
    let config = config::load(&args.path, &overrides, environment)?;
    Ok(Recipe { label, variant, request: request(&config)? })
}

/// `keep=input*6+all*2`: a space would end the change, so runs of blocks are joined by `+`, or by commas.
fn overriding(change: &str) -> Option<Override> {
    let (key, value) = change.split_once('=')?;
    let (_, section) = CHANGEABLE.iter().find(|(known, _)| *known == key)?;
    format!("{section}.{key}={}", value.replace(['+', ','], " ")).parse().ok()
}

/// The schedule that a configuration asks for.
pub fn request(config: &RunConfig) -> anyhow::Result<Request> {
    let options = plan_run::options(config, false, None);
    oases_train::request(&options).map_err(plan_run::told)
}

/// Tells that there is no schedule of that name.
pub fn unknown(name: &str) -> UserError {
    let known: Vec<&str> = VARIANTS.iter().map(|variant| variant.name).collect();
    UserError::new(
        format!("there is no schedule `{name}`"),
        format!("the schedules are {}; `all` means each of them", known.join(", ")),
    )
}

/// The model of a configuration, checked for its TMP degrees.
pub fn model(config: &RunConfig) -> Result<Model, UserError> {
    let model = config.model();
    for &degree in config.layout().degrees() {
        model.check(degree).map_err(|error| UserError::new(error.message, error.hint))?;
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_blocks_are_joined_in_a_recipe() {
        let change = |text: &str| overriding(text).map(|Override { key, value }| (key, value.to_string()));
        let expected = |key: &str, value: &str| Some((key.to_owned(), value.to_owned()));
        assert_eq!(change("degrees=2*3+1*4+2*3"), expected("parallel.degrees", "\"2*3 1*4 2*3\""));
        assert_eq!(change("keep=input*6,all*2"), expected("schedule.keep", "\"input*6 all*2\""));
        assert_eq!(change("degrees=2"), expected("parallel.degrees", "2"));
        assert_eq!(change("pieces=8"), expected("schedule.pieces", "8"));
        for text in ["pieces", "name=oases", "tensor=2", "micro_batches=2"] {
            assert_eq!(change(text), None, "{text}");
        }
    }
}
