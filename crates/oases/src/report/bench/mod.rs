//! What `oases bench` shows: every schedule on every link, predicted beside measured, as a table, as JSON and as a page.

mod cells;
mod html;
mod text;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use super::statistics::Prediction;
use cells::Cells;

/// The schedule that speedups are counted from.
pub const BASELINE: &str = "megatron";

/// A finished or interrupted comparison of schedules over links. Rows may be missing; what is there is shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BenchReport {
    /// Headline.
    pub title: String,
    /// The machine, in a line or more.
    pub machine: String,
    /// The command that repeats it.
    pub command: String,
    /// The program and its version.
    pub version: String,
    /// What was trained, as names and values.
    pub model: Vec<(String, String)>,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Rounds that were asked for.
    pub rounds: usize,
    /// Why it ended early, as the end of a sentence.
    pub interrupted: Option<String>,
    /// The schedules compared, in the order of the report. Schedules that only rows name come behind.
    pub schedules: Vec<ScheduleNote>,
    /// The links compared, in the order of the report. Links that only rows name come behind.
    pub links: Vec<LinkRow>,
    /// One for each schedule and link.
    pub rows: Vec<Row>,
    /// Instructions over time; too long for the table and for JSON.
    #[serde(skip)]
    pub timelines: Vec<TimelinePair>,
}

/// A schedule and whose method it is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ScheduleNote {
    /// Its name.
    pub name: String,
    /// What it does, in a line.
    pub description: String,
}

/// A link between the ranks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LinkRow {
    /// The ratio c/f that the link was made for, where it was given so.
    pub comm_ratio: Option<f64>,
    /// Its name; rows and timelines refer to it.
    pub label: String,
    /// Its bandwidth with the unit, such as `1.25 Gbit/s`.
    pub bandwidth: String,
    /// Its latency with the unit.
    pub latency: String,
    /// Time of the all-reduce behind a block, for the full batch of a micro-batch: c.
    pub all_reduce_ms: f64,
    /// Mean time of the forward computation of a block for the same batch: f.
    pub block_forward_ms: f64,
}

/// One schedule on one link.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The schedule.
    pub schedule: String,
    /// The ratio c/f of its link, where the link was given so.
    pub comm_ratio: Option<f64>,
    /// The label of its link.
    pub link: String,
    /// Median step time over the rounds.
    pub step_ms: f64,
    /// Shortest step.
    pub step_min_ms: f64,
    /// Longest step.
    pub step_max_ms: f64,
    /// Step time by simulation.
    pub predicted_step_ms: Option<f64>,
    /// Measured step time of [`BASELINE`] on the same link over this one's.
    pub speedup: Option<f64>,
    /// The same by simulation.
    pub predicted_speedup: Option<f64>,
    /// Time of a step in which the busier of the two streams never idles.
    pub bound_ms: Option<f64>,
    /// Step time over that bound.
    pub bound_ratio: Option<f64>,
    /// Median time of a step in which computation waits for collectives.
    pub exposed_comm_ms: f64,
    /// The same by simulation.
    pub predicted_exposed_comm_ms: Option<f64>,
    /// Share of the step in which the compute stream computes, from 0 to 1.
    pub utilisation: f64,
    /// Bytes of a rank's arena.
    pub arena_bytes: u64,
    /// Mean loss of the last step.
    pub loss: f64,
    /// Rounds that the medians are over.
    pub rounds: usize,
}

/// The same step of a schedule, measured and predicted.
#[derive(Clone, Debug, Default)]
pub struct TimelinePair {
    /// The schedule.
    pub schedule: String,
    /// The label of its link.
    pub link: String,
    /// As executed.
    pub measured: Option<Timeline>,
    /// As simulated.
    pub predicted: Option<Timeline>,
}

/// One step of one rank.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Its length.
    pub step_ms: f64,
    /// What happened, in any order.
    pub spans: Vec<Span>,
}

/// Something that took time.
#[derive(Clone, Debug)]
pub struct Span {
    /// Where it is drawn.
    pub track: Track,
    /// What it is.
    pub kind: SpanKind,
    /// The instruction, such as `forward attn.0 m0.a`.
    pub name: String,
    /// From the start of the step.
    pub start_ms: f64,
    /// From the start of the step.
    pub end_ms: f64,
    /// Index of the sub-batch within its micro-batch; 0 where there is none.
    pub part: usize,
}

/// The streams of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// The compute stream, at work.
    Compute,
    /// The compute stream, waiting for a collective.
    Waiting,
    /// The communication stream.
    Communication,
}

/// What a span does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpanKind {
    /// Forward of a block.
    Forward,
    /// Recomputation of a block.
    Recompute,
    /// Backward of a block, or its gradient of the input alone.
    Backward,
    /// Weight gradients of a block, where they are an instruction of their own.
    WeightGradient,
    /// Loss, optimizer, and whatever else computes.
    Other,
    /// A collective.
    Collective,
    /// Waiting for one.
    Wait,
}

/// The report as programs read it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a BenchReport,
    /// None without a prediction.
    prediction: Option<Prediction>,
}

impl BenchReport {
    /// How well the predicted step times foretold the measured ones, over all rows that have both.
    pub fn prediction(&self) -> Option<Prediction> {
        Prediction::of(&self.step_pairs())
    }

    /// The report without its timelines, as JSON: what the fields are called here, and `prediction`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&Document { report: self, prediction: self.prediction() })
    }

    /// The report as one page that needs no other file and no network.
    pub fn to_html(&self) -> String {
        html::page(&Cells::new(self))
    }

    /// Measured and predicted step times of all rows; where there is no prediction, not a number.
    fn step_pairs(&self) -> Vec<(f64, f64)> {
        let pair = |row: &Row| (row.step_ms, row.predicted_step_ms.unwrap_or(f64::NAN));
        self.rows.iter().map(pair).collect()
    }
}
