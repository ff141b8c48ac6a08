//! The table for terminals: a group of lines for each link, at most 120 columns, legible without colour.

use std::fmt;

use super::cells::{Cells, Link};
use super::{BenchReport, Row};
use crate::report::numbers::{
    MISSING, bytes, decimals_for, fixed, fixed_or_missing, loss, percent, signed_percent,
};
use crate::report::prediction::EXPOSED_ON_STAGES;
use crate::report::statistics::relative_error;

/// Columns of the table at most, so far as names of schedules can be cut for that.
const WIDTH: usize = 120;

/// Names of schedules are cut behind so many characters or more.
const SHORTEST_CUT: usize = 20;

const HEADER: [&str; 11] = [
    "schedule",
    "step ms",
    "predicted",
    "error",
    "speedup",
    "x bound",
    "exposed ms",
    "predicted",
    "busy",
    "memory",
    "loss",
];

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = Cells::new(self);
        if cells.links.is_empty() {
            writeln!(f, "no schedule was measured")?;
        }
        let decimals = step_decimals(&cells);
        let groups: Vec<Vec<[String; 11]>> = (0..cells.links.len())
            .map(|link| cells.on_link(link).map(|(_, row)| columns(row, decimals)).collect())
            .collect();
        let mut widths: Vec<usize> = (0..HEADER.len())
            .map(|column| {
                let lines = groups.iter().flatten().map(|line| line[column].chars().count());
                lines.chain([HEADER[column].len()]).max().unwrap_or(0)
            })
            .collect();
        // Two blanks stand before each column.
        let others: usize = widths[1..].iter().map(|width| width + 2).sum();
        let longest_name = WIDTH.saturating_sub(others + 2).max(SHORTEST_CUT);
        widths[0] = widths[0].min(longest_name);
        for (link, lines) in cells.links.iter().zip(&groups) {
            writeln!(f, "{}", heading(link))?;
            write_line(f, &HEADER.map(str::to_owned), &widths)?;
            for line in lines {
                let mut line = line.clone();
                line[0] = shortened(&line[0], longest_name);
                write_line(f, &line, &widths)?;
            }
            writeln!(f)?;
        }
        write_whole_names(f, &cells, longest_name)?;
        write_end(f, &cells)
    }
}

/// The names that the table has cut, in its order: layouts often differ only in what was cut.
fn write_whole_names(f: &mut fmt::Formatter<'_>, cells: &Cells<'_>, longest_name: usize) -> fmt::Result {
    let mut cut = cells.schedules.iter().filter(|name| shortened(name, longest_name) != **name).peekable();
    if cut.peek().is_some() {
        writeln!(f, "schedules whose names are cut, in the order of the table:")?;
        cut.try_for_each(|name| writeln!(f, "  {name}"))?;
        writeln!(f)?;
    }
    Ok(())
}

/// Decimals that show three digits of the shortest step; the same for all times of a report, so that they align.
pub fn step_decimals(cells: &Cells<'_>) -> usize {
    let shortest =
        cells.all().map(|(_, _, row)| row.step_ms).filter(|step| *step > 0.0).fold(f64::INFINITY, f64::min);
    decimals_for(shortest).min(3)
}

/// `c/f = 2: 1.25 Gbit/s, 50 us; all-reduce 21.3 ms, block forward 10.6 ms`
fn heading(link: &Link<'_>) -> String {
    let Some(details) = link.details else { return link.title.clone() };
    let mut facts = vec![details.bandwidth.clone(), details.latency.clone()];
    facts.retain(|fact| !fact.is_empty());
    let times = [("all-reduce", details.all_reduce_ms), ("block forward", details.block_forward_ms)];
    let times = times.iter().filter(|(_, time)| time.is_finite() && *time > 0.0);
    facts.extend(times.map(|(name, time)| format!("{name} {} ms", fixed(*time, decimals_for(*time)))));
    match facts.is_empty() {
        true => link.title.clone(),
        false => format!("{}: {}", link.title, facts.join(", ")),
    }
}

fn columns(row: &Row, decimals: usize) -> [String; 11] {
    let error = row.predicted_step_ms.map(|predicted| relative_error(row.step_ms, predicted));
    let cells = [
        row.schedule.clone(),
        fixed(row.step_ms, decimals),
        fixed_or_missing(row.predicted_step_ms, decimals),
        error.map_or_else(|| MISSING.to_owned(), signed_percent),
        fixed_or_missing(row.speedup, 2),
        fixed_or_missing(row.bound_ratio, 2),
        fixed(row.exposed_comm_ms, decimals),
        fixed_or_missing(row.predicted_exposed_comm_ms, decimals),
        percent(row.utilisation),
        bytes(row.arena_bytes),
        loss(row.loss),
    ];
    cells.map(|cell| plain(&cell))
}

/// The characters that every terminal has.
fn plain(text: &str) -> String {
    text.replace('\u{202f}', " ").replace('−', "-").replace(MISSING, "-")
}

fn shortened(name: &str, longest: usize) -> String {
    match name.chars().count() > longest {
        true => name.chars().take(longest - 1).chain(['~']).collect(),
        false => name.to_owned(),
    }
}

fn write_line(f: &mut fmt::Formatter<'_>, line: &[String; 11], widths: &[usize]) -> fmt::Result {
    write!(f, "  {:<width$}", line[0], width = widths[0])?;
    for (cell, width) in line.iter().zip(widths).skip(1) {
        write!(f, "  {cell:>width$}")?;
    }
    writeln!(f)
}

fn write_end(f: &mut fmt::Formatter<'_>, cells: &Cells<'_>) -> fmt::Result {
    if let Some(prediction) = cells.report.prediction() {
        let worst = &cells.report.rows[prediction.worst];
        let link = cells.links.iter().find(|link| link.label == worst.link);
        let correlation = match prediction.spearman {
            Some(spearman) => format!("Spearman {}, ", fixed(spearman, 3)),
            None => String::new(),
        };
        writeln!(
            f,
            "predicted against measured step times, {} cells: {correlation}median error {}, worst {}\n\
             (that of {} at {})",
            prediction.cells,
            plain(&percent(prediction.median_error)),
            plain(&percent(prediction.worst_error)),
            worst.schedule,
            link.map_or(&worst.link, |link| &link.title),
        )?;
    }
    if cells.report.pipeline > 1 {
        writeln!(f, "{EXPOSED_ON_STAGES}")?;
    }
    if let Some(reason) = &cells.report.interrupted {
        writeln!(f, "ended early: {reason}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of a timed bench on two stages: its name has room, and it has no loss.
    #[test]
    fn names_are_whole_where_there_is_room_and_what_is_missing_has_its_sign() {
        let name = "megatron sub_batches=1";
        let row = Row {
            schedule: name.to_owned(),
            link: "slow".to_owned(),
            step_ms: 1.0,
            loss: f64::NAN,
            ..Row::default()
        };
        let report = BenchReport { pipeline: 2, rows: vec![row], ..BenchReport::default() };
        let text = report.to_string();
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).expect(&text);
        assert!(line.ends_with(" -"), "{text}");
        assert!(text.contains(EXPOSED_ON_STAGES), "{text}");
        assert!(report.to_json().unwrap().contains("\"loss\": null"));
        let alone = BenchReport { pipeline: 1, ..report };
        assert!(!alone.to_string().contains(EXPOSED_ON_STAGES));
    }
}
