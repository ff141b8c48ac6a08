//! Reports as a whole: the page is well-formed and says what the rows say, the table fits a terminal, the JSON has its keys.

use super::cells::Cells;
use super::sample::{RATIOS, SCHEDULES, fill_speedups, report, report_of};
use super::*;
use crate::report::numbers::{bytes, fixed, loss};

fn named(schedules: &[&str]) -> Vec<(String, String)> {
    schedules.iter().map(|name| (name.to_string(), format!("what {name} does"))).collect()
}

/// A report whose rows end early and have no prediction.
fn interrupted() -> BenchReport {
    let mut report = report_of(&named(&["megatron", "oases", "domino"]), &[0.5, 1.0, 2.0]);
    report.rows.truncate(4);
    report.timelines.clear();
    report.interrupted = Some("interrupted in round 2".to_owned());
    for row in &mut report.rows {
        row.predicted_step_ms = None;
        row.predicted_speedup = None;
        row.predicted_exposed_comm_ms = None;
    }
    report
}

/// Fifteen schedules on eight links, with names that are no identifiers.
fn large() -> BenchReport {
    let kinds = SCHEDULES.map(|(name, _)| name);
    let names: Vec<String> = (0..15)
        .map(|index| match index {
            0 => "megatron".to_owned(),
            _ => format!("{}#{index} <k=\"{index}\"> & more, *long*", kinds[index % kinds.len()]),
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    report_of(&named(&names), &[0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0])
}

/// Links with names instead of ratios, and numbers that are none.
fn unusual() -> BenchReport {
    let mut report = report_of(&named(&["oases", "domino"]), &[1.0, 2.0]);
    for link in &mut report.links {
        link.comm_ratio = None;
        link.all_reduce_ms = f64::NAN;
    }
    for row in &mut report.rows {
        row.comm_ratio = None;
        row.bound_ms = Some(f64::NAN);
        row.bound_ratio = None;
        row.loss = f64::NAN;
        row.predicted_step_ms = Some(0.0);
        row.arena_bytes = 0;
    }
    report.rows[0].step_ms = 0.0;
    for pair in &mut report.timelines {
        pair.measured = None;
    }
    report
}

fn everything() -> Vec<BenchReport> {
    vec![
        report(),
        report_of(&named(&["megatron", "oases", "merak"]), &[2.0]),
        report_of(&named(&["oases"]), &[0.5, 1.0]),
        report_of(&named(&["oases"]), &[1.0]),
        interrupted(),
        large(),
        unusual(),
        BenchReport::default(),
    ]
}

/// Checks that tags are balanced and that nothing unescaped is left; gives the text of each element `name`.
fn texts_of(page: &str, name: &str) -> Vec<String> {
    let mut open: Vec<(&str, String)> = Vec::new();
    let mut texts = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some(start) = rest.find('<') {
        let text = unescaped(&rest[..start]);
        for (_, all) in &mut open {
            all.push_str(&text);
        }
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(closing) = tag.strip_prefix('/') {
            let (opened, all) = open.pop().expect("a tag was opened");
            assert_eq!(opened, closing);
            if opened == name {
                texts.push(all);
            }
        } else if let Some(empty) = tag.strip_suffix('/') {
            check_attributes(empty);
        } else {
            open.push((check_attributes(tag), String::new()));
        }
    }
    assert!(open.is_empty(), "{open:?} is still open");
    assert_eq!(rest.trim(), "");
    texts
}

/// The name of a tag whose attributes are `name="value"`, each once.
fn check_attributes(tag: &str) -> &str {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    assert!(name.chars().all(|character| character.is_ascii_alphanumeric()), "{name}");
    let mut seen = Vec::new();
    while !rest.trim().is_empty() {
        let (attribute, after) =
            rest.trim_start().split_once("=\"").expect("an attribute has a value in quotes");
        let (value, after) = after.split_once('"').expect("a value ends");
        assert!(!attribute.is_empty() && !attribute.contains([' ', '"', '<']), "{attribute}");
        assert!(!seen.contains(&attribute), "{attribute} twice");
        assert!(!value.contains('<') && !value.contains("NaN") && !value.contains("inf%"), "{value}");
        seen.push(attribute);
        unescaped(value);
        rest = after;
    }
    name
}

fn unescaped(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        result.push_str(&rest[..at]);
        let (entity, after) = rest[at + 1..].split_once(';').expect("an entity ends");
        result.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            _ => panic!("unknown entity {entity}"),
        });
        rest = after;
    }
    result.push_str(rest);
    result
}

