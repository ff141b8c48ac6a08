//! What the plan looks like.

use oases_schedule::{Keep, Keeps, Layout};

use super::*;

fn row(name: &str, degrees: &str, step_ms: f64, arena_bytes: u64) -> Row {
    let keep = "schedule".to_owned();
    let fits = arena_bytes <= 24_000_000_000;
    let exposed_comm_ms = step_ms / 4.0;
    Row {
        name: name.to_owned(),
        degrees: degrees.to_owned(),
        keep,
        step_ms,
        exposed_comm_ms,
        arena_bytes,
        fits,
    }
}

fn sample() -> PlanReport {
    let layout = Layout::new(8, vec![4, 2, 2, 2, 2, 4]);
    PlanReport {
        model: "gpt of 2 layers".to_owned(),
        group: 8,
        batch: 32,
        schedule: "oases".to_owned(),
        source: "machine",
        machine: "cards".to_owned(),
        estimates: vec!["launch_us".to_owned()],
        link: "wire".to_owned(),
        budget_bytes: Some(24_000_000_000),
        plan: row("plan", "4*1 2*4 4*1", 100.0, 22 << 30),
        runs: Run::of(&layout, &Keeps::AsScheduled, 2),
        runner_up: Some(row("runner-up", "4*2 2*3 4*1", 101.0, 20 << 30)),
        alpa: Some(row("alpa", "4*6", 110.0, 12 << 30)),
        uniform: vec![row("degree 2", "2*6", 99.0, 25 << 30), row("degree 4", "4*6", 110.0, 12 << 30)],
        refused: vec![RefusedDegree { degree: 1, reason: "too few sequences".to_owned() }],
        speedup_over_uniform: Some(1.1),
        speedup_over_alpa: Some(1.1),
        memory: vec![
            MemoryKind { kind: "weights", bytes: 5 << 30 },
            MemoryKind { kind: "workspace", bytes: 0 },
        ],
        proof: Proof {
            solver: "labels",
            objective_ms: 100.5,
            bound_ms: 100.5,
            optimal: true,
            margin_ms: Some(0.25),
            explored: 1555,
            cut_off: 2816,
            rounds: 1,
            planning_ms: 60.0,
        },
        remarks: vec!["Degree 2 would be faster.".to_owned()],
        ..PlanReport::default()
    }
}

#[test]
fn the_text_has_a_line_for_each_run_and_each_layout() {
    let expected = "\
model    gpt of 2 layers
machine  cards
link     wire
estimate launch_us
memory   24.0 GB (22.4 GiB) a rank

blocks          degree  number
embed                4       1
attn.0 … mlp.1       2       4
head                 4       1

layout     step ms  exposed ms  of step      memory  degrees
plan         100.0      25.000   25.0 %    22.0 GiB  4×1, 2×4, 4×1
runner-up    101.0      25.250   25.0 %    20.0 GiB  4×2, 2×3, 4×1
alpa         110.0      27.500   25.0 %    12.0 GiB  4×6
degree 2    99.000      24.750   25.0 %  25.0 GiB *  2×6
degree 4     110.0      27.500   25.0 %    12.0 GiB  4×6
degree 1 is not possible: too few sequences
* does not fit
exposed: waiting for collectives; alpa: what a planner chooses that knows of no overlap; degrees: degree × blocks

step     100.0 ms predicted: 1.100x as fast as the best uniform layout that fits, degree 4, 1.100x as fast as
         alpa
memory   22.0 GiB of 22.4 GiB on every rank: weights 5.0 GiB
proof    summed over blocks 100.5 ms, and no other layout that fits has less: optimal; the next best sum loses
         by 0.250 ms; 1,555 explored, 2,816 cut off, by labels; planned in 60.000 ms
note     Degree 2 would be faster.

TMP degrees of 8 ranks: 4×1, 2×4, 4×1
";
    assert_eq!(sample().to_string(), expected);
}

