//! The rows of a report by schedule and link, with the order in which both are shown, and the bounds that schedules share.

use super::{BASELINE, BenchReport, LinkRow, Row};
use crate::report::numbers::short;

/// Bounds that differ by less on every link are the same bound, measured twice.
const SAME_BOUND: f64 = 0.015;

/// A report, arranged.
pub struct Cells<'a> {
    /// What is arranged.
    pub report: &'a BenchReport,
    /// Schedules that have a row.
    pub schedules: Vec<&'a str>,
    /// Links that have a row.
    pub links: Vec<Link<'a>>,
    /// Groups of schedules with the same bound; that of the baseline first.
    pub bounds: Vec<Bound>,
    /// By schedule, then link.
    rows: Vec<Vec<Option<&'a Row>>>,
}

/// A link that has a row.
pub struct Link<'a> {
    /// Its label.
    pub label: &'a str,
    /// What is known about it.
    pub details: Option<&'a LinkRow>,
    /// c/f: as given, or as measured.
    pub ratio: Option<f64>,
    /// How it is called: `c/f = 2`, or the label.
    pub title: String,
}

/// A bound that several schedules share: they do the same computation and communication at least.
pub struct Bound {
    /// Indices of the schedules.
    pub schedules: Vec<usize>,
    /// Bound of a step on each link.
    pub step_ms: Vec<Option<f64>>,
}

impl<'a> Cells<'a> {
    /// Arranges a report. Of two rows of the same schedule and link the later counts.
    pub fn new(report: &'a BenchReport) -> Cells<'a> {
        let named = report.schedules.iter().map(|schedule| schedule.name.as_str());
        let schedules = distinct(named.chain(report.rows.iter().map(|row| row.schedule.as_str())));
        let schedules = with_rows(schedules, |name| report.rows.iter().any(|row| row.schedule == name));
        let named = report.links.iter().map(|link| link.label.as_str());
        let labels = distinct(named.chain(report.rows.iter().map(|row| row.link.as_str())));
        let labels = with_rows(labels, |label| report.rows.iter().any(|row| row.link == label));
        let links: Vec<Link<'_>> = labels.into_iter().map(|label| Link::new(report, label)).collect();
        let row = |schedule: &str, link: &Link<'_>| {
            report.rows.iter().rfind(|row| row.schedule == schedule && row.link == link.label)
        };
        let rows: Vec<Vec<Option<&Row>>> =
            schedules.iter().map(|schedule| links.iter().map(|link| row(schedule, link)).collect()).collect();
        let bounds = shared_bounds(&schedules, &rows);
        Cells { report, schedules, links, bounds, rows }
    }

    /// The row of a schedule and link, by their indices.
    pub fn row(&self, schedule: usize, link: usize) -> Option<&'a Row> {
        self.rows[schedule][link]
    }

    /// The rows of a link with the indices of their schedules.
    pub fn on_link(&self, link: usize) -> impl Iterator<Item = (usize, &'a Row)> {
        self.rows.iter().enumerate().filter_map(move |(schedule, rows)| Some((schedule, rows[link]?)))
    }

    /// All rows, with the indices of their schedule and link.
    pub fn all(&self) -> impl Iterator<Item = (usize, usize, &'a Row)> {
        let links = 0..self.links.len();
        links.flat_map(|link| self.on_link(link).map(move |(schedule, row)| (schedule, link, row)))
    }

    /// The speedup over the baseline that a step time on a link would be.
    pub fn speedup_of(&self, link: usize, step_ms: f64) -> Option<f64> {
        let baseline = self.on_link(link).find_map(|(_, row)| Some(row.speedup? * row.step_ms))?;
        Some(baseline / step_ms).filter(|speedup| speedup.is_finite())
    }

    /// The name of a bound, short enough for a figure.
    pub fn bound_name(&self, bound: &Bound) -> String {
        match bound.schedules.as_slice() {
            _ if self.bounds.len() == 1 => "bound".to_owned(),
            schedules if schedules.iter().any(|&schedule| self.schedules[schedule] == BASELINE) => {
                "bound".to_owned()
            }
            [first] => format!("bound of {}", self.schedules[*first]),
            [first, second] if self.schedules[*first].len() + self.schedules[*second].len() < 24 => {
                format!("bound of {}, {}", self.schedules[*first], self.schedules[*second])
            }
            [first, ..] => format!("bound of {} …", self.schedules[*first]),
            [] => "bound".to_owned(),
        }
    }

    /// Whether any row has a predicted step time.
    pub fn has_prediction(&self) -> bool {
        self.report.rows.iter().any(|row| row.predicted_step_ms.is_some())
    }

    /// The ratios c/f of the links, if each has one and no two are the same.
    pub fn ratios(&self) -> Option<Vec<f64>> {
        let ratios: Vec<f64> = self.links.iter().map(|link| link.ratio).collect::<Option<_>>()?;
        let mut sorted = ratios.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.windows(2).all(|pair| pair[0] < pair[1]).then_some(ratios)
    }
}

impl<'a> Link<'a> {
    fn new(report: &'a BenchReport, label: &'a str) -> Link<'a> {
        let details = report.links.iter().find(|link| link.label == label);
        let row = report.rows.iter().find(|row| row.link == label);
        let given = details.and_then(|link| link.comm_ratio).or(row.and_then(|row| row.comm_ratio));
        let measured = details.map(|link| link.all_reduce_ms / link.block_forward_ms);
        let usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
        let title = given.map_or_else(|| label.to_owned(), |ratio| format!("c/f = {}", short(ratio)));
        Link { label, details, ratio: given.or(measured).filter(usable), title }
    }
}

impl Bound {
    /// Whether a schedule's bounds are these, on at least one link and on all that both have.
    fn is(&self, step_ms: &[Option<f64>]) -> bool {
        let mut both =
            self.step_ms.iter().zip(step_ms).filter_map(|(ours, theirs)| ours.zip(*theirs)).peekable();
        both.peek().is_some() && both.all(|(ours, theirs)| (theirs / ours - 1.0).abs() < SAME_BOUND)
    }
}

fn shared_bounds(schedules: &[&str], rows: &[Vec<Option<&Row>>]) -> Vec<Bound> {
    let mut order: Vec<usize> = (0..schedules.len()).collect();
    order.sort_by_key(|&schedule| schedules[schedule] != BASELINE);
    let mut bounds: Vec<Bound> = Vec::new();
    for schedule in order {
        let usable = |bound: &f64| bound.is_finite() && *bound > 0.0;
        let step_ms: Vec<Option<f64>> =
            rows[schedule].iter().map(|row| row.and_then(|row| row.bound_ms).filter(usable)).collect();
        match bounds.iter_mut().find(|bound| bound.is(&step_ms)) {
            Some(bound) => {
                bound.schedules.push(schedule);
                for (ours, theirs) in bound.step_ms.iter_mut().zip(step_ms) {
                    *ours = ours.or(theirs);
                }
            }
            None if step_ms.iter().any(Option::is_some) => {
                bounds.push(Bound { schedules: vec![schedule], step_ms });
            }
            None => {}
        }
    }
    bounds
}

/// Names in the order of their first appearance.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

fn with_rows(mut names: Vec<&str>, has_row: impl Fn(&str) -> bool) -> Vec<&str> {
    names.retain(|name| has_row(name));
    names
}