#[test]
fn every_page_is_well_formed_and_needs_nothing_else() {
    for report in everything() {
        let page = report.to_html();
        assert_eq!(texts_of(&page, "main").len(), 1);
        for outside in ["http:", "https:", "url(", "@import", "src=", "href="] {
            assert!(!page.contains(outside), "{outside}");
        }
        for wrong in ["NaN", "\"inf", ">inf"] {
            assert!(!page.contains(wrong), "{wrong}");
        }
    }
}

#[test]
fn the_table_of_the_page_has_every_number_of_every_row() {
    for report in [report(), interrupted(), large()] {
        let page = report.to_html();
        let lines = texts_of(&page, "tr");
        let mut cells = texts_of(&page, "td").into_iter();
        // All steps of the sample take between 1 and 10 s, so three digits need no decimals.
        for row in in_order(&report) {
            let line = lines.iter().find(|line| {
                line.starts_with(&row.schedule)
                    && line[row.schedule.len()..].starts_with(&fixed(row.step_ms, 0))
            });
            assert!(line.is_some(), "{} at {} is missing", row.schedule, row.link);
            let range = format!("{}–{}", fixed(row.step_min_ms, 0), fixed(row.step_max_ms, 0));
            let number = |value: Option<f64>, decimals| {
                value.map_or("–".to_owned(), |value| format!("{value:.decimals$}"))
            };
            let expected = [
                Some(row.schedule.clone()),
                Some(format!("{:.0}", row.step_ms)),
                Some(range),
                Some(number(row.predicted_step_ms, 0)),
                None,
                Some(number(row.speedup, 2)),
                Some(number(row.predicted_speedup, 2)),
                Some(number(row.bound_ratio, 2)),
                Some(format!("{:.0}", row.exposed_comm_ms)),
                Some(number(row.predicted_exposed_comm_ms, 0)),
                None,
                Some(bytes(row.arena_bytes)),
                Some(loss(row.loss)),
            ];
            for expected in expected {
                let cell = cells.next().expect("a cell for each number");
                assert!(
                    expected.is_none_or(|expected| expected == cell),
                    "{cell} at {} {}",
                    row.schedule,
                    row.link
                );
            }
        }
    }
}

/// The rows as the tables show them.
fn in_order(report: &BenchReport) -> Vec<Row> {
    Cells::new(report).all().map(|(_, _, row)| row.clone()).collect()
}

#[test]
fn names_are_escaped_and_not_emphasised() {
    let page = large().to_html();
    assert!(page.contains("merak#1 &lt;k=&quot;1&quot;&gt; &amp; more, *long*"));
    assert!(!page.contains("<k="));
    assert!(texts_of(&page, "b").iter().all(|text| !text.starts_with("long")));
}

#[test]
fn the_answer_names_the_fastest_and_by_how_much() {
    let mut report = report_of(&named(&["megatron", "oases", "domino"]), &[1.0, 2.0]);
    let steps = [[200.0, 100.0, 125.0], [300.0, 160.0, 150.0]];
    for (row, step) in report.rows.iter_mut().zip(steps.iter().flatten()) {
        let bound = if row.schedule == "domino" { 120.0 } else { 98.0 };
        (row.step_ms, row.bound_ms, row.bound_ratio) = (*step, Some(bound), Some(step / bound));
        row.predicted_step_ms = Some(if row.schedule == "oases" { step * 1.1 } else { step * 1.02 });
    }
    fill_speedups(&mut report.rows);
    let page = report.to_html();
    let answer = &texts_of(&page, "header")[0].replace(['\u{202f}', '\u{a0}'], " ").replace('\u{2060}', "");
    // 200 / 100 and 300 / 150; 100 / 98 − 1 and 150 / 120 − 1.
    assert!(
        answer.contains("oases is fastest at c/f = 1, 2.00× as fast as megatron and 2 % above its bound; domino at c/f = 2, 2.00× as fast as megatron and 25 % above its bound."),
        "{answer}"
    );
    // 300 / 160; 160 / 98 − 1.
    assert!(answer.contains(
        "Of the schedules with the same bound as megatron, oases is fastest on every link, 1.88–2.00× as fast as megatron and 2–63 % above its bound."
    ), "{answer}");
    assert!(
        answer.contains("off by 2.0 % in the median of 6 cells and by 10 % at worst (oases at c/f = "),
        "{answer}"
    );
}

