//! From a resolved configuration to the values that the libraries take.

use oases_exec::CpuBackend;
use oases_exec::comm::Link;
use oases_schedule::{Cut, Variant, Workspace};
use oases_train::{DataOptions, Fault, OptimizerOptions, Options};

use crate::config::{DataConfig, RunConfig};
use crate::error::{Failure, UserError};

/// Refuses a configuration with several pipeline stages, for a command that runs one.
pub fn one_stage(config: &RunConfig, command: &str) -> Result<(), UserError> {
    match config.parallel.pipeline {
        1 => Ok(()),
        pipeline => Err(UserError::new(
            format!("`oases {command}` runs no pipeline yet, and `parallel.pipeline` = {pipeline}"),
            "set `parallel.pipeline` to 1; `oases simulate` predicts pipelines",
        )),
    }
}

/// What the CPU's kernels want as workspace. Only for a model that has been checked.
pub fn workspace(options: &Options) -> Workspace {
    CpuBackend::workspace(&options.model)
}

/// The link of a configuration.
pub fn link(config: &RunConfig) -> Option<Link> {
    config.link.as_ref().map(|link| Link {
        bandwidth_bytes_per_s: link.bandwidth.bytes_per_second(),
        latency: link.latency.duration(),
    })
}

/// The data of a configuration.
pub fn data(config: &RunConfig) -> DataOptions {
    let DataConfig { text, tokenizer, field, files, weights, validation } = config.data.clone();
    DataOptions { text, tokenizer, field, files, weights, validation }
}

/// The run of a configuration.
pub fn options(config: &RunConfig, resume: bool, fault: Option<Fault>) -> Options {
    let (train, schedule) = (&config.train, &config.schedule);
    Options {
        model: config.model(),
        layout: config.layout(),
        stages: config.stages(),
        order: config.parallel.order(),
        moments: config.parallel.optimizer(),
        variant: Variant::find(&schedule.name).expect("the configuration's rules know every schedule"),
        sub_batches: schedule.sub_batches as u32,
        keep: config.keeps(),
        pieces: schedule.pieces as u8,
        cut: if schedule.cut == "columns" { Cut::Columns } else { Cut::Rows },
        micro_batches: schedule.micro_batches as u32,
        batch: train.batch as u32,
        data: data(config),
        mask_rate: train.mask_rate,
        init_from: train.init_from.clone(),
        freeze: train.freeze.clone(),
        link: link(config),
        optimizer: OptimizerOptions {
            learning_rate: train.learning_rate,
            warmup: train.warmup,
            final_share: train.final_learning_rate,
            beta1: train.beta1,
            beta2: train.beta2,
            epsilon: train.epsilon,
            weight_decay: train.weight_decay,
            clip: train.clip,
        },
        steps: train.steps,
        seed: train.seed,
        eval_every: train.eval_every,
        checkpoint_every: train.checkpoint_every,
        check_every: config.run.check_every,
        keep_checkpoints: train.keep_checkpoints,
        timeout: config.run.timeout(),
        dir: config.run.dir.clone(),
        config: config.to_toml(),
        resume,
        trace: false,
        fault,
    }
}

/// Tells a training error to the user as what it is: something to mend, or a failure.
pub fn told(error: oases_train::Error) -> anyhow::Error {
    let message = error.to_string();
    match error.hint().map(str::to_owned) {
        hint if error.is_to_mend() => {
            let hint = hint.unwrap_or_else(|| "`oases train --help` describes all keys".to_owned());
            UserError::new(message, hint).into()
        }
        Some(hint) => Failure { message, hint }.into(),
        None => error.into(),
    }
}