#[test]
fn a_proof_that_falls_short_says_by_how_much() {
    let mut report = sample();
    report.proof = Proof { bound_ms: 99.495, optimal: false, margin_ms: None, rounds: 3, ..report.proof };
    let text = report.to_string();
    for part in
        ["no other layout that fits has less than 99.495 ms (1.0 % below)", "solved 3 times", "no other"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn blocks_that_run_alike_are_one_run() {
    let layout = Layout::new(2, vec![2, 1, 1, 1, 1, 2]);
    let keeps = Keeps::Blocks(vec![Keep::Input, Keep::All, Keep::All, Keep::All]);
    let runs = Run::of(&layout, &keeps, 2);
    let seen: Vec<(&str, &str, usize, u32, Option<&str>)> = runs
        .iter()
        .map(|run| (run.first.as_str(), run.last.as_str(), run.blocks, run.degree, run.keep))
        .collect();
    assert_eq!(
        seen,
        [
            ("embed", "embed", 1, 2, None),
            ("attn.0", "attn.0", 1, 1, Some("input")),
            ("mlp.0", "mlp.1", 3, 1, Some("all")),
            ("head", "head", 1, 2, None),
        ]
    );
    assert_eq!(Run::of(&Layout::uniform(2, 6), &Keeps::Same(Keep::All), 2).len(), 1);
}

fn verified() -> Verification {
    let row = |name: &str, degrees: &str, predicted_ms: f64, measured_ms: f64| Verified {
        name: name.to_owned(),
        degrees: degrees.to_owned(),
        predicted_ms,
        measured_ms,
        measured_min_ms: measured_ms - 1.0,
        measured_max_ms: measured_ms + 1.0,
        loss: Some(5.5),
        planned_bytes: 1 << 20,
        used_bytes: 1 << 20,
        ..Verified::default()
    };
    let rows = vec![
        row("plan", "2*1 1*2 2*1", 10.5, 10.0),
        row("degree 1", "1*4", 8.0, 8.0),
        row("random 2", "1*1 2*2 1*1", 30.0, 20.0),
    ];
    let pairs: Vec<(f64, f64)> = rows.iter().map(|row| (row.measured_ms, row.predicted_ms)).collect();
    Verification {
        rounds: 5,
        link: "1 Gbit/s".to_owned(),
        prediction: Prediction::of(&pairs),
        rows,
        plan_behind_best: 0.25,
        loss_difference: Some(0.0),
        ..Verification::default()
    }
}

#[test]
fn what_was_run_stands_beside_what_was_predicted() {
    let text = PlanReport { verification: Some(verified()), ..sample() }.to_string();
    for line in [
        "verified: 3 layouts, really run; link 1 Gbit/s; 5 rounds, seed 0",
        "plan         10.500    10.000   +5.0 %  1.0 MiB   all  5.500000  2×1, 1×2, 2×1",
        "random 2     30.000    20.000  +50.0 %  1.0 MiB   all  5.500000  1×1, 2×2, 1×1",
        "predicted against measured: Spearman 1.000, median error 5.0 %, worst 50.0 % (random 2)",
        "the plan is 25.0 % behind the fastest measured",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn the_page_has_a_dot_and_a_line_for_each_layout() {
    assert_eq!(sample().to_html(), None, "nothing was verified");
    let page = PlanReport { verification: Some(verified()), ..sample() }.to_html().unwrap();
    assert_eq!(page.matches("<circle").count(), 3);
    // The header of the table is a line too.
    assert_eq!(page.matches("<tr>").count(), 4);
    for part in [
        "Spearman 1.000",
        "9.000–11.000",
        "<td class=\"best\">degree 1</td>",
        "behind the fastest of 3 layouts",
    ] {
        assert!(page.contains(part), "{part} in\n{page}");
    }
    for outside in ["http:", "https:", "url(", "@import", "src=", "href=", "NaN"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn the_wider_search_has_its_reasons() {
    let found = |schedule: &str, step_ms: f64, reason: &str| Found {
        schedule: schedule.to_owned(),
        micro_batches: 4,
        sub_batches: 2,
        row: row("", "2*6", step_ms, 1 << 30),
        reason: reason.to_owned(),
    };
    let best = vec![found("oases", 100.0, "the fastest"), found("oases-w", 103.0, "oases-w: 3.0 % slower")];
    let search = Search { planned: 12, too_large: 3, impossible: 1, best };
    let text = PlanReport { search: Some(search), ..sample() }.to_string();
    for part in ["12 combinations", "3 do not fit, 1 are not", "oases-w: 3.0 % slower", "2×6      schedule"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn memory_is_told_in_both_kinds_of_units() {
    assert_eq!(text::both(24_000_000_000), "24.0 GB (22.4 GiB)");
    assert_eq!(text::both(3 << 20), "3.1 MB (3.0 MiB)");
    assert_eq!(text::both(17), "17 B");
}
