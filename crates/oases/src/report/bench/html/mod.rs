//! The report as one page: figures in the order in which questions come up, then the table, then how it was measured.
//!
//! Everything is in the file: style, drawings, and a few lines of script that show details faster than the browser would;
//! the page says the same without them, and on paper.

mod accuracy;
mod answer;
mod lanes;
mod memory;
mod method;
mod series;
mod speedup;
mod steps;
mod table;
mod windows;

use super::cells::Cells;
use crate::report::html::markup::Markup;
use crate::report::html::{Figures, document};

/// The whole document.
pub fn page(cells: &Cells<'_>) -> String {
    document(&format!("{}: schedules compared", cells.report.title), |markup| body(markup, cells))
}

fn body(markup: &mut Markup, cells: &Cells<'_>) {
    answer::write(markup, cells);
    let mut figures = Figures::default();
    if !cells.links.is_empty() {
        speedup::write(markup, cells, &mut figures);
        steps::write(markup, cells, &mut figures);
        accuracy::write(markup, cells, &mut figures);
    }
    lanes::write(markup, cells, &mut figures);
    if !cells.links.is_empty() {
        memory::write(markup, cells, &mut figures);
        table::write(markup, cells);
    }
    method::write(markup, cells);
}

/// The margin that names of schedules need beside a figure, in pixels.
fn name_margin(cells: &Cells<'_>) -> f64 {
    let longest = cells.schedules.iter().map(|name| name.chars().count().min(NAME_LENGTH)).max().unwrap_or(0);
    longest as f64 * 7.2 + 18.0
}

/// Longer names are cut in figures; the table has them whole.
const NAME_LENGTH: usize = 18;

fn short_name(name: &str) -> String {
    match name.chars().count() > NAME_LENGTH {
        true => name.chars().take(NAME_LENGTH - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}
