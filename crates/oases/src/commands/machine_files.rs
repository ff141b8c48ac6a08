//! Reads what predictions start from: descriptions of machines, and profiles.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use oases_plan::{Machine, Profile, PublishedTable};
use serde::de::DeserializeOwned;

use crate::config::describe_io;
use crate::environment::Environment;
use crate::error::UserError;

/// Machines that are part of the program: their names, and their descriptions.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("a100-8x-nvlink", include_str!("../../../../machines/a100-8x-nvlink.toml")),
    ("a100-cluster-100gbe", include_str!("../../../../machines/a100-cluster-100gbe.toml")),
    ("a100-cluster-10gbe", include_str!("../../../../machines/a100-cluster-10gbe.toml")),
    ("a100-cluster-25gbe", include_str!("../../../../machines/a100-cluster-25gbe.toml")),
    ("a100-cluster-hdr", include_str!("../../../../machines/a100-cluster-hdr.toml")),
    ("a100-cluster-ndr", include_str!("../../../../machines/a100-cluster-ndr.toml")),
    ("h100-8x-nvlink", include_str!("../../../../machines/h100-8x-nvlink.toml")),
    ("h100-cluster-ndr", include_str!("../../../../machines/h100-cluster-ndr.toml")),
    ("rtx3090-2x-nvlink", include_str!("../../../../machines/rtx3090-2x-nvlink.toml")),
    ("rtx3090-4x-nvlink", include_str!("../../../../machines/rtx3090-4x-nvlink.toml")),
    ("rtx3090-8x-pcie", include_str!("../../../../machines/rtx3090-8x-pcie.toml")),
    ("rtx3090-cluster", include_str!("../../../../machines/rtx3090-cluster.toml")),
    ("rtx3090-cluster-100gbe", include_str!("../../../../machines/rtx3090-cluster-100gbe.toml")),
    ("rtx3090-cluster-10gbe", include_str!("../../../../machines/rtx3090-cluster-10gbe.toml")),
    ("rtx3090-cluster-25gbe", include_str!("../../../../machines/rtx3090-cluster-25gbe.toml")),
    ("rtx3090-cluster-hdr", include_str!("../../../../machines/rtx3090-cluster-hdr.toml")),
    ("rtx3090-cluster-ndr", include_str!("../../../../machines/rtx3090-cluster-ndr.toml")),
    ("rtx3090-nvlink-cluster", include_str!("../../../../machines/rtx3090-nvlink-cluster.toml")),
    ("rtx4090-8x-pcie", include_str!("../../../../machines/rtx4090-8x-pcie.toml")),
    ("rtx5090-8x-pcie", include_str!("../../../../machines/rtx5090-8x-pcie.toml")),
    ("v100-8x-nvlink", include_str!("../../../../machines/v100-8x-nvlink.toml")),
    ("v100-8x-nvlink-f32", include_str!("../../../../machines/v100-8x-nvlink-f32.toml")),
];

/// Descriptions and profiles are pages of text; what is longer is another kind of file.
const MAX_BYTES: u64 = 4 << 20;

/// The machine that is built in under this name, or described by this file.
pub fn machine(name: &Path, environment: &Environment) -> Result<Machine, UserError> {
    machine_of(name, BUILT_IN, environment)
}

/// A profile that `oases profile` has written.
pub fn profile(path: &Path, environment: &Environment) -> Result<Profile, UserError> {
    let text = read(path).map_err(|problem| cannot_read("profile", path, &problem, environment))?;
    let hint = "`oases profile` writes profiles; write this one again";
    let profile: Profile = parse(&path.display().to_string(), &text, hint)?;
    profile.check().map_err(|error| in_file(path, &error))?;
    Ok(profile)
}

/// A table of published block times.
pub fn table(path: &Path, environment: &Environment) -> Result<PublishedTable, UserError> {
    let text = read(path).map_err(|problem| cannot_read("table", path, &problem, environment))?;
    PublishedTable::parse(&text).map_err(|error| {
        UserError::new(
            format!("{}: {error}", path.display()),
            "a row has hidden size, TMP degree, batch, four times in ms (forward and backward of attention, then of the \
             perceptron), the time of an all-reduce and memory; data/oases-paper/oases_3090_profile.csv is a table",
        )
    })
}

