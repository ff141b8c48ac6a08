//! `oases profile`: measures what the instructions and collectives of a model take.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use oases_exec::comm::Link;
use oases_plan::{MeasuredLink, Profile};
use oases_schedule::{Model, divisors};
use oases_train::measure::Needs;

use super::measuring::Subject;
use super::plan_run;
use super::recipes::{self, Recipe};
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
    plan_run::one_stage(&config, "profile")?;
    let model = config.model();
    let degrees = degrees(args, &config, &model)?;
    let needs = needs(args, &degrees, environment)?;
    let inputs = [args.config.path.as_path()];
    let output = args.output.as_ref().map(|path| OutputFile::new(path, "profile", &inputs)).transpose()?;
    let ranks = config.parallel.tensor as u32;
    let subject = Subject { family: &config.model.family, model: &model, ranks };
    let mut contenders = subject.references(&needs, None);
    let shared = contenders.len();
    // One rank has no link.
    let link = plan_run::link(&config).filter(|_| ranks > 1);
    if link.is_some() {
        contenders.extend(subject.references(&needs, link));
    }
    subject.check_memory(contenders.iter().map(|contender| contender.stages.as_slice()))?;

    let stop = interrupt::requested(Some(*terminal));
    let rounds = args.rounds as usize;
    let counter = Counter::new(*terminal, (contenders.len() * (rounds + 1)) as u64);
    let degrees: Vec<String> = degrees.iter().map(u32::to_string).collect();
    counter.message(&format!("measuring at TMP degree {}", degrees.join(", ")));
    let samples = subject.run(&contenders, rounds, &stop, &|_| counter.step())?;
    counter.finish();
    if stop.load(Ordering::Relaxed) {
        return Err(Interrupted.into());
    }
    let of = |range: std::ops::Range<usize>| subject.measurement(&contenders[range.clone()], &samples[range]);
    let linked = of(shared..contenders.len());
    let linked = link.map(|link| (&linked, measured_link(link)));
    write(output.as_ref(), &subject.profile(&of(0..shared), linked), terminal)
}

/// The TMP degrees to measure, each possible in the group and for the model.
fn degrees(args: &ProfileArgs, config: &RunConfig, model: &Model) -> Result<BTreeSet<u32>, UserError> {
    if args.tensor.is_empty() {
        return Ok(config.layout().degrees().iter().copied().collect());
    }
    let ranks = config.layout().group();
    for &degree in &args.tensor {
        if degree == 0 || !ranks.is_multiple_of(degree) {
            let fitting = divisors(ranks as usize, ranks as usize);
            return Err(UserError::new(
                format!("TMP degree {degree} does not divide the group of {ranks} ranks, `parallel.tensor`"),
                format!(
                    "degrees that do: {fitting}; all are measured inside one group, with all of its ranks running"
                ),
            ));
        }
        model.check(degree).map_err(|error| UserError::new(error.message, error.hint))?;
    }
    Ok(args.tensor.iter().copied().collect())
}

/// What all layouts of the degrees need, on the sizes that are asked for.
fn needs(args: &ProfileArgs, degrees: &BTreeSet<u32>, environment: &Environment) -> anyhow::Result<Needs> {
    let all = ["all".to_owned(), "all sub_batches=1".to_owned()];
    let names = if args.schedules.is_empty() { &all[..] } else { &args.schedules };
    let mut needs = Needs::default();
    for Recipe { variant, mut request, .. } in
        recipes::recipes(&args.config, names, environment, &mut |_| {})?
    {
        let ranks = request.layout.group();
        if !args.sequences.is_empty() {
            // So many can be shared by the replicas of any layout.
            request.sequences = ranks * request.sub_batches;
            needs.extend(
                Needs::of_any_layout(variant, &request, degrees).on_sequences(&args.sequences, ranks),
            );
            continue;
        }
        for replicas in degrees.iter().map(|degree| ranks / degree) {
            if !request.sequences.is_multiple_of(replicas) {
                return Err(UserError::new(
                    format!(
                        "{replicas} replicas of a block, at TMP degree {} in a group of {ranks}, cannot share a micro-batch \
                         of {} sequences equally",
                        ranks / replicas,
                        request.sequences
                    ),
                    "choose another batch, or say by `--sequences` how many of them a rank works on",
                )
                .into());
            }
        }
        needs.extend(Needs::of_any_layout(variant, &request, degrees));
    }
    Ok(needs)
}

fn measured_link(link: Link) -> MeasuredLink {
    let bandwidth_gbit_s = link.bandwidth_bytes_per_s * 8.0 / 1e9;
    MeasuredLink { bandwidth_gbit_s, latency_us: link.latency.as_secs_f64() * 1e6 }
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
