//! What was measured and predicted, as rows.

use oases_exec::comm::Link;
use oases_plan::Timeline;
use oases_schedule::{Keep, Keeps, Layout, Optimizer, Plan, Schedule, Stages};
use oases_train::metrics::median;
use oases_train::trial::Sample;

use super::super::recipes::Recipe;
use crate::report::MeasuredStep;
use crate::report::bench::{BASELINE, BenchReport, Row};

/// One schedule on one link.
pub struct Cell<'a> {
    /// By stage, as all that follows.
    pub stages: &'a [Schedule],
    pub samples: &'a [Sample],
    pub plans: &'a [Plan],
    pub predicted: Option<&'a [Timeline]>,
    pub link: Link,
}

impl Cell<'_> {
    fn median_ms(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(&mut self.samples.iter().map(of).collect::<Vec<_>>()) / 1e6
    }

    pub fn step_ms(&self) -> f64 {
        self.median_ms(|sample| sample.step_ns as f64)
    }

    pub fn name(&self) -> &str {
        &self.stages[0].name
    }

    /// Time in which a rank computes: the mean over the ranks of the stage that computes longest.
    fn compute_ms(&self) -> f64 {
        let of_rank = |(schedule, timings): (&Schedule, &[oases_exec::Timing])| -> f64 {
            let pairs = schedule.instructions.iter().zip(timings);
            let computes = pairs.filter(|(instruction, _)| instruction.operation().is_some());
            computes.map(|(_, timing)| timing.duration_ns() as f64).sum()
        };
        self.median_ms(|sample| {
            let ranks: Vec<f64> = sample.on_stages(self.stages).map(of_rank).collect();
            let group = ranks.len() / self.stages.len();
            let stages = ranks.chunks(group).map(|stage| stage.iter().sum::<f64>() / group as f64);
            stages.fold(0.0, f64::max)
        })
    }

    /// A step of all ranks.
    pub fn measured<'a>(&'a self, sample: &'a Sample) -> MeasuredStep<'a> {
        let stages = self.stages.iter().zip(self.plans).collect();
        MeasuredStep { stages, link: Some(self.link), timings: &sample.timings }
    }

    /// Time in which the link of a rank is occupied, on the stage where it is for longest.
    fn communication_ms(&self) -> f64 {
        let step = self.measured(&self.samples[0]);
        let occupied_ns = (0..self.stages.len()).map(|stage| step.occupied_ns(stage));
        occupied_ns.max().unwrap_or(0) as f64 / 1e6
    }

    /// A step lasts until its last stage ends.
    fn predicted_ms(&self) -> Option<f64> {
        let steps = self.predicted?.iter().map(|timeline| timeline.step.milliseconds());
        Some(steps.fold(0.0, f64::max))
    }

    fn predicted_exposed_ms(&self) -> Option<f64> {
        let exposed = self.predicted?.iter().map(|timeline| timeline.exposed.milliseconds());
        Some(exposed.sum::<f64>() / self.stages.len() as f64)
    }

    fn arena_bytes(&self) -> u64 {
        self.plans.iter().map(|plan| plan.bytes.0).max().unwrap_or(0)
    }
}

/// What decides on the work of a stage: what forwards keep, the TMP degrees, the cut of the chain, and who updates what.
type Work<'a> = (Keeps, &'a Layout, &'a Stages, Optimizer);

/// Schedules that agree in this have the same work to do.
fn work_of(recipe: &Recipe) -> Work<'_> {
    let keeps = match (recipe.variant.keeps_always(), &recipe.request.keep) {
        (Some(always), _) => Keeps::Same(always),
        (None, Keeps::AsScheduled) => Keeps::Same(Keep::Input),
        (None, asked) => asked.clone(),
    };
    let request = &recipe.request;
    (keeps, &request.layout, &request.stage.stages, request.optimizer)
}

