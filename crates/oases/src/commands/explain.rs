//! `oases explain`: the schedule of a step, its collectives and its memory; in a pipeline, those of each stage.

use oases_schedule::{Request, Stage};

use super::plan_run;
use crate::args::{ExplainArgs, Format};
use crate::config;
use crate::environment::Environment;
use crate::error::UserError;
use crate::report::{Explanation, overview};
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
    let count = stages.count();
    if let Some(stage) = args.stage.filter(|stage| *stage >= count) {
        let hint = if count == 1 {
            "there is stage 0 only".to_owned()
        } else {
            format!("stages are 0 to {}", count - 1)
        };
        return Err(UserError::new(format!("there is no stage {stage}"), hint).into());
    }
    let explanations: Vec<Explanation> = (0..count).map(explain).collect();
    let shown = match args.stage {
        Some(stage) => &explanations[stage as usize..=stage as usize],
        None => &explanations[..],
    };
    match (args.format, shown) {
        (Format::Json, [one]) => terminal::print(&format!("{}\n", serde_json::to_string_pretty(one)?)),
        (Format::Json, all) => terminal::print(&format!("{}\n", serde_json::to_string_pretty(all)?)),
        (Format::Text, all) => {
            let texts: Vec<String> = all.iter().map(Explanation::to_string).collect();
            let overview = if count > 1 { format!("{}\n", overview(&explanations)) } else { String::new() };
            terminal::print(&format!("{overview}{}", texts.join("\n")))
        }
    }
}
