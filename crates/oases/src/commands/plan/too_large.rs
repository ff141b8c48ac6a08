//! Why there is no plan, and the smallest change with which there is one.

use oases_plan::Error;
use oases_plan::planner::{Candidate, NoPlan, Refused};
use oases_schedule::{Bytes, Keeps, Layout, Request, Schedule};

use super::super::sources;
use super::planner::{Planner, Setting};
use super::rows;
use crate::error::UserError;
use crate::report::plan::{both, degrees, shortened};

/// Ranks of a group, at most, as in a configuration.
const MOST_RANKS: u32 = 64;

/// Tells the user.
pub fn told(no_plan: NoPlan, planner: &Planner<'_>, setting: &Setting) -> UserError {
    match no_plan {
        NoPlan::NoDegree(refused) => no_degree(&refused, planner, setting),
        NoPlan::Memory { budget, least } => {
            let hint = match smallest_change(planner, setting) {
                Some(change) => change,
                None => "neither recomputation nor more micro-batches nor a larger group helps; make the model smaller, or give \
                         more memory"
                    .to_owned(),
            };
            UserError::new(too_large(budget, &least), hint)
        }
        NoPlan::Solver(error) => {
            UserError::new(error.to_string(), "`--solver labels` is exact and needs no other program")
        }
        NoPlan::Cost(error) => sources::told(error),
    }
}

fn no_degree(refused: &[Refused], planner: &Planner<'_>, setting: &Setting) -> UserError {
    let first = refused.first().map_or("", |one| one.reason.as_str());
    // What is wrong with all of them is said once.
    let reasons: Vec<String> = match refused.iter().all(|one| one.reason == first) {
        true => vec![first.to_owned()],
        false => refused.iter().map(|one| format!("degree {}: {}", one.degree, one.reason)).collect(),
    };
    let too_many = refused
        .iter()
        .filter_map(|one| one.cause.as_ref())
        .find(|cause| matches!(cause, Error::TooManyRanks { .. }));
    let hint = match to_measure(planner, setting) {
        Some(sizes) => too_many.map_or(sizes, |cause| cause.hint().to_owned()),
        None => "raise `train.batch`, or lower `schedule.sub_batches` or `schedule.micro_batches`".to_owned(),
    };
    UserError::new(format!("no TMP degree is possible: {}", reasons.join("; ")), hint)
}

/// What would have to be measured for the degrees that the model and the batch allow; nothing if they allow none.
fn to_measure(planner: &Planner<'_>, setting: &Setting) -> Option<String> {
    let task = planner.task(setting);
    let possible: Vec<u32> =
        task.degrees.iter().copied().filter(|&degree| task.refuses(degree).is_none()).collect();
    let mut sequences: Vec<u32> = Vec::new();
    for &degree in &possible {
        let layout =
            Layout::new(task.request.layout.group(), vec![degree; Schedule::blocks(task.request.layers)]);
        let schedule = task.schedule(&layout, &setting.keeps[0]);
        let replicas = layout.group() / degree;
        sequences.extend(schedule.parts.iter().map(|part| part.sequences / replicas));
    }
    sequences.sort_unstable();
    sequences.dedup();
    let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    (!possible.is_empty()).then(|| {
        format!(
            "measure the sizes that are missing: `oases profile CONFIG --tensor {} --sequences {}`",
            list(&possible),
            list(&sequences)
        )
    })
}

/// On which device, what fills it, how much too much that is.
fn too_large(budget: Bytes, least: &Candidate) -> String {
    let kinds = rows::memory(least);
    let kinds =
        kinds.iter().filter(|kind| kind.bytes > 0).map(|kind| format!("{} {}", kind.kind, Bytes(kind.bytes)));
    format!(
        "nothing fits into {} on every rank: the least that was found, degrees {}, needs {}, {} B too many; {}",
        both(budget.0),
        shortened(&degrees(&least.layout.runs())),
        both(least.bytes.0),
        least.bytes.0 - budget.0,
        kinds.collect::<Vec<_>>().join(", ")
    )
}

