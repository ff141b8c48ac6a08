//! The wider search: the best plan over schedules, micro-batches, sub-batches, and what each block keeps.

use std::collections::BTreeSet;

use oases_plan::planner::{Candidate, NoPlan, Planned};
use oases_schedule::passes::VARIANTS;
use oases_schedule::{Keep, Keeps};

use super::planner::{Planner, Setting};
use super::rows;
use crate::args::ConfigArgs;
use crate::config::{self, Override, RunConfig};
use crate::environment::Environment;
use crate::progress::Counter;
use crate::report::plan::{Found, Search, degrees, shortened};

/// How many plans are listed.
const LISTED: usize = 5;

/// Plans that differ by less, in time and in memory, are the same plan under another name.
const SAME: f64 = 1e-3;

/// A plan, what it is for, and what to tell of the search that it came from.
pub struct Best {
    pub setting: Setting,
    pub planned: Planned,
    pub search: Option<Search>,
}

/// Every combination that the rules of configurations allow, and how many they do not.
pub struct Space {
    pub settings: Vec<Setting>,
    impossible: usize,
}

impl Space {
    /// Schedules are all, or the one that is named. Sub-batches are 1, 2 and 4, or the configuration's, for a schedule that
    /// overlaps, and 1 for one that does not. Micro-batches are powers of two that divide the batch, and the configuration's.
    pub fn new(
        args: &ConfigArgs,
        overrides: &[Override],
        schedule: Option<&str>,
        config: &RunConfig,
        environment: &Environment,
    ) -> Space {
        let mut space = Space { settings: Vec::new(), impossible: 0 };
        let configured = Setting::of(config).request;
        let powers = (0..32).map(|exponent| 1_u32 << exponent);
        let batch = config.train.batch as u32;
        let mut micro_batches: BTreeSet<u32> = powers.filter(|count| batch.is_multiple_of(*count)).collect();
        micro_batches.insert(configured.micro_batches);
        for variant in VARIANTS.iter().filter(|variant| schedule.is_none_or(|name| name == variant.name)) {
            let overlaps = variant.passes.iter().any(|pass| pass.name == "overlap");
            let sub_batches = if overlaps { vec![1, 2, 4, configured.sub_batches] } else { vec![1] };
            let sub_batches: BTreeSet<u32> = sub_batches.into_iter().collect();
            for &micro in &micro_batches {
                for &sub in &sub_batches {
                    let set = |key: &str, value: toml::Value| Override { key: key.to_owned(), value };
                    let number = |value: u32| toml::Value::Integer(i64::from(value));
                    let changes = [
                        set("schedule.name", variant.name.into()),
                        set("schedule.micro_batches", number(micro)),
                        set("schedule.sub_batches", number(sub)),
                        set("schedule.keep", "schedule".into()),
                    ];
                    let all = [overrides, &changes].concat();
                    match config::load(&args.path, &all, environment) {
                        Ok(config) => {
                            let setting = Setting::of(&config);
                            space.settings.push(setting.with_choice_of_keeps().unwrap_or(setting));
                        }
                        Err(_) => space.impossible += 1,
                    }
                }
            }
        }
        space
    }
}

/// Plans every combination. The error is that of the configuration's own setting where nothing fits.
pub fn search(
    planner: &Planner<'_>,
    space: Space,
    configured: &Setting,
    counter: &Counter,
) -> Result<Best, NoPlan> {
    let mut search = Search { impossible: space.impossible, ..Search::default() };
    let mut found: Vec<(Setting, Candidate)> = Vec::new();
    for setting in space.settings {
        counter.message(&format!("searching: {}", setting.variant));
        match planner.plan_alone(&setting) {
            Ok(plan) => found.push((setting, plan)),
            Err(NoPlan::Memory { .. }) => search.too_large += 1,
            Err(_) => search.impossible += 1,
        }
        counter.step();
    }
    search.planned = found.len();
    found.sort_by_key(|(_, plan)| (plan.step, plan.bytes));
    found.dedup_by(|(_, later), (_, earlier)| are_same(earlier, later));
    found.truncate(LISTED);
    let Some((setting, plan)) = found.first() else {
        return planner.plan(configured).map(|planned| Best {
            setting: configured.clone(),
            planned,
            search: None,
        });
    };
    let row = |(other, found): &(Setting, Candidate)| Found {
        schedule: other.variant.to_owned(),
        micro_batches: other.request.micro_batches,
        sub_batches: other.request.sub_batches,
        row: rows::row("", found, planner.budget),
        reason: reason((setting, plan), (other, found)),
    };
    search.best = found.iter().map(row).collect();
    let planned = planner.plan(setting)?;
    Ok(Best { setting: setting.clone(), planned, search: Some(search) })
}

fn are_same(one: &Candidate, other: &Candidate) -> bool {
    let near = |one: f64, other: f64| (other / one - 1.0).abs() < SAME;
    near(one.step.0 as f64, other.step.0 as f64) && near(one.bytes.0 as f64, other.bytes.0 as f64)
}

