//! Runs a plan beside other layouts, to see whether its prediction holds.

use std::sync::atomic::AtomicBool;

use oases_exec::comm::Link;
use oases_plan::planner::{Candidate, Planned, Task};
use oases_plan::{Costs, Timeline, simulate};
use oases_schedule::{Bytes, Plan, Schedule};
use oases_train::measure::Needs;
use oases_train::metrics::median;
use oases_train::trial::{Contender, Sample};

use super::super::measuring::{Comparison, Execution, Subject, lasting};
use super::super::plan_run;
use super::super::sources::told;
use super::draw;
use super::rows::uniform_name;
use crate::config::RunConfig;
use crate::error::{Failure, UserError};
use crate::progress::Counter;
use crate::report::plan::{Verification, Verified};
use crate::report::statistics::Prediction;

/// Losses of layouts of the same batch differ by the rounding of their sums only.
pub const SAME_LOSS: f64 = 2e-5;

/// The link that is emulated, if any; one rank, or instructions that only last without a link, are refused.
pub fn link(config: &RunConfig, timed: bool) -> Result<Option<Link>, UserError> {
    if config.parallel.tensor == 1 {
        let hint = "set `parallel.tensor` to 2 or more, or leave --verify out";
        return Err(UserError::new(
            "one rank has no other layout to verify with: `parallel.tensor` = 1",
            hint,
        ));
    }
    let link = plan_run::link(config);
    if timed && link.is_none() {
        return Err(UserError::new(
            "--timed tries schedules over an emulated link, and the configuration has none",
            "add a section [link], or set it: `--set link.bandwidth='10 Gbit/s'`",
        ));
    }
    Ok(link)
}

/// Layouts to run, with their names; the plan is the first.
pub struct Field {
    names: Vec<String>,
    schedules: Vec<Schedule>,
    keeps: Vec<String>,
}

impl Field {
    /// The plan, the runner-up, all uniform layouts and `count` random ones that keep what the plan keeps; of these, what
    /// fits. No layout is there twice.
    pub fn new(task: &Task<'_>, planned: &Planned, count: usize, seed: u64) -> Result<Field, UserError> {
        let mut chosen: Vec<(String, Candidate)> = vec![("plan".to_owned(), planned.best.clone())];
        let several = task.keeps.len() > 1;
        let named = planned.runner_up.iter().map(|one| ("runner-up".to_owned(), one));
        let uniform = planned.uniform.iter().map(|one| (uniform_name(one, several), one));
        for (name, candidate) in named.chain(uniform) {
            let known = |(_, other): &(String, Candidate)| {
                (&other.layout, &other.keep) == (&candidate.layout, &candidate.keep)
            };
            if candidate.fits(task) && !chosen.iter().any(known) {
                chosen.push((name, candidate.clone()));
            }
        }
        let degrees: Vec<u32> =
            task.degrees.iter().copied().filter(|&degree| task.refuses(degree).is_none()).collect();
        let blocks = Schedule::blocks(task.model.layers);
        let keep = &planned.best.keep;
        let mut random = Vec::new();
        draw::layouts(count, seed, &degrees, (task.request.layout.group(), blocks), |layout| {
            let known = chosen.iter().any(|(_, other)| other.layout == *layout && other.keep == *keep);
            let candidate = if known { None } else { Candidate::new(task, layout, keep).ok() };
            let candidate = candidate.filter(|candidate| candidate.fits(task));
            random.extend(candidate.clone());
            candidate.is_some()
        });
        chosen.extend((1..).map(|number| format!("random {number}")).zip(random));
        Ok(Field {
            schedules: chosen.iter().map(|(name, one)| named_schedule(task, name, one)).collect(),
            keeps: chosen.iter().map(|(_, one)| one.keep.to_string()).collect(),
            names: chosen.into_iter().map(|(name, _)| name).collect(),
        })
    }
}

fn named_schedule(task: &Task<'_>, name: &str, candidate: &Candidate) -> Schedule {
    Schedule { name: name.to_owned(), ..task.schedule(&candidate.layout, &candidate.keep) }
}

/// What runs, how, and how often.
pub struct Trial<'a> {
    pub field: &'a Field,
    pub subject: &'a Subject<'a>,
    pub link: Option<Link>,
    pub rounds: usize,
    pub seed: u64,
}

/// What came of running: for each layout its steps, its simulation, and its memory as planned.
struct Outcome {
    samples: Vec<Vec<Sample>>,
    predicted: Vec<Timeline>,
    planned: Vec<Bytes>,
}

