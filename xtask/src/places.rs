//! Rules about what has one home: the environment, the terminal, the clock, the end of the process.

use crate::Violation;
use crate::source::{Source, has_word};

/// Something that may stand only in some places.
pub struct Home {
    /// What is looked for in code.
    pub words: &'static [&'static str],
    /// Beginnings of the paths where it may stand.
    pub places: &'static [&'static str],
    /// Why only there.
    pub because: &'static str,
}

/// All of them. Tests are exempt.
pub const HOMES: &[Home] = &[
    Home {
        words: &[
            "env::var",
            "env::var_os",
            "env::vars",
            "env::vars_os",
            "env::set_var",
            "env::remove_var",
            "env::{",
        ],
        places: &["crates/oases/src/environment.rs"],
        because: "the environment is read once, in one file, so that a run does not depend on what nobody sees",
    },
    Home {
        words: &["env::args", "env::args_os"],
        places: &["crates/oases/src/main.rs"],
        because: "nothing but the program reads arguments",
    },
    Home {
        words: &["println!", "eprintln!", "print!", "eprint!"],
        places: &["crates/oases/src/terminal.rs"],
        because: "these panic when the reader is gone; only the program prints, through `terminal`",
    },
    Home {
        words: &["process::exit", "process::abort"],
        places: &["crates/oases/src/"],
        because: "a library does not end the process of its caller",
    },
    Home {
        words: &["Instant", "SystemTime"],
        places: CLOCKS,
        because: "a schedule, a plan and a loss must not depend on the time; clocks measure, in these files only",
    },
];

/// Where time is measured.
const CLOCKS: &[&str] = &[
    // How long each instruction took, and how long it waited for a collective.
    "crates/oases-exec/src/interpreter",
    // When an emulated link would have delivered, and how long ranks wait for each other.
    "crates/oases-exec/src/comm/",
    // Operators that last as long as they are told.
    "crates/oases-exec/src/null",
    // Step times, evaluation times, and the whole run.
    "crates/oases-train/src/rank.rs",
    // Steps of schedules that are compared.
    "crates/oases-train/src/trial.rs",
    // How long a rank may keep the others waiting.
    "crates/oases-train/src/launch",
    // The day of a profile.
    "crates/oases/src/commands/measuring.rs",
    // How long planning takes.
    "crates/oases/src/commands/plan.rs",
    // Time left.
    "crates/oases/src/progress.rs",
];

/// Checks one source file.
pub fn check(source: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    for home in HOMES.iter().filter(|home| !home.places.iter().any(|place| source.path.starts_with(place))) {
        for (line, text) in source.shipped_lines() {
            if let Some(word) = home.words.iter().find(|word| has_word(text, word)) {
                let message =
                    format!("`{word}` may stand only in {}: {}", home.places.join(", "), home.because);
                violations.push(Violation { path: source.path.clone(), line, message });
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caught(path: &str, text: &str) -> Vec<String> {
        let violations = check(&Source::new(path, text));
        violations
            .iter()
            .filter_map(|violation| violation.message.split('`').nth(1))
            .map(str::to_string)
            .collect()
    }

    #[test]
    fn each_is_caught_away_from_its_home() {
        let library = "crates/oases-schedule/src/lib.rs";
        assert_eq!(caught(library, "let x = std::env::var(\"A\");"), ["env::var"]);
        assert_eq!(caught(library, "let x = env::var_os(NAME);"), ["env::var_os"]);
        assert_eq!(caught(library, "use std::env::{self, var};"), ["env::{"]);
        assert_eq!(caught(library, "for x in std::env::args() {}"), ["env::args"]);
        assert_eq!(caught(library, "fn f() { println!(\"x\"); }\n\neprint!()"), ["println!", "eprint!"]);
        assert_eq!(caught(library, "std::process::exit(1)"), ["process::exit"]);
        assert_eq!(caught(library, "let now = Instant::now();"), ["Instant"]);
    }

    #[test]
    fn each_is_fine_at_home_in_tests_and_in_prose() {
        assert_eq!(caught("crates/oases/src/environment.rs", "std::env::var_os(name)"), [""; 0]);
        assert_eq!(caught("crates/oases/src/main.rs", "std::env::args_os()"), [""; 0]);
        assert_eq!(caught("crates/oases-exec/src/comm/local.rs", "Instant::now()"), [""; 0]);
        let library = "crates/oases-schedule/src/lib.rs";
        assert_eq!(caught(library, "// println! is for \"env::var\"\nlet x = \"println!\";"), [""; 0]);
        assert_eq!(caught(library, "#[cfg(test)]\nmod tests { fn f() { println!(); } }"), [""; 0]);
        assert_eq!(
            caught("crates/oases-schedule/tests/it/main.rs", "std::env::var(\"OASES_BLESS\")"),
            [""; 0]
        );
        assert_eq!(caught(library, "let x = env!(\"CARGO_MANIFEST_DIR\");"), [""; 0]);
    }
}
