//! From schedules to measured steps, from those to a profile, and from that to predictions, for whoever measures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oases_exec::CpuBackend;
use oases_exec::comm::Link;
use oases_plan::{
    Costs, FORMAT, MeasuredCollective, MeasuredCompute, MeasuredLink, Origin, Profile, ProfileCosts, Ring,
    Shape, Timeline, durations, simulate_stages,
};
use oases_schedule::{
    Bytes, Extent, Family, Layout, Model, Operation, Plan, Purpose, Schedule, Statics, plan,
};
use oases_train::measure::{self, ComputeKey, Measurement, Needs};
use oases_train::trial::{Contender, Sample, Trial};

use super::plan_run;
use super::sources::{Source, told};
use crate::doctor;
use crate::error::UserError;

/// The backend that is measured.
pub const BACKEND: &str = "cpu";

/// What is measured, and with how many ranks.
pub struct Subject<'a> {
    /// The kind of transformer, as configurations call it.
    pub family: &'a str,
    /// The model.
    pub model: &'a Model,
    /// Ranks of a pipeline stage, which run at once.
    pub ranks: u32,
}

impl Subject<'_> {
    /// Steps that together hold all that is needed.
    pub fn references(&self, needs: &Needs, link: Option<Link>) -> Vec<Contender> {
        measure::references(needs, self.ranks, self.model, link)
    }

    /// The memory plan of a schedule.
    pub fn plan(&self, schedule: &Schedule) -> Plan {
        let statics = Statics::of(self.model, schedule, Purpose::Training, schedule.batch());
        plan(schedule, &statics, CpuBackend::workspace(self.model))
    }

    /// All ranks hold the largest arena that they have in these schedules, given by their stages, at once; which must fit.
    pub fn check_memory<'a>(&self, schedules: impl Iterator<Item = &'a [Schedule]>) -> Result<(), UserError> {
        let arena = |stages: &[Schedule]| stages.iter().map(|stage| self.plan(stage).bytes).max();
        let largest = schedules.map(|stages| (arena(stages).unwrap_or_default(), stages)).max_by_key(|l| l.0);
        let (Some((arena, stages)), Some(available)) = (largest, doctor::available_memory()) else {
            return Ok(());
        };
        let ranks = u64::from(self.ranks) * stages.len() as u64;
        let needed = Bytes(arena.0.saturating_mul(ranks));
        if needed.0 <= available {
            return Ok(());
        }
        let (name, available) = (&stages[0].name, Bytes(available));
        Err(UserError::new(
            format!("`{name}` needs {needed} ({arena} for each of {ranks} ranks); {available} are available"),
            "lower train.batch or the model's sizes; `oases explain` shows what fills the memory",
        ))
    }

    /// Times contenders, round after round.
    pub fn run(
        &self,
        contenders: &[Contender],
        rounds: usize,
        stop: &AtomicBool,
        finished: &(dyn Fn(usize) + Sync),
    ) -> anyhow::Result<Vec<Vec<Sample>>> {
        let trial = Trial { model: self.model, contenders, warmup: 1, rounds, stop };
        trial.run(finished).map_err(plan_run::told)
    }

    /// What the samples of these contenders say.
    pub fn measurement(&self, contenders: &[Contender], samples: &[Vec<Sample>]) -> Measurement {
        let mut measurement = Measurement::default();
        for (contender, samples) in contenders.iter().zip(samples) {
            let plans: Vec<Plan> = contender.stages.iter().map(|stage| self.plan(stage)).collect();
            for sample in samples {
                measurement.add(&contender.stages, &plans, sample);
            }
        }
        measurement
    }

    /// Measurements as a profile: `shared` without a link, whose collectives are arithmetic only, `linked` over one.
    pub fn profile(&self, shared: &Measurement, linked: Option<(&Measurement, MeasuredLink)>) -> Profile {
        let compute = shared.compute.iter().map(|(key, times)| MeasuredCompute {
            operation: key.operation,
            tensor: key.degree,
            sequences: key.sequences,
            ms: times.mean_ms(),
            min_ms: times.min_ms(),
            samples: times.ns.len() as u32,
        });
        let collective = shared.collectives.iter().map(|(key, times)| {
            let over_link = linked.and_then(|(linked, _)| linked.collectives.get(key));
            MeasuredCollective {
                operation: key.kind,
                ranks: key.ranks,
                bytes: key.bytes,
                ms: over_link.unwrap_or(times).mean_ms(),
                host_ms: times.mean_ms(),
                samples: times.ns.len() as u32,
            }
        });
        Profile {
            profile: Origin {
                format: FORMAT,
                backend: BACKEND.to_owned(),
                machine: doctor::machine(),
                tensor: self.ranks,
                created: today(),
            },
            model: Shape::of(self.family, self.model),
            link: linked.map(|(_, link)| link),
            compute: compute.collect(),
            collective: collective.collect(),
        }
    }
}

