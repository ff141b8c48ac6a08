//! Measures, now and here, all that planning asks for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use oases_plan::Profile;
use oases_schedule::{Request, Variant};
use oases_train::measure::Needs;

use super::super::measuring::Subject;
use super::planner::Setting;
use crate::error::Interrupted;
use crate::progress::Counter;
use crate::terminal::Terminal;

/// How often each step is measured.
const ROUNDS: usize = 5;

/// What the instructions of any layout of these degrees take, in each of the settings.
pub fn profile(
    subject: &Subject<'_>,
    settings: &[Setting],
    degrees: &[u32],
    stop: &AtomicBool,
    terminal: &Terminal,
) -> anyhow::Result<Profile> {
    let possible = degrees.iter().copied().filter(|&degree| subject.model.check(degree).is_ok());
    let degrees: BTreeSet<u32> = possible.collect();
    let mut needs = Needs::default();
    for Setting { variant, request, keeps } in settings {
        let variant = Variant::find(variant).expect("a setting's schedule is known");
        for keep in keeps {
            let request = Request { keep: keep.clone(), ..request.clone() };
            needs.extend(Needs::of_any_layout(variant, &request, &degrees));
        }
    }
    let references = subject.references(&needs, None);
    subject.check_memory(references.iter().map(|reference| reference.stages.as_slice()))?;
    let counter = Counter::new(*terminal, (references.len() * (ROUNDS + 1)) as u64);
    counter.message("measuring what instructions take");
    let samples = subject.run(&references, ROUNDS, stop, &|_| counter.step())?;
    counter.finish();
    if stop.load(Ordering::Relaxed) {
        return Err(Interrupted.into());
    }
    Ok(subject.profile(&subject.measurement(&references, &samples), None))
}