impl Trial<'_> {
    /// Really runs; predictions come from steps measured in the same rounds. `None` if it was stopped before each layout had run.
    pub fn real(
        &self,
        stop: &AtomicBool,
        counter: impl Fn(usize) -> Counter,
    ) -> anyhow::Result<Option<Verification>> {
        let schedules: Vec<Vec<Schedule>> =
            self.field.schedules.iter().map(|schedule| vec![schedule.clone()]).collect();
        let comparison =
            Comparison::new(self.subject, &schedules, Needs::default(), self.rounds, Execution::Real);
        comparison.check_memory()?;
        let counter = counter(comparison.steps());
        let compared = comparison.run(self.link, stop, &|name| {
            counter.message(&format!("verifying: {name}"));
            counter.step();
        })?;
        counter.finish();
        let predicted: Option<Vec<Vec<Timeline>>> = compared.predicted.into_iter().collect();
        let Some(predicted) = predicted else { return Ok(None) };
        let predicted = predicted.into_iter().flatten().collect();
        let planned = comparison.plans().iter().flatten().map(|plan| plan.bytes).collect();
        Ok(self.verification(false, Outcome { samples: compared.samples, predicted, planned }))
    }

    /// Runs with instructions that last as long as `costs` say.
    pub fn timed(
        &self,
        costs: &dyn Costs,
        stop: &AtomicBool,
        counter: impl Fn(usize) -> Counter,
    ) -> anyhow::Result<Option<Verification>> {
        let schedules = &self.field.schedules;
        let plans: Vec<Plan> = schedules.iter().map(|schedule| self.subject.plan(schedule)).collect();
        let contender = |(schedule, plan)| {
            lasting(std::slice::from_ref(schedule), std::slice::from_ref(plan), costs, self.link)
        };
        let contenders: Vec<Contender> =
            schedules.iter().zip(&plans).map(contender).collect::<Result<_, _>>()?;
        let predict = |(schedule, plan)| simulate(schedule, plan, costs).map_err(told);
        let predicted: Vec<Timeline> = schedules.iter().zip(&plans).map(predict).collect::<Result<_, _>>()?;
        let counter = counter(contenders.len() * (self.rounds + 1));
        let samples = self.subject.run(&contenders, self.rounds, stop, &|index| {
            counter.message(&format!("verifying: {}", schedules[index].name));
            counter.step();
        })?;
        counter.finish();
        let planned = plans.iter().map(|plan| plan.bytes).collect();
        Ok(self.verification(true, Outcome { samples, predicted, planned }))
    }

    fn verification(&self, timed: bool, outcome: Outcome) -> Option<Verification> {
        let Outcome { samples, predicted, planned } = outcome;
        if samples.iter().any(Vec::is_empty) {
            return None;
        }
        let row = |index: usize| {
            let steps = samples[index].iter().map(|sample| sample.step_ns as f64 / 1e6);
            let samples = &samples[index];
            Verified {
                name: self.field.names[index].clone(),
                degrees: self.field.schedules[index].layout.runs(),
                keep: self.field.keeps[index].clone(),
                predicted_ms: predicted[index].step.milliseconds(),
                measured_ms: median(&mut steps.clone().collect::<Vec<f64>>()),
                measured_min_ms: steps.clone().fold(f64::INFINITY, f64::min),
                measured_max_ms: steps.fold(0.0, f64::max),
                loss: samples.last().map(|sample| sample.loss).filter(|_| !timed),
                planned_bytes: planned[index].0,
                used_bytes: samples.iter().map(|sample| sample.touched.0).max().unwrap_or(0),
            }
        };
        let rows: Vec<Verified> = (0..samples.len()).map(row).collect();
        let pairs: Vec<(f64, f64)> = rows.iter().map(|row| (row.measured_ms, row.predicted_ms)).collect();
        let fastest = rows.iter().map(|row| row.measured_ms).fold(f64::INFINITY, f64::min);
        Some(Verification {
            timed,
            rounds: self.rounds,
            seed: self.seed,
            link: self.link_words(),
            prediction: Prediction::of(&pairs),
            plan_behind_best: rows[0].measured_ms / fastest - 1.0,
            loss_difference: loss_difference(&rows),
            rows,
        })
    }

    fn link_words(&self) -> String {
        let Some(Link { bandwidth_bytes_per_s, latency }) = self.link else {
            return "none but shared memory".to_owned();
        };
        format!("{} Gbit/s, {} us a hop", bandwidth_bytes_per_s * 8.0 / 1e9, latency.as_secs_f64() * 1e6)
    }
}

/// The largest difference of a loss to that of the first row; what is no number is infinitely far away.
fn loss_difference(rows: &[Verified]) -> Option<f64> {
    let first = rows.first()?.loss?;
    let distance = |row: &Verified| row.loss.map(|loss| (loss - first).abs());
    let distances = rows.iter().filter_map(distance);
    distances.map(|distance| if distance.is_nan() { f64::INFINITY } else { distance }).reduce(f64::max)
}

/// Layouts of the same batch must give the same loss, and use the memory that was planned; what does not is a fault of the
/// program.
pub fn fault(verification: &Verification) -> Option<Failure> {
    let hint = "this is a fault of the program; a report should have the command and its output".to_owned();
    if let Some(difference) = verification.loss_difference.filter(|difference| *difference > SAME_LOSS) {
        return Some(Failure { message: format!("losses of layouts differ by {difference:.1e}"), hint });
    }
    let other =
        verification.rows.iter().find(|row| !verification.timed && row.used_bytes != row.planned_bytes)?;
    let message = format!(
        "`{}` used {} B of memory, planned were {}",
        other.name, other.used_bytes, other.planned_bytes
    );
    Some(Failure { message, hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verification(losses: &[f64], used_bytes: u64) -> Verification {
        let row = |&loss: &f64| Verified {
            name: "x".to_owned(),
            loss: Some(loss),
            planned_bytes: 100,
            used_bytes,
            ..Verified::default()
        };
        let rows: Vec<Verified> = losses.iter().map(row).collect();
        Verification { loss_difference: loss_difference(&rows), rows, ..Verification::default() }
    }

    #[test]
    fn other_losses_and_other_memory_are_faults() {
        assert_eq!(fault(&verification(&[5.5, 5.50001, 5.49999], 100)), None);
        let message = |losses: &[f64], used| fault(&verification(losses, used)).unwrap().message;
        assert_eq!(message(&[5.5, 5.5001], 100), "losses of layouts differ by 1.0e-4");
        assert_eq!(message(&[5.5, f64::NAN], 100), "losses of layouts differ by inf");
        assert_eq!(message(&[5.5], 96), "`x` used 96 B of memory, planned were 100");
        let timed = Verification { timed: true, ..verification(&[], 96) };
        assert_eq!(fault(&timed), None);
    }
}
