//! Where output goes and what becomes of it when nobody takes it.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use crate::support::Folder;

#[test]
fn the_doctor_reports_on_standard_output() {
    let outcome = Folder::new().oases(&["doctor"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let names: Vec<&str> = outcome.stdout.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(
        names,
        [
            "- oases",
            "- backends",
            "- ranks",
            "- os",
            "- memory",
            "- container",
            "- cpu",
            "- cores",
            "- simd",
            "- cuda",
            "- nccl",
            "- mpi",
        ]
    );
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    let mut child = Folder::new()
        .command(&["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = Folder::new().command(&["doctor"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "error: cannot write to standard output: No space left on device (os error 28)\n");
}

#[test]
fn there_is_no_colour_where_there_is_no_terminal() {
    let folder = Folder::new();
    let output = folder.command(&["train", "no.toml"]).env("TERM", "xterm-256color").output().unwrap();
    assert!(!output.stderr.contains(&0x1b));
}

#[test]
#[cfg(target_os = "linux")]
fn a_closed_standard_error_does_not_matter() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = Folder::new().command(&["train", "no.toml"]).stderr(full).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
}
