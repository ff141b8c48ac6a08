//! Whether the prediction held: predicted against measured step times, and the error of each schedule.

use std::fmt::Display;

use super::series::Series;
use super::speedup::details;
use super::{name_margin, short_name};
use crate::report::bench::Row;
use crate::report::bench::cells::Cells;
use crate::report::html::Figures;
use crate::report::html::markup::Markup;
use crate::report::html::plot::{Axis, Frame, Percent, Pixels, line};
use crate::report::html::scatter::{BAND, scatter};
use crate::report::numbers::short;
use crate::report::statistics::relative_error;

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
            markup.within("div", &[], |markup| {
                let places = points.iter().map(|point| [point.row.step_ms, point.predicted_ms]);
                let places: Vec<[f64; 2]> = places.collect();
                scatter(markup, &places, "cells", &prediction, |markup, index, place| {
                    mark(markup, cells, &points[index], place);
                });
            });
            markup.within("div", &[], |markup| errors(markup, cells, &points));
        });
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
