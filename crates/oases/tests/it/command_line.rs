//! Command lines that cannot be understood, and help, completions and manual pages for those that could be.

use crate::support::Folder;

#[test]
fn what_cannot_be_understood_is_one_line_and_a_hint() {
    let folder = Folder::new();
    for (arguments, error, hint) in [
        (
            &[][..],
            "no command given",
            "`oases --help` lists the commands; start with `oases train configs/quickstart.toml`",
        ),
        (&["trian", "x.toml"], "unrecognized subcommand 'trian'", "did you mean `train`?"),
        (
            &["train"],
            "the following required arguments were not provided: <CONFIG>",
            "usage: oases train <CONFIG>",
        ),
        (
            &["train", "x", "--formt", "json"],
            "unexpected argument '--formt' found",
            "did you mean `--format`?",
        ),
        (
            &["train", "x", "--format", "jsn"],
            "invalid value 'jsn' for '--format <FORMAT>' [possible values: text, json]",
            "did you mean `json`?",
        ),
        (
            &["train", "x", "--set", "model.layers"],
            "invalid value 'model.layers' for '--set <KEY=VALUE>': there is no `=`; write section.key=value",
            "`oases COMMAND --help` describes all options of a command",
        ),
        (
            &["generate", "run", "--prompt", "p", "--tokens", "many"],
            "invalid value 'many' for '--tokens <N>': invalid digit found in string",
            "`oases COMMAND --help` describes all options of a command",
        ),
        (
            &["generate", "run", "--prompt", ""],
            "the prompt is empty",
            "give at least one character to continue",
        ),
        (
            &["generate", "run", "--prompt", "p", "--temperature", "-1"],
            "`--temperature` must be a number of at least 0, not -1",
            "0 always takes the likeliest token, 1 follows the model's probabilities",
        ),
        (
            &["generate", "run", "--prompt", "p", "--top-k", "0"],
            "`--top-k` must be at least 1",
            "leave it out to choose among all tokens",
        ),
        (
            &["generate", "run", "--prompt", "p", "--top-p", "0"],
            "`--top-p` must be above 0 and at most 1, not 0",
            "0.9 leaves the unlikely tail out, 1 chooses among all tokens",
        ),
        (
            &["man", "trian"],
            "there is no command `trian`",
            "the commands are train, explain, simulate, profile, plan, bench, generate, import, export, tokenize, data, eval, reproduce, doctor, completions, man, help",
        ),
    ] {
        folder.refuses(arguments, &format!("error: {error}\n\nhint: {hint}\n"));
    }
}

#[test]
fn help_is_data_and_shows_examples_and_keys() {
    let folder = Folder::new();
    for (arguments, expected) in [
        (&["--help"][..], "Usage: oases <COMMAND>"),
        (&["train", "-h"], "oases train configs/quickstart.toml --resume"),
        (&["train", "--help"], "[link] (may be left out)"),
        (&["explain", "--help"], "oases explain configs/quickstart.toml --set schedule.name=megatron"),
        (&["generate", "--help"], "oases generate runs/quickstart --prompt 'Call me'"),
        (&["--version"], concat!("oases ", env!("CARGO_PKG_VERSION"))),
    ] {
        let outcome = folder.oases(arguments);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(outcome.stdout.contains(expected), "{arguments:?}\n{}", outcome.stdout);
    }
}

#[test]
fn every_shell_gets_completions() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = folder.oases(&["completions", shell]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{shell}");
        assert!(outcome.stdout.contains("explain") && outcome.stdout.contains("resume"), "{shell}");
    }
}

#[test]
fn the_program_and_each_command_have_a_manual_page() {
    let folder = Folder::new();
    for (arguments, title) in [
        (&["man"][..], ".TH oases 1"),
        (&["man", "train"], ".TH oases-train 1"),
        (&["man", "doctor"], ".TH oases-doctor 1"),
    ] {
        let outcome = folder.oases(arguments);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(outcome.stdout.contains(title), "{arguments:?}\n{}", outcome.stdout);
    }
}

#[test]
fn a_fault_that_no_run_could_have_is_refused_by_train_alone() {
    let folder = Folder::with_good_configuration();
    let run = |arguments: &[&str], fault| {
        let output = folder.command(arguments).env("OASES_FAULT", fault).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let hint = "hint: write KIND:RANK:STEP, such as panic:1:3, or unset it; the kinds are panic, hang and nan, ranks \
                count from 0 and steps from 1\n";
    for fault in ["bogus", "panic:1", "panic:0:0"] {
        let error =
            format!("error: OASES_FAULT must have the form KIND:RANK:STEP, not \"{fault}\"\n\n{hint}");
        assert_eq!(run(&["train", "good.toml"], fault), (Some(2), error));
    }
    let error = "error: OASES_FAULT=\"panic:1:3\" names rank 1, but the last rank of this run is 0";
    assert_eq!(run(&["train", "good.toml"], "panic:1:3"), (Some(2), format!("{error}\n\n{hint}")));
    assert_eq!(run(&["explain", "good.toml"], "bogus"), (Some(0), String::new()));
}

#[test]
fn a_resumed_run_says_where_it_starts_what_changed_and_what_it_did() {
    let folder = Folder::with_good_configuration();
    let failed = folder.command(&["train", "good.toml"]).env("OASES_FAULT", "panic:0:1").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));

    let first = folder.oases(&["train", "good.toml", "--resume"]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    assert!(first.stderr.starts_with("no checkpoint yet, starting from step 1\n"), "{}", first.stderr);
    assert!(!first.stderr.contains("other settings"), "{}", first.stderr);
    assert!(first.stderr.contains("\n10 steps in "), "{}", first.stderr);
    assert!(first.stderr.contains(" tokens/s including evaluations, "), "{}", first.stderr);

    let sets = ["--set", "train.steps=13", "--set", "data.validation=0.1"];
    let second = folder.oases(&[&["train", "good.toml", "--resume"], &sets[..]].concat());
    assert_eq!(second.code, 0, "{}", second.stderr);
    assert!(
        second
            .stderr
            .contains("\nresuming with other settings: data.validation 0.05 → 0.1, train.steps 10 → 13\n"),
        "{}",
        second.stderr
    );
    assert!(second.stderr.contains("\nsteps 11 to 13 in "), "{}", second.stderr);
}
