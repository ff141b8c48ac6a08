//! `oases bench`: schedules over emulated links, predicted beside measured.
//!
//! For each link, all schedules run in turn, round after round, and between them the steps that measure what their
//! instructions take without a link. The prediction is the simulation of the same schedule values with those times.

mod rows;
mod timelines;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oases_exec::comm::{Link, Operation};
use oases_schedule::{Model, Schedule};
use oases_train::measure::Needs;
use oases_train::trial::Contender;

use self::rows::Cell;
use super::machine_files;
use super::measuring::{self, BlockForward, Compared, Comparison, Execution, Subject};
use super::recipes::{self, Recipe};
use super::sources::Source;
use crate::args::{BenchArgs, Format};
use crate::config::{self, Bandwidth, RunConfig};
use crate::doctor;
use crate::environment::Environment;
use crate::error::{Failure, Interrupted, UserError};
use crate::interrupt;
use crate::output_file::OutputFile;
use crate::progress::Counter;
use crate::report::bench::{BenchReport, LinkRow, Row, ScheduleNote};
use crate::report::layout;
use crate::terminal::{self, Terminal};

/// Compares.
pub fn run(args: &BenchArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    let config = config::load(&args.config.path, &args.config.overrides, environment)?;
    let names = if args.schedules.is_empty() { &config.bench.schedules } else { &args.schedules };
    let recipes = recipes::recipes(&args.config, names, environment, &mut |line| terminal.line(line))?;
    let links = links(args, &config)?;
    let model = recipes::model(&config)?;
    let subject = Subject { family: &config.model.family, model: &model, ranks: config.layout().group() };
    let schedules: Vec<Vec<Schedule>> = recipes.iter().map(Recipe::build).collect();
    let micro_batch = config.train.batch / config.schedule.micro_batches;
    let forward = BlockForward::new(&config.layout(), micro_batch as u32);
    let machine =
        args.machine.as_deref().map(|name| machine_files::machine(name, environment)).transpose()?;
    let described = machine.map(Source::Machine);
    let execution = match &described {
        Some(source) => Execution::Described(source),
        None if args.timed => Execution::Timed,
        None => Execution::Real,
    };
    let comparison = Comparison::new(&subject, &schedules, forward.needs(), rounds(args, &config), execution);
    comparison.check_memory()?;
    let bench = Bench {
        config: &config,
        model: &model,
        subject: &subject,
        recipes: &recipes,
        schedules: &schedules,
        forward,
        described: described.as_ref(),
        comparison: &comparison,
    };
    let page = OutputFile::new(&page_path(args), "report", &[args.config.path.as_path()])?;

    let stop = interrupt::requested(Some(*terminal));
    let mut report = bench.empty_report(args);
    let mut disagreement = None;
    for link in &links {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let finished = bench.over(link, &stop, terminal)?;
        disagreement = disagreement.or_else(|| rows::disagreement(&recipes, &finished.rows));
        report.links.extend(finished.link);
        report.rows.extend(finished.rows);
        report.timelines.extend(finished.timelines);
        if !report.rows.is_empty() {
            // After each link, so that whatever ends the program leaves what was finished. A failure is told at the end,
            // behind the results.
            let _ = write_page(&page, &report);
        }
    }
    let interrupted = stop.load(Ordering::Relaxed);
    report.interrupted = interrupted.then(|| "by Ctrl-C".to_owned());
    if interrupted && report.rows.is_empty() {
        terminal.line("nothing was finished");
        return Err(Interrupted.into());
    }
    let unwritten = write_page(&page, &report).err();
    match args.format {
        Format::Json => terminal::print(&format!("{}\n", report.to_json()?))?,
        Format::Text => terminal::print(&report.to_string())?,
    }
    rows::not_overlapped(&report).iter().for_each(|line| terminal.line(line));
    if let Some(failure) = unwritten {
        return Err(failure.into());
    }
    terminal.line(&format!("the report is in {}", page.path().display()));
    if let Some(message) = disagreement {
        let hint = "schedules with equal sub-batches and degrees must give the same bits, others the same loss but for \
                    rounding; this is a fault of the program";
        return Err(Failure { message, hint: hint.to_owned() }.into());
    }
    if interrupted { Err(Interrupted.into()) } else { Ok(()) }
}

