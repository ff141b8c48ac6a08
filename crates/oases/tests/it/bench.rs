//! Benches and profiles of a small model: what they write, and what is refused.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Folder, GOOD};

/// Two ranks, two micro-batches of two sequences.
fn folder() -> Folder {
    let folder = Folder::with_good_configuration();
    let parallel = "\n[parallel]\ntensor = 2\n\n[schedule]\nmicro_batches = 2\n";
    folder.write("bench.toml", format!("{GOOD}{parallel}\n[bench]\nratios = [1, 2]\nrounds = 2\n"));
    folder
}

fn json(folder: &Folder, arguments: &[&str]) -> Value {
    let outcome = folder.oases(arguments);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn all_schedules_run_on_all_links_and_agree_to_the_bit() {
    let folder = folder();
    let report = json(&folder, &["bench", "bench.toml", "--format", "json"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 10 * 2, "ten schedules on two links");
    for row in rows {
        for key in ["step_ms", "predicted_step_ms", "speedup", "bound_ratio", "exposed_comm_ms", "loss"] {
            assert!(row[key].as_f64().is_some_and(|value| value >= 0.0), "{key} in {row}");
        }
        assert!(row["arena_bytes"].as_u64().unwrap() > 0);
        assert_eq!(row["rounds"], 2);
    }
    let loss = |schedule: &str, ratio: f64| {
        let row = rows.iter().find(|row| row["schedule"] == schedule && row["comm_ratio"] == ratio);
        row.unwrap()["loss"].as_f64().unwrap()
    };
    for schedule in ["merak", "domino", "cross-pass", "oases", "oases keep=all", "oases-w", "oases-dual"] {
        assert_eq!(loss(schedule, 1.0), loss("oases", 2.0), "{schedule}");
    }
    for schedule in ["megatron-ss sub_batches=1", "decomposed sub_batches=1"] {
        assert_eq!(loss(schedule, 2.0), loss("megatron sub_batches=1", 1.0), "{schedule}");
    }
    assert_eq!(report["prediction"]["cells"], 20);
    let page = fs::read_to_string(folder.path().join("runs/bench.html")).unwrap();
    assert!(page.contains("oases-dual") && page.contains("</html>"));
}

#[test]
fn schedules_and_links_can_be_chosen() {
    let folder = folder();
    let arguments = [
        "bench",
        "bench.toml",
        "--schedule",
        "decomposed sub_batches=1 pieces=3 cut=columns,none",
        "--link",
        "1 Gbit/s",
        "--rounds",
        "1",
        "--report",
        "page.html",
        "--format",
        "json",
    ];
    let report = json(&folder, &arguments);
    let rows = report["rows"].as_array().unwrap();
    let schedules: Vec<&str> = rows.iter().map(|row| row["schedule"].as_str().unwrap()).collect();
    assert_eq!(schedules, ["decomposed sub_batches=1 pieces=3 cut=columns", "none"]);
    assert!(rows.iter().all(|row| row["comm_ratio"].is_null() && row["link"] == "1 Gbit/s"));
    assert!(rows.iter().all(|row| row["speedup"].is_null()), "there is no megatron to compare with");
    assert!(folder.path().join("page.html").exists());
}

#[test]
fn a_profile_predicts_every_schedule() {
    let folder = folder();
    let outcome = folder.oases(&["profile", "bench.toml", "--rounds", "1", "-o", "p.toml"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{}", outcome.stderr);
    let arguments = [
        "simulate",
        "bench.toml",
        "--profile",
        "p.toml",
        "--schedule",
        "all,all sub_batches=1",
        "--format",
        "json",
    ];
    let prediction = json(&folder, &arguments);
    assert_eq!(prediction["rows"].as_array().unwrap().len(), 20);
    // A link that is given takes the place of the measured one; sizes that were not measured are refused.
    json(
        &folder,
        &[
            "simulate",
            "bench.toml",
            "--profile",
            "p.toml",
            "--set",
            "link.bandwidth=1 Mbit/s",
            "--format",
            "json",
        ],
    );
    folder.refuses(
        &["simulate", "bench.toml", "--profile", "p.toml", "--set", "train.batch=16"],
        "error: `forward embed` of 4 sequences at TMP degree 2 was not measured; the profile has 1 and 2 sequences\n\n\
         hint: measure it with `oases profile`; sizes between two measured ones are interpolated, others are not\n",
    );
    folder.refuses(
        &["simulate", "bench.toml", "--profile", "p.toml", "--set", "model.hidden=48"],
        "error: the profile is of another model: hidden 24 instead of 48, ffn 96 instead of 192\n\n\
         hint: `oases profile` measures this configuration on this machine\n",
    );
}

#[test]
fn a_profile_measures_what_is_asked_for() {
    let folder = folder();
    let arguments = ["profile", "bench.toml", "--sequences", "1,3", "--tensor", "1,2", "--rounds", "1"];
    let outcome = folder.oases(&arguments);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let profile: toml::Table = outcome.stdout.parse().unwrap();
    let compute = profile["compute"].as_array().unwrap();
    for (tensor, sequences) in [(1, 1), (1, 3), (2, 1), (2, 3)] {
        let operations = ["forward attn", "recompute attn core", "backward_input mlp"];
        // A group of one has nothing to cut products for.
        let pieces = ["forward mlp tail 4", "backward attn body"].into_iter().filter(|_| tensor > 1);
        for operation in operations.into_iter().chain(pieces) {
            let found = compute.iter().any(|entry| {
                entry["operation"].as_str() == Some(operation)
                    && entry["tensor"].as_integer() == Some(tensor)
                    && entry["sequences"].as_integer() == Some(sequences)
            });
            assert!(found, "{operation} of {sequences} sequences at degree {tensor}");
        }
    }
}

#[test]
fn what_cannot_be_compared_is_one_line_and_a_hint() {
    let folder = folder();
    let refuses = |arguments: &[&str], error: &str, hint: &str| {
        let arguments: Vec<&str> = ["bench", "bench.toml"].iter().chain(arguments).copied().collect();
        folder.refuses(&arguments, &format!("error: {error}\n\nhint: {hint}\n"));
    };
    refuses(
        &["--ratio", "0"],
        "a ratio must be from 0.001 to 1000, not 0",
        "c/f is the time of an all-reduce over that of a block's forward, for example `--ratio 1,2`",
    );
    refuses(
        &["--set", "bench.ratios=[1, 0]"],
        "--set: `bench.ratios` must be a list of numbers in [0.001, 1000], not 0",
        "`bench.ratios` is the links that it compares them on, as ratios of an all-reduce's time to a block's forward; \
         for example `ratios = [1.0, 2.0]`",
    );
    refuses(
        &["--link", "0 Gbit/s"],
        "--link must be above 0, not \"0 Gbit/s\"",
        "give a rate with its unit, such as `1 Gbit/s`",
    );
    refuses(
        &["--schedule", "oasis"],
        "there is no schedule `oasis`",
        "the schedules are none, megatron, megatron-ss, merak, decomposed, domino, cross-pass, oases, oases-w, \
         oases-dual; `all` means each of them",
    );
    refuses(
        &["--schedule", "oases micro_batches=1"],
        "`micro_batches=1` in the schedule `oases micro_batches=1` is not a change of the configuration",
        "write KEY=VALUE; the keys are sub_batches, keep, pieces, cut",
    );
    refuses(
        &["--schedule", "all foo=1"],
        "`foo=1` in the schedule `none foo=1` is not a change of the configuration",
        "write KEY=VALUE; the keys are sub_batches, keep, pieces, cut",
    );
    refuses(
        &["--report", "bench.toml"],
        "cannot write the report bench.toml: it is what the command reads",
        "give another path",
    );
    refuses(
        &["--set", "parallel.tensor=1"],
        "one rank has no link: `parallel.tensor` = 1",
        "set `parallel.tensor` to 2 or more",
    );
    refuses(&["--report", "."], "cannot write the report .: it is a folder", "give the path of a file");
}

#[test]
fn a_trained_step_leaves_a_trace() {
    let folder = folder();
    let arguments = ["train", "bench.toml", "--set", "train.steps=2", "--trace", "t.json"];
    let outcome = folder.oases(&arguments);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let text = fs::read_to_string(folder.path().join("t.json")).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = |process: u64, name: &str| {
        events.iter().filter(|e| e["ph"] == "X" && e["pid"] == process && e["name"] == name).count()
    };
    for rank in 0..2 {
        for name in ["forward attn.0 m0.a", "recompute mlp.0 m1.b", "sync f.embed.m0.a", "step"] {
            assert_eq!(spans(rank, name), 1, "{name} on rank {rank}");
        }
        assert_eq!(spans(rank, "f.embed.m0.a"), 1, "a collective on the link");
    }
    // A run that is refused leaves the trace of the one before.
    assert_eq!(folder.oases(&arguments).code, 2);
    assert_eq!(fs::read_to_string(folder.path().join("t.json")).unwrap(), text);
}

/// A process that is not left running.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_leaves_a_report_of_what_was_finished() {
    let folder = folder();
    let mut command = folder.command(&["bench", "bench.toml", "--rounds", "1000", "--ratio", "1"]);
    let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    // The second time that it names the link, it has begun to compare on it.
    let mut told = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let mut links = 0;
    while links < 2 {
        links += usize::from(told.next().unwrap().unwrap() == "c/f = 1");
    }
    std::thread::sleep(Duration::from_millis(500));
    let pid = running.0.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = running.0.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let page = fs::read_to_string(folder.path().join("runs/bench.html")).unwrap();
    assert!(page.contains("Ctrl-C") && page.contains("</html>"), "{page}");
}
