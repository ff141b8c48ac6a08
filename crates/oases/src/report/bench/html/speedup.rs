//! The first figure: speedup over the baseline, against c/f where there are several links, as a list where there is one.

use std::fmt::Display;

use super::series::{KeyMark, Series, key};
use super::{name_margin, short_name};
use crate::report::bench::cells::{Bound, Cells};
use crate::report::bench::{BASELINE, Row};
use crate::report::html::Figures;
use crate::report::html::markup::Markup;
use crate::report::html::plot::{Axis, Frame, Percent, Pixels, line, spread};
use crate::report::numbers::{fixed, milliseconds, short, times};

/// Writes the section.
pub fn write(markup: &mut Markup, cells: &Cells<'_>, figures: &mut Figures) {
    if !cells.all().any(|(_, _, row)| row.speedup.is_some()) {
        return;
    }
    markup.element("h2", &[], &format!("Speedup over {BASELINE}"));
    let bounds = match cells.bounds.len() {
        0 => "",
        1 => " The bound is what a step would take in which the busier of the two streams never idles.",
        _ => {
            " A bound is what a step would take in which the busier of the two streams never idles; schedules that keep \
             activations compute less and have their own."
        }
    };
    let what = match cells.links.len() {
        1 => format!("Speedup over {BASELINE} on one link, {}.", cells.links[0].title.replace('*', "∗")),
        _ if cells.ratios().is_some() => format!(
            "Speedup over {BASELINE} on the same link, against the ratio of the all-reduce's time to the forward time of a \
             block."
        ),
        _ => format!("Speedup over {BASELINE} on the same link."),
    };
    figures.write(markup, &format!("{what}{bounds}"), |markup| {
        let measured = if cells.links.len() == 1 { KeyMark::Dot } else { KeyMark::Measured };
        let predicted = if cells.links.len() == 1 { KeyMark::Ring } else { KeyMark::Predicted };
        let bound = if cells.links.len() == 1 { KeyMark::BoundTick } else { KeyMark::Bound };
        let mut entries = vec![(measured, "measured, median of the rounds")];
        if cells.has_prediction() {
            entries.push((predicted, "predicted"));
        }
        if !cells.bounds.is_empty() {
            entries.push((bound, "bound"));
        }
        key(markup, &entries);
        match cells.links.len() {
            1 => list(markup, cells),
            _ => curves(markup, cells),
        }
    });
}