/// The rows of one link.
pub fn rows(cells: &[Cell<'_>], recipes: &[Recipe], label: &str, comm_ratio: Option<f64>) -> Vec<Row> {
    let recipe = |cell: &Cell<'_>| recipes.iter().find(|recipe| recipe.label == cell.name());
    let kinds: Vec<Option<Work<'_>>> = cells.iter().map(|cell| recipe(cell).map(work_of)).collect();
    let baseline = cells.iter().find(|cell| cell.name().split(' ').next() == Some(BASELINE));
    let work: Vec<[f64; 2]> = cells.iter().map(|cell| [cell.compute_ms(), cell.communication_ms()]).collect();
    let least = |kind: &Option<Work<'_>>, stream: usize| {
        let alike = work.iter().zip(&kinds).filter(|(_, other)| *other == kind);
        alike.map(|(work, _)| work[stream]).fold(f64::INFINITY, f64::min)
    };
    let row = |(cell, kind): (&Cell<'_>, &Option<Work<'_>>)| {
        let step_ms = cell.step_ms();
        let steps = cell.samples.iter().map(|sample| sample.step_ns as f64 / 1e6);
        let bound_ms = least(kind, 0).max(least(kind, 1));
        let predicted_step_ms = cell.predicted_ms();
        Row {
            schedule: cell.name().to_owned(),
            comm_ratio,
            link: label.to_owned(),
            step_ms,
            step_min_ms: steps.clone().fold(f64::INFINITY, f64::min),
            step_max_ms: steps.fold(0.0, f64::max),
            predicted_step_ms,
            speedup: baseline.map(|baseline| baseline.step_ms() / step_ms),
            predicted_speedup: baseline
                .and_then(Cell::predicted_ms)
                .zip(predicted_step_ms)
                .map(|(of, own)| of / own),
            bound_ms: Some(bound_ms),
            bound_ratio: Some(step_ms / bound_ms),
            exposed_comm_ms: cell.median_ms(|sample| sample.exposed_ns(cell.stages)),
            predicted_exposed_comm_ms: cell.predicted_exposed_ms(),
            utilisation: cell.compute_ms() / step_ms,
            arena_bytes: cell.arena_bytes(),
            loss: cell.samples.last().map_or(f64::NAN, |sample| sample.loss),
            rounds: cell.samples.len(),
        }
    };
    cells.iter().zip(&kinds).map(row).collect()
}

/// By how much losses may differ where sums are taken in another order.
const ROUNDING: f64 = 2e-5;

/// Schedules that do not give the same loss: to the bit where sub-batches and TMP degrees are equal, but for rounding where
/// they are not.
pub fn disagreement(recipes: &[Recipe], rows: &[Row]) -> Option<String> {
    let sums = |row: &Row| {
        let recipe = recipes.iter().find(|recipe| recipe.label == row.schedule);
        recipe.map(|recipe| (recipe.request.sub_batches, &recipe.request.layout))
    };
    let agree = |row: &Row, other: &Row| {
        row.loss.to_bits() == other.loss.to_bits()
            || sums(row) != sums(other) && (row.loss - other.loss).abs() <= ROUNDING
    };
    rows.iter().enumerate().find_map(|(index, row)| {
        let other = rows[..index].iter().find(|other| !agree(row, other))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::{Request, Variant};

    fn recipe(label: &str, degrees: [u32; 4], sub_batches: u32) -> Recipe {
        let request =
            Request { layout: Layout::new(2, degrees.to_vec()), sub_batches, ..Request::new(1, 2, 4) };
        Recipe { label: label.to_owned(), variant: Variant::find("oases").unwrap(), request }
    }

    fn row(label: &str, loss: f64) -> Row {
        Row { schedule: label.to_owned(), loss, ..Row::default() }
    }

    #[test]
    fn losses_agree_to_the_bit_or_but_for_rounding() {
        let recipes = [
            recipe("uniform", [2; 4], 2),
            recipe("again", [2; 4], 2),
            recipe("mixed", [2, 1, 1, 2], 2),
            recipe("whole", [2; 4], 1),
        ];
        let first = row("uniform", 5.0);
        let found = |other: Row| disagreement(&recipes, &[first.clone(), other]);
        assert_eq!(found(row("again", 5.0)), None);
        assert_eq!(
            found(row("again", 5.000_001)).as_deref(),
            Some("uniform and again give the losses 5 and 5.000001")
        );
        for label in ["mixed", "whole"] {
            assert_eq!(found(row(label, 5.000_019)), None, "{label}");
            assert!(found(row(label, 5.000_021)).is_some(), "{label}");
            assert!(found(row(label, f64::NAN)).is_some(), "{label}");
        }
        // Where nothing is computed there is no loss, whatever stands in its place.
        assert_eq!(disagreement(&recipes, &[row("uniform", 0.0), row("mixed", 0.0)]), None);
    }

    #[test]
    fn only_what_keeps_the_same_at_the_same_degrees_has_the_same_work() {
        let kept = |label: &str, keep: Keeps| {
            let mut recipe = recipe(label, [2; 4], 2);
            recipe.request.keep = keep;
            recipe
        };
        let (usual, mixed) = (kept("a", Keeps::AsScheduled), recipe("b", [2, 1, 1, 2], 2));
        assert_eq!(work_of(&usual), work_of(&kept("c", Keeps::Same(Keep::Input))));
        assert_ne!(work_of(&usual), work_of(&kept("d", Keeps::Blocks(vec![Keep::Input, Keep::All]))));
        assert_ne!(work_of(&usual), work_of(&mixed));
        let always = Recipe { variant: Variant::find("domino").unwrap(), ..usual };
        assert_eq!(work_of(&always), work_of(&kept("e", Keeps::Same(Keep::All))));
    }
}