/// The block whose forward, f, an all-reduce is compared with: the mean of an attention and an MLP block of the highest TMP
/// degree of a layout, on a whole micro-batch.
#[derive(Clone, Copy)]
pub struct BlockForward {
    /// That degree; the all-reduce is over as many ranks.
    pub degree: u32,
    /// Sequences of the micro-batch on one rank.
    pub sequences: u32,
}

impl BlockForward {
    /// Of micro-batches of so many sequences.
    pub fn new(layout: &Layout, micro_batch: u32) -> BlockForward {
        let degree = layout.degrees().iter().copied().max().unwrap_or(1);
        BlockForward { degree, sequences: micro_batch / (layout.group() / degree) }
    }

    /// What must be measured for it.
    pub fn needs(self) -> Needs {
        Needs { compute: self.keys().collect(), ..Needs::default() }
    }

    /// In milliseconds, by these costs.
    pub fn of(self, costs: &dyn Costs) -> Result<f64, UserError> {
        let of = |key: ComputeKey| costs.compute(key.operation, key.sequences, key.degree);
        let times: Vec<f64> = self
            .keys()
            .map(|key| Ok(of(key).map_err(told)?.milliseconds()))
            .collect::<Result<_, UserError>>()?;
        Ok(times.iter().sum::<f64>() / times.len() as f64)
    }

    /// In milliseconds, if it was measured.
    pub fn ms(self, measurement: &Measurement) -> Option<f64> {
        let of = |key| measurement.compute.get(&key).map(|times| times.mean_ms());
        let times: Option<Vec<f64>> = self.keys().map(of).collect();
        times.map(|times| times.iter().sum::<f64>() / times.len() as f64)
    }

    fn keys(self) -> impl Iterator<Item = ComputeKey> {
        let BlockForward { degree, sequences } = self;
        let forward = |family| Operation::Forward(family, Extent::Output);
        [Family::Attn, Family::Mlp].into_iter().map(move |family| ComputeKey {
            operation: forward(family),
            degree,
            sequences,
        })
    }
}

/// What runs between ranks.
#[derive(Clone, Copy)]
pub enum Execution<'a> {
    /// The computation of the model.
    Real,
    /// None: instructions last as long as they were measured, so that only schedule, executor and link are tried, without the
    /// noise of the machine.
    Timed,
    /// The same with instructions that last as long as this says, so that nothing is measured before.
    Described(&'a Source),
}

/// Schedules that are run and predicted side by side: between them run the references that measure what their instructions
/// take, so that a machine whose speed drifts does so for both.
pub struct Comparison<'a> {
    subject: &'a Subject<'a>,
    /// The stages of each.
    schedules: &'a [Vec<Schedule>],
    plans: Vec<Vec<Plan>>,
    references: Vec<Contender>,
    rounds: usize,
    execution: Execution<'a>,
}

/// What came of a comparison.
pub struct Compared {
    /// What the references took.
    pub measurement: Measurement,
    /// Steps of each schedule; none where it was stopped before.
    pub samples: Vec<Vec<Sample>>,
    /// The simulation of each schedule, by stage, with what was measured; none where it was stopped before all was.
    pub predicted: Vec<Option<Vec<Timeline>>>,
}

