//! Predictions: their figures, their trace, and what is refused.

use std::fs;

use serde_json::Value;

use crate::support::Folder;

/// Two ranks with round figures.
const PAIR: &str = include_str!("../../../../testdata/machines/pair.toml");

/// Measured durations of the configuration of [`folder`]: one layer, one sequence at a time.
const PROFILE: &str = "\
[profile]
format = 1
backend = \"cpu\"
machine = \"by hand\"
tensor = 2
created = \"2026-11-29\"

[model]
family = \"gpt\"
layers = 1
hidden = 24
heads = 6
kv_heads = 6
ffn = 96
sequence = 8
vocabulary = 256
tied = true
dropout = 0.0
";

/// A profile in which every operation takes 1 ms on a sequence and 3 on three, and every collective 0.5 ms, with 0.1 of
/// arithmetic.
fn profile() -> String {
    let mut text = PROFILE.to_owned();
    for family in ["embed", "attn", "mlp", "head"] {
        for operation in [format!("forward {family}"), format!("backward {family}")] {
            text.push_str(&compute(&operation, &[(1, 1.0), (3, 3.0)]));
        }
    }
    for operation in
        ["recompute attn", "recompute mlp", "recompute attn output", "recompute mlp output", "loss"]
    {
        text.push_str(&compute(operation, &[(1, 1.0), (3, 3.0)]));
    }
    text.push_str(&compute("norm", &[(0, 1.0)]));
    text.push_str(&compute("step", &[(0, 1.0)]));
    for operation in ["all_reduce", "all_gather"] {
        for bytes in [4, 100_000] {
            text.push_str(&format!(
                "\n[[collective]]\noperation = \"{operation}\"\nranks = 2\nbytes = {bytes}\nms = 0.5\nhost_ms = 0.1\n\
                 samples = 9\n"
            ));
        }
    }
    text
}

fn compute(operation: &str, measured: &[(u32, f64)]) -> String {
    let entry = |(sequences, ms): &(u32, f64)| {
        format!(
            "\n[[compute]]\noperation = \"{operation}\"\ntensor = 2\nsequences = {sequences}\nms = {ms:?}\nmin_ms = {ms:?}\n\
             samples = 9\n"
        )
    };
    measured.iter().map(entry).collect()
}

/// A folder with a configuration of two ranks and two sequences, a machine and a profile.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write(
        "c.toml",
        "[model]\nlayers = 1\nhidden = 24\nheads = 6\nsequence = 8\n[data]\ntext = [\"none.txt\"]\n\
         [parallel]\ntensor = 2\n[train]\nsteps = 1\nbatch = 2\nlearning_rate = 1e-3\n",
    );
    folder.write("pair.toml", PAIR);
    folder.write("profile.toml", profile());
    folder
}

fn rows(folder: &Folder, arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["simulate", "c.toml", "--format", "json"], arguments].concat();
    let outcome = folder.oases(&arguments);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{arguments:?}");
    let prediction: Value = serde_json::from_str(&outcome.stdout).unwrap();
    prediction["rows"].as_array().unwrap().clone()
}

#[track_caller]
fn assert_close(row: &Value, key: &str, expected: f64) {
    let found = row[key].as_f64().unwrap();
    assert!(
        (found - expected).abs() < 1e-6 * expected.abs().max(1.0),
        "{key}: {found} instead of {expected}"
    );
}

/// Blocking, everything kept, two sub-batches of one sequence. Each part: 4 forwards, a loss, 4 backwards, 1 ms each; then
/// norm and step: 20 ms. Collectives of 0.5 ms: 4 + 3 for each part, the gradients and the norm: 16, all exposed.
#[test]
fn a_blocking_step_is_the_sum_of_what_was_measured() {
    let folder = folder();
    let rows = rows(&folder, &["--profile", "profile.toml", "--schedule", "none"]);
    assert_eq!((rows.len(), rows[0]["schedule"].as_str()), (1, Some("none")));
    let row = &rows[0];
    assert_close(row, "compute_ms", 20.0);
    assert_close(row, "communication_ms", 8.0);
    assert_close(row, "exposed_comm_ms", 8.0);
    assert_close(row, "step_ms", 28.0);
    assert_close(row, "exposed_comm_share", 8.0 / 28.0);
    assert_close(row, "compute_utilisation", 20.0 / 28.0);
    assert_close(row, "communication_utilisation", 8.0 / 28.0);
    assert_close(row, "bound_ms", 20.0);
    assert_close(row, "bound_ratio", 1.4);
    assert_close(row, "tokens_per_s", 2.0 * 8.0 / 0.028);
    // The same arena as in `explain`.
    let explained = folder.oases(&["explain", "c.toml", "--set", "schedule.name=none", "--format", "json"]);
    let explanation: Value = serde_json::from_str(&explained.stdout).unwrap();
    assert_eq!(row["arena_bytes"], explanation["memory"]["arena_bytes"]);
}

