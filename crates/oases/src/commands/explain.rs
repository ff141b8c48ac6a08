//! `oases explain`: the schedule of a step, its collectives and its memory.

use super::plan_run;
use crate::args::{ExplainArgs, Format};
use crate::config;
use crate::environment::Environment;
use crate::report::Explanation;
use crate::terminal;

/// Explains.
pub fn run(args: &ExplainArgs, environment: &Environment) -> anyhow::Result<()> {
    let config = config::load(&args.config.path, &args.config.overrides, environment)?;
    let options = plan_run::options(&config, false, None);
    let request = oases_train::request(&options).map_err(plan_run::told)?;
    let workspace = plan_run::workspace(&options);
    let explanation = Explanation::new(&options.model, options.variant, &request, workspace, args.verbose);
    match args.format {
        Format::Json => terminal::print(&format!("{}\n", serde_json::to_string_pretty(&explanation)?)),
        Format::Text => terminal::print(&explanation.to_string()),
    }
}