#[test]
fn an_early_end_is_said_and_missing_rows_are_counted() {
    let report = interrupted();
    let page = report.to_html();
    let header = &texts_of(&page, "header")[0].replace('\u{a0}', " ");
    assert!(header.contains("ended early: interrupted in round 2."), "{header}");
    assert!(header.contains("megatron at c/f = 1 of the 1 measured there"), "{header}");
    assert!(report.to_string().ends_with("ended early: interrupted in round 2\n"));
    assert!(BenchReport::default().to_string().contains("no schedule was measured"));
}

#[test]
fn figures_are_there_where_there_is_something_to_show() {
    let figures = |report: &BenchReport| texts_of(&report.to_html(), "figcaption").len();
    // Speedup, step times, accuracy, two of the streams, memory.
    assert_eq!(figures(&report()), 6);
    // No prediction, no timelines.
    assert_eq!(figures(&interrupted()), 3);
    // Without the baseline there is no speedup.
    assert_eq!(figures(&report_of(&named(&["oases"]), &[1.0])), 5);
    assert_eq!(figures(&BenchReport::default()), 0);
}

#[test]
fn a_later_row_replaces_an_earlier_one() {
    let mut report = report_of(&named(&["megatron", "oases"]), &[1.0]);
    let mut again = report.rows[1].clone();
    again.step_ms = 1234.0;
    report.rows.push(again);
    let cells = Cells::new(&report);
    assert_eq!(cells.row(1, 0).map(|row| row.step_ms), Some(1234.0));
    assert_eq!(cells.all().count(), 2);
}

#[test]
fn schedules_that_keep_everything_have_a_bound_of_their_own() {
    let report = report();
    let cells = Cells::new(&report);
    let bounds: Vec<Vec<&str>> = cells
        .bounds
        .iter()
        .map(|bound| bound.schedules.iter().map(|schedule| cells.schedules[*schedule]).collect())
        .collect();
    assert_eq!(bounds, [vec!["megatron", "merak", "cross-pass", "oases"], vec!["domino", "oases-keep-all"]]);
}

#[test]
fn the_table_for_terminals_fits_and_aligns() {
    for report in everything() {
        let text = report.to_string();
        for line in text.lines().filter(|line| !line.starts_with("c/f")) {
            assert!(line.chars().count() <= 120, "{} columns: {line}", line.chars().count());
        }
    }
    let text = report().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("c/f = ")).count(), RATIOS.len());
    let of_schedules: Vec<&&str> = lines
        .iter()
        .filter(|line| SCHEDULES.iter().any(|(name, _)| line.starts_with(&format!("  {name} "))))
        .collect();
    assert_eq!(of_schedules.len(), RATIOS.len() * SCHEDULES.len());
    assert!(of_schedules.iter().all(|line| line.len() == of_schedules[0].len()));
    assert!(text.contains("predicted against measured step times, 30 cells: Spearman 0.9"));
}

#[test]
fn layouts_that_begin_alike_are_told_in_full() {
    let names = ["megatron", "oases degrees=2*3+1*4+2*3", "oases degrees=2*3+1*2+2*5"];
    let text = report_of(&named(&names), &[1.0]).to_string();
    for (name, cut) in names.iter().zip([false, true, true]) {
        assert_eq!(text.lines().any(|line| line == format!("  {name}")), cut, "{name}");
    }
}

#[test]
fn the_json_has_its_keys() {
    let report = report();
    let document: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), report.rows.len());
    for (row, given) in rows.iter().zip(&report.rows) {
        assert_eq!(row["schedule"], *given.schedule);
        assert_eq!(row["comm_ratio"].as_f64(), given.comm_ratio);
        assert_eq!(row["step_ms"].as_f64(), Some(given.step_ms));
        assert_eq!(row["predicted_step_ms"].as_f64(), given.predicted_step_ms);
        assert_eq!(row["speedup"].as_f64(), given.speedup);
        assert_eq!(row["bound_ratio"].as_f64(), given.bound_ratio);
        assert_eq!(row["exposed_comm_ms"].as_f64(), Some(given.exposed_comm_ms));
        assert_eq!(row["arena_bytes"].as_u64(), Some(given.arena_bytes));
        assert_eq!(row["loss"].as_f64(), Some(given.loss));
    }
    let prediction = report.prediction().unwrap();
    assert_eq!(document["prediction"]["spearman"].as_f64(), prediction.spearman);
    assert_eq!(document["prediction"]["median_error"].as_f64(), Some(prediction.median_error));
    assert_eq!(document["prediction"]["worst_error"].as_f64(), Some(prediction.worst_error));
    assert!(document.get("timelines").is_none());
    let without: serde_json::Value = serde_json::from_str(&interrupted().to_json().unwrap()).unwrap();
    assert!(without["prediction"].is_null());
}
