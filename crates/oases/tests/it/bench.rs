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

/// Layouts of four blocks over two ranks, and of both over four.
#[test]
fn layouts_are_compared_and_predicted() {
    let folder = folder();
    let mixed = "oases degrees=2*1+1*2+2*1";
    let schedules =
        format!("megatron,oases,{mixed},oases degrees=1,oases keep=input*1+all*1,{mixed} keep=all*1+input*1");
    for more in [&[][..], &["--timed"]] {
        let arguments = [
            "bench",
            "bench.toml",
            "--schedule",
            &schedules,
            "--set",
            "train.batch=8",
            "--link",
            "1 Gbit/s",
            "--format",
            "json",
        ];
        let report = json(&folder, &[&arguments[..], more].concat());
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6);
        for row in rows {
            for key in ["predicted_step_ms", "bound_ms"] {
                assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {row}");
            }
        }
        if more.is_empty() {
            let losses: Vec<f64> = rows.iter().map(|row| row["loss"].as_f64().unwrap()).collect();
            assert!((losses[0] - 256_f64.ln()).abs() < 1.0, "{losses:?}");
            assert!(losses.iter().all(|loss| (loss - losses[0]).abs() <= 2e-5), "{losses:?}");
            assert_eq!((losses[1], losses[2]), (losses[4], losses[5]), "what is kept changes no bit");
        }
    }
    let report = json(
        &folder,
        &[
            "bench",
            "bench.toml",
            "--set",
            "parallel.tensor=4",
            "--set",
            "parallel.degrees=2",
            "--set",
            "train.batch=16",
            "--schedule",
            "oases,domino degrees=2*1+1*2+2*1,oases degrees=1",
            "--ratio",
            "1",
            "--rounds",
            "1",
            "--format",
            "json",
        ],
    );
    // Two ranks all-reduce what a rank has of a micro-batch of eight sequences: four, of 8 tokens and 24 features. Between two
    // ranks all of it is carried once.
    let link = &report["links"][0];
    let bandwidth = link["bandwidth"].as_str().unwrap().strip_suffix(" Gbit/s").unwrap();
    let bytes = link["all_reduce_ms"].as_f64().unwrap() * bandwidth.parse::<f64>().unwrap() * 1e6 / 8.0;
    assert!((bytes / (4.0 * 8.0 * 24.0 * 4.0) - 1.0).abs() < 0.1, "{bytes} B in {link}");
    assert!(report["rows"].as_array().unwrap().iter().all(|row| row["predicted_step_ms"].is_number()));
}

/// Whatever the layout, schedule and sub-batches, everything that a prediction asks for was measured.
#[test]
fn a_profile_of_degrees_predicts_every_layout_of_them() {
    let folder = folder();
    let batch = ["--set", "train.batch=12"];
    let profile = ["profile", "bench.toml", "--tensor", "1,2", "--rounds", "1", "-o", "p.toml"];
    let outcome = folder.oases(&[&profile[..], &batch].concat());
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    for degrees in ["2", "1", "2*1+1*2+2*1", "1*1+2*2+1*1", "2*2+1*1+2*1", "1*2+2*1+1*1"] {
        let schedules = format!("all degrees={degrees},all degrees={degrees} sub_batches=1");
        let arguments =
            ["simulate", "bench.toml", "--profile", "p.toml", "--schedule", &schedules, "--format", "json"];
        let prediction = json(&folder, &[&arguments[..], &batch].concat());
        assert_eq!(prediction["rows"].as_array().unwrap().len(), 20, "{degrees}");
    }
    let profile: toml::Table = fs::read_to_string(folder.path().join("p.toml")).unwrap().parse().unwrap();
    assert_eq!(profile["profile"]["tensor"].as_integer(), Some(2));
    let of = |operation: &str, degree: i64| {
        let compute = profile["compute"].as_array().unwrap().iter();
        let found = compute.filter(|entry| {
            entry["operation"].as_str() == Some(operation) && entry["tensor"].as_integer() == Some(degree)
        });
        found.map(|entry| entry["sequences"].as_integer().unwrap()).collect::<Vec<_>>()
    };
    // Two micro-batches of six sequences: whole, in halves, or four and two where two replicas share them.
    assert_eq!(of("forward attn", 2), [2, 3, 4, 6]);
    assert_eq!(of("forward attn", 1), [1, 2, 3]);
    assert_eq!((of("reshard forward", 2), of("reshard backward", 1)), (vec![2, 4, 6], vec![1, 2, 3]));
    assert_eq!((of("step", 1), of("norm", 2)), (vec![0], vec![0]));
    folder.refuses(
        &["profile", "bench.toml", "--tensor", "1,4"],
        "error: TMP degree 4 does not divide the group of 2 ranks, `parallel.tensor`\n\n\
         hint: degrees that do: 1, 2; all are measured inside one group, with all of its ranks running\n",
    );
    folder.refuses(
        &["profile", "bench.toml", "--tensor", "1,2", "--set", "train.batch=6"],
        "error: 2 replicas of a block, at TMP degree 1 in a group of 2, cannot share a micro-batch of 3 sequences equally\n\n\
         hint: choose another batch, or say by `--sequences` how many of them a rank works on\n",
    );
}

