//! What `oases simulate` shows: what each schedule would take, as a table, as JSON, and as a trace.

use std::fmt;
use std::io::{self, Write};

use oases_plan::{Bound, Nanoseconds, Timeline};
use oases_schedule::{Bytes, Instruction, Schedule};
use serde::Serialize;

use super::trace::{Span, TraceWriter, Track, category, instruction_name};
use crate::progress::thousands;

/// Predictions of several schedules for one model, machine and link.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// The model and how its step is cut, in words.
    pub model: String,
    /// Replicas of the model.
    pub data: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Ranks of a TMP group.
    pub tensor: u32,
    /// TMP degrees of the configuration.
    pub degrees: String,
    /// Sequences of a step.
    pub batch: u32,
    /// Where durations come from: `machine` or `profile`.
    pub source: &'static str,
    /// The machine.
    pub machine: String,
    /// Figures of the machine that are estimates.
    pub estimates: Vec<String>,
    /// The link between the ranks, in words.
    pub link: String,
    /// Memory of one device, where it is known.
    pub device_bytes: Option<u64>,
    /// One for each schedule.
    pub rows: Vec<Row>,
    /// Schedules of a pipeline that do what another one does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub same: Vec<SameStep>,
}

/// Two schedules of one pipeline with the same instructions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SameStep {
    /// The later one.
    pub schedule: String,
    /// The one before it.
    pub of: String,
}

impl SameStep {
    /// All that are so, by what they do.
    pub fn all(steps: &[Step]) -> Vec<SameStep> {
        let does = |step: &Step| -> Vec<Schedule> {
            let nameless = |schedule: &Schedule| Schedule { name: String::new(), ..schedule.clone() };
            step.schedules.iter().map(nameless).collect()
        };
        let steps: Vec<(&str, Vec<Schedule>)> = steps
            .iter()
            .filter(|step| step.schedules.len() > 1)
            .map(|step| (step.schedules[0].name.as_str(), does(step)))
            .collect();
        let earlier = |(index, (name, does)): (usize, &(&str, Vec<Schedule>))| {
            let (of, _) = steps[..index].iter().find(|(_, other)| other == does)?;
            Some(SameStep { schedule: (*name).to_owned(), of: (*of).to_owned() })
        };
        steps.iter().enumerate().filter_map(earlier).collect()
    }
}

/// A predicted step: schedules and timelines of all pipeline stages.
pub struct Step {
    pub schedules: Vec<Schedule>,
    pub timelines: Vec<Timeline>,
}

/// What one schedule would take. In a pipeline, the step is over when its last stage is; times and shares are means over the stages,
/// the bound and the memory those of the stage that has most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub schedule: String,
    /// The whole step.
    pub step_ms: f64,
    /// Tokens of a second.
    pub tokens_per_s: f64,
    /// Time in which the compute stream waits for communication or does its arithmetic.
    pub exposed_comm_ms: f64,
    /// The same as a share of the step.
    pub exposed_comm_share: f64,
    /// Time in which the compute stream computes.
    pub compute_ms: f64,
    /// The same as a share of the step.
    pub compute_utilisation: f64,
    /// Time in which the communication stream is busy.
    pub communication_ms: f64,
    /// The same as a share of the step.
    pub communication_utilisation: f64,
    /// The longer of the two streams' work.
    pub bound_ms: f64,
    /// The step over that.
    pub bound_ratio: f64,
    /// Bytes of one rank's arena.
    pub arena_bytes: u64,
    /// The same of each stage by itself; left out where there is one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Row>,
}

impl Row {
    /// The figures of a step.
    pub fn new(step: &Step, sequence: usize) -> Row {
        let timelines = &step.timelines;
        let longest = timelines.iter().map(|timeline| timeline.step).max().unwrap_or_default();
        let name = timelines[0].schedule.clone();
        let mut row = Row::of(name, &timelines.iter().collect::<Vec<_>>(), longest, sequence);
        if timelines.len() > 1 {
            let stage =
                |(index, timeline)| Row::of(format!("  stage {index}"), &[timeline], longest, sequence);
            row.stages = timelines.iter().enumerate().map(stage).collect();
        }
        row
    }

    /// The figures of some stages of a step that takes `step`.
    fn of(schedule: String, timelines: &[&Timeline], step: Nanoseconds, sequence: usize) -> Row {
        let mean = |of: fn(&Timeline) -> Nanoseconds| {
            let sum: Nanoseconds = timelines.iter().map(|timeline| of(timeline)).sum();
            sum.milliseconds() / timelines.len() as f64
        };
        let bound = |timeline: &&Timeline| {
            Bound { compute: timeline.compute, communication: timeline.communication }.step()
        };
        let bound = timelines.iter().map(bound).max().unwrap_or_default();
        let share = |ms: f64| if step == Nanoseconds::ZERO { 0.0 } else { ms / step.milliseconds() };
        let (exposed_comm_ms, compute_ms) =
            (mean(|timeline| timeline.exposed), mean(|timeline| timeline.compute));
        let communication_ms = mean(|timeline| timeline.communication);
        let tokens = f64::from(timelines[0].sequences) * sequence as f64;
        Row {
            schedule,
            step_ms: step.milliseconds(),
            tokens_per_s: if step == Nanoseconds::ZERO { 0.0 } else { tokens / step.seconds() },
            exposed_comm_ms,
            exposed_comm_share: share(exposed_comm_ms),
            compute_ms,
            compute_utilisation: share(compute_ms),
            communication_ms,
            communication_utilisation: share(communication_ms),
            bound_ms: bound.milliseconds(),
            bound_ratio: step.share_of(bound),
            arena_bytes: timelines.iter().map(|timeline| timeline.arena_bytes.0).max().unwrap_or(0),
            stages: Vec::new(),
        }
    }

