//! What was measured and predicted, as rows.

use oases_exec::comm::Link;
use oases_plan::Timeline;
use oases_schedule::{Keep, Plan, Schedule};
use oases_train::metrics::median;
use oases_train::trial::Sample;

use super::super::recipes::Recipe;
use crate::report::MeasuredStep;
use crate::report::bench::{BASELINE, BenchReport, Row};

/// One schedule on one link.
pub struct Cell<'a> {
    pub schedule: &'a Schedule,
    pub samples: &'a [Sample],
    pub plan: Plan,
    pub predicted: Option<Timeline>,
    pub link: Link,
}

impl Cell<'_> {
    fn median_ms(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(&mut self.samples.iter().map(of).collect::<Vec<_>>()) / 1e6
    }

    pub fn step_ms(&self) -> f64 {
        self.median_ms(|sample| sample.step_ns as f64)
    }

    /// Time in which a rank computes, the mean over the ranks.
    fn compute_ms(&self) -> f64 {
        let of_rank = |timings: &Vec<oases_exec::Timing>| -> f64 {
            let pairs = self.schedule.instructions.iter().zip(timings);
            let computes = pairs.filter(|(instruction, _)| instruction.operation().is_some());
            computes.map(|(_, timing)| timing.duration_ns() as f64).sum()
        };
        self.median_ms(|sample| sample.timings.iter().map(of_rank).sum::<f64>() / sample.timings.len() as f64)
    }

    /// A step of all ranks.
    pub fn measured<'a>(&'a self, sample: &'a Sample) -> MeasuredStep<'a> {
        let (plan, timings) = (&self.plan, &sample.timings[..]);
        MeasuredStep { schedule: self.schedule, plan, link: Some(self.link), timings }
    }

    /// Time in which the link is occupied.
    fn communication_ms(&self) -> f64 {
        let step = self.measured(&self.samples[0]);
        let instructions = 0..self.schedule.instructions.len();
        instructions.filter_map(|index| step.duration_ns(index)).sum::<u64>() as f64 / 1e6
    }
}

/// What a recipe's forwards keep: schedules that keep the same have the same work to do.
fn kept(recipe: &Recipe) -> Keep {
    recipe.variant.keeps_always().or(recipe.request.keep.kinds().first().copied()).unwrap_or(Keep::Input)
}

/// The rows of one link.
pub fn rows(cells: &[Cell<'_>], recipes: &[Recipe], label: &str, comm_ratio: Option<f64>) -> Vec<Row> {
    let keeps: Vec<Keep> = cells
        .iter()
        .map(|cell| {
            recipes.iter().find(|recipe| recipe.label == cell.schedule.name).map_or(Keep::Input, kept)
        })
        .collect();
    let baseline = cells.iter().find(|cell| cell.schedule.name.split(' ').next() == Some(BASELINE));
    let predicted_ms =
        |cell: &Cell<'_>| cell.predicted.as_ref().map(|predicted| predicted.step.milliseconds());
    let work: Vec<[f64; 2]> = cells.iter().map(|cell| [cell.compute_ms(), cell.communication_ms()]).collect();
    let least = |keep: Keep, stream: usize| {
        let alike = work.iter().zip(&keeps).filter(|(_, kept)| **kept == keep);
        alike.map(|(work, _)| work[stream]).fold(f64::INFINITY, f64::min)
    };
    let row = |(cell, &keep): (&Cell<'_>, &Keep)| {
        let step_ms = cell.step_ms();
        let steps = cell.samples.iter().map(|sample| sample.step_ns as f64 / 1e6);
        let bound_ms = least(keep, 0).max(least(keep, 1));
        let predicted_step_ms = predicted_ms(cell);
        Row {
            schedule: cell.schedule.name.clone(),
            comm_ratio,
            link: label.to_owned(),
            step_ms,
            step_min_ms: steps.clone().fold(f64::INFINITY, f64::min),
            step_max_ms: steps.fold(0.0, f64::max),
            predicted_step_ms,
            speedup: baseline.map(|baseline| baseline.step_ms() / step_ms),
            predicted_speedup: baseline
                .and_then(predicted_ms)
                .zip(predicted_step_ms)
                .map(|(of, own)| of / own),
            bound_ms: Some(bound_ms),
            bound_ratio: Some(step_ms / bound_ms),
            exposed_comm_ms: cell.median_ms(|sample| sample.exposed_ns(cell.schedule)),
            predicted_exposed_comm_ms: cell
                .predicted
                .as_ref()
                .map(|predicted| predicted.exposed.milliseconds()),
            utilisation: cell.compute_ms() / step_ms,
            arena_bytes: cell.plan.bytes.0,
            loss: cell.samples.last().map_or(f64::NAN, |sample| sample.loss),
            rounds: cell.samples.len(),
        }
    };
    cells.iter().zip(&keeps).map(row).collect()
}

/// Schedules with equal sub-batches that do not give the same loss, to the bit.
pub fn disagreement(recipes: &[Recipe], rows: &[Row]) -> Option<String> {
    let sub_batches = |row: &Row| {
        recipes.iter().find(|recipe| recipe.label == row.schedule).map(|recipe| recipe.request.sub_batches)
    };
    rows.iter().enumerate().find_map(|(index, row)| {
        let other = rows[..index].iter().find(|other| {
            sub_batches(other) == sub_batches(row) && other.loss.to_bits() != row.loss.to_bits()
        })?;
        Some(format!(
            "{} and {} give the losses {} and {}",
            other.schedule, row.schedule, other.loss, row.loss
        ))
    })
}

/// The share of a step by which more communication may be exposed than predicted before it is told.
const TOLERATED: f64 = 0.15;

/// Rows whose overlap was predicted and did not happen.
pub fn not_overlapped(report: &BenchReport) -> Vec<String> {
    let line = |row: &Row| {
        let predicted = row.predicted_exposed_comm_ms?;
        let beyond = row.exposed_comm_ms - predicted;
        (beyond > TOLERATED * row.step_ms).then(|| {
            format!(
                "{} over {}: {:.1} ms of communication are exposed where {predicted:.1} ms were predicted",
                row.schedule, row.link, row.exposed_comm_ms
            )
        })
    };
    report.rows.iter().filter_map(line).collect()
}