/// A link as it was asked for.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    /// All-reduce of a block's output over a block's forward.
    Ratio(f64),
    Rate(Bandwidth),
}

fn links(args: &BenchArgs, config: &RunConfig) -> Result<Vec<Asked>, UserError> {
    let mut links = Vec::new();
    for &ratio in &args.ratios {
        if !(1e-3..=1e3).contains(&ratio) {
            return Err(UserError::new(
                format!("a ratio must be from 0.001 to 1000, not {ratio}"),
                "c/f is the time of an all-reduce over that of a block's forward, for example `--ratio 1,2`",
            ));
        }
        links.push(Asked::Ratio(ratio));
    }
    for text in &args.links {
        let rate: Bandwidth = text.parse().map_err(|error: config::UnitError| {
            UserError::new(
                format!("--link {}", error.message),
                "give a rate with its unit, such as `1 Gbit/s`",
            )
        })?;
        links.push(Asked::Rate(rate));
    }
    if links.is_empty() {
        links.extend(config.bench.ratios.iter().map(|&ratio| Asked::Ratio(ratio)));
        links.extend(config.bench.links.iter().map(|&rate| Asked::Rate(rate)));
    }
    if links.is_empty() {
        let hint = "give `bench.ratios` or `bench.links`, or `--ratio 1,2`";
        return Err(UserError::new("there is no link to compare schedules on", hint));
    }
    let mut distinct: Vec<Asked> = Vec::new();
    links.retain(|link| {
        let new = !distinct.contains(link);
        distinct.push(*link);
        new
    });
    if config.parallel.ranks() == 1 {
        let hint = "set `parallel.data`, `parallel.pipeline` or `parallel.tensor` to 2 or more";
        return Err(UserError::new("one rank has no link", hint));
    }
    let ratio = links.iter().any(|link| matches!(link, Asked::Ratio(_)));
    if ratio && config.layout().degrees().iter().all(|&degree| degree == 1) {
        let hint = "give links by their speed, such as `--link '1 Gbit/s'`, or set `parallel.tensor`, or a higher degree in \
                    `parallel.degrees`";
        return Err(UserError::new(
            "at TMP degree 1 no block has an all-reduce to compare its forward with",
            hint,
        ));
    }
    Ok(links)
}

fn rounds(args: &BenchArgs, config: &RunConfig) -> usize {
    args.rounds.map_or(config.bench.rounds, |rounds| rounds as usize)
}

/// A comparison.
struct Bench<'a> {
    config: &'a RunConfig,
    model: &'a Model,
    subject: &'a Subject<'a>,
    recipes: &'a [Recipe],
    schedules: &'a [Vec<Schedule>],
    /// What links are compared with.
    forward: BlockForward,
    /// What says how long instructions last, where they are not measured.
    described: Option<&'a Source>,
    comparison: &'a Comparison<'a>,
}

/// What is known after one link.
struct Finished {
    link: Option<LinkRow>,
    rows: Vec<Row>,
    timelines: Vec<crate::report::bench::TimelinePair>,
}

