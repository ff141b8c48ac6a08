//! The page of a verified plan: predicted over measured, a dot for each layout, then the table.

use std::fmt::Display;

use super::{PlanReport, Verification, Verified, text};
use crate::report::html::markup::{Markup, plain_name};
use crate::report::html::plot::{Percent, Pixels};
use crate::report::html::scatter::scatter;
use crate::report::html::{Figures, document};
use crate::report::numbers::{MISSING, bytes, fixed, loss, milliseconds, percent, signed_percent};
use crate::report::statistics::relative_error;

/// The page.
pub fn page(report: &PlanReport, verification: &Verification) -> String {
    document("TMP degrees: predicted and measured", |markup| {
        header(markup, report, verification);
        let mut figures = Figures::default();
        points(markup, verification, &mut figures);
        table(markup, verification);
        method(markup, report, verification);
    })
}

fn header(markup: &mut Markup, report: &PlanReport, verification: &Verification) {
    markup.within("header", &[], |markup| {
        markup.element("h1", &[], "TMP degrees, planned and run");
        markup.element("p", &[("class", &"byline")], &format!("{} · {}", report.model, report.machine));
        let answer = format!(
            "The plan is *{}*: {} measured, {} predicted. {}.",
            plain_name(&text::degrees(&report.plan.degrees)),
            milliseconds(verification.rows[0].measured_ms),
            milliseconds(verification.rows[0].predicted_ms),
            behind(verification),
        );
        markup.within("p", &[("class", &"lead")], |markup| markup.sentence(&answer));
    });
    markup.line();
}

fn behind(verification: &Verification) -> String {
    let count = verification.rows.len();
    match verification.plan_behind_best {
        0.0 => format!("It is the fastest of {count} layouts that were run"),
        behind => format!("It is {} behind the fastest of {count} layouts that were run", percent(behind)),
    }
}

fn points(markup: &mut Markup, verification: &Verification, figures: &mut Figures) {
    let Some(prediction) = &verification.prediction else { return };
    markup.element("h2", &[], "Predicted and measured");
    let caption = "Predicted against measured step time of every layout; on the diagonal they agree, the band is ±5\u{202f}%. The \
                   large dot is the plan, rings are layouts of one degree.";
    figures.write(markup, caption, |markup| {
        markup.within("div", &[("class", &"single")], |markup| {
            // The plan comes last, on top of the others.
            let rows: Vec<&Verified> = verification.rows.iter().rev().collect();
            let places: Vec<[f64; 2]> = rows.iter().map(|row| [row.measured_ms, row.predicted_ms]).collect();
            let plan = rows.len() - 1;
            scatter(markup, &places, "layouts", prediction, |markup, index, place| {
                mark(markup, rows[index], index == plan, place);
            });
        });
    });
}

fn mark(markup: &mut Markup, row: &Verified, is_plan: bool, (x, y): (Percent, Pixels)) {
    let uniform = !row.degrees.contains(' ');
    let (series, shape, radius) = match (is_plan, uniform) {
        (true, _) => ("series k1", "dot", 7.0),
        (false, true) => ("series k0", "ring", 4.5),
        (false, false) => ("series kb", "dot", 4.0),
    };
    let details = format!(
        "{}: {}\nmeasured {}, predicted {}",
        row.name,
        text::degrees(&row.degrees),
        milliseconds(row.measured_ms),
        milliseconds(row.predicted_ms)
    );
    markup.within("g", &[("class", &series)], |markup| {
        markup.element("title", &[], &details);
        markup.leaf("circle", &[("class", &shape), ("cx", &x), ("cy", &y), ("r", &Pixels(radius))]);
    });
}

const COLUMNS: [&str; 8] =
    ["layout", "measured, ms", "range, ms", "predicted, ms", "error", "memory", "loss", "degrees"];

fn table(markup: &mut Markup, verification: &Verification) {
    markup.element("h2", &[], "All numbers");
    markup.element("p", &[], "Measured times are medians over the rounds. The fastest layout is bold.");
    let fastest = verification.rows.iter().map(|row| row.measured_ms).fold(f64::INFINITY, f64::min);
    markup.within("div", &[("class", &"scroll"), ("tabindex", &"0")], |markup| {
        markup.within("table", &[], |markup| {
            markup.within("thead", &[], |markup| {
                markup.within("tr", &[], |markup| {
                    COLUMNS.iter().for_each(|name| markup.element("th", &[("scope", &"col")], name));
                });
            });
            markup.within("tbody", &[], |markup| {
                for row in &verification.rows {
                    markup.line();
                    markup.within("tr", &[], |markup| line(markup, row, row.measured_ms == fastest));
                }
            });
        });
    });
    markup.line();
}

fn line(markup: &mut Markup, row: &Verified, fastest: bool) {
    let cells = [
        row.name.clone(),
        fixed(row.measured_ms, 3),
        format!("{}–{}", fixed(row.measured_min_ms, 3), fixed(row.measured_max_ms, 3)),
        fixed(row.predicted_ms, 3),
        signed_percent(relative_error(row.measured_ms, row.predicted_ms)),
        bytes(row.planned_bytes),
        row.loss.map_or_else(|| MISSING.to_owned(), loss),
        text::degrees(&row.degrees),
    ];
    let bold: &[(&str, &dyn Display)] = &[("class", &"best")];
    let plain: &[(&str, &dyn Display)] = &[];
    for (column, cell) in cells.iter().enumerate() {
        markup.element("td", if fastest && column < 2 { bold } else { plain }, cell);
    }
}

fn method(markup: &mut Markup, report: &PlanReport, verification: &Verification) {
    markup.element("h2", &[], "How it was measured");
    let how = match verification.timed {
        true => {
            "Nothing was computed: instructions lasted as long as their costs, so that schedule, executor and link are tried without \
             the noise of a machine."
        }
        false => {
            "Every layout really ran, in turn with steps that measured what its instructions take, from which the predictions come."
        }
    };
    let rounds = format!(
        "{how} The ranks were threads of one process, joined by an emulated link, {}; each layout ran {} times, in rounds. The random \
         layouts have the seed {}.",
        verification.link, verification.rounds, verification.seed
    );
    markup.element("p", &[], &rounds);
    for line in verification.lines() {
        markup.element("p", &[], &line);
    }
    let facts = [
        ("costs", format!("{}: {}", report.source, report.machine)),
        ("memory", report.budget_bytes.map_or("no limit".to_owned(), text::both)),
        ("version", format!("oases {}", env!("CARGO_PKG_VERSION"))),
    ];
    markup.within("dl", &[("class", &"facts")], |markup| {
        for (name, value) in &facts {
            markup.element("dt", &[], name);
            markup.element("dd", &[], value);
        }
    });
    markup.line();
}
