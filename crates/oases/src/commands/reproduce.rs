//! `oases reproduce`: the experiments of the Oases paper by simulation, beside the paper's figures.

mod closed_forms;
mod comparisons;
mod figure10;
mod figure5;
mod figure6;
mod figure7;
mod methods;
mod parameters;
mod setting;
mod simulators;
mod stages;

use clap::ValueEnum;

use crate::args::{Experiment, Format, ReproduceArgs};
use crate::report::reproduction::{self, Reproduction};
use crate::terminal;
use simulators::Simulators;

/// Predicts and prints.
pub fn run(args: &ReproduceArgs) -> anyhow::Result<()> {
    let reproduction = reproduce(&args.experiments)?;
    match args.format {
        Format::Json => terminal::print(&format!("{}\n", serde_json::to_string_pretty(&reproduction)?)),
        Format::Text => terminal::print(&reproduction.to_string()),
    }
}

/// The experiments that are asked for, or all, in the order of the paper.
fn reproduce(asked: &[Experiment]) -> anyhow::Result<Reproduction> {
    let mut simulators = Simulators::new()?;
    let parameters = parameters::parameters(&simulators);
    let wanted = Experiment::value_variants().iter().filter(|one| asked.is_empty() || asked.contains(one));
    let experiments = wanted.map(|one| experiment(*one, &mut simulators)).collect::<anyhow::Result<_>>()?;
    Ok(Reproduction { parameters, experiments })
}

fn experiment(which: Experiment, simulators: &mut Simulators) -> anyhow::Result<reproduction::Experiment> {
    match which {
        Experiment::Figure5 => figure5::experiment(),
        Experiment::Figure6 => figure6::experiment(simulators),
        Experiment::Figure7 => figure7::experiment(simulators),
        Experiment::Figure10 => figure10::experiment(simulators),
        Experiment::Utilisation => comparisons::utilisation(simulators),
        Experiment::Ablation => comparisons::ablation(simulators),
        Experiment::Selective => comparisons::selective(simulators),
        Experiment::V100 => comparisons::v100(simulators),
    }
}
