//! `oases doctor`: what this machine has, in a form to paste into a report.
//!
//! Everything is read from files of the system or asked of the processor; no library is loaded and no program is
//! started, so that a broken driver cannot break the report about it.

mod libraries;
mod processor;
mod system;

use std::path::Path;

use crate::environment::Environment;

/// One line of the report: what, and what about it.
type Line = (&'static str, String);

/// The report about this machine.
pub fn report(environment: &Environment) -> String {
    let root = Path::new("/");
    let mut lines: Vec<Line> = vec![
        ("oases", format!("{}, for {}", env!("CARGO_PKG_VERSION"), target())),
        ("backends", "cpu".to_string()),
        ("ranks", ranks().to_string()),
    ];
    lines.extend(system::lines(root));
    lines.extend(processor::lines(root));
    lines.extend(libraries::lines(root, environment));
    layout(&lines)
}

/// The processor, in a few words.
pub fn machine() -> String {
    let lines = processor::lines(Path::new("/"));
    let words = lines.iter().take(2).map(|(_, value)| value.split(" (").next().unwrap_or(value));
    words.collect::<Vec<_>>().join(", ")
}

/// Bytes that this process can still have; `None` where the system does not tell.
pub fn available_memory() -> Option<u64> {
    system::available_memory(Path::new("/"))
}

fn ranks() -> &'static str {
    match cfg!(feature = "mpi") {
        true => "threads of one process, or processes over MPI",
        false => "threads of one process; built without the feature mpi",
    }
}

fn target() -> String {
    let build = if cfg!(debug_assertions) { " (debug build: training is many times slower)" } else { "" };
    format!("{}-{}{build}", std::env::consts::ARCH, std::env::consts::OS)
}

/// A Markdown list whose second column is aligned, legible as it stands and after rendering.
fn layout(lines: &[Line]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines
        .iter()
        .map(|(name, value)| format!("- {:<width$}  {value}\n", format!("{name}:"), width = width + 1))
        .collect()
}

/// A file of the system as text, if it is there and readable.
fn read(root: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok()
}

/// Bytes with a binary prefix.
fn bytes_text(bytes: u64) -> String {
    oases_schedule::Bytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let lines = [("os", "Linux".to_string()), ("memory", "1 GiB".to_string())];
        assert_eq!(layout(&lines), "- os:      Linux\n- memory:  1 GiB\n");
    }

    #[test]
    fn every_line_of_this_machine_says_something() {
        let report = report(&Environment::default());
        for name in
            ["oases", "backends", "ranks", "os", "cpu", "cores", "simd", "memory", "cuda", "nccl", "mpi"]
        {
            let line = report.lines().find(|line| line.starts_with(&format!("- {name}:")));
            let value = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
            assert!(value.is_some_and(|value| !value.is_empty()), "{name} in\n{report}");
        }
    }
}
