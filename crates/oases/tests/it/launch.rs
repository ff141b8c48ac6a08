//! How runs are started and stopped from outside.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::runs::{column, folder, metrics};

/// Several processes on one folder would ruin it; one of them says so.
#[cfg(not(feature = "mpi"))]
#[test]
fn several_processes_are_refused_by_a_program_without_mpi() {
    let folder = folder();
    for (rank, said) in [("0", 1), ("1", 0)] {
        let mut command = folder.command(&["train", "config.toml"]);
        command.env("RANK", rank).env("WORLD_SIZE", "2").env("LOCAL_RANK", rank);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.matches("error: ").count(), said, "{stderr}");
        if said == 1 {
            assert_eq!(
                stderr,
                "error: 2 processes were started by torchrun (WORLD_SIZE=2), but this program runs all ranks as threads of \
                 one process\n\nhint: start it once, by itself, or build it for ranks on several hosts: cargo build \
                 --release --features mpi\n"
            );
        }
    }
    assert!(!folder.path().join("run").exists());
}

#[test]
fn a_place_that_cannot_be_is_refused() {
    let folder = folder();
    folder.refuses(
        &["train", "config.toml", "--rank", "2", "--ranks", "2"],
        "error: rank 2 of 2 ranks, from --rank and --ranks: there is no such rank\n\nhint: ranks count from 0\n",
    );
}

/// SIGTERM, as a cluster sends it before it takes a node away.
#[test]
fn a_signal_ends_the_run_with_a_checkpoint_from_which_it_goes_on() {
    let (stopped, undisturbed) = (folder(), folder());
    // Enough steps that the signal comes before the end; as many as are wanted in all are said at the resume.
    let long = ["--set", "train.checkpoint_every=100000", "--set", "train.eval_every=100000"];
    let constant = ["--set", "train.warmup=0", "--set", "train.final_learning_rate=1"];
    let always = [&["train", "config.toml"], &long[..], &constant[..]].concat();
    let mut command = stopped.command(&[&always[..], &["--set", "train.steps=100000"]].concat());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines =
        || fs::read_to_string(stopped.path().join("run/metrics.jsonl")).unwrap_or_default().lines().count();
    while lines() < 3 {
        assert_eq!(process.try_wait().unwrap(), None, "the run ended by itself");
        thread::sleep(Duration::from_millis(10));
    }
    Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap();
    let output = process.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let step = lines();
    let told =
        format!("stopped after step {step} with a checkpoint; go on by the same command with --resume\n");
    assert!(stderr.ends_with(&told), "{stderr}");
    assert!(stopped.path().join(format!("run/checkpoints/step-{step:08}.safetensors")).exists());
    assert!(!stopped.path().join("run/summary.json").exists());

    let steps = format!("train.steps={}", step + 3);
    let to_the_end = [&always[..], &["--set", &steps]].concat();
    assert_eq!(stopped.oases(&[&to_the_end[..], &["--resume"]].concat()).code, 0);
    assert_eq!(undisturbed.oases(&to_the_end).code, 0);
    let losses = |folder| column(&metrics(folder, "run"), "loss");
    assert_eq!(losses(&stopped), losses(&undisturbed));
}
