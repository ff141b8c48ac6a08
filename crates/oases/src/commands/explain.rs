//! `oases explain`: the schedule of a step, its collectives and its memory; in a pipeline, those of each stage.

use oases_schedule::{Request, Stage};

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
    let stages = &request.stage.stages;
    let explain = |index| {
        let request = Request { stage: Stage { stages: stages.clone(), index }, ..request.clone() };
        Explanation::new(&options.model, options.variant, &request, workspace, args.verbose)
    };
    let explanations: Vec<Explanation> = (0..stages.count()).map(explain).collect();
    match (args.format, explanations.as_slice()) {
        (Format::Json, [one]) => terminal::print(&format!("{}\n", serde_json::to_string_pretty(one)?)),
        (Format::Json, all) => terminal::print(&format!("{}\n", serde_json::to_string_pretty(all)?)),
        (Format::Text, all) => {
            let texts: Vec<String> = all.iter().map(Explanation::to_string).collect();
            terminal::print(&texts.join("\n"))
        }
    }
}