fn machine_of(
    name: &Path,
    built_in: &[(&str, &str)],
    environment: &Environment,
) -> Result<Machine, UserError> {
    let known = built_in.iter().find(|(known, _)| name.as_os_str() == *known);
    let text = match known {
        Some((_, text)) => (*text).to_owned(),
        None => read(name).map_err(|problem| no_machine(name, &problem, built_in, environment))?,
    };
    let hint = "a description has `name`, a section [device] and a section [[link]] for each level of links";
    let machine: Machine = parse(&name.display().to_string(), &text, hint)?;
    machine.check().map_err(|error| in_file(name, &error))?;
    Ok(machine)
}

/// A name that is neither built in nor a file. A bare word was probably meant as a name.
fn no_machine(name: &Path, problem: &str, built_in: &[(&str, &str)], environment: &Environment) -> UserError {
    let bare = name.extension().is_none() && name.components().count() == 1;
    if !bare || built_in.is_empty() {
        return cannot_read("machine", name, problem, environment);
    }
    let names: Vec<&str> = built_in.iter().map(|(known, _)| *known).collect();
    UserError::new(
        format!("there is no machine `{}`", name.display()),
        format!("the machines are {}; or give a TOML file that describes one", names.join(", ")),
    )
}

fn cannot_read(what: &str, path: &Path, problem: &str, environment: &Environment) -> UserError {
    let hint = match path.is_absolute() {
        true => "check the path".to_owned(),
        false => format!("the path starts at {}", environment.current_folder_text()),
    };
    UserError::new(format!("cannot read the {what} {}: {problem}", path.display()), hint)
}

fn in_file(path: &Path, error: &oases_plan::Error) -> UserError {
    UserError::new(format!("{}: {error}", path.display()), error.hint())
}

/// The text of the file, or why there is none.
fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| describe_io(&error))?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| describe_io(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err("it is larger than 4 MiB".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// A value from TOML. What does not fit is told with its line, and a missing key with its section.
fn parse<T: DeserializeOwned>(name: &str, text: &str, hint: &str) -> Result<T, UserError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let place = error.span().map_or(String::new(), |span| {
            let before = text.get(..span.start).unwrap_or(text);
            format!(":{}", before.matches('\n').count() + 1)
        });
        let section = error.span().and_then(|span| header(text, span.start)).unwrap_or_default();
        let message = match message.strip_prefix("missing field ") {
            Some(key) if section.is_empty() => format!("the key {key} is missing"),
            Some(key) => format!("the key {key} of {section} is missing"),
            None => message,
        };
        UserError::new(format!("{name}{place}: {message}"), hint)
    })
}

/// The section that begins at this place, if one does.
fn header(text: &str, at: usize) -> Option<&str> {
    let line = text.get(at..)?.lines().next()?.trim();
    line.starts_with('[').then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: &str = include_str!("../../../../testdata/machines/pair.toml");

    fn refused(text: &str) -> String {
        parse::<Machine>("x.toml", text, "h").unwrap_err().to_string()
    }

    #[test]
    fn a_missing_figure_is_told_with_its_section() {
        for (key, message) in [
            ("name = \"test pair\"", "x.toml:1: the key `name` is missing"),
            ("peak_tflops = 1.0", "x.toml:4: the key `peak_tflops` of [device] is missing"),
            ("latency_us = 10", "x.toml:15: the key `latency_us` of [[link]] is missing"),
        ] {
            assert!(PAIR.contains(key), "{key}");
            assert_eq!(refused(&PAIR.replace(key, "")), message);
        }
        let second = format!("{PAIR}\n[[link]]\nname = \"outer\"\n");
        assert!(refused(&second).starts_with("x.toml:21: the key `ranks` of [[link]] is missing"));
    }

    #[test]
    fn a_machine_is_a_name_or_a_file() {
        let environment = Environment::default();
        let of = |name: &str| machine_of(Path::new(name), &[("pair", PAIR)], &environment);
        assert_eq!(of("pair").unwrap().name, "test pair");
        let error = of("par").unwrap_err();
        let expected = UserError::new(
            "there is no machine `par`",
            "the machines are pair; or give a TOML file that describes one",
        );
        assert_eq!(error, expected);
        assert!(of("par.toml").unwrap_err().to_string().starts_with("cannot read the machine par.toml: "));
    }

    #[test]
    fn every_machine_that_is_built_in_can_be_used() {
        for (index, (name, _)) in BUILT_IN.iter().enumerate() {
            machine(Path::new(name), &Environment::default()).unwrap();
            assert!(BUILT_IN[..index].iter().all(|(other, _)| other != name), "{name} is there twice");
        }
    }
}
