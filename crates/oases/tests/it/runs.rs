//! Whole runs of the program: training, resuming, failing.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Folder, Outcome};

/// A tiny model on a small text, with dropout, uneven sub-batches and two ranks.
const CONFIGURATION: &str = r#"
[model]
family = "gpt"
layers = 2
hidden = 32
heads = 4
sequence = 16
vocabulary = 256
dropout = 0.1

[data]
text = ["text.txt"]
validation = 0.1

[parallel]
tensor = 2

[schedule]
name = "oases"
sub_batches = 2

[train]
steps = 12
batch = 5
learning_rate = 1e-2
warmup = 2
seed = 3
eval_every = 4
checkpoint_every = 4

[run]
dir = "run"
timeout_s = 3
"#;

pub fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("config.toml", CONFIGURATION);
    let sentence = |n: usize| format!("The whale number {n} swam {} leagues to the east. ", n * n % 97);
    folder.write("text.txt", (0..200).map(sentence).collect::<String>());
    folder
}

fn train(folder: &Folder, more: &[&str]) -> Outcome {
    folder.oases(&[&["train", "config.toml"], more].concat())
}

/// The lines of metrics.jsonl.
pub fn metrics(folder: &Folder, run: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.path().join(run).join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn column(lines: &[Value], key: &str) -> Vec<f64> {
    lines.iter().map(|line| line[key].as_f64().unwrap()).collect()
}

#[test]
fn a_run_leaves_everything_in_its_folder() {
    let folder = folder();
    let outcome = train(&folder, &["--format", "json"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let summary: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let file = fs::read_to_string(folder.path().join("run/summary.json")).unwrap();
    assert_eq!(summary, serde_json::from_str::<Value>(&file).unwrap());
    for key in [
        "steps",
        "tokens",
        "train_loss",
        "val_loss",
        "seconds",
        "tokens_per_s",
        "step_ms",
        "compute_ms",
        "exposed_comm_ms",
        "arena_bytes_planned",
        "arena_bytes_used",
        "tensor",
    ] {
        assert!(summary[key].is_number(), "{key}: {}", summary[key]);
    }
    assert_eq!(summary["schedule"], "oases");
    assert_eq!(summary["steps"], 12);
    assert_eq!(summary["tokens"], 12 * 5 * 16);
    assert_eq!(summary["arena_bytes_planned"], summary["arena_bytes_used"]);

    let lines = metrics(&folder, "run");
    assert_eq!(column(&lines, "step"), (1..=12).map(f64::from).collect::<Vec<_>>());
    for key in ["loss", "grad_norm", "lr", "step_ms", "exposed_comm_ms"] {
        assert!(column(&lines, key).iter().all(|value| value.is_finite()), "{key}");
    }
    let losses = column(&lines, "loss");
    assert!((5.0..6.5).contains(&losses[0]), "the first loss is near ln 256 = 5.55, not {}", losses[0]);
    assert!(losses[11] < losses[0] - 0.5, "{losses:?}");
    let evaluated =
        lines.iter().filter(|line| line.get("val_loss").is_some()).map(|line| line["step"].as_u64());
    assert_eq!(evaluated.collect::<Vec<_>>(), [Some(4), Some(8), Some(12)]);
    for name in
        ["config.toml", "checkpoints/step-00000008.safetensors", "checkpoints/step-00000012.safetensors"]
    {
        assert!(folder.path().join("run").join(name).is_file(), "{name}");
    }
    assert!(!folder.path().join("run/checkpoints/step-00000004.safetensors").exists(), "two are kept");
}

#[test]
fn what_only_changes_the_order_of_work_changes_no_digit() {
    let folder = folder();
    let mut all = Vec::new();
    for schedule in ["oases", "megatron", "none", "cross-pass"] {
        let (name, dir) = (format!("schedule.name={schedule}"), format!("run.dir={schedule}"));
        assert_eq!(train(&folder, &["--set", &name, "--set", &dir]).code, 0);
        let lines = metrics(&folder, schedule);
        let weights =
            fs::read(folder.path().join(schedule).join("checkpoints/step-00000012.safetensors")).unwrap();
        all.push((column(&lines, "loss"), column(&lines, "grad_norm"), weights));
    }
    assert!(all.iter().all(|run| *run == all[0]));
}

#[test]
fn an_interrupted_run_goes_on_as_if_it_had_not_been() {
    let folder = folder();
    assert_eq!(train(&folder, &[]).code, 0);
    let whole = column(&metrics(&folder, "run"), "loss");

    let stopped = ["--set", "run.dir=stopped"];
    let fault = folder
        .command(&[&["train", "config.toml"], &stopped[..]].concat())
        .env("OASES_FAULT", "panic:1:10")
        .output();
    assert!(!fault.unwrap().status.success());
    assert_eq!(metrics(&folder, "stopped").len(), 9);
    // Somebody may look at a run before it goes on; the copy resumes at another degree.
    copy(&folder.path().join("stopped"), &folder.path().join("other"));

    let resumed = train(&folder, &["--resume", "--set", "run.dir=stopped"]);
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert!(resumed.stderr.contains("resuming from stopped/checkpoints/step-00000008"), "{}", resumed.stderr);
    assert_eq!(column(&metrics(&folder, "stopped"), "loss"), whole, "bit-identical at the same degree");

    for tensor in ["parallel.tensor=4", "parallel.tensor=1"] {
        let dir = folder.path().join("other");
        let fresh = folder.path().join("fresh");
        copy(&dir, &fresh);
        let outcome = train(&folder, &["--resume", "--set", "run.dir=fresh", "--set", tensor]);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        let losses = column(&metrics(&folder, "fresh"), "loss");
        assert_eq!(losses.len(), 12);
        assert_near(&losses, &whole, tensor);
        fs::remove_dir_all(fresh).unwrap();
    }
}

/// Losses of another layout: sums are taken in another order.
fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found / expected - 1.0).abs() <= 2e-5, "{what}: {found} instead of {expected}");
    }
}

