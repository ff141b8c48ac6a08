//! What the speed costs: bytes of a rank's arena by schedule.

use std::fmt::Display;

use super::{name_margin, short_name};
use crate::report::bench::cells::Cells;
use crate::report::bench::{BASELINE, Row};
use crate::report::html::Figures;
use crate::report::html::markup::Markup;
use crate::report::html::plot::{Axis, Frame, Percent, Pixels, line};
use crate::report::numbers::{bytes, times};

const LINE: f64 = 24.0;

/// Writes the section.
pub fn write(markup: &mut Markup, cells: &Cells<'_>, figures: &mut Figures) {
    // The arena follows from the schedule alone; the largest is shown should links differ all the same.
    let of = |schedule: usize| {
        let rows = (0..cells.links.len()).filter_map(|link| cells.row(schedule, link));
        rows.map(|row: &Row| row.arena_bytes).max().unwrap_or(0)
    };
    let arenas: Vec<u64> = (0..cells.schedules.len()).map(of).collect();
    let Some(largest) = arenas.iter().copied().max().filter(|bytes| *bytes > 0) else { return };
    let baseline = cells.schedules.iter().position(|name| *name == BASELINE).map(|index| arenas[index]);
    let height = LINE * arenas.len() as f64 + 4.0;
    let frame = Frame { left: name_margin(cells), right: 118.0, top: 8.0, bottom: 8.0, height };
    let relative = match baseline {
        Some(_) => format!(", and its ratio to that of {BASELINE}"),
        None => String::new(),
    };
    markup.element("h2", &[], "What it costs in memory");
    let caption = format!(
        "Memory of one rank: weights, gradients, optimizer moments, activations and workspace in one arena, known before the \
         first step{relative}."
    );
    figures.write(markup, &caption, |markup| {
        frame.draw(
            markup,
            &format!("Memory of {} schedules, at most {}.", arenas.len(), bytes(largest)),
            |markup| {
                let axis = Axis::exact(0.0, largest as f64, 4);
                for (place, arena) in arenas.iter().enumerate() {
                    let ratio = baseline.filter(|bytes| *bytes > 0).map(|bytes| *arena as f64 / bytes as f64);
                    bar(
                        markup,
                        cells.schedules[place],
                        *arena,
                        ratio,
                        axis.across(*arena as f64),
                        4.0 + LINE * place as f64,
                    );
                }
                line(markup, "rule", (Percent(0.0), Pixels(0.0)), (Percent(0.0), Pixels(height)));
            },
        );
    });
}

fn bar(markup: &mut Markup, name: &str, arena: u64, ratio: Option<f64>, width: Percent, top: f64) {
    markup.within("g", &[], |markup| {
        markup.element("title", &[], &format!("{name}: {arena} B"));
        let baseline = Pixels(top + 12.0);
        markup.element("text", &[("class", &"end"), ("x", &-8), ("y", &baseline)], &short_name(name));
        let attributes: [(&str, &dyn Display); 4] =
            [("class", &"work"), ("y", &Pixels(top)), ("width", &width), ("height", &16)];
        markup.leaf("rect", &attributes);
        let attributes: [(&str, &dyn Display); 4] =
            [("class", &"small"), ("x", &width), ("dx", &8), ("y", &baseline)];
        markup.within("text", &attributes, |markup| {
            markup.words(&bytes(arena));
            if let Some(ratio) = ratio {
                markup.element("tspan", &[("class", &"faint"), ("dx", &8)], &times(ratio));
            }
        });
    });
}