impl Bench<'_> {
    /// Runs everything on one link.
    fn over(&self, asked: &Asked, stop: &AtomicBool, terminal: &Terminal) -> anyhow::Result<Finished> {
        let nothing = Finished { link: None, rows: Vec::new(), timelines: Vec::new() };
        let Some((label, link)) = self.link(asked, stop, terminal)? else { return Ok(nothing) };
        let counter = Counter::new(*terminal, self.comparison.steps() as u64);
        let told = |name: &str| {
            counter.message(&format!("{label}: {name}"));
            counter.step();
        };
        let compared = self.comparison.run(Some(link), stop, &told)?;
        counter.finish();
        let measured = || Ok(self.forward.ms(&compared.measurement));
        let Some(forward_ms) = self.forward_ms(measured)? else { return Ok(nothing) };
        let cells = self.cells(&compared, link);
        let ratio = if let Asked::Ratio(ratio) = asked { Some(*ratio) } else { None };
        let rows = rows::rows(&cells, self.recipes, &label, ratio);
        let timelines = cells.iter().map(|cell| timelines::pair(cell, &label)).collect();
        let link = self.link_row(&label, ratio, link, forward_ms);
        Ok(Finished { link: Some(link), rows, timelines })
    }

    /// Of the schedules that ran.
    fn cells<'a>(&'a self, compared: &'a Compared, link: Link) -> Vec<Cell<'a>> {
        let Compared { samples, predicted, .. } = compared;
        let planned = self.schedules.iter().zip(self.comparison.plans());
        let all = planned.zip(samples.iter().zip(predicted));
        all.filter(|(_, (samples, _))| !samples.is_empty())
            .map(|((stages, plans), (samples, predicted))| Cell {
                stages,
                samples,
                plans,
                predicted: predicted.as_deref(),
                link,
            })
            .collect()
    }

    /// The link that was asked for. A ratio is one to the block's forward as it is now: a machine's speed drifts.
    fn link(
        &self,
        asked: &Asked,
        stop: &AtomicBool,
        terminal: &Terminal,
    ) -> anyhow::Result<Option<(String, Link)>> {
        let ratio = match asked {
            Asked::Rate(rate) => {
                let latency =
                    self.config.link.as_ref().map_or(Duration::ZERO, |link| link.latency.duration());
                let link = Link { bandwidth_bytes_per_s: rate.bytes_per_second(), latency };
                return Ok(Some((rate.to_string(), link)));
            }
            Asked::Ratio(ratio) => *ratio,
        };
        let label = format!("c/f = {ratio}");
        let forward_ms = self.forward_ms(|| self.time_forward(&label, stop, terminal))?;
        Ok(forward_ms.map(|forward_ms| {
            // Without latency, an all-reduce of S bytes over t ranks takes 2(t-1)/t · S / bandwidth.
            let ranks = f64::from(self.forward.degree);
            let carried = 2.0 * (ranks - 1.0) / ranks * self.block_bytes() as f64;
            let bandwidth_bytes_per_s = carried / (ratio * forward_ms / 1e3);
            (label, Link { bandwidth_bytes_per_s, latency: Duration::ZERO })
        }))
    }

    /// How long a block's forward lasts: as described, or else as `measured`.
    fn forward_ms(
        &self,
        measured: impl FnOnce() -> anyhow::Result<Option<f64>>,
    ) -> anyhow::Result<Option<f64>> {
        match self.described {
            Some(source) => Ok(Some(self.forward.of(&*source.costs(self.model, None)?)?)),
            None => measured(),
        }
    }

    /// Times a block's forward; nothing where it is stopped before.
    fn time_forward(
        &self,
        label: &str,
        stop: &AtomicBool,
        terminal: &Terminal,
    ) -> anyhow::Result<Option<f64>> {
        let forward = self.forward.needs();
        let holds =
            |reference: &&Contender| Needs::of(&reference.stages[0]).compute.is_superset(&forward.compute);
        let needed: Vec<Contender> =
            self.comparison.references().iter().find(holds).cloned().into_iter().collect();
        let counter = Counter::new(*terminal, 4);
        counter.message(&format!("{label}: timing a block's forward"));
        let samples = self.subject.run(&needed, 3, stop, &|_| counter.step())?;
        counter.finish();
        Ok(self.forward.ms(&self.subject.measurement(&needed, &samples)))
    }

    /// Bytes of a block's output on a rank, for a micro-batch.
    fn block_bytes(&self) -> usize {
        self.forward.sequences as usize * self.model.sequence * self.model.hidden * size_of::<f32>()
    }

    fn link_row(&self, label: &str, comm_ratio: Option<f64>, link: Link, block_forward_ms: f64) -> LinkRow {
        let ranks = self.forward.degree as usize;
        let all_reduce = link.duration(Operation::AllReduceSum, self.block_bytes(), ranks);
        LinkRow {
            comm_ratio,
            label: label.to_owned(),
            bandwidth: format!("{:.3} Gbit/s", link.bandwidth_bytes_per_s * 8.0 / 1e9),
            latency: format!("{} us", link.latency.as_secs_f64() * 1e6),
            all_reduce_ms: all_reduce.as_secs_f64() * 1e3,
            block_forward_ms,
        }
    }

    fn empty_report(&self, args: &BenchArgs) -> BenchReport {
        let config = self.config;
        let model = &config.model;
        let pairs = [
            ("model", format!("{}, {} layers, hidden {}", model.family, model.layers, model.hidden)),
            ("heads", model.heads.to_string()),
            ("sequence", format!("{} tokens", model.sequence)),
            ("vocabulary", model.vocabulary.to_string()),
            ("ranks", format!("{}, threads of one process", config.parallel.ranks())),
            ("layout", layout::words_of_all_stages(config)),
            (
                "backend",
                match self.described {
                    Some(source) => format!("none: instructions last as on {}", source.machine_words()),
                    None if args.timed => "none: instructions last as long as measured".to_owned(),
                    None => measuring::BACKEND.to_owned(),
                },
            ),
            (
                "batch",
                format!(
                    "{} sequences in {} micro-batches",
                    config.train.batch, config.schedule.micro_batches
                ),
            ),
        ];
        let note = |recipe: &Recipe| ScheduleNote {
            name: recipe.label.clone(),
            description: recipe.variant.description.to_owned(),
        };
        BenchReport {
            title: format!(
                "Schedules of a {}-layer {} over slow links",
                model.layers,
                model.family.to_uppercase()
            ),
            machine: doctor::machine(),
            command: command(args),
            version: format!("oases {}", env!("CARGO_PKG_VERSION")),
            model: pairs.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            pipeline: config.parallel.pipeline,
            rounds: rounds(args, config),
            schedules: self.recipes.iter().map(note).collect(),
            ..BenchReport::default()
        }
    }
}

