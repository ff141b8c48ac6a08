//! Plans: what they choose, what they write, how they hold when run, and what is refused.

use std::fs;

use serde_json::Value;

use crate::support::{Folder, GOOD};

/// Two ranks with round figures.
const PAIR: &str = include_str!("../../../../testdata/machines/pair.toml");

/// A table of block times of the size of [`published`]: hidden size 128, degrees 1 and 2, batches 1 to 4.
const TABLE: &str = "\
hidden,tmp_degree,batch,attn_forward_ms,attn_backward_ms,mlp_forward_ms,mlp_backward_ms,all_reduce_ms,runtime_memory_mb
128,1,1,2.0,4.0,2.0,4.0,1.0,10
128,1,4,8.0,16.0,8.0,16.0,1.0,10
128,2,1,1.2,2.4,1.2,2.4,1.0,10
128,2,4,4.8,9.6,4.8,9.6,1.0,10
";

/// A folder with `good.toml` on two ranks and a larger one on four, `quad.toml`, with machines for both.
fn folder() -> Folder {
    let folder = Folder::with_good_configuration();
    folder.write("c.toml", format!("{GOOD}\n[parallel]\ntensor = 2\n"));
    folder.write("pair.toml", PAIR);
    folder.write("four.toml", PAIR.replace("ranks = 2", "ranks = 4"));
    let larger = GOOD.replace("layers = 1", "layers = 4").replace("hidden = 24", "hidden = 64");
    let larger = larger.replace("heads = 6", "heads = 4").replace("sequence = 8", "sequence = 16");
    let larger = larger.replace("batch = 4", "batch = 16");
    folder.write("quad.toml", format!("{larger}\n[parallel]\ntensor = 4\n"));
    folder.write("published.toml", published());
    folder.write("table.csv", TABLE);
    folder
}

/// The proportions that published tables are of.
fn published() -> String {
    let model = GOOD.replace("hidden = 24", "hidden = 128").replace("heads = 6", "heads = 2");
    let model = model.replace("sequence = 8", "sequence = 1024").replace("batch = 4", "batch = 8");
    format!("{model}\n[parallel]\ntensor = 2\n[link]\nbandwidth = \"10 Gbit/s\"\n")
}

