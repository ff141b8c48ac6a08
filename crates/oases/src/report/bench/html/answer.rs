//! The answer in words: which schedule is fastest on which link, by how much, how far from the bound, and whether that was
//! foreseen.

use crate::report::bench::cells::Cells;
use crate::report::bench::{BASELINE, Row};
use crate::report::html::markup::{Markup, plain_name};
use crate::report::numbers::{fixed, percent};

/// Steps that differ by less are called equally fast.
const EQUALLY_FAST: f64 = 0.01;

/// A dash at which no line is broken.
const TO: &str = "\u{2060}–\u{2060}";

/// Headline, byline, answer.
pub fn write(markup: &mut Markup, cells: &Cells<'_>) {
    let report = cells.report;
    markup.within("header", &[], |markup| {
        markup.element("h1", &[], &report.title);
        let facts = [report.machine.as_str(), report.version.as_str()];
        let facts: Vec<&str> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
        markup.element("p", &[("class", &"byline")], &facts.join(" · "));
        if let Some(reason) = &report.interrupted {
            let text = format!("The measurement ended early: {reason}. What follows is what was finished.");
            markup.element("p", &[("class", &"note")], &text);
        }
        markup.within("p", &[("class", &"lead")], |markup| markup.sentence(&answer(cells)));
    });
    markup.line();
}

/// The paragraph; `*` emphasises.
pub fn answer(cells: &Cells<'_>) -> String {
    let everything: Vec<usize> = (0..cells.schedules.len()).collect();
    let Some(first) = fastest(cells, &everything, "") else {
        return "No schedule was measured.".to_owned();
    };
    let mut sentences = vec![first];
    // Schedules that keep more compute less, and have a lower bound. Those that do the baseline's work are compared too.
    if let [same_work, _, ..] = cells.bounds.as_slice() {
        let wins_anyway =
            winners(cells, &everything).iter().all(|winner| same_work.schedules.contains(&winner.schedule));
        if same_work.schedules.len() > 1 && !wins_anyway {
            let whose = plain_name(cells.schedules[same_work.schedules[0]]);
            let restriction = format!("Of the schedules with the same bound as {whose}, ");
            sentences.extend(fastest(cells, &same_work.schedules, &restriction));
        }
    }
    sentences.extend(foreseen(cells));
    sentences.join(" ")
}

/// Neighbouring links with the same fastest schedule.
struct Winner<'a> {
    schedule: usize,
    links: Vec<usize>,
    rows: Vec<&'a Row>,
    /// Schedules that are equally fast on each of the links.
    with: Vec<usize>,
}

fn winners<'a>(cells: &Cells<'a>, among: &[usize]) -> Vec<Winner<'a>> {
    let mut winners: Vec<Winner<'_>> = Vec::new();
    for link in 0..cells.links.len() {
        let rows = || cells.on_link(link).filter(|(schedule, _)| among.contains(schedule));
        let Some((schedule, row)) = rows().min_by(|left, right| left.1.step_ms.total_cmp(&right.1.step_ms))
        else {
            continue;
        };
        let close = |other: &Row| other.step_ms <= row.step_ms * (1.0 + EQUALLY_FAST);
        let with: Vec<usize> =
            rows().filter(|(other, row)| *other != schedule && close(row)).map(|(other, _)| other).collect();
        match winners.last_mut().filter(|winner| winner.schedule == schedule) {
            Some(winner) => {
                winner.links.push(link);
                winner.rows.push(row);
                winner.with.retain(|other| with.contains(other));
            }
            None => winners.push(Winner { schedule, links: vec![link], rows: vec![row], with }),
        }
    }
    winners
}

fn fastest(cells: &Cells<'_>, among: &[usize], restriction: &str) -> Option<String> {
    let winners = winners(cells, among);
    let count = winners.len();
    let clauses: Vec<String> = winners
        .iter()
        .enumerate()
        .map(|(index, winner)| {
            let name = plain_name(cells.schedules[winner.schedule]);
            let verb = match index {
                0 if among.len() == 1 => format!("*{name}* was measured alone"),
                0 => format!("*{name}* is fastest"),
                _ => format!("*{name}*"),
            };
            let place = match cells.links.len() {
                1 if cells.links[0].title.is_empty() => String::new(),
                _ if count == 1 && winner.links.len() > 1 => " on every link".to_owned(),
                _ => format!(" at {}", link_names(cells, &winner.links)),
            };
            let few = measured_there(cells, winner, among);
            format!("{verb}{place}{few}{}{}", ties(cells, winner), facts(winner))
        })
        .collect();
    let text = clauses.join("; ");
    (!text.is_empty()).then(|| format!("{restriction}{text}."))
}

