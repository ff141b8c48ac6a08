//! The report as one page: figures in the order in which questions come up, then the table, then how it was measured.
//!
//! Everything is in the file: style, drawings, and a few lines of script that show details faster than the browser would;
//! the page says the same without them, and on paper.

mod accuracy;
mod answer;
mod lanes;
mod markup;
mod memory;
mod method;
mod plot;
mod series;
mod speedup;
mod steps;
mod table;
mod windows;

use super::cells::Cells;
use markup::Markup;

/// The whole document.
pub fn page(cells: &Cells<'_>) -> String {
    let mut markup = Markup::default();
    markup.verbatim("<!DOCTYPE html>\n");
    markup.within("html", &[("lang", &"en")], |markup| {
        head(markup, cells);
        markup.within("body", &[], |markup| {
            markup.within("main", &[], |markup| body(markup, cells));
            markup.within("script", &[], |markup| markup.verbatim(include_str!("hover.js")));
        });
    });
    markup.line();
    markup.finish()
}

fn head(markup: &mut Markup, cells: &Cells<'_>) {
    markup.within("head", &[], |markup| {
        markup.leaf("meta", &[("charset", &"utf-8")]);
        let viewport = "width=device-width, initial-scale=1";
        markup.leaf("meta", &[("name", &"viewport"), ("content", &viewport)]);
        markup.element("title", &[], &format!("{}: schedules compared", cells.report.title));
        markup.within("style", &[], |markup| markup.verbatim(include_str!("style.css")));
    });
    markup.line();
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

/// Numbers the figures.
#[derive(Default)]
struct Figures {
    shown: usize,
}

impl Figures {
    /// A figure with its caption, a sentence in which `*` emphasises.
    fn write(&mut self, markup: &mut Markup, caption: &str, inside: impl FnOnce(&mut Markup)) {
        self.shown += 1;
        let number = self.shown;
        markup.within("figure", &[], |markup| {
            inside(markup);
            markup.within("figcaption", &[], |markup| {
                markup.element("b", &[], &format!("Figure {number}. "));
                markup.sentence(caption);
            });
        });
        markup.line();
    }
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
