//! Reproductions as text: aligned tables, footnotes and wrapped remarks.

use std::fmt;

use super::{Agreement, Cell, Claim, Experiment, Reproduction, Row, Table, Unit, Within};
use crate::report::wrap::wrapped;

impl fmt::Display for Reproduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Parameters, the same for all rows\n")?;
        let name = self.parameters.iter().map(|one| one.name.chars().count()).max().unwrap_or(0);
        let value = self.parameters.iter().map(|one| one.value.chars().count()).max().unwrap_or(0);
        for one in &self.parameters {
            let indent = 2 + name + 2 + value + 2;
            let source = wrapped(&one.source, indent);
            writeln!(f, "  {:<name$}  {:<value$}  {}", one.name, one.value, source.trim_start())?;
        }
        self.experiments.iter().try_for_each(|experiment| write!(f, "\n{experiment}"))
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = format!("{}: {}", self.name, self.title);
        writeln!(f, "{heading}\n{}", "─".repeat(heading.chars().count()))?;
        writeln!(f, "{}", wrapped(&self.setting, 0))?;
        self.tables.iter().try_for_each(|table| write!(f, "\n{table}"))?;
        if !self.claims.is_empty() {
            writeln!(f)?;
        }
        self.claims.iter().try_for_each(|claim| write!(f, "{claim}"))?;
        self.remarks.iter().try_for_each(|remark| writeln!(f, "\n{}", wrapped(remark, 0)))
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |[low, high]: [f64; 2]| match low == high {
            true => format!("{low:.2}x"),
            false => format!("{low:.2}-{high:.2}x"),
        };
        let verdict = if self.off { "more than 15 % off" } else { "within 15 %" };
        let [paper, predicted] = [self.paper, self.predicted].map(range);
        writeln!(f, "  {}: paper {paper}, predicted {predicted}, {verdict}", self.what)?;
        match self.reason.is_empty() {
            true => Ok(()),
            false => writeln!(f, "{}", wrapped(&self.reason, 4)),
        }
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {} cells: Spearman rank correlation {:.3}, median error {:.1} %, worst {:.1} %, {} off by more than 15 %",
            self.cells,
            self.spearman,
            100.0 * self.median_error,
            100.0 * self.worst_error,
            self.off
        )?;
        let within: Vec<String> =
            self.within.iter().map(|Within { of, spearman }| format!("{of} {spearman:.2}")).collect();
        let comparison = format!(
            "For comparison, each method's mean in the paper as the prediction has {:.3}. Over the models of one method: {}.",
            self.spearman_of_means,
            within.join(", ")
        );
        writeln!(f, "{}", wrapped(&comparison, 2))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", wrapped(&self.title, 0))?;
        let layout = Layout::of(self);
        layout.heading(f)?;
        let mut footnotes: Vec<String> = Vec::new();
        for row in &self.rows {
            layout.row(f, row, &mut footnotes)?;
        }
        if let Some(agreement) = &self.agreement {
            write!(f, "\n{agreement}")?;
        }
        if !footnotes.is_empty() {
            writeln!(f)?;
        }
        for (index, footnote) in footnotes.iter().enumerate() {
            writeln!(f, "  {}) {}", mark(index), wrapped(footnote, 5).trim_start())?;
        }
        Ok(())
    }
}

/// Which columns a table has.
struct Layout<'a> {
    table: &'a Table,
    /// Of each method: its name, and whether the paper has figures.
    groups: Vec<(&'a str, bool)>,
}

/// Width of a published figure or a ratio, with the space before it.
const NUMBER: usize = 6;
/// Width of the prediction beside it; the column of marks is before the space.
const PREDICTED: usize = 5;

