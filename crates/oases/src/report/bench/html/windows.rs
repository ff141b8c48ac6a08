//! Which stretch of a step to look at closely: one in the steady state of a pass, the same for the measured and the predicted
//! step, and equally long for all schedules.

use crate::report::bench::{Span, SpanKind, Timeline, TimelinePair, Track};
use crate::report::statistics::median;

/// A stretch of each schedule's step.
pub struct Stretch {
    /// How long.
    pub length_ms: f64,
    /// Where it starts in the measured and in the predicted step of each pair.
    pub starts_ms: Vec<(f64, f64)>,
}

/// Periods of the slowest schedule that a stretch shows.
const PERIODS: f64 = 2.3;

/// A stretch of forward computation.
pub fn forward(pairs: &[&TimelinePair]) -> Option<Stretch> {
    stretch(pairs, &[SpanKind::Forward])
}

/// A stretch of recomputation and backward.
pub fn backward(pairs: &[&TimelinePair]) -> Option<Stretch> {
    stretch(pairs, &[SpanKind::Backward, SpanKind::Recompute, SpanKind::WeightGradient])
}

fn stretch(pairs: &[&TimelinePair], kinds: &[SpanKind]) -> Option<Stretch> {
    let leading = kinds[0];
    let periods = pairs.iter().filter_map(|pair| period(reference(pair)?, leading));
    let length_ms = PERIODS * periods.fold(f64::NAN, f64::max);
    let starts_ms = || pairs.iter().map(|pair| starts(pair, kinds, length_ms)).collect();
    (length_ms > 0.0).then(|| Stretch { length_ms, starts_ms: starts_ms() })
}

fn reference(pair: &TimelinePair) -> Option<&Timeline> {
    pair.measured.as_ref().or(pair.predicted.as_ref())
}

/// Spans of the compute stream, in their order.
fn computing(timeline: &Timeline) -> Vec<&Span> {
    let mut spans: Vec<&Span> = timeline.spans.iter().filter(|span| span.track == Track::Compute).collect();
    spans.sort_by(|left, right| left.start_ms.total_cmp(&right.start_ms));
    spans
}

/// Median time from one block to the next, of the same sub-batch.
fn period(timeline: &Timeline, kind: SpanKind) -> Option<f64> {
    let spans = computing(timeline);
    let first_part = spans.iter().find(|span| span.kind == kind)?.part;
    let starts: Vec<f64> = spans
        .iter()
        .filter(|span| span.kind == kind && span.part == first_part)
        .map(|span| span.start_ms)
        .collect();
    let steps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    median(&steps)
}

fn starts(pair: &TimelinePair, kinds: &[SpanKind], length_ms: f64) -> (f64, f64) {
    let of = |timeline: &Option<Timeline>| {
        timeline.as_ref().and_then(|timeline| best_start(timeline, kinds, length_ms))
    };
    let start = |timeline: &Timeline, index: usize| computing(timeline).get(index).map(|span| span.start_ms);
    match (&pair.measured, &pair.predicted) {
        // The same instruction opens both, so that what is beneath each other belongs together.
        (Some(measured), Some(predicted)) if computing(measured).len() == computing(predicted).len() => {
            let index = of(&pair.measured).unwrap_or(0);
            (start(measured, index).unwrap_or(0.0), start(predicted, index).unwrap_or(0.0))
        }
        (measured, predicted) => {
            let place = |timeline: &Option<Timeline>| {
                timeline.as_ref().and_then(|known| start(known, of(timeline)?)).unwrap_or(0.0)
            };
            (place(measured), place(predicted))
        }
    }
}

/// Index, among the spans of the compute stream, of the span where a stretch starts that is filled with these kinds as much as
/// any; the one nearest to the middle of the step.
fn best_start(timeline: &Timeline, kinds: &[SpanKind], length_ms: f64) -> Option<usize> {
    let spans = computing(timeline);
    let filled = |start: f64| -> f64 {
        let inside = spans.iter().filter(|span| kinds.contains(&span.kind));
        let overlap = inside.map(|span| span.end_ms.min(start + length_ms) - span.start_ms.max(start));
        overlap.filter(|overlap| *overlap > 0.0).sum()
    };
    let candidates: Vec<(usize, f64, f64)> = spans
        .iter()
        .enumerate()
        .filter(|(_, span)| kinds.contains(&span.kind) && span.part == 0)
        .map(|(index, span)| (index, span.start_ms, filled(span.start_ms)))
        .collect();
    let most = candidates.iter().map(|candidate| candidate.2).fold(0.0, f64::max);
    let off_middle = |start: f64| (start + length_ms / 2.0 - timeline.step_ms / 2.0).abs();
    let good = candidates.iter().filter(|candidate| candidate.2 >= 0.94 * most);
    let nearest = good.min_by(|left, right| off_middle(left.1).total_cmp(&off_middle(right.1)));
    nearest.map(|candidate| candidate.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forward spans of 1 ms every 2 ms from 0 to 20, then backward spans of 2 ms every 3 ms to 50.
    fn timeline(scale: f64) -> Timeline {
        let span = |kind, start: f64, length: f64| Span {
            track: Track::Compute,
            kind,
            name: String::new(),
            start_ms: start * scale,
            end_ms: (start + length) * scale,
            part: 0,
        };
        let forward = (0..10).map(|index| span(SpanKind::Forward, 2.0 * index as f64, 1.0));
        let backward = (0..10).map(|index| span(SpanKind::Backward, 20.0 + 3.0 * index as f64, 2.0));
        Timeline { step_ms: 50.0 * scale, spans: forward.chain(backward).collect() }
    }

    #[test]
    fn a_stretch_lies_in_its_pass_and_opens_with_the_same_instruction() {
        let pair = TimelinePair {
            measured: Some(timeline(1.0)),
            predicted: Some(timeline(0.5)),
            ..TimelinePair::default()
        };
        let forward = forward(&[&pair]).unwrap();
        assert!((forward.length_ms - 2.3 * 2.0).abs() < 1e-9);
        // Starts at 16 would hold the spans at 16 and 18 and reach 20.6, which is 0.6 into backward; still 2 ms of forward,
        // but others hold three starts (2.6 ms): the last of those, nearest to the middle, is at 14.
        assert_eq!(forward.starts_ms, [(14.0, 7.0)]);
        let backward = backward(&[&pair]).unwrap();
        assert!((backward.length_ms - 2.3 * 3.0).abs() < 1e-9);
        let (start, predicted) = backward.starts_ms[0];
        assert!((20.0..=43.1).contains(&start), "{start}");
        assert_eq!(predicted, start / 2.0);
    }

    #[test]
    fn a_pass_of_one_instruction_has_no_steady_state() {
        let mut timeline = timeline(1.0);
        timeline.spans.truncate(1);
        let pair = TimelinePair { measured: Some(timeline), ..TimelinePair::default() };
        assert!(forward(&[&pair]).is_none());
        assert!(forward(&[]).is_none());
    }
}
