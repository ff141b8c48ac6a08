//! The plan as a configuration.

use std::path::Path;

use oases_plan::planner::Candidate;

use super::planner::Setting;
use crate::config::{self, Override, RunConfig};
use crate::environment::Environment;
use crate::error::UserError;
use crate::report::plan::{PlanReport, both};

/// What differs from the configuration that was planned for.
fn changes(setting: &Setting, plan: &Candidate) -> Vec<Override> {
    let set = |key: &str, value: toml::Value| Override { key: key.to_owned(), value };
    let number = |value: u32| toml::Value::Integer(i64::from(value));
    vec![
        set("parallel.tensor", number(plan.layout.group())),
        set("parallel.degrees", plan.layout.runs().into()),
        set("schedule.name", setting.variant.into()),
        set("schedule.sub_batches", number(setting.request.sub_batches)),
        set("schedule.micro_batches", number(setting.request.micro_batches)),
        set("schedule.keep", plan.keep.to_string().into()),
    ]
}

/// The configuration with the plan in it. A folder that was named after the configuration is named after the plan.
pub fn planned_config(
    args: (&Path, &[Override]),
    output: &Path,
    setting: &Setting,
    plan: &Candidate,
    environment: &Environment,
) -> Result<RunConfig, UserError> {
    let (path, overrides) = args;
    let all = [overrides.to_vec(), changes(setting, plan)].concat();
    let mut config = config::load(path, &all, environment)?;
    let folder = |path: &Path| Path::new("runs").join(path.file_stem().unwrap_or("run".as_ref()));
    if config.run.dir == folder(path) {
        config.run.dir = folder(output);
    }
    Ok(config)
}

/// The file: what planned it in comments, then every key.
pub fn text(config: &RunConfig, report: &PlanReport, command: &str) -> String {
    let plan = &report.plan;
    // A name may hold what would end the comment.
    let command = command.replace(char::is_control, " ");
    let budget = report.budget_bytes.map_or(String::new(), |budget| format!(", of {}", both(budget)));
    let uniform = report.speedup_over_uniform.map_or("no uniform TMP degree fits".to_owned(), |speedup| {
        format!("{speedup:.3}x as fast as the best uniform TMP degree that fits")
    });
    format!(
        "# Planned by oases {} with the command\n#\n#     {command}\n#\n# Predicted step: {:.3} ms, {uniform}.\n# Memory: {} on \
         every rank{budget}.\n{}",
        env!("CARGO_PKG_VERSION"),
        plan.step_ms,
        both(plan.arena_bytes),
        config.to_toml()
    )
}
