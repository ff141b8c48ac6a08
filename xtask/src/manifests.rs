//! Rules about `Cargo.toml`: which crate may use which.

use crate::Violation;

/// A crate, and which of ours it may depend on.
pub struct Edges {
    /// Its name.
    pub name: &'static str,
    /// Those of ours that it may use, in `[dev-dependencies]` too.
    pub may_use: &'static [&'static str],
    /// Why no others.
    pub because: &'static str,
}

/// Every crate of the workspace. A new crate is a new border, and its reason belongs here.
pub const EDGES: &[Edges] = &[
    Edges {
        name: "oases-schedule",
        may_use: &[],
        because: "a schedule is a value: it knows neither what runs it nor what predicts it",
    },
    Edges {
        name: "oases-plan",
        may_use: &["oases-schedule"],
        because: "the planner shares nothing with the executors but the schedule, so that predicted and measured \
                  can be compared",
    },
    Edges {
        name: "oases-exec",
        may_use: &["oases-schedule"],
        because: "the executors run any schedule, planned or not, for training or not",
    },
    Edges {
        name: "oases-cuda",
        may_use: &["oases-exec", "oases-schedule"],
        because: "a backend is one of several and knows nothing of training",
    },
    Edges {
        name: "oases-train",
        may_use: &["oases-exec", "oases-schedule"],
        because: "a planned schedule is like any other, and a device is a backend like any other",
    },
    Edges {
        name: "oases",
        may_use: &["oases-schedule", "oases-plan", "oases-exec", "oases-cuda", "oases-train"],
        because: "the program joins them all",
    },
    Edges { name: "xtask", may_use: &[], because: "the rules hold before anything else compiles" },
];

/// Crates from elsewhere that only one of ours may use.
pub const HOMES: &[(&str, &str, &str)] = &[
    ("anyhow", "oases", "library crates have an error type whose kinds say whose fault it is"),
    ("clap", "oases", "only the program reads arguments"),
    ("indicatif", "oases", "only the program prints"),
    ("toml", "oases", "only the program reads configurations"),
];

/// Checks one manifest.
pub fn check(path: &str, manifest: &str) -> Vec<Violation> {
    let name = package_name(manifest).unwrap_or_default();
    let Some(edges) = EDGES.iter().find(|edges| edges.name == name) else {
        let message = format!("`{name}` is not in the table of crates; add it to EDGES with its reason");
        return vec![Violation::of_file(path, message)];
    };
    let mut violations = Vec::new();
    let mut refuse = |line, message| violations.push(Violation { path: path.to_string(), line, message });
    for (line, dependency) in dependencies(manifest) {
        // A crate may name itself, to have a feature of its own in its tests.
        let ours = dependency != name
            && (EDGES.iter().any(|edges| edges.name == dependency) || dependency.starts_with("oases"));
        if ours && !edges.may_use.contains(&dependency.as_str()) {
            refuse(line, format!("{name} may not use {dependency}: {}", edges.because));
        }
        for (_, home, reason) in HOMES.iter().filter(|(crate_name, ..)| *crate_name == dependency) {
            if *home != name {
                refuse(line, format!("only {home} may use {dependency}: {reason}"));
            }
        }
    }
    if !section(manifest, "lints").iter().any(|(_, line)| compact(line) == "workspace=true") {
        refuse(0, "the workspace's lints do not apply; add `[lints]` with `workspace = true`".to_string());
    }
    violations
}

fn package_name(manifest: &str) -> Option<String> {
    let lines = section(manifest, "package");
    let value = lines.iter().find_map(|(_, line)| compact(line).strip_prefix("name=").map(str::to_string))?;
    Some(value.trim_matches('"').to_string())
}

/// The names of all dependencies, of any kind and for any target, with their line.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_table = false;
    for (line, text) in lines(manifest) {
        if let Some(header) = text.strip_prefix('[') {
            let header = compact(header.trim_end_matches(']'));
            in_table = header.ends_with("dependencies");
            // `[dependencies.oases-exec]`
            if let Some((table, name)) = header.rsplit_once('.')
                && table.ends_with("dependencies")
            {
                found.push((line, name.trim_matches('"').to_string()));
            }
            continue;
        }
        if !in_table {
            continue;
        }
        let key = text.split('=').next().unwrap_or_default().trim();
        let name = key.split('.').next().unwrap_or_default().trim_matches('"');
        if !name.is_empty() && text.contains('=') {
            found.push((line, renamed(text).unwrap_or(name).to_string()));
        }
    }
    found
}

/// The `package` of a dependency that goes by another name.
fn renamed(text: &str) -> Option<&str> {
    let (_, after) = text.split_once("package")?;
    after.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?.split('"').next()
}

fn section<'a>(manifest: &'a str, name: &str) -> Vec<(usize, &'a str)> {
    let header = format!("[{name}]");
    lines(manifest)
        .skip_while(|(_, line)| compact(line) != header)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with('['))
        .collect()
}

fn lines(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    manifest
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split('#').next().unwrap_or_default().trim()))
}

fn compact(text: &str) -> String {
    text.chars().filter(|character| !character.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(name: &str, rest: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"{name}\"\n{rest}\n[lints]\nworkspace = true\n");
        check("Cargo.toml", &manifest).into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn allowed_edges_pass() {
        let rest = "[dependencies]\noases-schedule.workspace = true\nserde = \"1\" # oases-plan\n";
        assert_eq!(messages("oases-exec", rest), [""; 0]);
        assert_eq!(
            messages("oases", "[dependencies]\nanyhow = \"1\"\noases-train = { path = \"x\" }\n"),
            [""; 0]
        );
    }

    #[test]
    fn every_way_to_write_a_forbidden_edge_is_caught() {
        for rest in [
            "[dependencies]\noases-exec.workspace = true\n",
            "[dependencies]\noases-exec = { path = \"../oases-exec\" }\n",
            "[dependencies]\nexecutor = { package = \"oases-exec\", path = \"../oases-exec\" }\n",
            "[dependencies.oases-exec]\npath = \"x\"\n",
            "[dev-dependencies]\noases-exec = \"1\"\n",
            "[target.'cfg(unix)'.dependencies]\noases-exec = \"1\"\n",
            "[build-dependencies]\n\"oases-exec\" = \"1\"\n",
        ] {
            let messages = messages("oases-plan", rest);
            assert!(
                messages.len() == 1 && messages[0].contains("oases-plan may not use oases-exec"),
                "{rest}"
            );
        }
        let messages = messages("oases-train", "[dependencies]\noases-plan.workspace = true\n");
        assert!(
            messages[0].starts_with("Cargo.toml:4: oases-train may not use oases-plan: a planned schedule")
        );
    }

    #[test]
    fn unknown_crates_strange_homes_and_missing_lints_are_caught() {
        assert!(messages("oases-new", "")[0].contains("add it to EDGES"));
        let message = &messages("oases-exec", "[dependencies]\nanyhow.workspace = true\n")[0];
        assert!(message.contains("only oases may use anyhow"), "{message}");
        let bare = check("Cargo.toml", "[package]\nname = \"oases-exec\"\n");
        assert!(bare[0].message.contains("lints do not apply"));
    }
}
