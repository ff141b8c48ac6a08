//! The folder of a run or of an import, as commands open it that use its model.

use std::path::Path;

use oases_train::checkpoint::{Checkpoint, Checkpoints};
use oases_train::run_dir::RunPaths;

use super::plan_run;
use crate::config::{self, FolderModel};
use crate::environment::Environment;
use crate::error::UserError;
use crate::terminal::Terminal;

/// What a folder says of its model, and the newest checkpoint.
pub fn open(
    run: &Path,
    environment: &Environment,
    terminal: &Terminal,
) -> anyhow::Result<(FolderModel, Checkpoint)> {
    if !run.join("config.toml").is_file() {
        return Err(UserError::new(
            format!("{} is not the folder of a run: it has no config.toml", run.display()),
            "give the folder that `oases train` or `oases import` wrote, such as runs/quickstart",
        )
        .into());
    }
    let paths = RunPaths::new(run);
    let folder = config::load_model(&paths.config(), environment)?;
    let model = folder.model.model();
    model.check(1).map_err(|error| UserError::new(error.message.clone(), error.hint.clone()))?;
    let latest = Checkpoints::view(paths.checkpoints()).latest().map_err(plan_run::told)?;
    let Some(latest) = latest else {
        return Err(UserError::new(
            format!("{} has no checkpoint yet", run.display()),
            "train until the first checkpoint; train.checkpoint_every says when that is",
        )
        .into());
    };
    for reason in &latest.passed_over {
        terminal.line(&format!("passed over a newer checkpoint: {reason}"));
    }
    Ok((folder, latest.checkpoint))
}
