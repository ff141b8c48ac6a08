//! `oases reproduce`: what it predicts against the published figures, and how it is printed.

use serde_json::Value;

use crate::support::Folder;

const FIGURE_6: &str = include_str!("../../../../data/oases-paper/fig6_3090.csv");
const METHODS: [&str; 4] = ["alpa", "wang", "merak", "oases"];

/// Runs an experiment that works.
fn reproduced(arguments: &[&str]) -> String {
    let outcome = Folder::new().oases(arguments);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    outcome.stdout
}

/// Ranks from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    for run in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let first = order.iter().position(|index| *index == run[0]).unwrap();
        run.iter().for_each(|index| ranks[*index] = first as f64 + (run.len() as f64 + 1.0) / 2.0);
    }
    ranks
}

/// Pearson's correlation, by means of squares.
fn correlation(left: &[f64], right: &[f64]) -> f64 {
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / left.len() as f64;
    let (a, b) = (mean(&mut left.iter().copied()), mean(&mut right.iter().copied()));
    let both = mean(&mut left.iter().zip(right).map(|(x, y)| x * y)) - a * b;
    let [left, right] = [(left, a), (right, b)]
        .map(|(values, center)| mean(&mut values.iter().map(|value| value * value)) - center * center);
    both / (left * right).sqrt()
}

#[test]
fn figure_6_is_predicted_in_its_order() {
    let json: Value =
        serde_json::from_str(&reproduced(&["reproduce", "figure6", "--format", "json"])).unwrap();
    let table = &json["experiments"][0]["tables"][0];
    let rows = table["rows"].as_array().unwrap();
    let published = FIGURE_6.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let (mut predicted, mut paper) = (Vec::new(), Vec::new());
    for (row, line) in rows.iter().zip(published) {
        let line: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        assert_eq!([row["hidden"].as_f64(), row["layers"].as_f64()], [Some(line[0]), Some(line[1])]);
        for ((cell, method), figure) in row["cells"].as_array().unwrap().iter().zip(METHODS).zip(&line[2..]) {
            assert_eq!((cell["of"].as_str(), cell["paper"].as_f64()), (Some(method), Some(*figure)));
            predicted.push(cell["predicted"].as_f64().unwrap());
            paper.push(*figure);
            let ratio = predicted[predicted.len() - 1] / figure;
            let reason = cell["reason"].as_str();
            assert_eq!(reason.is_some(), (ratio - 1.0).abs() > 0.15, "{method} {cell}");
            assert_ne!(reason, Some("No reason is known."), "{method} {cell}");
        }
    }
    assert_eq!((rows.len(), predicted.len()), (7, 28));
    let spearman = correlation(&ranks(&predicted), &ranks(&paper));
    assert!(spearman >= 0.9, "{spearman}");

    let mut errors: Vec<f64> = predicted.iter().zip(&paper).map(|(a, b)| (a / b - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let agreement = |key: &str| table["agreement"][key].as_f64().unwrap();
    for (key, value) in [
        ("cells", 28.0),
        ("spearman", spearman),
        ("median_error", (errors[13] + errors[14]) / 2.0),
        ("worst_error", errors[27]),
        ("off", errors.iter().filter(|error| **error > 0.15).count() as f64),
    ] {
        assert!((agreement(key) - value).abs() < 1e-9, "{key}: {} instead of {value}", agreement(key));
    }
}

#[test]
fn all_experiments_are_printed_in_the_order_of_the_paper() {
    let text = reproduced(&["reproduce"]);
    for line in text.lines() {
        assert!(line.chars().count() <= 110 && line == line.trim_end(), "{line}");
    }
    let headings = [
        "figure5: ",
        "figure6: ",
        "figure7: ",
        "figure10: ",
        "utilisation: ",
        "ablation: ",
        "selective: ",
        "v100: ",
    ];
    let places: Vec<usize> =
        headings.iter().map(|heading| text.find(&format!("\n{heading}")).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
    for expected in [
        "Parameters, the same for all rows",
        "CALIBRATED",
        "28 cells: Spearman rank correlation 0.9",
        "paper 1.17-2.18x",
        "paper 1.38x",
        "paper 1.15x",
        "paper 1.07-1.10x",
        "paper 5.46-7.97x",
        "Two ideal streams cannot reproduce this",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(!text.contains("No reason is known."), "{text}");
}

#[test]
fn only_what_is_asked_for_is_printed_and_once() {
    let text = reproduced(&["reproduce", "figure5", "figure5"]);
    assert_eq!(text.matches("figure5: ").count(), 1);
    assert!(!text.contains("figure6: "), "{text}");
    // Two halves at hidden 1024, degree 4, batch 4: 2 · 3.768 ms over 6.416 ms.
    assert!(
        text.lines().any(|line| line.trim_start().starts_with("1024 ") && line.contains("+17.5")),
        "{text}"
    );
}

#[test]
fn an_unknown_experiment_is_one_line_with_the_list() {
    let list =
        "[possible values: figure5, figure6, figure7, figure10, utilisation, ablation, selective, v100]";
    let folder = Folder::new();
    let outcome = folder.oases(&["reproduce", "figure66"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    let error = format!(
        "error: invalid value 'figure66' for '[EXPERIMENT]...' {list}\n\nhint: did you mean `figure6`"
    );
    assert!(outcome.stderr.starts_with(&error), "{}", outcome.stderr);
    let outcome = folder.oases(&["reproduce", "everything"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    assert!(outcome.stderr.contains(list), "{}", outcome.stderr);
}