/// What repeats the bench.
fn command(args: &BenchArgs) -> String {
    let mut words = vec!["oases bench".to_owned(), args.config.path.display().to_string()];
    let list = |items: Vec<String>, option: &str| {
        (!items.is_empty()).then(|| format!("{option} '{}'", items.join(",")))
    };
    words.extend(args.config.overrides.iter().map(|set| format!("--set '{}={}'", set.key, set.value)));
    words.extend(list(args.schedules.clone(), "--schedule"));
    words.extend(list(args.ratios.iter().map(f64::to_string).collect(), "--ratio"));
    words.extend(list(args.links.clone(), "--link"));
    words.extend(args.rounds.map(|rounds| format!("--rounds {rounds}")));
    words.extend(args.timed.then(|| "--timed".to_owned()));
    words.extend(args.machine.iter().map(|machine| format!("--machine {}", machine.display())));
    words.join(" ")
}

fn page_path(args: &BenchArgs) -> PathBuf {
    let stem = args.config.path.file_stem().map_or("bench".into(), |stem| stem.to_string_lossy());
    args.report.clone().unwrap_or_else(|| Path::new("runs").join(format!("{stem}.html")))
}

fn write_page(page: &OutputFile, report: &BenchReport) -> Result<(), Failure> {
    let html = timelines::of_one_link(report).to_html();
    page.write(|file| file.write_all(html.as_bytes()))
}
