//! `oases generate`: continues a text from a run's newest checkpoint.

use anyhow::bail;

use crate::args::GenerateArgs;
use crate::config;
use crate::environment::Environment;
use crate::error::UserError;

/// Generates.
pub fn run(args: &GenerateArgs, environment: &Environment) -> anyhow::Result<()> {
    check(args)?;
    let _config = config::load(&args.run.join("config.toml"), &[], environment)?;
    bail!("generating is not connected yet")
}

/// What can be checked before anything is opened, and that there is a run.
fn check(args: &GenerateArgs) -> Result<(), UserError> {
    if args.prompt.is_empty() {
        return Err(UserError::new("the prompt is empty", "give at least one character to continue"));
    }
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        return Err(UserError::new(
            format!("`--temperature` must be a number of at least 0, not {}", args.temperature),
            "0 always takes the likeliest token, 1 follows the model's probabilities",
        ));
    }
    if args.top_k == Some(0) {
        return Err(UserError::new(
            "`--top-k` must be at least 1",
            "leave it out to choose among all tokens",
        ));
    }
    if !args.run.join("config.toml").is_file() {
        return Err(UserError::new(
            format!("{} is not the folder of a run: it has no config.toml", args.run.display()),
            "give the folder that `oases train` wrote, such as runs/quickstart",
        ));
    }
    Ok(())
}