/// All speedups that are drawn, with one for the baseline itself.
fn range(cells: &Cells<'_>) -> (f64, f64) {
    let rows = cells.all().flat_map(|(_, _, row)| [row.speedup, row.predicted_speedup]);
    let bounds = cells.bounds.iter().flat_map(|bound| {
        let steps = bound.step_ms.iter().enumerate();
        steps.map(|(link, step)| step.and_then(|step| cells.speedup_of(link, step)))
    });
    let values = rows.chain(bounds).flatten().filter(|value| value.is_finite()).chain([1.0]);
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// A label at the right end of a curve.
struct EndLabel {
    /// None for a bound.
    schedule: Option<usize>,
    name: String,
    value: String,
    y: f64,
}

fn curves(markup: &mut Markup, cells: &Cells<'_>) {
    let (low, high) = range(cells);
    let room = 0.05 * (high - low).max(0.2);
    let y_axis = Axis::exact(low - room, high + room, 6);
    let (places, title) = places(cells);
    let labels = cells.schedules.len() + cells.bounds.len();
    let height = f64::max(340.0, labels as f64 * 16.0 + 20.0);
    let longest_bound = cells.bounds.iter().map(|bound| cells.bound_name(bound).chars().count()).max();
    let right = f64::max(name_margin(cells) + 62.0, longest_bound.unwrap_or(0) as f64 * 6.6 + 24.0);
    let frame = Frame { left: 46.0, right, top: 34.0, bottom: 54.0, height };
    let description = format!(
        "Speedup over {BASELINE} of {} schedules on {} links, from {} to {}. The table below has the numbers.",
        cells.schedules.len(),
        cells.links.len(),
        times(low),
        times(high)
    );
    frame.draw(markup, &description, |markup| {
        frame.left_axis(markup, &y_axis, "speedup");
        bottom(markup, cells, &frame, &places, title);
        let one = y_axis.down(1.0, height);
        line(markup, "one", (Percent(0.0), one), (Percent(100.0), one));
        let down = |value| y_axis.down(value, height);
        let mut labels = bound_curves(markup, cells, &places, down);
        labels.extend((0..cells.schedules.len()).filter_map(|schedule| end_label(cells, schedule, down)));
        let wishes: Vec<f64> = labels.iter().map(|label| label.y).collect();
        let labels: Vec<(EndLabel, f64)> =
            labels.into_iter().zip(spread(&wishes, 15.0, 0.0, height)).collect();
        for label in labels.iter().filter(|(label, _)| label.schedule.is_none()) {
            draw_label(markup, label);
        }
        markup.within("g", &[("class", &"lines")], |markup| {
            for schedule in (0..cells.schedules.len()).rev() {
                markup.within("g", &[("class", &Series::of(cells, schedule).class())], |markup| {
                    schedule_curve(markup, cells, schedule, &places, down);
                    for label in labels.iter().filter(|(label, _)| label.schedule == Some(schedule)) {
                        draw_label(markup, label);
                    }
                });
            }
        });
    });
}

/// Where the links lie across the frame, and what that means.
fn places(cells: &Cells<'_>) -> (Vec<Percent>, &'static str) {
    let share = |place: Percent| Percent(3.0 + 0.94 * place.0);
    match cells.ratios() {
        Some(ratios) => {
            let axis = Axis::at_values(&ratios);
            (
                ratios.iter().map(|ratio| share(axis.across(*ratio))).collect(),
                "c/f: all-reduce time over forward time of a block",
            )
        }
        None => {
            let last = (cells.links.len() - 1) as f64;
            ((0..cells.links.len()).map(|link| share(Percent(100.0 * link as f64 / last))).collect(), "link")
        }
    }
}

fn bottom(markup: &mut Markup, cells: &Cells<'_>, frame: &Frame, places: &[Percent], title: &str) {
    let height = Pixels(frame.height);
    let mut last = f64::NEG_INFINITY;
    for (link, x) in cells.links.iter().zip(places) {
        line(markup, "grid", (*x, Pixels(0.0)), (*x, height));
        // Labels closer than this would touch in a narrow window.
        if x.0 - last < 5.0 {
            continue;
        }
        last = x.0;
        let text = match link.ratio.filter(|_| cells.ratios().is_some()) {
            Some(ratio) => short(ratio),
            None => short_name(&link.title),
        };
        markup.element(
            "text",
            &[("class", &"tick mid"), ("x", x), ("y", &Pixels(frame.height + 16.0))],
            &text,
        );
    }
    let y = Pixels(frame.height + 38.0);
    markup.element("text", &[("class", &"axis mid"), ("x", &"50%"), ("y", &y)], title);
}

/// The bounds, each named at its right end. Where the ends of several meet they share the name, and one that lies above the
/// others elsewhere is named there too.
fn bound_curves(
    markup: &mut Markup,
    cells: &Cells<'_>,
    places: &[Percent],
    down: impl Fn(f64) -> Pixels,
) -> Vec<EndLabel> {
    let curve = |bound: &Bound| -> Vec<Option<Pixels>> {
        let point = |link: usize| Some(down(cells.speedup_of(link, bound.step_ms[link]?)?));
        (0..places.len()).map(point).collect()
    };
    let curves: Vec<Vec<Option<Pixels>>> = cells.bounds.iter().map(curve).collect();
    let mut ends: Vec<EndLabel> = Vec::new();
    for (index, (bound, curve)) in cells.bounds.iter().zip(&curves).enumerate() {
        let points: Vec<_> = places.iter().zip(curve).filter_map(|(x, y)| Some((*x, (*y)?))).collect();
        for pair in points.windows(2) {
            line(markup, "bound", pair[0], pair[1]);
        }
        // A single point is no curve that could be named.
        let Some((_, last)) = points.last().filter(|_| points.len() > 1) else { continue };
        let name = cells.bound_name(bound);
        match ends.iter_mut().find(|end| (end.y - last.0).abs() < 3.0) {
            None => ends.push(EndLabel { schedule: None, name, value: String::new(), y: last.0 }),
            Some(shared) => {
                shared.name = "bounds".to_owned();
                if let Some(link) = summit(&curves, index) {
                    bound_label(markup, &curve[..], link, places[link], &name);
                }
            }
        }
    }
    ends
}

/// A bound's name above one of its points, on the side where the curve falls.
fn bound_label(markup: &mut Markup, curve: &[Option<Pixels>], link: usize, x: Percent, name: &str) {
    let Some(here) = curve[link] else { return };
    let higher = |other: Option<&Option<Pixels>>| matches!(other, Some(Some(there)) if there.0 < here.0);
    let class =
        match (higher(link.checked_sub(1).and_then(|link| curve.get(link))), higher(curve.get(link + 1))) {
            (false, true) => "faint end",
            (true, false) => "faint",
            _ => "faint mid",
        };
    markup.element("text", &[("class", &class), ("x", &x), ("y", &Pixels(here.0 - 8.0))], name);
}

/// The link on which a curve is farthest above all others, if it is on any.
fn summit(curves: &[Vec<Option<Pixels>>], of: usize) -> Option<usize> {
    let lead = |link: usize| {
        let ours = curves[of][link]?;
        let others =
            curves.iter().enumerate().filter(|(index, _)| *index != of).filter_map(|(_, curve)| curve[link]);
        let highest = others.map(|y| y.0).fold(f64::INFINITY, f64::min);
        (highest.is_finite() && highest - ours.0 > 6.0).then_some((highest - ours.0, link))
    };
    let best = (0..curves[of].len()).filter_map(lead).max_by(|left, right| left.0.total_cmp(&right.0));
    best.map(|(_, link)| link)
}

/// A name in bold and a value, in one line of text.
fn name_and_value(markup: &mut Markup, name: &str, value: &str) {
    let class = if value.is_empty() { "" } else { "bold" };
    markup.element("tspan", &[("class", &class)], name);
    if !value.is_empty() {
        markup.element("tspan", &[("dx", &6)], value);
    }
}

fn schedule_curve(
    markup: &mut Markup,
    cells: &Cells<'_>,
    schedule: usize,
    places: &[Percent],
    down: impl Fn(f64) -> Pixels,
) {
    let series = Series::of(cells, schedule);
    let points = |value: fn(&Row) -> Option<f64>| -> Vec<(usize, Percent, Pixels)> {
        let point = |link: usize| Some((link, places[link], down(value(cells.row(schedule, link)?)?)));
        (0..places.len()).filter_map(point).collect()
    };
    let (measured, predicted) = (points(|row| row.speedup), points(|row| row.predicted_speedup));
    for (class, points) in [("guess", &predicted), ("line", &measured)] {
        // A link without a row leaves a gap.
        for pair in points.windows(2).filter(|pair| pair[1].0 == pair[0].0 + 1) {
            line(markup, class, (pair[0].1, pair[0].2), (pair[1].1, pair[1].2));
        }
    }
    for (_, x, y) in &predicted {
        series.ring(markup, *x, *y);
    }
    for (link, x, y) in &measured {
        markup.within("g", &[], |markup| {
            if let Some(row) = cells.row(schedule, *link) {
                markup.element("title", &[], &details(row, &cells.links[*link].title));
            }
            series.dot(markup, *x, *y);
        });
    }
}

/// The name of a schedule with its last speedup; it says where that was if not on the last link.
fn end_label(cells: &Cells<'_>, schedule: usize, down: impl Fn(f64) -> Pixels) -> Option<EndLabel> {
    let speedup = |link: usize| Some((link, cells.row(schedule, link)?.speedup?));
    let (link, speedup) = (0..cells.links.len()).rev().find_map(speedup)?;
    let place = match cells.links[link].ratio {
        Some(ratio) if link + 1 < cells.links.len() => format!(" at {}", short(ratio)),
        _ => String::new(),
    };
    let (name, value) = (short_name(cells.schedules[schedule]), format!("{}{place}", fixed(speedup, 2)));
    Some(EndLabel { schedule: Some(schedule), name, value, y: down(speedup).0 })
}

/// What the pointer shows.
pub fn details(row: &Row, link: &str) -> String {
    let mut lines = vec![format!("{} at {link}", row.schedule)];
    let of = |name: &str, measured: Option<String>, predicted: Option<String>| {
        let predicted = predicted.map_or(String::new(), |text| format!(", predicted {text}"));
        measured.map(|text| format!("{name} {text}{predicted}"))
    };
    let ms = milliseconds;
    lines.extend(of("step", Some(ms(row.step_ms)), row.predicted_step_ms.map(ms)));
    lines.extend(of("speedup", row.speedup.map(times), row.predicted_speedup.map(times)));
    lines.extend(of("exposed", Some(ms(row.exposed_comm_ms)), row.predicted_exposed_comm_ms.map(ms)));
    lines.extend(of("over the bound", row.bound_ratio.map(times), None));
    lines.join("\n")
}

/// A label beside the frame. A thin line leads to it where it could not stay beside its curve.
fn draw_label(markup: &mut Markup, (label, place): &(EndLabel, f64)) {
    markup.within("svg", &[("x", &"100%")], |markup| {
        let (from, to) = (Pixels(label.y), Pixels(*place));
        if (label.y - place).abs() > 2.0 {
            let path = format!("M-4 {from}L2 {from}L14 {to}");
            markup.leaf("path", &[("class", &"leader"), ("d", &path)]);
        }
        let class = if label.schedule.is_none() { "faint" } else { "" };
        let attributes: [(&str, &dyn Display); 3] =
            [("class", &class), ("x", &18), ("y", &Pixels(place + 4.0))];
        markup.within("text", &attributes, |markup| name_and_value(markup, &label.name, &label.value));
    });
}

/// One link: a line for each schedule, the fastest first.
fn list(markup: &mut Markup, cells: &Cells<'_>) {
    let (low, high) = range(cells);
    let room = 0.05 * (high - low).max(0.2);
    let axis = Axis::exact(low - room, high + room, 6);
    let mut rows: Vec<(usize, &Row)> = cells.on_link(0).filter(|(_, row)| row.speedup.is_some()).collect();
    rows.sort_by(|left, right| right.1.speedup.unwrap_or(0.0).total_cmp(&left.1.speedup.unwrap_or(0.0)));
    const LINE: f64 = 24.0;
    let height = rows.len() as f64 * LINE + 8.0;
    let frame = Frame { left: name_margin(cells), right: 56.0, top: 10.0, bottom: 42.0, height };
    let description = format!(
        "Speedup over {BASELINE} of {} schedules on one link, from {} to {}.",
        rows.len(),
        times(low),
        times(high)
    );
    frame.draw(markup, &description, |markup| {
        frame.bottom_axis(markup, &axis, "speedup");
        let one = axis.across(1.0);
        line(markup, "one", (one, Pixels(0.0)), (one, Pixels(height)));
        for (place, (schedule, row)) in rows.iter().enumerate() {
            let y = Pixels(4.0 + LINE * (place as f64 + 0.5));
            list_line(markup, cells, (*schedule, row), &axis, y);
        }
    });
}

fn list_line(markup: &mut Markup, cells: &Cells<'_>, (schedule, row): (usize, &Row), axis: &Axis, y: Pixels) {
    let series = Series::of(cells, schedule);
    markup.within("g", &[("class", &series.class())], |markup| {
        markup.element("title", &[], &details(row, &cells.links[0].title));
        let baseline = Pixels(y.0 + 4.0);
        let name = short_name(cells.schedules[schedule]);
        markup.element("text", &[("class", &"end"), ("x", &-10), ("y", &baseline)], &name);
        if let Some(bound) = row.bound_ms.and_then(|bound| cells.speedup_of(0, bound)) {
            let x = axis.across(bound);
            line(markup, "boundmark", (x, Pixels(y.0 - 7.0)), (x, Pixels(y.0 + 7.0)));
        }
        let Some(speedup) = row.speedup else { return };
        let ends = [row.step_max_ms, row.step_min_ms].map(|step| axis.across(speedup * row.step_ms / step));
        line(markup, "range", (ends[0], y), (ends[1], y));
        if let Some(predicted) = row.predicted_speedup {
            series.ring(markup, axis.across(predicted), y);
        }
        series.dot(markup, axis.across(speedup), y);
        markup.element(
            "text",
            &[("class", &"bold"), ("x", &"100%"), ("dx", &12), ("y", &baseline)],
            &times(speedup),
        );
    });
}
