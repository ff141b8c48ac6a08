//! Whether the prediction held: predicted against measured step times, and the error of each schedule.

use std::fmt::Display;

use super::Figures;
use super::markup::Markup;
use super::plot::{Axis, Frame, Percent, Pixels};
use super::series::{Series, line};
use super::speedup::details;
use super::{name_margin, short_name};
use crate::report::bench::Row;
use crate::report::bench::cells::Cells;
use crate::report::bench::numbers::{fixed, percent, short};
use crate::report::statistics::{Prediction, relative_error};

/// The error that a prediction should stay within.
const BAND: f64 = 0.05;

/// A row with both step times.
struct Point<'a> {
    schedule: usize,
    link: usize,
    row: &'a Row,
    predicted_ms: f64,
}

/// Writes the section; nothing without a prediction.
pub fn write(markup: &mut Markup, cells: &Cells<'_>, figures: &mut Figures) {
    let Some(prediction) = cells.report.prediction() else { return };
    let points: Vec<Point<'_>> = cells
        .all()
        .filter_map(|(schedule, link, row)| {
            let predicted_ms = row.predicted_step_ms.filter(|step| step.is_finite() && *step > 0.0)?;
            Some(Point { schedule, link, row, predicted_ms })
        })
        .collect();
    markup.element("h2", &[], "Predicted and measured");
    let caption = "Left: predicted against measured step time of every schedule on every link; on the diagonal they agree, the \
                   band is ±5\u{202f}%. Right: the error of the prediction by schedule, one mark for each link; right of zero \
                   the prediction is too slow.";
    figures.write(markup, caption, |markup| {
        markup.within("div", &[("class", &"pair")], |markup| {
            markup.within("div", &[], |markup| scatter(markup, cells, &points, &prediction));
            markup.within("div", &[], |markup| errors(markup, cells, &points));
        });
    });
}

fn scatter(markup: &mut Markup, cells: &Cells<'_>, points: &[Point<'_>], prediction: &Prediction) {
    let values = || points.iter().flat_map(|point| [point.row.step_ms, point.predicted_ms]);
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(0.0, f64::max);
    let axis = Axis::rounded(if low < 0.4 * high { 0.0 } else { low * 0.95 }, high * 1.03, 5);
    let frame = Frame { left: 46.0, right: 14.0, top: 34.0, bottom: 42.0, height: 320.0 };
    let statistics = statistics(prediction);
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
            for point in points {
                let place = (axis.across(point.row.step_ms), axis.down(point.predicted_ms, frame.height));
                mark(markup, cells, point, place);
            }
        },
    );
}

fn statistics(prediction: &Prediction) -> Vec<String> {
    let mut lines = vec![format!("{} cells", prediction.cells)];
    lines.extend(prediction.spearman.map(|spearman| format!("Spearman {}", fixed(spearman, 3))));
    lines.push(format!("median error {}", percent(prediction.median_error)));
    lines.push(format!("worst error {}", percent(prediction.worst_error)));
    lines
}

/// The area within 5 % of the diagonal; drawn in a square that is then stretched to the frame.
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

fn mark(markup: &mut Markup, cells: &Cells<'_>, point: &Point<'_>, (x, y): (Percent, Pixels)) {
    let series = Series::of(cells, point.schedule);
    markup.within("g", &[("class", &series.class())], |markup| {
        markup.element("title", &[], &details(point.row, &cells.links[point.link].title));
        series.dot(markup, x, y);
    });
}

/// A line for each schedule with its errors on all links.
fn errors(markup: &mut Markup, cells: &Cells<'_>, points: &[Point<'_>]) {
    let error = |point: &Point<'_>| relative_error(point.row.step_ms, point.predicted_ms);
    let largest = points.iter().map(|point| error(point).abs()).fold(BAND * 1.4, f64::max) * 100.0;
    let axis = Axis::exact(-largest * 1.08, largest * 1.08, 8);
    let schedules: Vec<usize> = (0..cells.schedules.len())
        .filter(|index| points.iter().any(|point| point.schedule == *index))
        .collect();
    let line_height = (320.0 / schedules.len().max(1) as f64).clamp(20.0, 44.0);
    let height = line_height * schedules.len() as f64;
    let frame = Frame { left: name_margin(cells), right: 16.0, top: 34.0, bottom: 42.0, height };
    let description = format!(
        "Relative errors of the predicted step times of {} schedules; the largest is {}\u{202f}%.",
        schedules.len(),
        short(points.iter().map(|point| error(point).abs() * 100.0).fold(0.0, f64::max))
    );
    frame.draw(markup, &description, |markup| {
        let [from, to] = [-100.0 * BAND, 100.0 * BAND].map(|value| axis.across(value));
        let attributes: [(&str, &dyn Display); 4] = [
            ("class", &"band"),
            ("x", &from),
            ("width", &Percent(to.0 - from.0)),
            ("height", &Pixels(height)),
        ];
        markup.leaf("rect", &attributes);
        frame.bottom_axis(markup, &axis, "error of the prediction, %");
        let zero = axis.across(0.0);
        line(markup, "one", (zero, Pixels(0.0)), (zero, Pixels(height)));
        for (place, schedule) in schedules.iter().enumerate() {
            let y = Pixels(line_height * (place as f64 + 0.5));
            let text_y = Pixels(y.0 + 4.0);
            let name = short_name(cells.schedules[*schedule]);
            markup.element("text", &[("class", &"end"), ("x", &-10), ("y", &text_y)], &name);
            for point in points.iter().filter(|point| point.schedule == *schedule) {
                mark(markup, cells, point, (axis.across(error(point) * 100.0), y));
            }
        }
    });
}
