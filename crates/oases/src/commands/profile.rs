//! `oases profile`: measures what the instructions and collectives of a model take.

use std::collections::BTreeSet;

use oases_exec::comm::Link;
use oases_plan::{MeasuredLink, Profile};
use oases_train::measure::{self, Sized};

use super::measuring::{self, Subject};
use super::{plan_run, recipes};
use crate::args::ProfileArgs;
use crate::config::{self, RunConfig};
use crate::environment::Environment;
use crate::error::{Interrupted, UserError};
use crate::interrupt;
use crate::output_file::OutputFile;
use crate::progress::Counter;
use crate::terminal::{self, Terminal};

/// Measures.
pub fn run(args: &ProfileArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    let config = config::load(&args.config.path, &args.config.overrides, environment)?;
    let mut degrees = args.tensor.clone();
    if degrees.is_empty() {
        degrees.push(config.parallel.tensor as u32);
    }
    degrees.sort_unstable();
    degrees.dedup();
    for &tensor in &degrees {
        plan_run::model(&config).check(tensor).map_err(|e| UserError::new(e.message, e.hint))?;
    }
    let inputs = [args.config.path.as_path()];
    let output = args.output.as_ref().map(|path| OutputFile::new(path, "profile", &inputs)).transpose()?;
    let wanted = wanted(args, environment)?;
    let stop = interrupt::requested(*terminal);
    let mut profiles = Vec::new();
    for &tensor in &degrees {
        let model = plan_run::model(&config);
        let subject = Subject { model: &model, tensor };
        let link = config.link.as_ref().filter(|_| tensor > 1).map(|_| plan_run::link(&config));
        let mut contenders = subject.contenders(&wanted, None);
        let shared = contenders.len();
        if let Some(link) = link.flatten() {
            contenders.extend(subject.contenders(&wanted, Some(link)));
        }
        super::bench::check_memory(&subject, contenders.iter().map(|contender| &contender.schedule))?;
        let rounds = args.rounds as usize;
        let counter = Counter::new(*terminal, (contenders.len() * (rounds + 1)) as u64);
        counter.message(&format!("measuring at TMP degree {tensor}"));
        let samples = subject.run(&contenders, rounds, &stop, &|_| counter.step())?;
        counter.finish();
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        let of =
            |range: std::ops::Range<usize>| subject.measurement(&contenders[range.clone()], &samples[range]);
        let linked = of(shared..contenders.len());
        let linked = measured_link(&config).filter(|_| tensor > 1).map(|link| (&linked, link));
        profiles.push(measuring::profile(&config.model.family, &subject, &of(0..shared), linked));
    }
    write(output.as_ref(), &joined(profiles), terminal)
}

/// The operations that every schedule needs, on the sizes that are asked for.
fn wanted(args: &ProfileArgs, environment: &Environment) -> anyhow::Result<BTreeSet<Sized>> {
    let all = recipes::recipes(
        &args.config,
        &["all".to_owned(), "all sub_batches=1".to_owned()],
        environment,
        &mut |_| {},
    )?;
    let needed: BTreeSet<Sized> =
        all.iter().flat_map(|recipe| measure::operations(&recipe.build())).collect();
    if args.sequences.is_empty() {
        return Ok(needed);
    }
    let sized = |(operation, _): &Sized| {
        let operation = *operation;
        let sizes = if operation.is_on_part() { args.sequences.clone() } else { vec![0] };
        sizes.into_iter().map(move |sequences| (operation, sequences))
    };
    Ok(needed.iter().flat_map(sized).collect())
}

fn measured_link(config: &RunConfig) -> Option<MeasuredLink> {
    let Link { bandwidth_bytes_per_s, latency } = plan_run::link(config)?;
    let bandwidth_gbit_s = bandwidth_bytes_per_s * 8.0 / 1e9;
    Some(MeasuredLink { bandwidth_gbit_s, latency_us: latency.as_secs_f64() * 1e6 })
}

/// One profile of several degrees.
fn joined(profiles: Vec<Profile>) -> Profile {
    let mut profiles = profiles.into_iter();
    let mut all = profiles.next().expect("at least one degree is measured");
    for profile in profiles {
        all.profile.tensor = all.profile.tensor.max(profile.profile.tensor);
        all.link = all.link.or(profile.link);
        all.compute.extend(profile.compute);
        all.collective.extend(profile.collective);
    }
    all
}

/// A profile that cannot be written where it should is printed: it took its time.
fn write(output: Option<&OutputFile>, profile: &Profile, terminal: &Terminal) -> anyhow::Result<()> {
    let text = toml::to_string(profile)?;
    let Some(output) = output else { return terminal::print(&text) };
    if let Err(failure) = output.write(|file| file.write_all(text.as_bytes())) {
        terminal::print(&text)?;
        return Err(failure.into());
    }
    terminal.line(&format!("the profile is in {}", output.path().display()));
    Ok(())
}
