//! The plan for terminals: at most 120 columns where names are of usual length, legible without colour.

use std::fmt;

use oases_schedule::Bytes;

use super::{Found, PlanReport, Row, Run, Search, Verification, Verified};
use crate::progress::thousands;
use crate::report::prediction::milliseconds;
use crate::report::statistics::relative_error;
use crate::report::wrap::wrapped;

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_entry(f, "model", &self.model)?;
        write_entry(f, self.source, &self.machine)?;
        write_entry(f, "link", &self.link)?;
        if !self.estimates.is_empty() {
            write_entry(f, "estimate", &self.estimates.join(", "))?;
        }
        let budget =
            self.budget_bytes.map_or("no limit".to_owned(), |budget| format!("{} a rank", both(budget)));
        write_entry(f, "memory", &budget)?;
        writeln!(f)?;
        write_table(f, &self.blocks())?;
        writeln!(f)?;
        write_table(f, &self.layouts())?;
        for refused in &self.refused {
            writeln!(f, "degree {} is not possible: {}", refused.degree, refused.reason)?;
        }
        if self.rows().any(|row| !row.fits) {
            writeln!(f, "* does not fit")?;
        }
        writeln!(f, "{LEGEND}\n")?;
        write_entry(f, "step", &self.step_words())?;
        write_entry(f, "memory", &self.memory_words())?;
        write_entry(f, "proof", &self.proof_words())?;
        for remark in &self.remarks {
            write_entry(f, "note", remark)?;
        }
        if let Some(search) = &self.search {
            write_search(f, search)?;
        }
        if let Some(verification) = &self.verification {
            write_verification(f, verification)?;
        }
        writeln!(f, "\nTMP degrees of {} ranks: {}", self.group, degrees(&self.plan.degrees))
    }
}

impl PlanReport {
    fn blocks(&self) -> Vec<Vec<String>> {
        let keeps = self.keeps_by_block();
        let mut table = vec![["blocks", "degree", "number"].map(str::to_owned).to_vec()];
        if keeps {
            table[0].push("keep".to_owned());
        }
        for run in &self.runs {
            let mut line = vec![run.names(), run.degree.to_string(), run.blocks.to_string()];
            if keeps {
                line.push(run.keep.unwrap_or("-").to_owned());
            }
            table.push(line);
        }
        table
    }

    fn keeps_by_block(&self) -> bool {
        self.runs.iter().any(|run| run.keep.is_some())
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        let named = std::iter::once(&self.plan).chain(&self.runner_up).chain(&self.alpa);
        named.chain(&self.uniform)
    }

    fn layouts(&self) -> Vec<Vec<String>> {
        let keeps = self.keeps_by_block();
        let mut header =
            ["layout", "step ms", "exposed ms", "of step", "memory", "degrees"].map(str::to_owned).to_vec();
        if keeps {
            header.push("keep".to_owned());
        }
        let line = |row: &Row| {
            let mark = if row.fits { "" } else { " *" };
            let mut cells = vec![
                row.name.clone(),
                milliseconds(row.step_ms),
                milliseconds(row.exposed_comm_ms),
                percent(row.exposed_comm_ms / row.step_ms),
                format!("{}{mark}", Bytes(row.arena_bytes)),
                shortened(&degrees(&row.degrees)),
            ];
            if keeps {
                cells.push(shortened(&degrees(&row.keep)));
            }
            cells
        };
        std::iter::once(header).chain(self.rows().map(line)).collect()
    }

    fn step_words(&self) -> String {
        let step = milliseconds(self.plan.step_ms);
        let best = self.uniform.iter().filter(|row| row.fits).min_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        let uniform = match (best, self.speedup_over_uniform) {
            (Some(best), Some(speedup)) => {
                format!("{speedup:.3}x as fast as the best uniform layout that fits, {}", best.name)
            }
            _ => "no uniform layout fits".to_owned(),
        };
        let alpa = self.speedup_over_alpa.map(|speedup| format!(", {speedup:.3}x as fast as alpa"));
        format!("{step} ms predicted: {uniform}{}", alpa.unwrap_or_default())
    }

    fn memory_words(&self) -> String {
        let of = match self.budget_bytes {
            Some(budget) => format!(" of {}", Bytes(budget)),
            None => String::new(),
        };
        let kinds: Vec<String> = self
            .memory
            .iter()
            .filter(|kind| kind.bytes > 0)
            .map(|kind| format!("{} {}", kind.kind, Bytes(kind.bytes)))
            .collect();
        format!("{}{of} on every rank: {}", Bytes(self.plan.arena_bytes), kinds.join(", "))
    }

    fn proof_words(&self) -> String {
        let proof = &self.proof;
        let objective = milliseconds(proof.objective_ms);
        let optimal = match proof.optimal {
            true => {
                format!("summed over blocks {objective} ms, and no other layout that fits has less: optimal")
            }
            false => format!(
                "summed over blocks {objective} ms, and no other layout that fits has less than {} ms ({} below)",
                milliseconds(proof.bound_ms),
                percent(1.0 - proof.bound_ms / proof.objective_ms)
            ),
        };
        let margin = match proof.margin_ms {
            Some(margin) => format!("the next best sum loses by {} ms", milliseconds(margin)),
            None => "there is no other layout".to_owned(),
        };
        let rounds = match proof.rounds {
            0 | 1 => String::new(),
            rounds => format!(", solved {rounds} times as what blocks need beside their own became known"),
        };
        format!(
            "{optimal}; {margin}; {} explored, {} cut off, by {}{rounds}; planned in {} ms",
            thousands(proof.explored as f64),
            thousands(proof.cut_off as f64),
            proof.solver,
            milliseconds(proof.planning_ms)
        )
    }
}