/// Tries, each by planning: recomputation where it pays most, then more micro-batches, then more ranks; and what comes later
/// only together with all that came before.
fn smallest_change(planner: &Planner<'_>, setting: &Setting) -> Option<String> {
    if !planner.degrees.is_empty() {
        let free = Planner { degrees: Vec::new(), ..*planner };
        if let Some(plan) = fits(&free, setting) {
            return Some(words(&["all degrees (leave --degrees out)".to_owned()], &plan));
        }
        return smallest_change(&free, setting);
    }
    let mut group = setting.request.layout.group();
    while group <= MOST_RANKS {
        let grown = with_group(setting, group);
        // The most that this group can do says whether its smaller changes are worth trying.
        let most = micro_batches(&grown).into_iter().next_back().map(|most| with_micro_batches(&grown, most));
        let most = most.map(|most| most.with_choice_of_keeps().unwrap_or(most));
        if most.is_some_and(|most| fits(planner, &most).is_some()) {
            for count in micro_batches(&grown) {
                let cut = with_micro_batches(&grown, count);
                let chosen = cut.with_choice_of_keeps().filter(|chosen| chosen.keeps != cut.keeps);
                for changed in std::iter::once(cut).chain(chosen) {
                    if let Some(plan) = fits(planner, &changed) {
                        return Some(words(&keys(setting, &changed, &plan), &plan));
                    }
                }
            }
        }
        group *= 2;
    }
    None
}

fn fits(planner: &Planner<'_>, setting: &Setting) -> Option<Candidate> {
    planner.plan_alone(setting).ok()
}

fn with_group(setting: &Setting, group: u32) -> Setting {
    let layout = Layout::uniform(group, Schedule::blocks(setting.request.layers));
    Setting { request: Request { layout, ..setting.request.clone() }, ..setting.clone() }
}

/// Layers × sub-batches × micro-batches of a step, at most, that is planned for the sake of a hint: a second or so.
const LONGEST: u64 = 8192;

/// As many micro-batches as there are now, or more, into which the batch can be cut with the same sub-batches.
fn micro_batches(setting: &Setting) -> Vec<u32> {
    let (batch, request) = (setting.batch(), &setting.request);
    let each = u64::from(request.layers) * u64::from(request.sub_batches);
    let possible = |count: &u32| batch.is_multiple_of(*count) && batch / count >= request.sub_batches;
    let short = |count: &u32| each * u64::from(*count) <= LONGEST;
    (request.micro_batches..=batch).take_while(short).filter(possible).collect()
}

fn with_micro_batches(setting: &Setting, count: u32) -> Setting {
    let request =
        Request { micro_batches: count, sequences: setting.batch() / count, ..setting.request.clone() };
    Setting { request, ..setting.clone() }
}

/// The keys that differ.
fn keys(setting: &Setting, changed: &Setting, plan: &Candidate) -> Vec<String> {
    let mut keys = Vec::new();
    if changed.request.layout.group() != setting.request.layout.group() {
        keys.push(format!("`parallel.tensor = {}`", changed.request.layout.group()));
    }
    if changed.request.micro_batches != setting.request.micro_batches {
        keys.push(format!("`schedule.micro_batches = {}`", changed.request.micro_batches));
    }
    if changed.keeps != setting.keeps {
        keys.push(format!("`schedule.keep = \"{}\"`", simplest(&plan.keep)));
    }
    keys
}

/// A list of equal words is one word.
fn simplest(keeps: &Keeps) -> String {
    match keeps.kinds()[..] {
        [only] => only.name().to_owned(),
        _ => keeps.to_string(),
    }
}

fn words(changes: &[String], plan: &Candidate) -> String {
    let (changes, memory) = (changes.join(" and "), both(plan.bytes.0));
    format!("it fits with {changes}: {memory} on every rank, {} a step", plan.step)
}
