//! What `oases simulate` shows: what each schedule would take, as a table, as JSON, and as a trace.

use std::fmt;
use std::io::{self, Write};

use oases_plan::{Bound, Timeline};
use oases_schedule::{Bytes, Instruction, Schedule};
use serde::Serialize;

use super::trace::{Span, TraceWriter, Track, category, instruction_name};
use crate::progress::thousands;

/// Predictions of several schedules for one model, machine and link.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// The model and how its step is cut, in words.
    pub model: String,
    /// Ranks of the group.
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
}

/// What one schedule would take.
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
}

impl Row {
    /// The figures of a timeline.
    pub fn new(timeline: &Timeline, sequence: usize) -> Row {
        let bound = Bound { compute: timeline.compute, communication: timeline.communication };
        Row {
            schedule: timeline.schedule.clone(),
            step_ms: timeline.step.milliseconds(),
            tokens_per_s: timeline.tokens_per_s(sequence),
            exposed_comm_ms: timeline.exposed.milliseconds(),
            exposed_comm_share: timeline.exposed_share(),
            compute_ms: timeline.compute.milliseconds(),
            compute_utilisation: timeline.compute_utilisation(),
            communication_ms: timeline.communication.milliseconds(),
            communication_utilisation: timeline.communication_utilisation(),
            bound_ms: bound.step().milliseconds(),
            bound_ratio: timeline.step.share_of(bound.step()),
            arena_bytes: timeline.arena_bytes.0,
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
        let rows = self.rows.iter().map(|row| row.cells(self.device_bytes));
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
        let device = self.device_bytes.unwrap_or(u64::MAX);
        if self.rows.iter().any(|row| row.arena_bytes > device) {
            writeln!(f, "* more than the {} of one device", Bytes(device))?;
        }
        Ok(())
    }
}

/// Writes predicted steps as a trace: one process for each schedule.
pub fn write_trace(out: impl Write, steps: &[(Schedule, Timeline)]) -> io::Result<()> {
    let mut trace = TraceWriter::new(out)?;
    for (process, (schedule, timeline)) in steps.iter().enumerate() {
        let process = process as u32;
        trace.process(process, &format!("{} (predicted)", schedule.name))?;
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
        track: Track::Communication,
        name: run.collective.to_string(),
        category: run.kind.name().to_owned(),
        start_ns: run.on_link.start.0,
        end_ns: run.on_link.end.0,
    });
    on_compute.chain(on_link)
}
