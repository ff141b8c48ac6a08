//! Rules about each file by itself: its first line, its length, its exceptions, and what was left to be done.

use crate::Violation;
use crate::source::Source;

/// Lines that a file may have.
pub const MAX_LINES: usize = 500;

/// Files that may be longer, with the reason. An entry that is no longer needed is a violation too.
pub const LONG_FILES: &[(&str, &str)] = &[];

/// Words of unfinished work; spelled apart so that this file has none.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Checks one source file by all rules of this module.
pub fn check(source: &Source) -> Vec<Violation> {
    let mut violations = header(source);
    violations.extend(length(source, LONG_FILES));
    violations.extend(skipped_tests(source));
    violations.extend(reasons(source));
    violations.extend(unfinished(&source.path, &source.text));
    violations
}

/// The first line says what the file is for.
fn header(source: &Source) -> Vec<Violation> {
    let first = source.text.lines().next().unwrap_or_default();
    match first.strip_prefix("//! ") {
        Some(words) if !words.trim().is_empty() => Vec::new(),
        _ => vec![Violation {
            path: source.path.clone(),
            line: 1,
            message: "the file does not begin with a `//!` line that says what it is for".to_string(),
        }],
    }
}

fn length(source: &Source, long_files: &[(&str, &str)]) -> Vec<Violation> {
    let lines = source.text.lines().count();
    let entry = long_files.iter().find(|(path, _)| *path == source.path);
    let message = match entry {
        None if lines > MAX_LINES => {
            format!(
                "{lines} lines, more than {MAX_LINES}: divide the file, or add it to LONG_FILES with the reason"
            )
        }
        Some((_, reason)) if reason.trim().is_empty() => "its entry in LONG_FILES has no reason".to_string(),
        Some(_) if lines <= MAX_LINES => format!("{lines} lines: it needs no entry in LONG_FILES any more"),
        _ => return Vec::new(),
    };
    vec![Violation::of_file(&source.path, message)]
}

/// A test that is skipped is no test: it says what it needs and runs where that is there.
fn skipped_tests(source: &Source) -> Vec<Violation> {
    let attribute = concat!("#[", "ignore");
    let message = "an ignored test is never run; let it print why it cannot run here instead";
    on_lines(source, attribute, |_| Some(message.to_string()))
}

/// Each exception from a lint says why.
fn reasons(source: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (start, _) in source.code.match_indices('#') {
        let rest = source.code[start + 1..].trim_start_matches('!');
        let Some(inside) = rest.strip_prefix('[') else { continue };
        let inside = &inside[..inside.find(']').unwrap_or(inside.len())];
        let has_exception = ["allow(", "expect("].iter().any(|word| {
            inside.match_indices(word).any(|(at, _)| at == 0 || inside[..at].ends_with([' ', ',', '(']))
        });
        if has_exception && !inside.contains("reason") {
            let line = source.code[..start].matches('\n').count() + 1;
            let message = "an exception from a lint needs a `reason = \"…\"`".to_string();
            violations.push(Violation { path: source.path.clone(), line, message });
        }
    }
    violations
}

/// Unfinished work belongs where it is planned, not into the code.
pub fn unfinished(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(word) = UNFINISHED.iter().find(|word| crate::source::has_word(line, word)) {
            let message = format!("`{word}`: finish it, or file an issue");
            violations.push(Violation { path: path.to_string(), line: index + 1, message });
        }
    }
    violations
}

fn on_lines(source: &Source, needle: &str, message: impl Fn(&str) -> Option<String>) -> Vec<Violation> {
    let lines = source.code.lines().enumerate().filter(|(_, line)| line.contains(needle));
    let found = lines.filter_map(|(index, line)| Some((index + 1, message(line)?)));
    found.map(|(line, message)| Violation { path: source.path.clone(), line, message }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        check(&Source::new("a.rs", text)).into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn a_file_without_its_first_line_is_caught() {
        assert_eq!(messages("//! Says what it is for.\n\nfn f() {}\n"), [""; 0]);
        for text in ["", "fn f() {}\n", "\n//! Too late.\n", "//!\n", "// Not a doc.\n"] {
            assert!(messages(text)[0].starts_with("a.rs:1: the file does not begin with"), "{text:?}");
        }
    }

    #[test]
    fn a_long_file_is_caught_and_so_is_an_entry_without_need() {
        let long = Source::new("a.rs", &"//! x\n".repeat(MAX_LINES + 1));
        let short = Source::new("a.rs", "//! x\n");
        assert!(length(&long, &[])[0].message.contains("501 lines, more than 500"));
        assert_eq!(length(&long, &[("a.rs", "a table")]), []);
        assert!(length(&long, &[("a.rs", " ")])[0].message.contains("no reason"));
        assert!(length(&short, &[("a.rs", "a table")])[0].message.contains("no entry"));
    }

    #[test]
    fn a_skipped_test_is_caught() {
        let attribute = concat!("#[", "ignore]");
        assert!(
            messages(&format!("//! x\n#[test]\n{attribute}\nfn f() {{}}\n"))[0]
                .contains("a.rs:3: an ignored test")
        );
        assert_eq!(messages(&format!("//! x\n// {attribute}\n")), [""; 0]);
    }

    #[test]
    fn an_exception_without_a_reason_is_caught() {
        for attribute in [
            "#[allow(unsafe_code)]",
            "#![allow(dead_code)]",
            "#[cfg_attr(test, allow(unused))]",
            "#[expect(\n unsafe_code\n)]",
        ] {
            assert!(
                messages(&format!("//! x\n{attribute}\nfn f() {{}}\n"))[0].contains("a.rs:2: an exception")
            );
        }
        for text in [
            "#[allow(unsafe_code, reason = \"the arena hands out disjoint spans\")]",
            "let x = value.expect(\"[it] is there\");",
            "let x = [map.get(0).expect(\"x\")];",
            "#[rustfmt::skip]",
        ] {
            assert_eq!(messages(&format!("//! x\n{text}\n")), [""; 0], "{text}");
        }
    }

    #[test]
    fn unfinished_work_is_caught_in_comments_too() {
        let word = UNFINISHED[0];
        assert_eq!(
            messages(&format!("//! x\n// {word}: later\n")),
            [format!("a.rs:2: `{word}`: finish it, or file an issue")]
        );
        assert_eq!(messages("//! x\n// a method\nlet autodoc = 1;\n"), [""; 0]);
    }
}