/// Two stages of one rank each do the work of one, and complete what crosses: an activation and a gradient.
#[test]
fn a_pipeline_is_predicted_stage_by_stage() {
    let folder = folder();
    let common = ["--machine", "pair.toml", "--schedule", "none", "--set", "parallel.tensor=1"];
    let common = [&common[..], &["--set", "schedule.sub_batches=1", "--set", "model.tied=false"]].concat();
    let pipeline = [&common[..], &["--set", "parallel.pipeline=2", "--trace", "t.json"]].concat();
    let one = &rows(&folder, &common)[0];
    let two = &rows(&folder, &pipeline)[0];
    assert_eq!(one.get("stages"), None);
    let stages = two["stages"].as_array().unwrap();
    let of = |key: &str| stages.iter().map(|stage| stage[key].as_f64().unwrap()).collect::<Vec<f64>>();
    assert_eq!(stages.len(), 2);
    assert_eq!(of("step_ms"), [two["step_ms"].as_f64().unwrap(); 2]);
    assert_close(two, "arena_bytes", of("arena_bytes").into_iter().fold(0.0, f64::max));
    // Three passes of 4 bytes over 2 sequences of 8 tokens of 24 features at 100 GB/s, and a launch: 46 + 1000 ns. Each stage has its share
    // of norm and step, rounded to nanoseconds.
    let complete = 1.046e-3;
    let sum: f64 = of("compute_ms").iter().sum();
    let expected = one["compute_ms"].as_f64().unwrap() + 2.0 * complete;
    assert!((sum - expected).abs() < 1e-5, "{sum} {expected}");
    let trace: Value = serde_json::from_slice(&fs::read(folder.path().join("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let processes = events.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&str> = processes.map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["none, stage 0 (predicted)", "none, stage 1 (predicted)"]);
    // The same arenas as in `explain`.
    let set = ["--set", "parallel.tensor=1", "--set", "schedule.sub_batches=1", "--set", "model.tied=false"];
    let more = ["--set", "parallel.pipeline=2", "--set", "schedule.name=none", "--format", "json"];
    let explained = folder.oases(&[&["explain", "c.toml"][..], &set, &more].concat());
    let explanations: Value = serde_json::from_str(&explained.stdout).unwrap();
    let arenas =
        explanations.as_array().unwrap().iter().map(|stage| stage["memory"]["arena_bytes"].as_f64().unwrap());
    assert_eq!(arenas.collect::<Vec<f64>>(), of("arena_bytes"));
}

/// A batch of 4 is two sub-batches of 2 sequences, half way between the 1 and 3 that were measured.
#[test]
fn sizes_between_measured_ones_are_interpolated() {
    let arguments = ["--profile", "profile.toml", "--schedule", "none", "--set", "train.batch=4"];
    assert_close(&rows(&folder(), &arguments)[0], "compute_ms", 2.0 * 9.0 * 2.0 + 2.0);
}

/// 8 · 24 floats of a sequence, 768 B over a link of 1 Mbit/s: 2 · 1/2 · 768 B are 6.144 ms, and twice 1 ms of latency.
/// Three times forward, three times backward. The gathered statistics, 2 · 8 · 3 floats, half of 192 B: 0.768 ms and 1 ms.
/// Gradients: 3 · 2 · 24 floats, each 24 in two lines of 64 B, 768 B again. The norm: 4 B, 0.032 ms and 2 ms.
#[test]
fn the_link_of_the_configuration_takes_the_place_of_any_other() {
    let link = ["--set", "link.bandwidth=1 Mbit/s", "--set", "link.latency=1 ms"];
    for source in [["--profile", "profile.toml"], ["--machine", "pair.toml"]] {
        let arguments = [&source, &["--schedule", "none"], &link[..]].concat();
        let expected = 2.0 * (6.0 * 8.144 + 1.768) + 8.144 + 2.032;
        assert_close(&rows(&folder(), &arguments)[0], "communication_ms", expected);
    }
}

#[test]
fn a_table_has_a_line_for_each_schedule_once() {
    let folder = folder();
    let outcome = folder.oases(&[
        "simulate",
        "c.toml",
        "--machine",
        "pair.toml",
        "--schedule",
        "oases,all",
        "--schedule",
        "none",
    ]);
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (
            0,
            "left out oases-dual: c.toml: `oases-dual` interleaves micro-batches, and `schedule.micro_batches` = 1\n"
        )
    );
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "model    gpt of 1 layer, hidden 24, sequence 8; TMP degree 2; batch 2 in 1 micro-batch of 2 sub-batches",
            "machine  test pair",
            "link     test link, 1 GB/s, 10 us a hop",
            "estimate launch_us",
            "",
        ]
    );
    let table: Vec<&str> = lines[5..].iter().take_while(|line| !line.is_empty()).copied().collect();
    assert!(table[0].starts_with("schedule "), "{}", outcome.stdout);
    assert!(table[1].starts_with("oases "), "{}", outcome.stdout);
    let mut names: Vec<&str> = table[1..].iter().filter_map(|line| line.split(' ').next()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(count == names.len() && count >= 4, "{names:?}");
    let width = table[0].chars().count();
    assert!(table.iter().all(|line| line.chars().count() == width) && width <= 100, "{}", outcome.stdout);
    assert_eq!(
        outcome,
        folder.oases(&["simulate", "c.toml", "--machine", "pair.toml", "--schedule", "oases,all"])
    );
}

#[test]
fn memory_beyond_the_device_is_marked() {
    let folder = folder();
    folder.write("small.toml", PAIR.replace("memory_gb = 1", "memory_gb = 0.0001"));
    let outcome = folder.oases(&["simulate", "c.toml", "--machine", "small.toml"]);
    assert!(outcome.stdout.contains("KiB *\n"), "{}", outcome.stdout);
    assert!(outcome.stdout.ends_with("* more than the 104.9 KiB of one device\n"), "{}", outcome.stdout);
}

/// A model that no machine here could hold: 12288 wide, 96 layers.
#[test]
fn a_great_model_is_only_arithmetic() {
    let folder = folder();
    let cluster = include_str!("../../../../testdata/machines/cluster.toml");
    folder.write("cluster.toml", cluster);
    let sets = [
        "model.layers=96",
        "model.hidden=12288",
        "model.heads=96",
        "model.sequence=2048",
        "model.vocabulary=51200",
        "train.batch=16",
        "parallel.tensor=8",
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let rows = rows(&folder, &[&["--machine", "cluster.toml"], &sets[..]].concat());
    // 175 · 10⁹ parameters in 32 bits, with gradients and two moments, on 8 ranks.
    let arena = rows[0]["arena_bytes"].as_f64().unwrap();
    assert!(arena > 175e9 * 16.0 / 8.0 && arena < 3.0 * 175e9 * 16.0 / 8.0, "{arena}");
    // At least 7 operations for each parameter and token (forward, recomputation but for the last product of each block,
    // backward) at 80 TFLOP/s.
    let least_ms = 7.0 * 175e9 * 16.0 * 2048.0 / 8.0 / 80e12 * 1e3;
    assert!(rows[0]["compute_ms"].as_f64().unwrap() > least_ms, "{rows:?}");
}

#[test]
fn a_trace_has_every_span_of_every_schedule() {
    let folder = folder();
    let arguments = ["--profile", "profile.toml", "--schedule", "none,oases", "--trace", "trace.json"];
    let rows = rows(&folder, &arguments);
    let text = fs::read_to_string(folder.path().join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for (process, row) in rows.iter().enumerate() {
        let of_track = |track: u64| -> Vec<&Value> {
            events
                .iter()
                .filter(|event| event["ph"] == "X" && event["pid"] == process && event["tid"] == track)
                .collect()
        };
        let milliseconds =
            |track| of_track(track).iter().map(|event| event["dur"].as_f64().unwrap()).sum::<f64>() / 1e3;
        for (track, key) in [(0, "compute_ms"), (1, "exposed_comm_ms"), (2, "communication_ms")] {
            assert_close(row, key, milliseconds(track));
        }
        // No track has two spans at once.
        for track in 0..3 {
            let ends = of_track(track).into_iter().map(|event| {
                let start = event["ts"].as_f64().unwrap();
                (start, start + event["dur"].as_f64().unwrap())
            });
            let spans: Vec<(f64, f64)> = ends.collect();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-9), "{process} {track}");
        }
        let name = format!("{} (predicted)", row["schedule"].as_str().unwrap());
        assert!(
            events
                .iter()
                .any(|event| event["name"] == "process_name" && event["args"]["name"] == name.as_str())
        );
    }
    assert!(events.iter().any(|event| event["name"] == "forward attn.0 m0.a" && event["cat"] == "forward"));
    // The same again.
    rows_of_the_same(&folder, &arguments, &text);
}

fn rows_of_the_same(folder: &Folder, arguments: &[&str], text: &str) {
    rows(folder, arguments);
    assert_eq!(fs::read_to_string(folder.path().join("trace.json")).unwrap(), text);
}

#[test]
fn what_cannot_be_predicted_is_one_line_and_a_hint() {
    let folder = folder();
    folder.write(
        "other.toml",
        profile().replace("hidden = 24", "hidden = 48").replace("layers = 1", "layers = 2"),
    );
    folder.write("cuda.toml", profile().replace("\"cpu\"", "\"cuda\""));
    folder.write("zero.toml", profile().replacen("ms = 1.0", "ms = 0.0", 1));
    folder.write("named.toml", profile().replacen("forward embed", "forwards embed", 1));
    folder.write("figure.toml", PAIR.replace("peak_tflops = 1.0\n", ""));
    folder.write("negative.toml", PAIR.replace("latency_us = 10", "latency_us = -10"));
    folder.write("unknown.toml", PAIR.replace("launch_us = 1", "launch_us = 1\nlaunch_ms = 1"));
    folder.write("words.toml", PAIR.replace("memory_gb = 1", "memory_gb = \"1 GB\""));
    folder.write("broken.toml", "name = ");
    let known: Vec<&str> = oases_schedule::passes::VARIANTS.iter().map(|variant| variant.name).collect();
    let description =
        "a description has `name`, a section [device] and a section [[link]] for each level of links";
    let measure =
        "measure it with `oases profile`; sizes between two measured ones are interpolated, others are not";
    for (arguments, error, hint) in [
        (
            &["--machine", "no.toml"][..],
            "cannot read the machine no.toml: no such file or directory",
            "the path starts at [DIR]",
        ),
        (
            &["--profile", "no.toml"],
            "cannot read the profile no.toml: no such file or directory",
            "the path starts at [DIR]",
        ),
        (
            &["--machine", "figure.toml"],
            "figure.toml:4: the key `peak_tflops` of [device] is missing",
            description,
        ),
        (
            &["--machine", "negative.toml"],
            "negative.toml: `link.latency_us` must be at least 0 and at most 1e9, not -10",
            "figures are numbers above 0, with the unit in the name of the key",
        ),
        (
            &["--machine", "pair.toml", "--set", "parallel.tensor=3"],
            "a group of 3 ranks does not fit on `test pair`, which joins 2",
            "lower the ranks of `parallel`, or describe the next level of links in a [[link]] of the machine",
        ),
        (
            &["--machine", "pair.toml", "--schedule", "oasis"],
            "there is no schedule `oasis`",
            &format!("the schedules are {}; `all` means each of them", known.join(", ")),
        ),
        (
            &["--profile", "other.toml"],
            "the profile is of another model: layers 2 instead of 1, hidden 48 instead of 24",
            "`oases profile` measures this configuration on this machine",
        ),
        (
            &["--profile", "cuda.toml"],
            "the profile is of another backend: cuda instead of cpu",
            "`oases profile` measures this configuration on this machine",
        ),
        (
            &["--profile", "zero.toml"],
            "zero.toml: `forward embed` of 1 sequences at TMP degree 2: `ms` must be above 0 and at most 1e9, not 0",
            "`oases profile` writes profiles; edit nothing in them but comments",
        ),
        (
            &["--profile", "profile.toml", "--set", "train.batch=8"],
            "`forward embed` of 4 sequences at TMP degree 2 was not measured; the profile has 1 and 3 sequences",
            measure,
        ),
        (
            &["--profile", "profile.toml", "--set", "parallel.tensor=1"],
            "`forward embed` of 1 sequences at TMP degree 1 was not measured; the profile has it at TMP degree 2",
            measure,
        ),
        (
            &["--machine", "pair.toml", "--trace", "."],
            "cannot write the trace .: it is a folder",
            "give the path of a file",
        ),
        (
            &[],
            "the following required arguments were not provided: <--machine <MACHINE>|--profile <FILE>>",
            "usage: oases simulate <--machine <MACHINE>|--profile <FILE>> <CONFIG>",
        ),
        (
            &["--machine", "pair.toml", "--profile", "profile.toml"],
            "--machine goes with a table of block times, and profile.toml is a profile",
            "leave --machine out: a profile has the times of its own machine",
        ),
    ] {
        let arguments = [&["simulate", "c.toml"], arguments].concat();
        folder.refuses(&arguments, &format!("error: {error}\n\nhint: {hint}\n"));
    }
    // These lines end in what the TOML reader says.
    for (arguments, beginning) in [
        (["--profile", "named.toml"], "error: named.toml:21: `forwards embed` is not an operation"),
        (["--machine", "unknown.toml"], "error: unknown.toml:12: unknown field `launch_ms`"),
        (["--machine", "words.toml"], "error: words.toml:6: invalid type: string \"1 GB\""),
        (["--machine", "broken.toml"], "error: broken.toml:1: "),
    ] {
        let outcome = folder.oases(&[&["simulate", "c.toml"], &arguments[..]].concat());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(outcome.stderr.starts_with(beginning), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.matches("\n").count(), 3, "{}", outcome.stderr);
    }
}