/// Pipelines, replicas and TMP groups: the loss of every row is that of the same schedule on one stage, and everything is predicted.
#[test]
fn pipelines_and_replicas_are_compared_and_predicted() {
    let folder = folder();
    let schedules =
        "megatron sub_batches=1,oases,oases chunks=2,oases order=zero-bubble,oases zero=1,oases-w,domino";
    let bench = |layout: &[&str], more: &[&str]| {
        let mut arguments = vec!["bench", "bench.toml", "--rounds", "1", "--format", "json"];
        for set in ["train.batch=16", "model.layers=2"].iter().chain(layout) {
            arguments.extend(["--set", set]);
        }
        let report = json(&folder, &[&arguments[..], more].concat());
        let rows = report["rows"].as_array().unwrap().clone();
        for row in &rows {
            for key in ["step_ms", "predicted_step_ms", "bound_ms"] {
                assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {row}");
            }
        }
        // Without computation there is none.
        assert!(rows.iter().all(|row| row["loss"].is_null() == more.contains(&"--timed")));
        (rows.iter().filter_map(|row| row["loss"].as_f64()).collect::<Vec<f64>>(), report)
    };
    let link = ["--link", "1 Gbit/s", "--schedule"];
    let (whole, _) = bench(&["parallel.tensor=2"], &[&link[..], &["megatron sub_batches=1,oases"]].concat());
    assert!((whole[0] - 256_f64.ln()).abs() < 1.0, "{whole:?}");
    let grid = ["parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2"];
    let (losses, report) = bench(&grid, &[&link[..], &[schedules]].concat());
    assert_eq!(losses.len(), 7);
    assert!(losses.iter().all(|loss| (loss - whole[0]).abs() <= 2e-5), "{losses:?} beside {whole:?}");
    assert!(
        losses[1..].iter().all(|&loss| loss == losses[1]),
        "equal sub-batches give equal bits: {losses:?}"
    );
    let ranks = report["model"].as_array().unwrap().iter().find(|pair| pair[0] == "ranks").unwrap();
    assert_eq!(ranks[1], "8, threads of one process");
    // Three stages of three replicas: the slots of no group are a power of two.
    let odd = ["parallel.tensor=1", "parallel.pipeline=3", "parallel.data=3", "train.batch=18"];
    let described = ["--timed", "--machine", "rtx3090-8x-pcie"];
    let schedules = "megatron sub_batches=1,oases,oases zero=1";
    bench(&odd, &[&described[..], &link[..], &[schedules]].concat());
    bench(&grid, &[&["--timed"][..], &link[..], &[schedules]].concat());
}

#[test]
fn a_trained_step_of_a_pipeline_shows_what_stages_exchange() {
    let folder = folder();
    let mut arguments = vec!["train", "bench.toml", "--trace", "t.json"];
    for set in ["train.steps=1", "parallel.pipeline=2", "link.bandwidth=1 Gbit/s"] {
        arguments.extend(["--set", set]);
    }
    let outcome = folder.oases(&arguments);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let trace: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("t.json")).unwrap()).unwrap();
    let span = |process: u64, name: &str, category: &str| {
        let wanted =
            |e: &&Value| e["ph"] == "X" && e["pid"] == process && e["name"] == name && e["cat"] == category;
        let found = trace["traceEvents"].as_array().unwrap().iter().find(wanted);
        let found = found.unwrap_or_else(|| panic!("{category} {name} on rank {process}"));
        (found["ts"].as_f64().unwrap(), found["dur"].as_f64().unwrap())
    };
    // Two stages of two ranks; what one sends the other receives at the same time. The second stage begins with the MLP or the
    // attention, whichever the balance gives.
    let text = trace.to_string();
    let block = ["attn.0", "mlp.0", "head"].into_iter().find(|b| text.contains(&format!("f.{b}.m0.a:p2p")));
    let name = format!("f.{}.m0.a:p2p", block.unwrap());
    for rank in 0..2 {
        assert_eq!(span(rank, &name, "send"), span(rank + 2, &name, "recv"));
    }
    // All ranks' norm, and the table of both ends.
    for (name, groups) in [("norm", vec![vec![0, 1, 2, 3]]), ("g.table", vec![vec![0, 2], vec![1, 3]])] {
        for group in groups {
            let first = span(group[0], name, "all_reduce");
            assert!(group.iter().all(|&rank| span(rank, name, "all_reduce") == first), "{name}");
        }
    }
}

#[test]
fn a_link_by_its_ratio_needs_an_all_reduce() {
    folder().refuses(
        &["bench", "bench.toml", "--set", "parallel.degrees=1", "--set", "train.batch=8"],
        "error: at TMP degree 1 no block has an all-reduce to compare its forward with\n\n\
         hint: give links by their speed, such as `--link '1 Gbit/s'`, or set `parallel.tensor`, or a higher degree in `parallel.degrees`\n",
    );
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
        "write KEY=VALUE; the keys are sub_batches, keep, pieces, cut, degrees, order, chunks, zero",
    );
    refuses(
        &["--schedule", "all foo=1"],
        "`foo=1` in the schedule `none foo=1` is not a change of the configuration",
        "write KEY=VALUE; the keys are sub_batches, keep, pieces, cut, degrees, order, chunks, zero",
    );
    refuses(
        &["--schedule", "oases degrees=2*1+1*1"],
        "--set: `parallel.degrees` = \"2*1 1*1\": the degrees cover 2 of the 4 blocks of the chain",
        "give runs over the 4 blocks embed, attn.0, mlp.0, …, head, such as \"2*1 1*2 2*1\", or one degree for all",
    );
    refuses(
        &["--report", "bench.toml"],
        "cannot write the report bench.toml: it is what the command reads",
        "give another path",
    );
    refuses(
        &["--set", "parallel.tensor=1"],
        "one rank has no link",
        "set `parallel.data`, `parallel.pipeline` or `parallel.tensor` to 2 or more",
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