    /// The cells of the table.
    fn cells(&self, device_bytes: Option<u64>) -> [String; COLUMNS.len()] {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let too_much = device_bytes.is_some_and(|bytes| self.arena_bytes > bytes);
        [
            self.schedule.clone(),
            milliseconds(self.step_ms),
            thousands(self.tokens_per_s),
            milliseconds(self.exposed_comm_ms),
            percent(self.exposed_comm_share),
            percent(self.compute_utilisation),
            percent(self.communication_utilisation),
            format!("{:.3}", self.bound_ratio),
            format!("{}{}", Bytes(self.arena_bytes), if too_much { " *" } else { "" }),
        ]
    }
}

/// Below a table, where there are several stages.
pub const EXPOSED_ON_STAGES: &str =
    "With several stages, exposed is also the time in which a stage waits for others (the bubble).";

const COLUMNS: [&str; 9] =
    ["schedule", "step ms", "tokens/s", "exposed ms", "of step", "compute", "link", "bound", "memory"];

/// Four digits or more of what is long, down to the microsecond of what is short.
pub fn milliseconds(ms: f64) -> String {
    if ms >= 1000.0 { thousands(ms) } else { format!("{ms:.*}", if ms >= 100.0 { 1 } else { 3 }) }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model    {}", self.model)?;
        writeln!(f, "{:<8} {}", self.source, self.machine)?;
        writeln!(f, "link     {}", self.link)?;
        if !self.estimates.is_empty() {
            writeln!(f, "estimate {}", self.estimates.join(", "))?;
        }
        writeln!(f)?;
        let rows = self.rows.iter().flat_map(|row| std::iter::once(row).chain(&row.stages));
        let rows = rows.map(|row| row.cells(self.device_bytes));
        let table: Vec<[String; COLUMNS.len()]> =
            std::iter::once(COLUMNS.map(str::to_owned)).chain(rows).collect();
        let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
        for row in &table {
            write!(f, "{:<1$}", row[0], widths[0])?;
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "\nexposed: the compute stream waits for collectives, or adds up what they brought. compute, link: share of the step in\n\
             which that stream is busy. bound: the step over the work of its own busier stream; 1 is as fast as these\n\
             instructions can be. memory: one rank's, in 32 bits."
        )?;
        if self.pipeline > 1 {
            writeln!(f, "{EXPOSED_ON_STAGES}")?;
        }
        for SameStep { schedule, of } in &self.same {
            writeln!(
                f,
                "{schedule} is {of} here: with several stages the order of the pipeline decides on micro-batches."
            )?;
        }
        let device = self.device_bytes.unwrap_or(u64::MAX);
        if self.rows.iter().any(|row| row.arena_bytes > device) {
            writeln!(f, "* more than the {} of one device", Bytes(device))?;
        }
        Ok(())
    }
}

/// Writes predicted steps as a trace: one process for each schedule, and in a pipeline for each stage of it.
pub fn write_trace(out: impl Write, steps: &[Step]) -> io::Result<()> {
    let mut trace = TraceWriter::new(out)?;
    let stages = steps.iter().flat_map(|step| step.schedules.iter().zip(&step.timelines));
    for (process, (schedule, timeline)) in stages.enumerate() {
        let process = process as u32;
        let stage = match schedule.stage.stages.count() {
            1 => String::new(),
            _ => format!(", stage {}", schedule.stage.index),
        };
        trace.process(process, &format!("{}{stage} (predicted)", schedule.name))?;
        for span in spans(process, schedule, timeline) {
            trace.span(&span)?;
        }
    }
    trace.finish()
}

/// The spans of a predicted step.
fn spans<'a>(
    process: u32,
    schedule: &'a Schedule,
    timeline: &'a Timeline,
) -> impl Iterator<Item = Span> + use<'a> {
    let instructions = schedule.instructions.iter().zip(&timeline.instructions);
    let on_compute = instructions.filter(|(_, interval)| interval.start < interval.end);
    let on_compute = on_compute.map(move |(instruction, interval)| {
        let waits = matches!(instruction, Instruction::Sync { .. });
        Span {
            process,
            track: if waits { Track::Waiting } else { Track::Compute },
            name: instruction_name(instruction),
            category: category(instruction),
            start_ns: interval.start.0,
            end_ns: interval.end.0,
        }
    });
    let on_link = timeline.collectives.iter().map(move |run| Span {
        process,
        track: Track::of(run.kind),
        name: run.collective.to_string(),
        category: run.kind.name().to_owned(),
        start_ns: run.on_link.start.0,
        end_ns: run.on_link.end.0,
    });
    on_compute.chain(on_link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::{Request, Stage, Stages, Variant};

    /// On stages nothing is left of what sets `oases-dual` apart; `megatron` stays another schedule.
    #[test]
    fn schedules_of_a_pipeline_that_do_the_same_are_told() {
        let steps = |stages: Stages| -> Vec<Step> {
            let stage = Stage { stages, index: 0 };
            let request = Request { stage, micro_batches: 2, ..Request::new(2, 2, 2) };
            let build = |name: &str| Variant::find(name).unwrap().build_stages(&request);
            let step = |name| Step { schedules: build(name), timelines: Vec::new() };
            ["megatron", "oases", "oases-dual"].map(step).into()
        };
        let expected = SameStep { schedule: "oases-dual".to_owned(), of: "oases".to_owned() };
        assert_eq!(SameStep::all(&steps(Stages::new(2, vec![0, 3], true))), [expected]);
        assert_eq!(SameStep::all(&steps(Stages::single())), []);
    }
}
