//! How it was measured, so that somebody else can do it again, and what the words mean.

use crate::report::bench::cells::Cells;
use crate::report::html::markup::Markup;
use crate::report::numbers::{fixed, loss, milliseconds};
use crate::report::prediction::EXPOSED_ON_STAGES;

/// Writes the section.
pub fn write(markup: &mut Markup, cells: &Cells<'_>) {
    markup.element("h2", &[], "How it was measured");
    if !cells.links.is_empty() {
        procedure(markup, cells);
    }
    facts(markup, cells);
    links(markup, cells);
    schedules(markup, cells);
    terms(markup, cells);
}

fn procedure(markup: &mut Markup, cells: &Cells<'_>) {
    let asked = cells.report.rounds;
    let counts = cells.all().map(|(_, _, row)| row.rounds);
    let (fewest, most) = counts.fold((usize::MAX, 0), |(low, high), count| (low.min(count), high.max(count)));
    let mut text = "On each link, the same ranks executed all schedules in turn, round after round, so that a machine whose \
                    speed drifts treats all alike."
        .to_owned();
    if most > 0 {
        let plural = if fewest == 1 && most == 1 { "" } else { "s" };
        let range = if fewest == most { format!("{most}") } else { format!("{fewest} to {most}") };
        let of = if most == asked && fewest == asked || asked == 0 {
            String::new()
        } else {
            format!(" (of {asked} asked for)")
        };
        text.push_str(&format!(" Each number is the median of {range} round{plural}{of}."));
    }
    if let Some(sentence) = losses(cells) {
        text.push(' ');
        text.push_str(&sentence);
    }
    if cells.has_prediction() {
        text.push_str(
            " The predictions come from a simulation of the same schedules on two streams, with a cost for each kind of \
             instruction.",
        );
    }
    markup.element("p", &[], &text);
}

/// Whether the schedules computed the same thing.
fn losses(cells: &Cells<'_>) -> Option<String> {
    let losses: Vec<f64> = cells.all().map(|(_, _, row)| row.loss).filter(|loss| loss.is_finite()).collect();
    let low = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let high = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match losses.len() {
        0 | 1 => None,
        _ if low == high => Some(format!("All ended at the same loss to the last bit, {}.", loss(low))),
        _ if loss(low) == loss(high) => Some(format!(
            "All ended at a loss of {}; what sub-batches round differently is beyond these digits.",
            loss(low)
        )),
        _ => Some(format!("The losses lie between {} and {}.", loss(low), loss(high))),
    }
}

fn facts(markup: &mut Markup, cells: &Cells<'_>) {
    let report = cells.report;
    markup.within("dl", &[("class", &"facts")], |markup| {
        let mut fact = |name: &str, value: &str, element: &str| {
            if value.is_empty() {
                return;
            }
            markup.element("dt", &[], name);
            markup.within("dd", &[], |markup| markup.element(element, &[], value));
        };
        fact("command", &report.command, "pre");
        fact("program", &report.version, "span");
        fact("machine", &report.machine, "span");
        for (name, value) in &report.model {
            fact(name, value, "span");
        }
    });
    markup.line();
}

fn links(markup: &mut Markup, cells: &Cells<'_>) {
    if cells.links.iter().all(|link| link.details.is_none()) {
        return;
    }
    markup.element("h3", &[], "Links");
    markup.within("div", &[("class", &"scroll")], |markup| {
        markup.within("table", &[], |markup| {
            markup.within("thead", &[], |markup| {
                row(
                    markup,
                    "th",
                    &["link", "bandwidth", "latency", "all-reduce c", "block forward f", "c/f measured"],
                );
            });
            markup.within("tbody", &[], |markup| {
                for link in &cells.links {
                    let Some(details) = link.details else { continue };
                    let ratio = details.all_reduce_ms / details.block_forward_ms;
                    let times = [details.all_reduce_ms, details.block_forward_ms].map(milliseconds);
                    let values =
                        [link.title.as_str(), &details.bandwidth, &details.latency, &times[0], &times[1]];
                    let ratio = fixed(ratio, 2);
                    row(markup, "td", &[&values[..], &[ratio.as_str()]].concat());
                }
            });
        });
    });
    markup.line();
}

fn row(markup: &mut Markup, cell: &str, values: &[&str]) {
    markup.within("tr", &[], |markup| {
        for value in values {
            markup.element(cell, &[], value);
        }
    });
}

fn schedules(markup: &mut Markup, cells: &Cells<'_>) {
    let described = || {
        let notes = cells.report.schedules.iter();
        notes.filter(|note| !note.description.is_empty() && cells.schedules.contains(&note.name.as_str()))
    };
    if described().next().is_none() {
        return;
    }
    markup.element("h3", &[], "Schedules");
    markup.within("dl", &[("class", &"facts")], |markup| {
        for note in described() {
            markup.element("dt", &[], &note.name);
            markup.element("dd", &[], &note.description);
        }
    });
    markup.line();
}

fn terms(markup: &mut Markup, cells: &Cells<'_>) {
    markup.element("h3", &[], "What the words mean");
    let paragraphs = [
        "*f* is the time of the forward computation of a block (attention or MLP) on one rank for a whole micro-batch; its \
         backward takes about 2f, its recomputation at most f. *c* is the time of the all-reduce that ends a block, for the same \
         micro-batch, on the link alone. Their ratio c/f says whether a forward pass is bound by computation or by \
         communication.",
        "*The bound.* A step cannot be faster than either of its streams: per block, max(4f, 2c) where everything is recomputed \
         between the all-reduces, and max(3f, 2c) where everything is kept. A blocking schedule that also repeats the \
         all-reduces while it recomputes takes 4f + 3c; hiding all-reduces under computation within forward and within \
         backward takes max(f, c) + max(3f, c), which is up to a quarter above the bound, most at c = 2f. The bound counts \
         no latency at the start and the end of a step.",
        "*Exposed communication* is the time in which computation waits for a collective. *Busy* is the rest, over the step \
         time. *Memory* is the arena of a rank, to the byte.",
        "The method is that of Li et al., Oases: Efficient Large-Scale Model Training on Commodity Servers via Overlapped and \
         Automated Tensor Model Parallelism (arXiv 2305.16121).",
    ];
    for paragraph in paragraphs {
        markup.within("p", &[], |markup| markup.sentence(paragraph));
    }
    if cells.report.pipeline > 1 {
        markup.element("p", &[], EXPOSED_ON_STAGES);
    }
    if cells.links.iter().any(|link| link.ratio.is_none()) {
        markup.element("p", &[], "Links without a ratio have not been timed by themselves.");
    }
    markup.line();
}
