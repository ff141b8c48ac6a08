//! Files that are missing, empty, or of another kind: configurations, texts and run folders.

use std::fs;

use crate::support::{Folder, GOOD};

#[test]
fn a_configuration_that_cannot_be_read_says_why_and_where_it_was_looked_for() {
    let folder = Folder::new();
    folder.refuses(
        &["train", "configs/no.toml"],
        "error: cannot read the configuration configs/no.toml: no such file or directory\n\n\
         hint: the path starts at [DIR]\n",
    );
    folder.refuses(
        &["explain", "."],
        "error: cannot read the configuration .: is a directory\n\nhint: the path starts at [DIR]\n",
    );
    folder.write("latin1.toml", b"# caf\xe9\n");
    folder.refuses(
        &["train", "latin1.toml"],
        "error: cannot read the configuration latin1.toml: it is not UTF-8 text\n\nhint: the path starts at [DIR]\n",
    );
    folder.write("large.toml", "#".repeat((1 << 20) + 1));
    folder.refuses(
        &["train", "large.toml"],
        "error: cannot read the configuration large.toml: it is larger than 1 MiB\n\nhint: the path starts at [DIR]\n",
    );
}

#[test]
fn an_empty_configuration_lacks_what_has_no_default() {
    let folder = Folder::new();
    folder.write("empty.toml", "");
    let outcome = folder.oases(&["train", "empty.toml"]);
    let missing: Vec<&str> =
        outcome.stderr.lines().filter_map(|line| line.strip_prefix("error: empty.toml: ")).collect();
    assert_eq!(outcome.code, 2);
    assert_eq!(
        missing,
        [
            "`model.layers` is missing",
            "`model.hidden` is missing",
            "`model.heads` is missing",
            "`model.sequence` is missing",
            "`train.steps` is missing",
            "`train.batch` is missing",
            "`train.learning_rate` is missing",
            "`data.text` is missing",
        ]
    );
}

#[test]
fn texts_that_cannot_be_used_are_all_listed() {
    let folder = Folder::new();
    folder.write(
        "good.toml",
        GOOD.replace("[\"text.txt\"]", "[\"no.txt\", \"empty.txt\", \".\", \"/no/such.txt\"]"),
    );
    folder.write("empty.txt", "");
    folder.refuses(
        &["train", "good.toml"],
        "error: cannot use the text file no.txt: no such file or directory\n\
         error: cannot use the text file empty.txt: it is empty\n\
         error: cannot use the text file .: it is a folder\n\
         error: cannot use the text file /no/such.txt: no such file or directory\n\
         \n\
         hint: paths in `data.text` start at the current directory, [DIR]\n\
         hint: `data.text` lists the files to train on\n",
    );
}

#[test]
fn a_text_shorter_than_two_sequences_is_refused() {
    let folder = Folder::with_good_configuration();
    folder.write("text.txt", "Call me Ishmael.");
    folder.refuses(
        &["train", "good.toml"],
        "error: the text has 16 bytes, too few for sequences of 8 tokens\n\n\
         hint: give at least 18 bytes in `data.text`, or make `model.sequence` smaller\n",
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_text_larger_than_the_memory_is_refused_unread() {
    let folder = Folder::with_good_configuration();
    // Without contents, it takes no room on the disk.
    let text = fs::File::create(folder.path().join("text.txt")).unwrap();
    text.set_len(1 << 42).unwrap();
    let outcome = folder.oases(&["train", "good.toml"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with("error: the text takes 4096.0 GiB, more than the "),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.ends_with(
            "\n\nhint: a run holds all of its text in memory; list fewer or smaller files in `data.text`\n"
        ),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_pipe_is_not_waited_for() {
    if !cfg!(unix) {
        return;
    }
    let folder = Folder::with_good_configuration();
    // Endless and without a length: nothing to cut into training and validation.
    folder.refuses(
        &["train", "good.toml", "--set", "data.text=/dev/zero"],
        "error: cannot use the text file /dev/zero: it is not a regular file\n\n\
         hint: `data.text` lists the files to train on\n",
    );
}

#[test]
fn generate_wants_the_folder_of_a_run() {
    let folder = Folder::new();
    let hint = "give the folder that `oases train` or `oases import` wrote, such as runs/quickstart";
    folder.refuses(
        &["generate", "runs/x", "--prompt", "Call me"],
        &format!("error: runs/x is not the folder of a run: it has no config.toml\n\nhint: {hint}\n"),
    );
    fs::create_dir_all(folder.path().join("run")).unwrap();
    folder.write("run/config.toml", "[model]\nlayers = ");
    let outcome = folder.oases(&["generate", "run", "--prompt", "Call me"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    assert!(outcome.stderr.starts_with("error: run/config.toml:2: not valid TOML: "), "{}", outcome.stderr);
}
