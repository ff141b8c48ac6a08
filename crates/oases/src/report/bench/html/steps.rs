//! Where the time of a step goes: computation, and communication that nothing hides, for each schedule and link.

use std::fmt::Display;

use super::series::{KeyMark, key};
use super::speedup::details;
use super::{name_margin, short_name};
use crate::report::bench::Row;
use crate::report::bench::cells::Cells;
use crate::report::html::Figures;
use crate::report::html::markup::Markup;
use crate::report::html::plot::{Axis, Frame, Percent, Pixels, line};
use crate::report::numbers::significant;

/// Height of a schedule's line, in pixels.
const LINE: f64 = 27.0;

/// Margin for the value behind a bar, in pixels.
const VALUES: f64 = 44.0;

/// Writes the section.
pub fn write(markup: &mut Markup, cells: &Cells<'_>, figures: &mut Figures) {
    markup.element("h2", &[], "Where the time goes");
    let predicted = match cells.has_prediction() {
        true => " The thin bar beneath is the prediction.",
        false => "",
    };
    let caption = format!(
        "Step time in milliseconds, median of the rounds, with the shortest and the longest step.{predicted} *Exposed* is the \
         time in which computation waits for collectives."
    );
    figures.write(markup, &caption, |markup| {
        let mut entries =
            vec![(KeyMark::Area("work"), "computation"), (KeyMark::Area("exposed"), "exposed communication")];
        if !cells.bounds.is_empty() {
            entries.push((KeyMark::BoundTick, "bound"));
        }
        key(markup, &entries);
        let longest = cells.all().flat_map(|(_, _, row)| {
            [Some(row.step_max_ms), Some(row.step_ms), row.predicted_step_ms, row.bound_ms]
        });
        let longest = longest.flatten().filter(|step| step.is_finite()).fold(0.0, f64::max);
        let axis = Axis::exact(0.0, longest, 3);
        let class = if cells.links.len() == 1 { "single" } else { "panels" };
        // As many panels in a line as leave each its names, its values and room for the bars.
        let style = format!("--narrowest:{}px", Pixels(name_margin(cells) + VALUES + 150.0));
        markup.within("div", &[("class", &class), ("style", &style)], |markup| {
            for link in 0..cells.links.len() {
                markup.within("div", &[], |markup| panel(markup, cells, link, &axis));
            }
        });
    });
}

fn panel(markup: &mut Markup, cells: &Cells<'_>, link: usize, axis: &Axis) {
    let rows: Vec<(usize, &Row)> = cells.on_link(link).collect();
    let height = rows.len() as f64 * LINE + 4.0;
    let frame = Frame { left: name_margin(cells), right: VALUES, top: 26.0, bottom: 24.0, height };
    let title = &cells.links[link].title;
    let description = format!(
        "Step times of {} schedules at {title}, divided into computation and exposed communication.",
        rows.len()
    );
    frame.draw(markup, &description, |markup| {
        markup.element("text", &[("class", &"bold"), ("x", &0), ("y", &-9)], title);
        frame.bottom_axis(markup, axis, "");
        for (place, (_, row)) in rows.iter().enumerate() {
            bar(markup, row, title, axis, 3.0 + LINE * place as f64);
        }
        line(markup, "rule", (Percent(0.0), Pixels(0.0)), (Percent(0.0), Pixels(height)));
    });
}

fn bar(markup: &mut Markup, row: &Row, link: &str, axis: &Axis, top: f64) {
    markup.within("g", &[], |markup| {
        markup.element("title", &[], &details(row, link));
        let baseline = Pixels(top + 12.0);
        markup.element(
            "text",
            &[("class", &"end"), ("x", &-8), ("y", &baseline)],
            &short_name(&row.schedule),
        );
        // Something to point at between the bars.
        rect(markup, "hit", axis, (0.0, row.step_ms), (top, LINE - 6.0));
        split(markup, "", axis, (row.step_ms, row.exposed_comm_ms), (top, 13.0));
        if let Some(step) = row.predicted_step_ms {
            let exposed = row.predicted_exposed_comm_ms.unwrap_or(0.0);
            split(markup, " thin", axis, (step, exposed), (top + 15.0, 4.0));
        }
        let middle = Pixels(top + 6.5);
        let [low, high] = [row.step_min_ms, row.step_max_ms].map(|step| axis.across(step));
        if high.0 - low.0 > 0.0 {
            line(markup, "whisker", (low, middle), (high, middle));
        }
        if let Some(bound) = row.bound_ms.filter(|bound| bound.is_finite()) {
            let x = axis.across(bound);
            line(markup, "boundmark", (x, Pixels(top - 2.0)), (x, Pixels(top + 20.0)));
        }
        let value = significant(row.step_ms);
        let x = axis.across(row.step_ms.max(row.step_max_ms));
        let attributes: [(&str, &dyn Display); 4] =
            [("class", &"small"), ("x", &x), ("dx", &6), ("y", &baseline)];
        markup.element("text", &attributes, &value);
    });
}

fn split(markup: &mut Markup, class: &str, axis: &Axis, (step, exposed): (f64, f64), place: (f64, f64)) {
    let computing = (step - exposed).max(0.0);
    rect(markup, &format!("work{class}"), axis, (0.0, computing), place);
    rect(markup, &format!("exposed{class}"), axis, (computing, step), place);
}

fn rect(markup: &mut Markup, class: &str, axis: &Axis, (from, to): (f64, f64), (top, height): (f64, f64)) {
    let (from, to) = (axis.across(from), axis.across(to));
    let width = Percent(to.0 - from.0);
    if width.0 <= 0.0 {
        return;
    }
    let attributes: [(&str, &dyn Display); 5] = [
        ("class", &class),
        ("x", &from),
        ("y", &Pixels(top)),
        ("width", &width),
        ("height", &Pixels(height)),
    ];
    markup.leaf("rect", &attributes);
}
