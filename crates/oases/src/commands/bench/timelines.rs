//! The same step of a schedule, measured and predicted, to be drawn.

use oases_plan::Timeline as Predicted;
use oases_schedule::{Instruction, PartId, Pass, Schedule, Scope};
use oases_train::trial::Sample;

use super::rows::Cell;
use crate::report::bench::{BenchReport, Span, SpanKind, Timeline, TimelinePair, Track};

/// The step nearest the median, and its prediction, of the first rank.
pub fn pair(cell: &Cell<'_>, label: &str) -> TimelinePair {
    let median_ns = cell.step_ms() * 1e6;
    let distance = |sample: &&Sample| (sample.step_ns as f64 - median_ns).abs();
    let typical = cell.samples.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
    TimelinePair {
        schedule: cell.name().to_owned(),
        link: label.to_owned(),
        measured: typical.map(|sample| measured(cell, sample)),
        predicted: cell.predicted.map(|predicted| simulated(&cell.stages[0], &predicted[0])),
    }
}

/// The link that separates schedules best is the one whose all-reduce takes about twice a block's forward.
const SHOWN_RATIO: f64 = 2.0;

/// The report with the timelines of one link only: a page of all would be too large to look at.
pub fn of_one_link(report: &BenchReport) -> BenchReport {
    let ratio = |link: &&crate::report::bench::LinkRow| {
        let ratio = link.all_reduce_ms / link.block_forward_ms;
        (ratio / SHOWN_RATIO).ln().abs()
    };
    let shown = report.links.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let mut one = report.clone();
    one.timelines.retain(|pair| Some(&pair.link) == shown.map(|link| &link.label));
    one
}

fn measured(cell: &Cell<'_>, sample: &Sample) -> Timeline {
    let since = |ns: u64| ns.saturating_sub(sample.began_ns) as f64 / 1e6;
    let instructions = cell.stages[0].instructions.iter().zip(&sample.timings[0]);
    let mut spans: Vec<Span> = instructions
        .filter_map(|(instruction, timing)| {
            on_compute(instruction, since(timing.start_ns), since(timing.end_ns))
        })
        .collect();
    spans.extend(
        cell.measured(sample).on_link().swap_remove(0).into_iter().map(|run| {
            on_link(&cell.stages[0].instructions[run.start], since(run.begin_ns), since(run.end_ns))
        }),
    );
    Timeline { step_ms: sample.step_ns as f64 / 1e6, spans }
}

fn simulated(schedule: &Schedule, predicted: &Predicted) -> Timeline {
    let instructions = schedule.instructions.iter().zip(&predicted.instructions);
    let mut spans: Vec<Span> = instructions
        .filter_map(|(instruction, interval)| {
            on_compute(instruction, interval.start.milliseconds(), interval.end.milliseconds())
        })
        .collect();
    spans.extend(predicted.collectives.iter().map(|run| {
        let instruction = &schedule.instructions[run.start_instruction];
        on_link(instruction, run.on_link.start.milliseconds(), run.on_link.end.milliseconds())
    }));
    Timeline { step_ms: predicted.step.milliseconds(), spans }
}

/// What an instruction does on the compute stream; nothing for a `start`.
fn on_compute(instruction: &Instruction, start_ms: f64, end_ms: f64) -> Option<Span> {
    let (track, kind) = match *instruction {
        Instruction::Start { .. } => return None,
        Instruction::Sync { .. } => (Track::Waiting, SpanKind::Wait),
        Instruction::Backward { scope: Scope::Weight, .. } => (Track::Compute, SpanKind::WeightGradient),
        _ => (Track::Compute, kind(instruction.pass())),
    };
    Some(span(instruction, track, kind, start_ms, end_ms))
}

fn kind(pass: Option<Pass>) -> SpanKind {
    match pass {
        Some(Pass::Forward) => SpanKind::Forward,
        Some(Pass::Recompute) => SpanKind::Recompute,
        Some(Pass::Backward) => SpanKind::Backward,
        None => SpanKind::Other,
    }
}

fn on_link(instruction: &Instruction, start_ms: f64, end_ms: f64) -> Span {
    span(instruction, Track::Communication, SpanKind::Collective, start_ms, end_ms)
}

fn span(instruction: &Instruction, track: Track, kind: SpanKind, start_ms: f64, end_ms: f64) -> Span {
    let name = instruction.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let part = instruction.part().and_then(|PartId { sub, .. }| sub).map_or(0, usize::from);
    Span { track, kind, name, start_ms, end_ms, part }
}
