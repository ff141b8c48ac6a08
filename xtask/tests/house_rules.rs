//! The house rules, applied to the whole tree.

use xtask::source::Source;
use xtask::{Violation, manifests, places, style, tree};

fn sources() -> Vec<Source> {
    let sources: Vec<Source> =
        tree::files(&tree::root(), ".rs").iter().map(|(path, text)| Source::new(path, text)).collect();
    assert!(sources.len() > 10, "the sources were not found");
    sources
}

#[track_caller]
fn assert_none(violations: Vec<Violation>) {
    let list: Vec<String> = violations.iter().map(Violation::to_string).collect();
    assert!(list.is_empty(), "{} violations of the house rules:\n{}", list.len(), list.join("\n"));
}

#[test]
fn crates_use_only_what_they_may() {
    let members = |path: &str| path != "Cargo.toml";
    let manifests = tree::files(&tree::root(), "Cargo.toml");
    assert!(manifests.len() > 4, "the manifests were not found");
    assert_none(
        manifests
            .iter()
            .filter(|(path, _)| members(path))
            .flat_map(|(path, text)| manifests::check(path, text))
            .collect(),
    );
}

#[test]
fn what_has_one_home_stays_there() {
    assert_none(sources().iter().flat_map(places::check).collect());
}

#[test]
fn every_file_keeps_the_style() {
    assert_none(sources().iter().flat_map(style::check).collect());
}

#[test]
fn long_files_that_are_gone_are_not_listed() {
    let paths: Vec<String> = sources().into_iter().map(|source| source.path).collect();
    for (path, _) in style::LONG_FILES {
        assert!(paths.iter().any(|found| found == path), "{path} is in LONG_FILES but does not exist");
    }
}

#[test]
fn nothing_is_left_unfinished_elsewhere() {
    let root = tree::root();
    for suffix in [".toml", ".sh", ".md", ".sched"] {
        let files = tree::files(&root, suffix);
        assert_none(files.iter().flat_map(|(path, text)| style::unfinished(path, text)).collect());
    }
}
