//! Every number of the report.

use crate::report::bench::Row;
use crate::report::bench::cells::Cells;
use crate::report::bench::text::step_decimals;
use crate::report::html::markup::Markup;
use crate::report::numbers::{MISSING, bytes, fixed, fixed_or_missing, loss, percent, signed_percent};
use crate::report::statistics::relative_error;

const COLUMNS: [(&str, &str); 13] = [
    ("schedule", ""),
    ("step", "ms"),
    ("range", "ms"),
    ("predicted", "ms"),
    ("error", ""),
    ("speedup", ""),
    ("predicted", ""),
    ("over", "bound"),
    ("exposed", "ms"),
    ("predicted", "ms"),
    ("busy", ""),
    ("memory", ""),
    ("loss", ""),
];

/// Writes the section.
pub fn write(markup: &mut Markup, cells: &Cells<'_>) {
    markup.element("h2", &[], "All numbers");
    markup.element(
        "p",
        &[],
        "Times are medians over the rounds. Error is that of the predicted step time. Over bound is the step time over that of \
         the bound. Busy is the share of the step in which the compute stream computes. The fastest schedule of each link is \
         bold.",
    );
    let decimals = step_decimals(cells);
    markup.within("div", &[("class", &"scroll"), ("tabindex", &"0")], |markup| {
        markup.within("table", &[], |markup| {
            head(markup);
            for link in 0..cells.links.len() {
                group(markup, cells, link, decimals);
            }
        });
    });
    markup.line();
}

fn head(markup: &mut Markup) {
    markup.within("thead", &[], |markup| {
        markup.within("tr", &[], |markup| {
            for (name, unit) in COLUMNS {
                markup.within("th", &[("scope", &"col")], |markup| {
                    markup.words(name);
                    if !unit.is_empty() {
                        markup.leaf("br", &[]);
                        markup.words(unit);
                    }
                });
            }
        });
    });
}

fn group(markup: &mut Markup, cells: &Cells<'_>, link: usize, decimals: usize) {
    let fastest = cells.on_link(link).map(|(_, row)| row.step_ms).fold(f64::INFINITY, f64::min);
    markup.line();
    markup.within("tbody", &[("class", &"group")], |markup| {
        markup.within("tr", &[("class", &"head")], |markup| {
            markup.within("th", &[("colspan", &COLUMNS.len()), ("scope", &"rowgroup")], |markup| {
                markup.words(&cells.links[link].title);
                if let Some(details) = cells.links[link].details {
                    let facts = [details.bandwidth.as_str(), details.latency.as_str()];
                    let facts: Vec<&str> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
                    markup.element("span", &[], &facts.join(", "));
                }
            });
        });
        for (_, row) in cells.on_link(link) {
            line(markup, row, decimals, row.step_ms == fastest);
        }
    });
}

fn line(markup: &mut Markup, row: &Row, decimals: usize, fastest: bool) {
    let error = row.predicted_step_ms.map(|predicted| relative_error(row.step_ms, predicted));
    let range = format!("{}–{}", fixed(row.step_min_ms, decimals), fixed(row.step_max_ms, decimals));
    let values = [
        (row.schedule.clone(), "best"),
        (fixed(row.step_ms, decimals), "best"),
        (range, "range"),
        (fixed_or_missing(row.predicted_step_ms, decimals), ""),
        (error.map_or_else(|| MISSING.to_owned(), signed_percent), ""),
        (fixed_or_missing(row.speedup, 2), "best"),
        (fixed_or_missing(row.predicted_speedup, 2), ""),
        (fixed_or_missing(row.bound_ratio, 2), ""),
        (fixed(row.exposed_comm_ms, decimals), ""),
        (fixed_or_missing(row.predicted_exposed_comm_ms, decimals), ""),
        (percent(row.utilisation), ""),
        (bytes(row.arena_bytes), ""),
        (loss(row.loss), ""),
    ];
    markup.line();
    markup.within("tr", &[], |markup| {
        for (value, class) in values {
            match class {
                "" => markup.element("td", &[], &value),
                "best" if !fastest => markup.element("td", &[], &value),
                class => markup.element("td", &[("class", &class)], &value),
            }
        }
    });
}