/// What a plan does otherwise than the best, and what comes of it.
fn reason(best: (&Setting, &Candidate), other: (&Setting, &Candidate)) -> String {
    let (of, plan) = other;
    if best == other {
        return format!("the fastest; {}", kept(of, &plan.keep));
    }
    let mut differences = Vec::new();
    if of.variant != best.0.variant {
        differences.push(format!("schedule {}", of.variant));
    }
    if of.request.micro_batches != best.0.request.micro_batches {
        differences.push(counted(of.request.micro_batches, "micro-batch"));
    }
    if of.request.sub_batches != best.0.request.sub_batches {
        differences.push(counted(of.request.sub_batches, "sub-batch"));
    }
    if plan.layout != best.1.layout {
        differences.push(format!("degrees {}", shortened(&degrees(&plan.layout.runs()))));
    }
    if kept(of, &plan.keep) != kept(best.0, &best.1.keep) {
        differences.push(kept(of, &plan.keep));
    }
    let memory = change(best.1.bytes.0 as f64, plan.bytes.0 as f64, "more memory", "less memory");
    let time = change(best.1.step.0 as f64, plan.step.0 as f64, "slower", "faster");
    let effects: Vec<String> = memory.into_iter().chain(time).collect();
    format!("{}: {}", differences.join(", "), effects.join(", "))
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "es" })
}

/// `keeps all of 14 of 48 blocks`
fn kept(setting: &Setting, keeps: &Keeps) -> String {
    let blocks = 2 * setting.request.layers as usize;
    match keeps {
        Keeps::AsScheduled => "keeps what the schedule does".to_owned(),
        Keeps::Same(Keep::Input) => "recomputes every block".to_owned(),
        Keeps::Same(keep) => format!("keeps {} of every block", keep.name()),
        Keeps::Blocks(list) => {
            let count = |keep: Keep| list.iter().filter(|kept| **kept == keep).count();
            let parts = [Keep::All, Keep::Selective].map(|keep| (keep.name(), count(keep)));
            let parts = parts.iter().filter(|(_, count)| *count > 0);
            let words: Vec<String> = parts.map(|(name, count)| format!("{name} of {count}")).collect();
            format!("keeps {} of {blocks} blocks", words.join(", "))
        }
    }
}

/// `31.0 % less memory`; nothing where that would be 0.0 %.
fn change(from: f64, to: f64, more: &str, less: &str) -> Option<String> {
    let share = to / from - 1.0;
    let word = if share < 0.0 { less } else { more };
    (share.abs() >= 0.0005).then(|| format!("{:.1} % {word}", 100.0 * share.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_plan::Nanoseconds;
    use oases_schedule::{Bytes, Layout, Request};

    fn setting(variant: &'static str, micro_batches: u32) -> Setting {
        let request = Request { micro_batches, ..Request::new(2, 2, 8 / micro_batches) };
        Setting { variant, request, keeps: Vec::new() }
    }

    fn candidate(degrees: [u32; 6], keep: Keeps, step: u64, bytes: u64) -> Candidate {
        Candidate {
            layout: Layout::new(2, degrees.to_vec()),
            keep,
            step: Nanoseconds(step),
            exposed: Nanoseconds::ZERO,
            bytes: Bytes(bytes),
            static_bytes: Bytes(0),
            weight_bytes: Bytes(0),
            moment_bytes: Bytes(0),
            alive: Default::default(),
        }
    }

    #[test]
    fn a_reason_names_what_differs_and_what_comes_of_it() {
        let some = Keeps::Blocks(vec![Keep::Input, Keep::All, Keep::All, Keep::Selective]);
        let best = (&setting("oases", 1), &candidate([2; 6], some, 1000, 1000));
        assert_eq!(reason(best, best), "the fastest; keeps all of 2, selective of 1 of 4 blocks");
        let other = (&setting("oases", 4), &candidate([2; 6], Keeps::Same(Keep::All), 1060, 690));
        assert_eq!(
            reason(best, other),
            "4 micro-batches, keeps all of every block: 31.0 % less memory, 6.0 % slower"
        );
        let other = (&setting("domino", 1), &candidate([2, 1, 1, 1, 1, 2], Keeps::AsScheduled, 1200, 1300));
        assert_eq!(
            reason(best, other),
            "schedule domino, degrees 2×1, 1×4, 2×1, keeps what the schedule does: 30.0 % more memory, 20.0 % slower"
        );
        let whole = (&setting("oases", 1), &candidate([2; 6], Keeps::Same(Keep::Input), 1000, 900));
        assert!(reason(other, whole).starts_with("schedule oases, degrees 2×6, recomputes every block: "));
        assert_eq!([1, 4].map(|count| counted(count, "micro-batch")), ["1 micro-batch", "4 micro-batches"]);
        let recomputed = candidate([2; 6], Keeps::Same(Keep::Input), 1000, 1000);
        assert_eq!(kept(best.0, &recomputed.keep), "recomputes every block");
    }

    #[test]
    fn the_same_plan_under_two_names_is_one() {
        let of = |step, bytes| candidate([2; 6], Keeps::AsScheduled, step, bytes);
        assert!(are_same(&of(100_000, 100_000), &of(100_050, 99_950)));
        assert!(!are_same(&of(100_000, 100_000), &of(100_500, 100_000)));
        assert!(!are_same(&of(100_000, 100_000), &of(100_000, 100_500)));
    }
}