/// Says so where some schedules have not been measured.
fn measured_there(cells: &Cells<'_>, winner: &Winner<'_>, among: &[usize]) -> String {
    let count = |link: &usize| cells.on_link(*link).filter(|(schedule, _)| among.contains(schedule)).count();
    let fewest = winner.links.iter().map(count).min().unwrap_or(0);
    match fewest < among.len() {
        true => format!(" of the {fewest} measured there"),
        false => String::new(),
    }
}

/// `c/f = 0.5 to 2`, or the labels.
fn link_names(cells: &Cells<'_>, links: &[usize]) -> String {
    let title = |link: &usize| in_one_line(&cells.links[*link].title);
    match links {
        [] => String::new(),
        [link] => title(link),
        [first, .., last] => {
            format!("{} to {}", title(first), title(last).trim_start_matches("c/f\u{a0}=\u{a0}"))
        }
    }
}

fn ties(cells: &Cells<'_>, winner: &Winner<'_>) -> String {
    let names: Vec<String> =
        winner.with.iter().take(2).map(|schedule| plain_name(cells.schedules[*schedule])).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" ({} within {})", names.join(" and "), percent(EQUALLY_FAST).replace(".0", "")),
    }
}

/// `, 1.36× to 2.31× as fast as megatron and 1–4 % above its bound`
fn facts(winner: &Winner<'_>) -> String {
    let speedups: Vec<f64> = winner.rows.iter().filter_map(|row| row.speedup).collect();
    let excess: Vec<f64> = winner.rows.iter().filter_map(|row| Some(row.bound_ratio? - 1.0)).collect();
    let mut facts = Vec::new();
    if !speedups.is_empty() && winner.rows.iter().all(|row| row.schedule != BASELINE) {
        let (low, high) = ends(&speedups);
        let [low, high] = [low, high].map(|speedup| fixed(speedup, 2));
        let range = if low == high { format!("{low}×") } else { format!("{low}{TO}{high}×") };
        facts.push(format!("*{range}* as fast as {BASELINE}"));
    }
    if !excess.is_empty() {
        facts.push(distance(ends(&excess)));
    }
    match facts.is_empty() {
        true => String::new(),
        false => format!(", {}", facts.join(" and ")),
    }
}

/// How far from the bound, in words.
fn distance((low, high): (f64, f64)) -> String {
    let [low, high] = [low, high].map(|excess| (excess * 100.0).round());
    let space = '\u{202f}';
    match (low, high) {
        _ if high < 0.0 => format!("{}{space}% below the computed bound", fixed(-low, 0)),
        _ if high == 0.0 => "at the bound".to_owned(),
        _ if low == high => format!("{}{space}% above its bound", fixed(high, 0)),
        _ if low <= 0.0 => format!("at most {}{space}% above its bound", fixed(high, 0)),
        _ => format!("{}{TO}{}{space}% above its bound", fixed(low, 0), fixed(high, 0)),
    }
}

fn foreseen(cells: &Cells<'_>) -> Option<String> {
    let prediction = cells.report.prediction()?;
    let worst = &cells.report.rows[prediction.worst];
    let link =
        cells.links.iter().find(|link| link.label == worst.link).map_or(&worst.link, |link| &link.title);
    if prediction.cells == 1 {
        return Some(format!("Its predicted step time is off by {}.", percent(prediction.worst_error)));
    }
    let ranks = match prediction.spearman {
        Some(spearman) => format!(", rank correlation {}", fixed(spearman, 3)),
        None => String::new(),
    };
    Some(format!(
        "Predicted step times are off by {} in the median of {} cells and by {} at worst ({} at {}){ranks}.",
        percent(prediction.median_error),
        prediction.cells,
        percent(prediction.worst_error),
        plain_name(&worst.schedule),
        in_one_line(link),
    ))
}

/// A name of a link at which no line is broken.
fn in_one_line(title: &str) -> String {
    plain_name(title).replace(' ', "\u{a0}")
}

fn ends(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_from_the_bound_are_put_into_words() {
        for (ends, words) in [
            ((0.012, 0.041), "1\u{2060}–\u{2060}4\u{202f}% above its bound"),
            ((0.031, 0.033), "3\u{202f}% above its bound"),
            ((-0.004, 0.002), "at the bound"),
            ((-0.004, 0.05), "at most 5\u{202f}% above its bound"),
            ((-0.03, -0.02), "3\u{202f}% below the computed bound"),
        ] {
            assert_eq!(distance(ends), words);
        }
    }
}
