//! `oases generate`: continues a text from a run's newest checkpoint.

use std::io::Write;

use oases_exec::CpuBackend;
use oases_train::Generator;
use oases_train::checkpoint::Checkpoints;
use oases_train::run_dir::RunPaths;
use oases_train::sampling::{Sampler, Sampling};

use super::plan_run;
use crate::args::GenerateArgs;
use crate::config;
use crate::environment::Environment;
use crate::error::{OutputClosed, UserError};
use crate::terminal::Terminal;

/// Generates. The text goes to standard output as it comes, byte by byte: a byte-level model can stop inside a character.
pub fn run(args: &GenerateArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    check(args)?;
    let paths = RunPaths::new(&args.run);
    let config = config::load(&paths.config(), &[], environment)?;
    let model = config.model();
    model.check(1).map_err(|error| UserError::new(error.message.clone(), error.hint.clone()))?;
    let latest = Checkpoints::view(paths.checkpoints()).latest().map_err(plan_run::told)?;
    let Some(latest) = latest else {
        return Err(UserError::new(
            format!("{} has no checkpoint yet", args.run.display()),
            "train until the first checkpoint; train.checkpoint_every says when that is",
        )
        .into());
    };
    for reason in &latest.passed_over {
        terminal.line(&format!("passed over a newer checkpoint: {reason}"));
    }
    let workspace = CpuBackend::workspace(&model);
    let mut generator = Generator::load(&model, &latest.checkpoint, workspace).map_err(plan_run::told)?;
    let sampling =
        Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed };
    let mut sampler = Sampler::new(sampling).map_err(plan_run::told)?;

    let mut tokens: Vec<u32> = args.prompt.bytes().map(u32::from).collect();
    let mut logits = Vec::new();
    write(args.prompt.as_bytes())?;
    for _ in 0..args.tokens {
        generator.logits(&tokens, &mut logits).map_err(plan_run::told)?;
        // Tokens past 255 are no bytes; the model has them only if the vocabulary was set larger.
        logits.truncate(256);
        let token = sampler.choose(&logits).map_err(plan_run::told)?;
        tokens.push(token);
        write(&[token as u8])?;
    }
    write(b"\n")
}

fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        outcome => Ok(outcome?),
    }
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
    if !(args.top_p > 0.0 && args.top_p <= 1.0) {
        return Err(UserError::new(
            format!("`--top-p` must be above 0 and at most 1, not {}", args.top_p),
            "0.9 leaves the unlikely tail out, 1 chooses among all tokens",
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