fn json(folder: &Folder, arguments: &[&str]) -> Value {
    let outcome = folder.oases(&[arguments, &["--format", "json"]].concat());
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    serde_json::from_str(&outcome.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_budget_that_no_fast_uniform_degree_fits_into_mixes_degrees() {
    let folder = folder();
    let arguments = ["plan", "quad.toml", "--machine", "four.toml", "--memory", "2MB", "-o", "p.toml"];
    let report = json(&folder, &arguments);
    let plan = &report["plan"];
    assert!(plan["degrees"].as_str().unwrap().contains(' '), "{plan}");
    assert!(number(&plan["arena_bytes"]) <= 2e6 && plan["fits"] == true);
    let uniform = report["uniform"].as_array().unwrap();
    assert_eq!(uniform.len(), 3, "degrees 1, 2 and 4");
    let fits: Vec<&str> =
        uniform.iter().filter(|row| row["fits"] == true).map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(fits, ["degree 4"]);
    let ratio = number(&uniform[2]["step_ms"]) / number(&plan["step_ms"]);
    assert!(ratio > 1.1 && (ratio - number(&report["speedup_over_uniform"])).abs() < 1e-6, "{ratio}");
    let blocks: u64 =
        report["runs"].as_array().unwrap().iter().map(|run| run["blocks"].as_u64().unwrap()).sum();
    assert_eq!(blocks, 10);
    let filled: u64 =
        report["memory"].as_array().unwrap().iter().map(|kind| kind["bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(filled), plan["arena_bytes"].as_u64());

    // The file is taken by everything, and everything says the same of it.
    let explained = json(&folder, &["explain", "p.toml"]);
    assert_eq!(explained["layout"], format!("TMP degrees {}", plan["degrees"].as_str().unwrap()));
    let simulated = &json(&folder, &["simulate", "p.toml", "--machine", "four.toml"])["rows"][0];
    assert_eq!(simulated["step_ms"], plan["step_ms"]);
    assert_eq!(simulated["arena_bytes"], plan["arena_bytes"]);
    let text = fs::read_to_string(folder.path().join("p.toml")).unwrap();
    for line in [
        "#     oases plan quad.toml --machine four.toml --memory '2MB'".to_owned(),
        format!("degrees = {}", plan["degrees"]),
        "dir = \"runs/p\"".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }

    let shown = folder.oases(&arguments);
    assert_eq!((shown.code, shown.stderr.as_str()), (0, "the plan is in p.toml\n"));
    let degrees = plan["degrees"].as_str().unwrap().replace('*', "×").replace(' ', ", ");
    assert!(shown.stdout.ends_with(&format!("\nTMP degrees of 4 ranks: {degrees}\n")), "{}", shown.stdout);
    for line in ["layout     step ms", "* does not fit", "memory   2.0 MB (1.9 MiB) a rank", "degree 4 "] {
        assert!(shown.stdout.lines().any(|found| found.starts_with(line)), "{line} in\n{}", shown.stdout);
    }
}

/// All eight layouts of one layer on two ranks, each simulated by itself: none that fits is faster than the plan.
#[test]
fn no_layout_that_fits_is_faster() {
    let folder = folder();
    for (memory, bytes) in [("1GB", 1e9), ("240kB", 240e3), ("200kB", 200e3), ("150kB", 150e3)] {
        let report = json(&folder, &["plan", "c.toml", "--machine", "pair.toml", "--memory", memory]);
        let mut fastest = f64::INFINITY;
        for ends in [1, 2] {
            for [attn, mlp] in [[1, 1], [1, 2], [2, 1], [2, 2]] {
                let degrees = format!("parallel.degrees={ends}*1 {attn}*1 {mlp}*1 {ends}*1");
                let row = &json(
                    &folder,
                    &["simulate", "c.toml", "--machine", "pair.toml", "--set", &degrees],
                )["rows"][0];
                if number(&row["arena_bytes"]) <= bytes {
                    fastest = fastest.min(number(&row["step_ms"]));
                }
            }
        }
        assert_eq!(number(&report["plan"]["step_ms"]), fastest, "{memory}");
    }
}

fn losses(folder: &Folder, run: &str) -> Vec<f64> {
    let text = fs::read_to_string(folder.path().join(run).join("metrics.jsonl")).unwrap();
    text.lines().map(|line| number(&serde_json::from_str::<Value>(line).unwrap()["loss"])).collect()
}

#[test]
fn a_plan_trains_to_the_losses_of_a_uniform_degree() {
    let folder = folder();
    let report =
        json(&folder, &["plan", "c.toml", "--machine", "pair.toml", "--memory", "200kB", "-o", "p.toml"]);
    assert!(report["plan"]["degrees"].as_str().unwrap().contains(' '), "{}", report["plan"]);
    for configuration in ["p.toml", "c.toml"] {
        let outcome = folder.oases(&["train", configuration]);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    }
    let (planned, uniform) = (losses(&folder, "runs/p"), losses(&folder, "runs/c"));
    assert_eq!((planned.len(), uniform.len()), (10, 10));
    for (planned, uniform) in planned.iter().zip(&uniform) {
        assert!((planned - uniform).abs() < 2e-5, "{planned} and {uniform}");
    }
    let bench = ["bench", "p.toml", "--schedule", "oases", "--link", "1 Gbit/s", "--rounds", "1"];
    assert!(
        (number(&json(&folder, &bench)["rows"][0]["loss"]) - 5.5).abs() < 0.5,
        "about the logarithm of 256"
    );
}

#[test]
fn degree_one_is_an_answer_with_a_reason() {
    let folder = folder();
    let report = json(&folder, &["plan", "c.toml", "--machine", "pair.toml"]);
    assert_eq!(report["plan"]["degrees"], "1*4");
    let remark = report["remarks"][0].as_str().unwrap();
    assert!(remark.starts_with("degree 1 has no all-reduces behind its blocks"), "{remark}");
    assert_eq!(report["proof"]["optimal"], true);
    assert_eq!(report["budget_bytes"], 1 << 30, "the memory of the card");
}

#[test]
fn degrees_schedule_and_batch_can_be_given() {
    let folder = folder();
    let arguments = [
        "plan",
        "quad.toml",
        "--machine",
        "four.toml",
        "--degrees",
        "2,4",
        "--batch",
        "8",
        "--schedule",
        "oases-w",
    ];
    let report = json(&folder, &arguments);
    assert_eq!((&report["batch"], &report["schedule"]), (&8.into(), &"oases-w".into()));
    let names: Vec<&str> =
        report["uniform"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["degree 2", "degree 4"]);
    let simulated = json(&folder, &["simulate", "plan.toml", "--machine", "four.toml"]);
    assert_eq!((&simulated["rows"][0]["schedule"], &simulated["batch"]), (&"oases-w".into(), &8.into()));
    // A batch of two in two sub-batches leaves nothing to share out between replicas.
    let report = json(&folder, &["plan", "quad.toml", "--machine", "four.toml", "--batch", "2"]);
    assert_eq!(report["plan"]["degrees"], "4*10");
    assert_eq!(report["refused"].as_array().unwrap().len(), 2);
}

#[test]
fn two_solvers_agree_and_the_problem_can_be_written() {
    let folder = folder();
    for memory in ["1GB", "2.1MB", "2MB", "1.8MB"] {
        let of = |solver: &str| {
            let arguments =
                ["plan", "quad.toml", "--machine", "four.toml", "--memory", memory, "--solver", solver];
            json(&folder, &[&arguments[..], &["--dump-lp", &format!("{solver}.lp")]].concat())["proof"]
                .clone()
        };
        let (labels, ilp) = (of("labels"), of("ilp"));
        assert_eq!((&labels["solver"], &ilp["solver"]), (&"labels".into(), &"microlp".into()));
        assert_eq!(labels["objective_ms"], ilp["objective_ms"], "{memory}");
        assert!(labels["explored"].as_u64().unwrap() > 0);
        let [labels, ilp] =
            ["labels.lp", "ilp.lp"].map(|name| fs::read_to_string(folder.path().join(name)).unwrap());
        assert_eq!(labels, ilp, "{memory}");
        for section in ["Minimize", "Subject To", "End"] {
            assert!(labels.lines().any(|line| line == section), "{section} in\n{labels}");
        }
    }
    let outcome = folder.oases(&["plan", "quad.toml", "--machine", "four.toml", "--solver", "highs"]);
    assert!(
        outcome.code == 0
            || outcome.stderr.ends_with("hint: `--solver labels` is exact and needs no other program\n")
    );
}

/// What the hint says is done, and it fits.
#[test]
fn where_nothing_fits_the_smallest_change_is_named() {
    let folder = folder();
    let tight = ["plan", "quad.toml", "--machine", "four.toml", "--memory", "1.5MB"];
    let outcome = folder.oases(&tight);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    assert!(!folder.path().join("plan.toml").exists(), "nothing is written");
    let (error, hint) = outcome.stderr.split_once("\n\n").unwrap();
    let beginning = "error: nothing fits into 1.5 MB (1.4 MiB) on every rank: the least that was found, degrees 4×10, needs ";
    assert!(error.starts_with(beginning), "{error}");
    for part in [" B too many; weights ", "weight gradients ", "optimizer moments ", "block inputs "] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(hint.starts_with("hint: it fits with `schedule.micro_batches = 2`: "), "{hint}");
    json(&folder, &[&tight[..], &["--set", "schedule.micro_batches=2"]].concat());

    // Everything kept is too much where recomputation fits.
    let all =
        ["plan", "quad.toml", "--machine", "four.toml", "--memory", "2MB", "--set", "schedule.keep=all"];
    let hint = folder.oases(&all).stderr;
    let keep =
        hint.split_once("hint: it fits with `schedule.keep = \"").unwrap().1.split_once('"').unwrap().0;
    json(&folder, &[&all[..6], &["--set", &format!("schedule.keep={keep}")]].concat());

    let hopeless = ["plan", "c.toml", "--machine", "pair.toml", "--memory", "100kB"];
    let stderr = folder.oases(&hopeless).stderr;
    assert!(
        stderr.contains("hint: neither recomputation nor more micro-batches nor a larger group helps"),
        "{stderr}"
    );
    let limited = ["plan", "c.toml", "--machine", "pair.toml", "--memory", "200kB", "--degrees", "1"];
    let stderr = folder.oases(&limited).stderr;
    assert!(stderr.contains("hint: it fits with all degrees (leave --degrees out): "), "{stderr}");
}

#[test]
fn a_search_lists_its_best_with_reasons() {
    let folder = folder();
    let arguments = ["plan", "quad.toml", "--machine", "four.toml", "--memory", "2MB", "--search"];
    let report = json(&folder, &arguments);
    let best = report["search"]["best"].as_array().unwrap();
    assert_eq!(best.len(), 5);
    let steps: Vec<f64> = best.iter().map(|row| number(&row["step_ms"])).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    assert!(best.iter().all(|row| number(&row["arena_bytes"]) <= 2e6));
    assert!(best[0]["reason"].as_str().unwrap().starts_with("the fastest; "));
    assert!(best[1..].iter().all(|row| row["reason"].as_str().unwrap().contains(": ")));
    // It is at least as good as what the configuration alone allows, and what the file holds is what was found.
    let alone = json(&folder, &[&arguments[..6], &["-o", "alone.toml"]].concat());
    assert!(steps[0] <= number(&alone["plan"]["step_ms"]));
    let simulated = json(&folder, &["simulate", "plan.toml", "--machine", "four.toml"]);
    assert_eq!(simulated["rows"][0]["schedule"], best[0]["schedule"]);
    assert_eq!(simulated["rows"][0]["step_ms"], report["plan"]["step_ms"]);
    let one = json(&folder, &[&arguments[..], &["--schedule", "megatron"]].concat());
    assert!(one["search"]["best"].as_array().unwrap().iter().all(|row| row["schedule"] == "megatron"));
}

#[test]
fn a_plan_is_verified_beside_others() {
    let folder = folder();
    let link = ["--set", "link.bandwidth=1 Gbit/s"];
    let arguments = ["plan", "c.toml", "--measure", "--verify", "3", "--rounds", "1", "--seed", "5"];
    let report = json(&folder, &[&arguments[..], &link].concat());
    let verification = &report["verification"];
    let rows = verification["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names[0], "plan");
    assert_eq!(names.iter().filter(|name| name.starts_with("random ")).count(), 3);
    let mut layouts: Vec<&str> = rows.iter().map(|row| row["degrees"].as_str().unwrap()).collect();
    layouts.sort_unstable();
    layouts.dedup();
    assert_eq!(layouts.len(), rows.len(), "no layout is there twice");
    assert!(layouts.contains(&"1*4") && layouts.contains(&"2*4"), "{layouts:?}");
    for row in rows {
        assert!(number(&row["measured_ms"]) > 0.0 && number(&row["predicted_ms"]) > 0.0, "{row}");
        assert_eq!(row["used_bytes"], row["planned_bytes"], "{row}");
        assert!((number(&row["loss"]) - number(&rows[0]["loss"])).abs() < 2e-5, "{row}");
    }
    assert_eq!(verification["prediction"]["cells"], rows.len());
    assert!(number(&verification["plan_behind_best"]) >= 0.0);
    let page = fs::read_to_string(folder.path().join("runs/plan.html")).unwrap();
    assert!(page.contains("random 3") && page.contains("<svg") && page.ends_with("</html>\n"));
    assert!(!page.contains("NaN"));
}

#[test]
fn layouts_of_more_ranks_are_verified_by_instructions_that_last() {
    let folder = folder();
    let arguments = [
        "plan",
        "quad.toml",
        "--machine",
        "four.toml",
        "--verify",
        "4",
        "--rounds",
        "1",
        "--timed",
        "--report",
        "v.html",
    ];
    let report = json(&folder, &[&arguments[..], &["--set", "link.bandwidth=100 Mbit/s"]].concat());
    let verification = &report["verification"];
    assert_eq!(verification["timed"], true);
    let rows = verification["rows"].as_array().unwrap();
    assert!(rows.len() >= 4 + 3, "{rows:?}");
    for row in rows {
        // A sleep ends late and never early, but for what earlier ones were late.
        assert!(number(&row["measured_ms"]) > 0.9 * number(&row["predicted_ms"]), "{row}");
        assert_eq!(row["loss"], Value::Null);
    }
    assert!(folder.path().join("v.html").exists());
}

#[test]
fn published_block_times_are_a_source() {
    let folder = folder();
    let arguments = ["plan", "published.toml", "--profile", "table.csv", "--machine", "pair.toml"];
    let report = json(&folder, &arguments);
    assert_eq!(report["source"], "table");
    let step = |degrees: &str| {
        let set = format!("parallel.degrees={degrees}");
        let arguments =
            ["simulate", "published.toml", "--profile", "table.csv", "--machine", "pair.toml", "--set", &set];
        number(&json(&folder, &arguments)["rows"][0]["step_ms"])
    };
    let uniform = report["uniform"].as_array().unwrap();
    assert_eq!(number(&uniform[0]["step_ms"]), step("1"));
    assert_eq!(number(&uniform[1]["step_ms"]), step("2"));
    // At degree 1 a rank has two sequences of each of two parts, a third of the way from 1 to 4: 4 ms forward, 4 ms for the
    // recomputation, 8 ms backward, for each of two blocks. The optimizer takes little.
    let compute = number(&uniform[0]["step_ms"]) - number(&uniform[0]["exposed_comm_ms"]);
    assert!(compute > 2.0 * 2.0 * 16.0 && compute < 2.0 * 2.0 * 16.0 * 1.02, "{compute}");
}

#[test]
fn a_profile_without_the_sizes_says_what_to_measure() {
    let folder = folder();
    let profile = ["profile", "c.toml", "--rounds", "1", "-o", "two.toml"];
    assert_eq!(folder.oases(&profile).code, 0);
    let report = json(&folder, &["plan", "c.toml", "--profile", "two.toml"]);
    assert_eq!(report["plan"]["degrees"], "2*4");
    let refused = report["refused"][0]["reason"].as_str().unwrap();
    assert!(refused.contains("at TMP degree 1 was not measured"), "{refused}");
    let outcome = folder.oases(&["plan", "c.toml", "--profile", "two.toml", "--batch", "16"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    assert!(
        outcome
            .stderr
            .starts_with("error: no TMP degree is possible: degree 1: `forward embed` of 4 sequences")
    );
    let hint =
        "hint: measure the sizes that are missing: `oases profile CONFIG --tensor 1,2 --sequences 4,8`\n";
    assert!(outcome.stderr.ends_with(hint), "{}", outcome.stderr);
    // Done as it says.
    let measured =
        ["profile", "c.toml", "--tensor", "1,2", "--sequences", "4,8", "--rounds", "1", "-o", "both.toml"];
    assert_eq!(folder.oases(&measured).code, 0);
    let report = json(&folder, &["plan", "c.toml", "--profile", "both.toml", "--batch", "16"]);
    assert_eq!(
        (report["uniform"].as_array().unwrap().len(), report["refused"].as_array().unwrap().len()),
        (2, 0)
    );
}

#[test]
fn what_cannot_be_planned_is_one_line_and_a_hint() {
    let folder = folder();
    folder.write("broken.csv", TABLE.replace("2.0,4.0", "fast,4.0"));
    folder.write("no.csv", "[profile]\n");
    let refuses = |arguments: &[&str], error: &str, hint: &str| {
        let arguments: Vec<&str> = ["plan", "c.toml"].iter().chain(arguments).copied().collect();
        folder.refuses(&arguments, &format!("error: {error}\n\nhint: {hint}\n"));
    };
    let pair = ["--machine", "pair.toml"];
    let memory = "give the memory of a rank, for example `--memory 24GB`";
    for (size, problem) in [
        ("0GB", "memory is more than 0"),
        ("-1GB", "memory is a number; write it like 24GB or 22.4GiB"),
        ("24", "memory has a unit; write it like 24GB or 22.4GiB"),
        ("24 apples", "`apples` is not a unit of memory; the units are GB, GiB, MB, MiB, kB, KiB"),
    ] {
        refuses(&[pair[0], pair[1], "--memory", size], &format!("--memory \"{size}\": {problem}"), memory);
    }
    refuses(
        &[pair[0], pair[1], "--degrees", "1,3"],
        "--degrees has 3, which does not divide the group of 2 ranks",
        "degrees that do: 1, 2; the group is `parallel.tensor`",
    );
    let columns = "a row has hidden size, TMP degree, batch, four times in ms (forward and backward of attention, then of the \
                   perceptron), the time of an all-reduce and memory; data/oases-paper/oases_3090_profile.csv is a table";
    refuses(
        &["--profile", "broken.csv", pair[0], pair[1]],
        "broken.csv: line 2: `fast` is not a number",
        columns,
    );
    refuses(
        &["--profile", "no.csv", pair[0], pair[1]],
        "no.csv: line 1: it has 1 columns instead of 9",
        columns,
    );
    refuses(
        &["--profile", "table.csv"],
        "table.csv is a table of block times, which says nothing of links and memory",
        "name the machine too, for example `--machine rtx3090-cluster`",
    );
    refuses(
        &["--profile", "pair.toml", pair[0], pair[1]],
        "--machine goes with a table of block times, and pair.toml is a profile",
        "leave --machine out: a profile has the times of its own machine",
    );
    refuses(
        &["--profile", "table.csv", pair[0], pair[1]],
        "the profile is of another model: sequence 1024 instead of 8",
        "`oases profile` measures this configuration on this machine",
    );
    refuses(
        &[pair[0], pair[1], "--schedule", "oasis"],
        "there is no schedule `oasis`",
        "the schedules are none, megatron, megatron-ss, merak, decomposed, domino, cross-pass, oases, oases-w, oases-dual; \
         `all` means each of them",
    );
    refuses(
        &[pair[0], pair[1], "-o", "c.toml"],
        "cannot write the plan c.toml: it is what the command reads",
        "give another path",
    );
    refuses(
        &[pair[0], pair[1], "-o", "p.toml", "--dump-lp", "./p.toml"],
        "two results would be written to ./p.toml",
        "give each file a name of its own",
    );
    refuses(
        &[pair[0], pair[1], "--dump-lp", "."],
        "cannot write the problem .: it is a folder",
        "give the path of a file",
    );
    refuses(
        &[pair[0], pair[1], "--verify", "2", "--set", "parallel.tensor=1"],
        "one rank has no other layout to verify with: `parallel.tensor` = 1",
        "set `parallel.tensor` to 2 or more, or leave --verify out",
    );
    refuses(
        &[pair[0], pair[1], "--verify", "2", "--timed"],
        "--timed tries schedules over an emulated link, and the configuration has none",
        "add a section [link], or set it: `--set link.bandwidth='10 Gbit/s'`",
    );
    let usage = "usage: oases plan <--machine <MACHINE>|--profile <FILE>|--measure> <CONFIG>";
    refuses(
        &[],
        "the following required arguments were not provided: <--machine <MACHINE>|--profile <FILE>|--measure>",
        usage,
    );
    let outcome = folder.oases(&["plan", "c.toml", pair[0], pair[1], "--batch", "0"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{}", outcome.stderr);
    assert!(!folder.path().join("plan.toml").exists(), "nothing is half-written");
}