impl Run {
    fn names(&self) -> String {
        match self.blocks {
            1 => self.first.clone(),
            _ => format!("{} … {}", self.first, self.last),
        }
    }
}

/// `8*16 4*10` as `8×16, 4×10`.
pub fn degrees(runs: &str) -> String {
    runs.replace('*', "×").replace(' ', ", ")
}

const LEGEND: &str = "exposed: waiting for collectives; alpa: what a planner chooses that knows of no overlap; degrees: degree × blocks";

/// Longer runs are cut in text; JSON has them whole.
const LONGEST: usize = 44;

pub fn shortened(runs: &str) -> String {
    match runs.chars().count() > LONGEST {
        true => runs.chars().take(LONGEST - 1).chain(['…']).collect(),
        false => runs.to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Memory in both kinds of units: makers and orders count in the one, this program in the other.
pub fn both(bytes: u64) -> String {
    const UNITS: [(&str, f64); 3] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let unit = UNITS.into_iter().find(|(_, size)| bytes as f64 >= *size);
    match unit {
        Some((unit, size)) => format!("{:.1} {unit} ({})", bytes as f64 / size, Bytes(bytes)),
        None => Bytes(bytes).to_string(),
    }
}

/// A name, and behind it a text that may be long.
fn write_entry(f: &mut fmt::Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    writeln!(f, "{name:<8} {}", wrapped(text, 9).trim_start())
}

/// Lines of equal length, the first of which is the header. The first column and one of `degrees` or a reason, always the
/// last, are text and stand left; what is between are numbers.
fn write_table(f: &mut fmt::Formatter<'_>, table: &[Vec<String>]) -> fmt::Result {
    let columns = table[0].len();
    let width = |column: usize| table.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let text = |column: usize| column == 0 || LEFT.contains(&table[0][column].as_str());
    for line in table {
        let mut written = String::new();
        for (column, cell) in line.iter().enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            let width = widths[column];
            let cell = if text(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            written.push_str(gap);
            written.push_str(&cell);
        }
        writeln!(f, "{}", written.trim_end())?;
    }
    Ok(())
}

/// Headers of columns that hold text.
const LEFT: [&str; 4] = ["degrees", "keep", "reason", "schedule"];

fn write_search(f: &mut fmt::Formatter<'_>, search: &Search) -> fmt::Result {
    writeln!(
        f,
        "\nsearched: {} combinations of schedule, micro-batches and sub-batches planned; {} do not fit, {} are not possible",
        search.planned, search.too_large, search.impossible
    )?;
    let header = ["", "schedule", "micro", "sub", "step ms", "memory", "degrees", "keep", "reason"];
    let line = |(index, found): (usize, &Found)| {
        vec![
            (index + 1).to_string(),
            found.schedule.clone(),
            found.micro_batches.to_string(),
            found.sub_batches.to_string(),
            milliseconds(found.row.step_ms),
            Bytes(found.row.arena_bytes).to_string(),
            shortened(&degrees(&found.row.degrees)),
            shortened(&degrees(&found.row.keep)),
            found.reason.clone(),
        ]
    };
    let lines = search.best.iter().enumerate().map(line);
    let table: Vec<Vec<String>> = std::iter::once(header.map(str::to_owned).to_vec()).chain(lines).collect();
    write_table(f, &table)
}

fn write_verification(f: &mut fmt::Formatter<'_>, verification: &Verification) -> fmt::Result {
    let how = match verification.timed {
        true => "with instructions that last as long as their costs, whatever runs beside them",
        false => "really run",
    };
    writeln!(
        f,
        "\nverified: {} layouts, {how}; link {}; {} rounds, seed {}",
        verification.rows.len(),
        verification.link,
        verification.rounds,
        verification.seed
    )?;
    let header = ["layout", "predicted", "measured", "error", "memory", "used", "loss", "degrees"];
    let line = |row: &Verified| {
        vec![
            row.name.clone(),
            milliseconds(row.predicted_ms),
            milliseconds(row.measured_ms),
            format!("{:+.1} %", 100.0 * relative_error(row.measured_ms, row.predicted_ms)),
            Bytes(row.planned_bytes).to_string(),
            if row.used_bytes == row.planned_bytes { "all".to_owned() } else { row.used_bytes.to_string() },
            row.loss.map_or("-".to_owned(), |loss| format!("{loss:.6}")),
            shortened(&degrees(&row.degrees)),
        ]
    };
    let lines = verification.rows.iter().map(line);
    let table: Vec<Vec<String>> = std::iter::once(header.map(str::to_owned).to_vec()).chain(lines).collect();
    write_table(f, &table)?;
    for line in verification.lines() {
        writeln!(f, "{line}")?;
    }
    Ok(())
}

impl Verification {
    /// What the rows come to, a line each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(prediction) = &self.prediction {
            let spearman = prediction.spearman.map_or(String::new(), |rank| format!("Spearman {rank:.3}, "));
            lines.push(format!(
                "predicted against measured: {spearman}median error {}, worst {} ({})",
                percent(prediction.median_error),
                percent(prediction.worst_error),
                self.rows[prediction.worst].name
            ));
        }
        let behind = match self.plan_behind_best {
            0.0 => "the plan is the fastest measured".to_owned(),
            behind => format!("the plan is {} behind the fastest measured", percent(behind)),
        };
        lines.push(behind);
        if let Some(difference) = self.loss_difference {
            lines.push(format!("losses differ from the plan's by at most {difference:.1e}"));
        }
        lines
    }
}
