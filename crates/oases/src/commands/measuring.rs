//! From measured steps to a profile, for whoever measures.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use oases_exec::CpuBackend;
use oases_exec::comm::Link;
use oases_plan::{FORMAT, MeasuredCollective, MeasuredCompute, MeasuredLink, Origin, Profile, Shape};
use oases_schedule::{Extent, Family, Layout, Model, Operation, Plan, Purpose, Schedule, Statics, plan};
use oases_train::measure::{self, Measurement, Sized};
use oases_train::trial::{Contender, Sample, Trial};

use super::plan_run;
use crate::doctor;

/// The backend that is measured.
pub const BACKEND: &str = "cpu";

/// What is measured, and with how many ranks.
pub struct Subject<'a> {
    /// The model.
    pub model: &'a Model,
    /// Ranks that run at once.
    pub tensor: u32,
}

impl Subject<'_> {
    /// Steps that together hold each of the operations.
    pub fn contenders(&self, wanted: &BTreeSet<Sized>, link: Option<Link>) -> Vec<Contender> {
        let layout = Layout::uniform(self.tensor, Schedule::blocks(self.model.layers));
        measure::contenders(wanted, &layout, self.model.layers, link)
    }

    /// The memory plan of a schedule.
    pub fn plan(&self, schedule: &Schedule) -> Plan {
        let (sequences, parts) = (schedule.batch(), schedule.parts.len());
        let statics = Statics::new(self.model, &schedule.layout, Purpose::Training, sequences, parts);
        plan(schedule, &statics, CpuBackend::workspace(self.model))
    }

    /// What the samples of these contenders say.
    pub fn measurement(&self, contenders: &[Contender], samples: &[Vec<Sample>]) -> Measurement {
        let mut measurement = Measurement::default();
        for (contender, samples) in contenders.iter().zip(samples) {
            let plan = self.plan(&contender.schedule);
            for sample in samples {
                measurement.add(&contender.schedule, &plan, sample);
            }
        }
        measurement
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
}

/// Mean forward of an attention and an MLP block on so many sequences, in milliseconds: f.
pub fn block_forward_ms(measurement: &Measurement, sequences: u32) -> Option<f64> {
    let of = |family| measurement.compute.get(&(forward(family), sequences)).map(|times| times.mean_ms());
    Some((of(Family::Attn)? + of(Family::Mlp)?) / 2.0)
}

/// What [`block_forward_ms`] needs.
pub fn block_forwards(sequences: u32) -> [Sized; 2] {
    [Family::Attn, Family::Mlp].map(|family| (forward(family), sequences))
}

fn forward(family: Family) -> Operation {
    Operation::Forward(family, Extent::Output)
}

/// Measurements as a profile: `shared` without a link, whose collectives are arithmetic only, `linked` over one.
pub fn profile(
    family: &str,
    subject: &Subject<'_>,
    shared: &Measurement,
    linked: Option<(&Measurement, MeasuredLink)>,
) -> Profile {
    let compute = shared.compute.iter().map(|(&(operation, sequences), times)| MeasuredCompute {
        operation,
        tensor: subject.tensor,
        sequences,
        ms: times.mean_ms(),
        min_ms: times.min_ms(),
        samples: times.ns.len() as u32,
    });
    let collective = shared.collectives.iter().map(|(key, times)| {
        let host_ms = times.mean_ms();
        let over_link = linked.and_then(|(linked, _)| linked.collectives.get(key));
        MeasuredCollective {
            operation: key.0,
            ranks: subject.tensor,
            bytes: key.1,
            ms: over_link.unwrap_or(times).mean_ms(),
            host_ms,
            samples: times.ns.len() as u32,
        }
    });
    Profile {
        profile: Origin {
            format: FORMAT,
            backend: BACKEND.to_owned(),
            machine: doctor::machine(),
            tensor: subject.tensor,
            created: today(),
        },
        model: Shape::of(family, subject.model),
        link: linked.map(|(_, link)| link),
        compute: compute.collect(),
        collective: collective.collect(),
    }
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
