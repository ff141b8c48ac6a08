//! Predicted against measured step times: on the diagonal they agree.

use std::fmt::Display;

use super::markup::Markup;
use super::plot::{Axis, Frame, Percent, Pixels, line};
use crate::report::numbers::{fixed, percent};
use crate::report::statistics::Prediction;

/// The error that a prediction should stay within.
pub const BAND: f64 = 0.05;

/// Draws points of a measured and a predicted time, in milliseconds; `mark` draws the one of an index at its place. `what` is
/// what the points are, in the plural.
pub fn scatter(
    markup: &mut Markup,
    points: &[[f64; 2]],
    what: &str,
    prediction: &Prediction,
    mark: impl Fn(&mut Markup, usize, (Percent, Pixels)),
) {
    let low = points.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let high = points.iter().flatten().copied().fold(0.0, f64::max);
    let axis = Axis::rounded(if low < 0.4 * high { 0.0 } else { low * 0.95 }, high * 1.03, 5);
    let frame = Frame { left: 46.0, right: 14.0, top: 34.0, bottom: 42.0, height: 320.0 };
    let statistics = statistics(prediction, what);
    frame.draw(
        markup,
        &format!("Predicted against measured step times. {}.", statistics.join(", ")),
        |markup| {
            band(markup, &axis, frame.height);
            frame.left_axis(markup, &axis, "predicted step, ms");
            frame.bottom_axis(markup, &axis, "measured step, ms");
            line(markup, "one", (Percent(0.0), Pixels(frame.height)), (Percent(100.0), Pixels(0.0)));
            for (index, text) in statistics.iter().enumerate() {
                let y = Pixels(18.0 + 17.0 * index as f64);
                markup.element("text", &[("x", &12), ("y", &y)], text);
            }
            for (index, [measured, predicted]) in points.iter().enumerate() {
                mark(markup, index, (axis.across(*measured), axis.down(*predicted, frame.height)));
            }
        },
    );
}

fn statistics(prediction: &Prediction, what: &str) -> Vec<String> {
    let mut lines = vec![format!("{} {what}", prediction.cells)];
    lines.extend(prediction.spearman.map(|spearman| format!("Spearman {}", fixed(spearman, 3))));
    lines.push(format!("median error {}", percent(prediction.median_error)));
    lines.push(format!("worst error {}", percent(prediction.worst_error)));
    lines
}

/// The area within [`BAND`] of the diagonal; drawn in a square that is then stretched to the frame.
fn band(markup: &mut Markup, axis: &Axis, height: f64) {
    let ends = [axis.ticks.first(), axis.ticks.last()].map(|tick| tick.copied().unwrap_or(0.0));
    let point = |measured: f64, factor: f64| {
        format!(
            "{} {}",
            Pixels(100.0 * axis.share(measured)),
            Pixels(100.0 - 100.0 * axis.share(measured * factor))
        )
    };
    let corners =
        [(ends[0], 1.0 + BAND), (ends[1], 1.0 + BAND), (ends[1], 1.0 - BAND), (ends[0], 1.0 - BAND)];
    let path: Vec<String> = corners.iter().map(|(measured, factor)| point(*measured, *factor)).collect();
    let attributes: [(&str, &dyn Display); 5] = [
        ("viewBox", &"0 0 100 100"),
        ("preserveAspectRatio", &"none"),
        ("width", &"100%"),
        ("height", &Pixels(height)),
        ("style", &"overflow:hidden"),
    ];
    markup.within("svg", &attributes, |markup| {
        markup.leaf("path", &[("class", &"band"), ("d", &format!("M{}z", path.join("L")))]);
    });
}
