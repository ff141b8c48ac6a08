//! What `oases plan` shows: the TMP degree of every block, what it was chosen over, why it is the best, and what came of
//! running it; as text, as JSON and as a page.

mod html;
mod text;

#[cfg(test)]
mod tests;

use oases_schedule::{BlockId, Keeps, Layout};
use serde::Serialize;

use super::memory::MemoryKind;
use super::statistics::Prediction;
pub use text::{both, degrees, shortened};

/// A plan.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlanReport {
    /// The model and how its step is cut, in words.
    pub model: String,
    /// Ranks of the group.
    pub group: u32,
    /// Sequences of a step.
    pub batch: u32,
    /// Its schedule.
    pub schedule: String,
    /// Where durations come from: `machine`, `profile`, `table` or `measured`.
    pub source: &'static str,
    /// The machine.
    pub machine: String,
    /// Figures of the machine that are estimates.
    pub estimates: Vec<String>,
    /// The link between the ranks, in words.
    pub link: String,
    /// What a rank may need.
    pub budget_bytes: Option<u64>,
    /// The plan.
    pub plan: Row,
    /// Its blocks, neighbours that run alike together.
    pub runs: Vec<Run>,
    /// The solver's next best.
    pub runner_up: Option<Row>,
    /// What a planner chooses that counts every collective in full, by the same schedule.
    pub alpa: Option<Row>,
    /// All blocks alike, each way that is possible.
    pub uniform: Vec<Row>,
    /// Degrees that are not.
    pub refused: Vec<RefusedDegree>,
    /// How many times as fast the plan is as the best uniform degree that fits.
    pub speedup_over_uniform: Option<f64>,
    /// How many times as fast it is as the choice that counts every collective in full.
    pub speedup_over_alpa: Option<f64>,
    /// What fills a rank's memory.
    pub memory: Vec<MemoryKind>,
    /// Why nothing is better.
    pub proof: Proof,
    /// What a reader should know besides, each a sentence.
    pub remarks: Vec<String>,
    /// The wider search that the plan came from, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// What came of running it beside others, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
}

/// A layout, simulated.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// What it is: `plan`, `degree 4`.
    pub name: String,
    /// The degrees of all blocks: `8*16 4*10`.
    pub degrees: String,
    /// What its blocks keep: `schedule`, `input*6 all*2`.
    pub keep: String,
    /// The step.
    pub step_ms: f64,
    /// Of it, time in which a rank waits for collectives.
    pub exposed_comm_ms: f64,
    /// Bytes of one rank's arena.
    pub arena_bytes: u64,
    /// Whether that is within the budget.
    pub fits: bool,
}

/// Neighbouring blocks that run alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The first block: `attn.0`.
    pub first: String,
    /// The last.
    pub last: String,
    /// How many there are.
    pub blocks: usize,
    /// Their degree.
    pub degree: u32,
    /// What they keep, where that is chosen by block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<&'static str>,
}

impl Run {
    /// The runs of a layout for so many layers.
    pub fn of(layout: &Layout, keeps: &Keeps, layers: u32) -> Vec<Run> {
        let by_block = matches!(keeps, Keeps::Blocks(_));
        let mut runs: Vec<Run> = Vec::new();
        for (block, &degree) in chain(layers).zip(layout.degrees()) {
            let keep = keeps.of(block).filter(|_| by_block).map(|keep| keep.name());
            let name = block.to_string();
            match runs.last_mut().filter(|run| (run.degree, run.keep) == (degree, keep)) {
                Some(run) => {
                    run.last = name;
                    run.blocks += 1;
                }
                None => runs.push(Run { first: name.clone(), last: name, blocks: 1, degree, keep }),
            }
        }
        runs
    }
}

fn chain(layers: u32) -> impl Iterator<Item = BlockId> {
    let layers = (0..layers).flat_map(|layer| [BlockId::Attn(layer), BlockId::Mlp(layer)]);
    std::iter::once(BlockId::Embed).chain(layers).chain(std::iter::once(BlockId::Head))
}

/// A degree that cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedDegree {
    /// The degree.
    pub degree: u32,
    /// Why.
    pub reason: String,
}

/// Why nothing is better.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Proof {
    /// The solver.
    pub solver: &'static str,
    /// The plan's objective: the sum over blocks and their borders.
    pub objective_ms: f64,
    /// No layout within the budget has a lower one.
    pub bound_ms: f64,
    /// Whether the two are the same, and the runner-up is the best of all others.
    pub optimal: bool,
    /// By how much the runner-up's objective is higher.
    pub margin_ms: Option<f64>,
    /// Beginnings of layouts that were extended, or nodes of a tree of branch and bound.
    pub explored: u64,
    /// Beginnings that were given up, for they could only end above the bounds or were dominated.
    pub cut_off: u64,
    /// How often the solver was asked, with a budget lowered each time to what the arena needs besides.
    pub rounds: u32,
    /// How long planning took: problem, solver, schedules, simulation.
    pub planning_ms: f64,
}

/// The best of several schedules, micro-batches, sub-batches, each with a plan of its own.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Search {
    /// Combinations that have a plan.
    pub planned: usize,
    /// Combinations of which nothing fits.
    pub too_large: usize,
    /// Combinations that are not possible, or of a size without known costs.
    pub impossible: usize,
    /// The best, fastest first; the first is the plan.
    pub best: Vec<Found>,
}

/// A combination and its plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The schedule.
    pub schedule: String,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Sub-batches of a micro-batch.
    pub sub_batches: u32,
    /// Its plan.
    #[serde(flatten)]
    pub row: Row,
    /// What it does otherwise than the first, and what comes of that, in a few words.
    pub reason: String,
}

/// Layouts that have been run, predicted beside measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verification {
    /// Whether nothing was computed: instructions lasted as long as their costs.
    pub timed: bool,
    /// How often each ran.
    pub rounds: usize,
    /// The seed of the random layouts.
    pub seed: u64,
    /// The link that was emulated, in words.
    pub link: String,
    /// The layouts, the plan first.
    pub rows: Vec<Verified>,
    /// How well the predictions foretold the measured steps.
    pub prediction: Option<Prediction>,
    /// By how much the plan is slower than the fastest measured, as a share of that.
    pub plan_behind_best: f64,
    /// The largest difference of a loss to the plan's; none where nothing was computed.
    pub loss_difference: Option<f64>,
}

/// A layout that has been run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verified {
    /// What it is: `plan`, `degree 4`, `random 3`.
    pub name: String,
    /// The degrees of all blocks: `8*16 4*10`.
    pub degrees: String,
    /// What its blocks keep.
    pub keep: String,
    /// The simulated step.
    pub predicted_ms: f64,
    /// The measured step: the median over the rounds.
    pub measured_ms: f64,
    /// The shortest step.
    pub measured_min_ms: f64,
    /// The longest step.
    pub measured_max_ms: f64,
    /// Mean loss; none where nothing was computed.
    pub loss: Option<f64>,
    /// Bytes of a rank's arena, as planned.
    pub planned_bytes: u64,
    /// The highest byte that a step touched, plus one.
    pub used_bytes: u64,
}

impl PlanReport {
    /// The report as programs read it.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// What was verified as one page that needs no other file; none without a verification.
    pub fn to_html(&self) -> Option<String> {
        self.verification.as_ref().map(|verification| html::page(self, verification))
    }
}