impl<'a> Layout<'a> {
    fn of(table: &'a Table) -> Layout<'a> {
        let columns = table.rows.first().map_or(0, |row| row.cells.len());
        let group = |index: usize| {
            let cells = table.rows.iter().filter_map(|row| row.cells.get(index));
            (table.rows[0].cells[index].of.as_str(), cells.into_iter().any(|cell| cell.paper.is_some()))
        };
        Layout { table, groups: (0..columns).map(group).collect() }
    }

    /// Name and width of the columns before the cells.
    fn facts(&self) -> Vec<(&'static str, usize)> {
        let any = |has: fn(&Row) -> bool| self.table.rows.iter().any(has);
        let mut facts = vec![("hidden", 6)];
        if any(|row| row.layers.is_some()) {
            facts.push(("L", 4));
        }
        if any(|row| row.degree.is_some()) {
            facts.push(("t", 3));
        }
        if any(|row| row.micro_batch.is_some()) {
            facts.push(("b", 4));
        }
        if any(|row| row.comm_ratio.is_some()) {
            facts.push(("c/f", 6));
        }
        facts
    }

    /// Width of a method's columns.
    fn width(&self, (name, published): (&str, bool)) -> usize {
        if published { PREDICTED + 2 * NUMBER + 1 } else { name.chars().count().max(NUMBER) + 2 }
    }

    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts: usize = self.facts().iter().map(|(_, width)| width).sum();
        if self.groups.iter().any(|(_, published)| *published) {
            let names = self.groups.iter().map(|&group| {
                let name = if group.1 { group.0 } else { "" };
                format!("{name:>width$}", width = self.width(group) - usize::from(group.1))
                    + if group.1 { " " } else { "" }
            });
            let line = format!("  {:facts$}{}", "", names.collect::<String>());
            writeln!(f, "{}", line.trim_end())?;
        }
        let mut line = "  ".to_owned();
        for (name, width) in self.facts() {
            line += &format!("{name:>width$}");
        }
        for &group in &self.groups {
            line += &match group.1 {
                true => format!("{:>PREDICTED$}{:>NUMBER$}{:>NUMBER$} ", "pred", "paper", "ratio"),
                false => format!("{:>width$}", group.0, width = self.width(group)),
            };
        }
        writeln!(f, "{}", line.trim_end())
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, row: &Row, footnotes: &mut Vec<String>) -> fmt::Result {
        let mut line = "  ".to_owned();
        for (name, width) in self.facts() {
            let fact = match name {
                "hidden" => Some(row.hidden.to_string()),
                "L" => row.layers.map(|layers| layers.to_string()),
                "t" => row.degree.map(|degree| degree.to_string()),
                "b" => row.micro_batch.map(|batch| batch.to_string()),
                _ => row.comm_ratio.map(|ratio| format!("{ratio:.2}")),
            };
            line += &format!("{:>width$}", fact.unwrap_or_default());
        }
        for (cell, &group) in row.cells.iter().zip(&self.groups) {
            let predicted = self.number(cell.predicted);
            line += &match group.1 {
                true => {
                    let ratio = cell.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
                    let mark = footnote(cell, footnotes);
                    format!(
                        "{predicted:>PREDICTED$}{:>NUMBER$}{ratio:>NUMBER$}{mark}",
                        self.number(cell.paper)
                    )
                }
                false => format!("{predicted:>width$}", width = self.width(group)),
            };
        }
        writeln!(f, "{}", line.trim_end())
    }

    fn number(&self, value: Option<f64>) -> String {
        match (value, self.table.unit) {
            (None, _) => "-".to_owned(),
            (Some(value), Unit::Times) => format!("{value:.2}"),
            (Some(value), Unit::Percent) => format!("{:+.1}", 100.0 * value),
        }
    }
}

/// The mark of a cell that is off, and its footnote among the others. Equal reasons share one.
fn footnote(cell: &Cell, footnotes: &mut Vec<String>) -> char {
    let Some(reason) = &cell.reason else { return ' ' };
    let known = footnotes.iter().position(|footnote| footnote == reason);
    mark(known.unwrap_or_else(|| {
        footnotes.push(reason.clone());
        footnotes.len() - 1
    }))
}

fn mark(index: usize) -> char {
    char::from(b'a' + (index % 26) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |hidden, cells| Row {
            hidden,
            layers: Some(24),
            degree: None,
            micro_batch: None,
            comm_ratio: None,
            cells,
        };
        let rows = vec![
            row(
                1024,
                vec![
                    Cell::beside("merak", 1.2, 1.0, || "a reason".to_owned()),
                    Cell::beside("oases", 1.15, 1.0, || panic!("it is not off")),
                    Cell::alone("decomposed", Some(1.0)),
                ],
            ),
            row(
                12288,
                vec![
                    Cell::beside("merak", 0.8, 1.0, || "a reason".to_owned()),
                    Cell::beside("oases", 0.84, 1.0, || "another".to_owned()),
                    Cell::alone("decomposed", None),
                ],
            ),
        ];
        Table { title: "A title".to_owned(), unit: Unit::Times, rows, agreement: None }
    }

    #[test]
    fn cells_stand_under_their_names_and_marks_lead_to_reasons() {
        let expected = "\
A title

                        merak             oases
  hidden   L pred paper ratio  pred paper ratio   decomposed
    1024  24 1.20  1.00  1.20a 1.15  1.00  1.15         1.00
   12288  24 0.80  1.00  0.80a 0.84  1.00  0.84b           -

  a) a reason
  b) another
";
        assert_eq!(table().to_string(), expected);
    }

    #[test]
    fn a_claim_says_whether_it_holds() {
        let claim = Claim::new("speedup", [1.0, 2.0], [1.1, 2.2], "");
        assert_eq!(claim.to_string(), "  speedup: paper 1.00-2.00x, predicted 1.10-2.20x, within 15 %\n");
        let claim = Claim::new("speedup", [1.0, 1.0], [1.2, 1.2], "for a reason");
        assert_eq!(
            claim.to_string(),
            "  speedup: paper 1.00x, predicted 1.20x, more than 15 % off\n    for a reason\n"
        );
    }
}