fn validation_losses(lines: &[Value]) -> Vec<f64> {
    lines.iter().filter_map(|line| line.get("val_loss")?.as_f64()).collect()
}

/// Every kind of border and of replica that two and four ranks allow.
#[test]
fn mixed_degrees_train_as_one_degree_does_and_resume_each_other() {
    let folder = folder();
    let run = |dir: &str, more: &[&str], fault: Option<&str>| {
        let dir = format!("run.dir={dir}");
        let common = ["--set", "train.batch=8", "--set", &dir];
        let mut command = folder.command(&[&["train", "config.toml"], &common[..], more].concat());
        let output = fault.into_iter().fold(&mut command, |command, fault| command.env("OASES_FAULT", fault));
        let output = output.output().unwrap();
        assert_eq!(output.status.success(), fault.is_none(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run("uniform", &[], None);
    let uniform = metrics(&folder, "uniform");
    assert_eq!(validation_losses(&uniform).len(), 3);
    let layouts = [
        ("two", &["--set", "parallel.degrees=2*2 1*2 2*2"][..]),
        ("replicas", &["--set", "parallel.degrees=1"]),
        ("four", &["--set", "parallel.tensor=4", "--set", "parallel.degrees=2*1 4*1 1*2 2*2"]),
    ];
    for (name, layout) in layouts {
        run(name, layout, None);
        let lines = metrics(&folder, name);
        assert_near(&column(&lines, "loss"), &column(&uniform, "loss"), name);
        assert_near(&column(&lines, "grad_norm"), &column(&uniform, "grad_norm"), name);
        assert_near(&validation_losses(&lines), &validation_losses(&uniform), name);
        let summary = fs::read_to_string(folder.path().join(name).join("summary.json")).unwrap();
        let summary: Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(summary["arena_bytes_planned"], summary["arena_bytes_used"], "{name}");
    }
    let (_, four) = layouts[2];
    for (dir, before, after) in [("there", four, &[][..]), ("back", &[], four)] {
        run(dir, before, Some("panic:1:10"));
        assert_eq!(metrics(&folder, dir).len(), 9);
        run(dir, &[&["--resume"], after].concat(), None);
        let lines = metrics(&folder, dir);
        assert_near(&column(&lines, "loss"), &column(&uniform, "loss"), dir);
        assert_near(&validation_losses(&lines), &validation_losses(&uniform), dir);
    }
}

#[test]
fn blocks_can_keep_different_things() {
    let folder = folder();
    let losses = ["input", "input*2 all*2", "selective*1 all*1 input*2"].map(|keep| {
        let (keep, dir) =
            (format!("schedule.keep={keep}"), format!("run.dir={}", keep.replace(['*', ' '], "-")));
        assert_eq!(train(&folder, &["--set", &keep, "--set", &dir, "--set", "train.steps=3"]).code, 0);
        column(&metrics(&folder, dir.strip_prefix("run.dir=").unwrap()), "loss")
    });
    assert!(losses.iter().all(|run| *run == losses[0]), "{losses:?}");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to.join("checkpoints")).unwrap();
    for name in ["config.toml", "metrics.jsonl"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    for entry in fs::read_dir(from.join("checkpoints")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join("checkpoints").join(entry.file_name())).unwrap();
    }
}

/// Runs with a fault; the end must come soon, on all ranks, with code 1.
fn failing(folder: &Folder, fault: &str) -> String {
    let began = Instant::now();
    let output = folder.command(&["train", "config.toml"]).env("OASES_FAULT", fault).output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{fault} took {:?}", began.elapsed());
    assert_eq!(output.status.code(), Some(1), "{fault}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_rank_that_panics_ends_the_run_and_is_named() {
    let stderr = failing(&folder(), "panic:1:6");
    assert!(stderr.contains("error: rank 1: panicked at step 6, instruction "), "{stderr}");
}

#[test]
fn a_rank_that_hangs_ends_the_run_after_the_timeout() {
    let stderr = failing(&folder(), "hang:1:6");
    assert!(stderr.contains("error: rank 0 timed out after 3s"), "{stderr}");
    assert!(stderr.contains("waiting for rank 1"), "{stderr}");
    assert!(stderr.contains("step 6, instruction "), "{stderr}");
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_before_a_checkpoint() {
    let folder = folder();
    let stderr = failing(&folder, "nan:0:6");
    assert!(stderr.contains("step 6: ") && stderr.contains("training has diverged"), "{stderr}");
    assert!(stderr.contains("hint: "), "{stderr}");
    let names: Vec<_> = fs::read_dir(folder.path().join("run/checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["step-00000004.safetensors"]);
    assert_eq!(train(&folder, &["--resume"]).code, 0, "the last good checkpoint is as it was");
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let folder = folder();
    assert_eq!(train(&folder, &["--set", "train.steps=4"]).code, 0);
    let outcome = train(&folder, &["--resume", "--set", "model.hidden=64"]);
    assert_eq!(outcome.code, 2);
    assert!(
        outcome.stderr.contains("is of another model: ") && outcome.stderr.contains("hidden"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_truncated_checkpoint_is_passed_over() {
    let folder = folder();
    assert_eq!(train(&folder, &["--set", "train.steps=8"]).code, 0);
    let newest = folder.path().join("run/checkpoints/step-00000008.safetensors");
    let bytes = fs::read(&newest).unwrap();
    fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    let outcome = train(&folder, &["--resume", "--set", "train.steps=9"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("passed over a newer checkpoint"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("resuming from run/checkpoints/step-00000004"), "{}", outcome.stderr);
}

#[test]
fn a_finished_run_is_left_as_it_is_and_can_be_prolonged() {
    let folder = folder();
    assert_eq!(train(&folder, &["--set", "train.steps=8"]).code, 0);
    let summary = fs::read(folder.path().join("run/summary.json")).unwrap();
    let again = train(&folder, &["--resume", "--set", "train.steps=8"]);
    assert_eq!(again.code, 2);
    assert_eq!(
        again.stderr,
        "error: run has done all its 8 steps\n\nhint: raise train.steps to go on with it\n"
    );
    assert_eq!(fs::read(folder.path().join("run/summary.json")).unwrap(), summary);

    let outcome = train(&folder, &["--resume", "--format", "json"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let summary: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(summary["steps"], 12);
    assert_eq!(metrics(&folder, "run").len(), 12);
}

#[test]
fn a_run_is_not_overwritten() {
    let folder = folder();
    assert_eq!(train(&folder, &["--set", "train.steps=4"]).code, 0);
    let outcome = train(&folder, &[]);
    assert_eq!(outcome.code, 2);
    assert_eq!(
        outcome.stderr,
        "error: run already holds a run\n\nhint: go on with it by --resume, or choose another run.dir\n"
    );
    let outcome = train(&folder, &["--resume", "--set", "run.dir=nowhere"]);
    assert_eq!(outcome.code, 2);
}

#[test]
fn generation_is_deterministic_and_starts_with_the_prompt() {
    let folder = folder();
    assert_eq!(train(&folder, &[]).code, 0);
    // Bytes: a model of bytes can write what is no text.
    let generate = |seed| {
        let arguments = ["generate", "run", "--prompt", "The whale", "--tokens", "40", "--seed", seed];
        let output = folder.command(&arguments).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let first = generate("1");
    assert!(first.starts_with(b"The whale"));
    assert_eq!(first.len(), "The whale".len() + 40 + 1);
    assert_eq!(first, generate("1"));
    assert_ne!(first, generate("2"));
}

#[test]
fn explain_counts_all_reduces() {
    let folder = folder();
    for (schedule, per_layer) in [("megatron", 6), ("cross-pass", 6), ("oases", 4), ("none", 4)] {
        let name = format!("schedule.name={schedule}");
        let outcome = folder.oases(&["explain", "config.toml", "--set", &name, "--format", "json"]);
        let value: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(value["collectives"]["per_layer"], per_layer, "{schedule}");
        let text = folder.oases(&["explain", "config.toml", "--set", &name]).stdout;
        assert!(text.contains(&format!(";   {per_layer} all-reduces per layer and sub-batch: ")), "{text}");
    }
}

#[test]
fn explain_shows_degrees_and_what_happens_between_them() {
    let folder = folder();
    let sets = ["--set", "parallel.degrees=2*2 1*2 2*2", "--set", "train.batch=4"];
    let arguments = [&["explain", "config.toml"], &sets[..]].concat();
    let text = folder.oases(&arguments).stdout;
    for line in [
        "; TMP degrees in a group of 2 ranks",
        ";    2   embed to attn.0      2 blocks",
        ";    1   mlp.0 to attn.1      2 blocks, each 2 times",
        ";    2   mlp.1 to head        2 blocks",
        ";   before mlp.0, 2 to 1: forward slices sequences, backward gathers them",
        ";   before mlp.1, 1 to 2: forward gathers sequences, backward slices them",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let json = folder.oases(&[&arguments[..], &["--format", "json"]].concat()).stdout;
    let value: Value = serde_json::from_str(&json).unwrap();
    // Each border gathers once in forward or in backward, for each of two sub-batches; two blocks have replicas.
    assert_eq!(value["collectives"]["at_borders"], 4);
    assert_eq!(value["collectives"]["of_replicas"], 2);
    assert_eq!(value["degrees"][1]["replicas"], 2);
}

#[test]
fn a_run_that_does_not_fit_into_memory_is_refused_before_it_starts() {
    let folder = folder();
    let sets = ["--set", "model.hidden=65536", "--set", "model.layers=96"];
    let outcome = train(&folder, &sets);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("error: the run needs "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("hint: lower train.batch"), "{}", outcome.stderr);
    assert!(!folder.path().join("run").exists());
}

#[test]
fn an_update_that_ruins_the_weights_reaches_no_checkpoint() {
    let folder = folder();
    // One step of this size leaves weights whose squares overflow.
    let outcome = train(
        &folder,
        &["--set", "train.steps=1", "--set", "train.learning_rate=1e30", "--set", "train.warmup=0"],
    );
    assert_eq!(outcome.code, 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("training has diverged"), "{}", outcome.stderr);
    assert_eq!(fs::read_dir(folder.path().join("run/checkpoints")).unwrap().count(), 0);
}

#[test]
fn a_configuration_that_is_no_runs_is_not_overwritten() {
    let folder = folder();
    let outcome = train(&folder, &["--set", "run.dir=."]);
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.contains("error: . has a config.toml that is no run's"), "{}", outcome.stderr);
    assert_eq!(train(&folder, &["--resume", "--set", "run.dir=."]).code, 2);
    assert_eq!(fs::read_to_string(folder.path().join("config.toml")).unwrap(), CONFIGURATION);
}

#[test]
fn what_is_named_like_a_checkpoint_and_is_no_file_is_left_alone() {
    let folder = folder();
    assert_eq!(train(&folder, &["--set", "train.steps=4"]).code, 0);
    fs::create_dir(folder.path().join("run/checkpoints/step-00000003.safetensors")).unwrap();
    fs::create_dir(folder.path().join("run/checkpoints/step-00000011.safetensors")).unwrap();
    let outcome = train(&folder, &["--resume"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("resuming from run/checkpoints/step-00000004"), "{}", outcome.stderr);
}