impl<'a> Comparison<'a> {
    /// Of these schedules, given by their stages, all with groups of as many ranks; `besides` is measured as well.
    pub fn new(
        subject: &'a Subject<'a>,
        schedules: &'a [Vec<Schedule>],
        besides: Needs,
        rounds: usize,
        execution: Execution<'a>,
    ) -> Comparison<'a> {
        let mut needs = besides;
        schedules.iter().flatten().for_each(|stage| needs.extend(Needs::of(stage)));
        let plans = |stages: &Vec<Schedule>| stages.iter().map(|stage| subject.plan(stage)).collect();
        let plans = schedules.iter().map(plans).collect();
        let references = match execution {
            Execution::Described(_) => Vec::new(),
            Execution::Real | Execution::Timed => subject.references(&needs, None),
        };
        Comparison { subject, schedules, plans, references, rounds, execution }
    }

    /// The steps that measure, which run without a link.
    pub fn references(&self) -> &[Contender] {
        &self.references
    }

    /// The memory plans of each schedule, by stage.
    pub fn plans(&self) -> &[Vec<Plan>] {
        &self.plans
    }

    /// Everything that computes, which must fit into memory; what only lasts touches next to none.
    pub fn check_memory(&self) -> Result<(), UserError> {
        let references = self.references.iter().map(|reference| reference.stages.as_slice());
        self.subject.check_memory(self.computed().iter().map(Vec::as_slice).chain(references))
    }

    /// The schedules that are run as they are, instead of letting their instructions last.
    fn computed(&self) -> &'a [Vec<Schedule>] {
        if let Execution::Real = self.execution { self.schedules } else { &[] }
    }

    /// How many steps a run takes.
    pub fn steps(&self) -> usize {
        (self.schedules.len() + self.references.len()) * (self.rounds + 1)
    }

    /// Runs all schedules over a link, or as fast as memory is. `finished` is told the name of a schedule after each of its steps.
    pub fn run(
        &self,
        link: Option<Link>,
        stop: &AtomicBool,
        finished: &(dyn Fn(&str) + Sync),
    ) -> anyhow::Result<Compared> {
        let subject = self.subject;
        let run = |contenders: &[Contender]| {
            let told = |index: usize| finished(contenders[index].name());
            subject.run(contenders, self.rounds, stop, &told)
        };
        let real = self.computed();
        let of = |stages: &Vec<Schedule>| Contender { stages: stages.clone(), link, lasts: None };
        let mut contenders: Vec<Contender> = real.iter().map(of).collect();
        contenders.extend(self.references.iter().cloned());
        let mut samples = run(&contenders)?;
        let measurement = subject.measurement(&self.references, &samples.split_off(real.len()));
        let mut profile = subject.profile(&measurement, None);
        let timed = real.is_empty();
        if timed {
            // Where nothing is computed, collectives have next to nothing to add up either.
            profile.collective.iter_mut().for_each(|entry| entry.host_ms = 0.0);
        }
        let costs: Box<dyn Costs + '_> = match self.execution {
            Execution::Described(source) => {
                let link = link.expect("a described step is tried over a link");
                Box::new(source.lasting(subject.model, ring(link))?)
            }
            Execution::Real | Execution::Timed => Box::new(ProfileCosts::new(&profile, link.map(ring))),
        };
        if timed && !stop.load(Ordering::Relaxed) {
            let planned = self.schedules.iter().zip(&self.plans);
            let timed = planned.map(|(stages, plans)| lasting(stages, plans, &*costs, link));
            samples = run(&timed.collect::<Result<Vec<_>, _>>()?)?;
            // Nothing was computed, so there is no loss.
            samples.iter_mut().flatten().for_each(|sample| sample.loss = f64::NAN);
        }
        samples.resize(self.schedules.len(), Vec::new());
        let predict =
            |(stages, plans): (&Vec<Schedule>, &Vec<Plan>)| match simulate_stages(stages, plans, &*costs) {
                Ok(timeline) => Ok(Some(timeline)),
                Err(_) if stop.load(Ordering::Relaxed) => Ok(None),
                Err(error) => Err(told(error)),
            };
        let predicted = self.schedules.iter().zip(&self.plans).map(predict);
        let predicted = predicted.collect::<Result<Vec<_>, _>>()?;
        Ok(Compared { measurement, samples, predicted })
    }
}

/// A schedule whose instructions last as long as these costs say.
pub fn lasting(
    stages: &[Schedule],
    plans: &[Plan],
    costs: &dyn Costs,
    link: Option<Link>,
) -> Result<Contender, UserError> {
    let lasts = |(stage, plan)| {
        let lasts = durations(stage, plan, costs).map_err(told)?;
        Ok(lasts.into_iter().map(|nanoseconds| Duration::from_nanos(nanoseconds.0)).collect())
    };
    let lasts = stages.iter().zip(plans).map(lasts).collect::<Result<_, UserError>>()?;
    Ok(Contender { stages: stages.to_vec(), link, lasts: Some(lasts) })
}

/// The link as predictions take it.
pub fn ring(link: Link) -> Ring {
    Ring { bandwidth_bytes_per_s: link.bandwidth_bytes_per_s, latency_s: link.latency.as_secs_f64() }
}

/// The day, as `2026-11-29`, in universal time.
fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(since / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a day since 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms",
/// `civil_from_days`, for days that are not negative).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_786, (2026, 11, 29)),
            (20_818, (2026, 12, 31)),
        ] {
            assert_eq!(civil(days), date);
        }
    }
}
