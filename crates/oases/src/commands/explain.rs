//! `oases explain`: the schedule of a step, its collectives and its memory.

use anyhow::bail;

use crate::args::ExplainArgs;
use crate::config;
use crate::environment::Environment;

/// Explains.
pub fn run(args: &ExplainArgs, environment: &Environment) -> anyhow::Result<()> {
    let _config = config::load(&args.config.path, &args.config.overrides, environment)?;
    bail!("explaining is not connected yet")
}
