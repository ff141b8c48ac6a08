//! Everything that the program reads from its process environment, read once, at the start, and only here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use oases_train::{Fault, FaultKind};

use crate::error::UserError;
use crate::launched;

/// What the environment says. Later code gets this value and never asks the environment itself.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `NO_COLOR` is set and not empty (<https://no-color.org>).
    pub no_color: bool,
    /// `TERM` says that the terminal cannot move its cursor.
    pub dumb_terminal: bool,
    /// The folders of `PATH`.
    pub program_folders: Vec<PathBuf>,
    /// The folders of `LD_LIBRARY_PATH`, searched before those of the system.
    pub library_folders: Vec<PathBuf>,
    /// The directory that relative paths start from; `None` if it has been removed.
    pub current_folder: Option<PathBuf>,
    /// The file of this program; empty where it cannot be found.
    #[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "ranks that are processes compare it"))]
    pub program: PathBuf,
    /// `OASES_FAULT`, as it is; see [`Environment::fault`].
    pub fault: Option<String>,
    /// What launchers set, of [`launched::VARIABLES`].
    pub launch: BTreeMap<&'static str, String>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn read() -> Environment {
        let folders = |name| match variable(name) {
            // An empty element means the current directory to the shell; no library belongs there.
            Some(list) => std::env::split_paths(&list).filter(|path| path.is_absolute()).collect(),
            None => Vec::new(),
        };
        Environment {
            no_color: variable("NO_COLOR").is_some(),
            dumb_terminal: variable("TERM").is_some_and(|term| term == "dumb"),
            program_folders: folders("PATH"),
            library_folders: folders("LD_LIBRARY_PATH"),
            current_folder: std::env::current_dir().ok(),
            program: std::env::current_exe().unwrap_or_default(),
            fault: variable("OASES_FAULT").map(|text| text.to_string_lossy().into_owned()),
            launch: launched::VARIABLES
                .iter()
                .filter_map(|name| Some((*name, variable(name)?.to_string_lossy().into_owned())))
                .collect(),
        }
    }

    /// The failure to provoke in a run of this many ranks, such as `panic:1:3` for rank 1 in step 3. For tests of the
    /// program.
    pub fn fault(&self, ranks: usize) -> Result<Option<Fault>, UserError> {
        let Some(text) = &self.fault else { return Ok(None) };
        let hint = "write KIND:RANK:STEP, such as panic:1:3, or unset it; the kinds are panic, hang and nan, ranks count \
                    from 0 and steps from 1";
        let Some(fault) = parse_fault(text) else {
            return Err(UserError::new(
                format!("OASES_FAULT must have the form KIND:RANK:STEP, not \"{text}\""),
                hint,
            ));
        };
        if fault.rank as usize >= ranks {
            let last = ranks.saturating_sub(1);
            return Err(UserError::new(
                format!(
                    "OASES_FAULT=\"{text}\" names rank {}, but the last rank of this run is {last}",
                    fault.rank
                ),
                hint,
            ));
        }
        Ok(Some(fault))
    }

    /// The current directory as a message shows it.
    pub fn current_folder_text(&self) -> String {
        match &self.current_folder {
            Some(path) => path.display().to_string(),
            None => "the current directory, which no longer exists".to_string(),
        }
    }
}

/// A variable that is set to something; an empty one counts as unset.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// `KIND:RANK:STEP`, the step counted from 1.
fn parse_fault(text: &str) -> Option<Fault> {
    let mut fields = text.split(':');
    let kind = match fields.next()? {
        "panic" => FaultKind::Panic,
        "hang" => FaultKind::Hang,
        "nan" => FaultKind::NonFinite,
        _ => return None,
    };
    let rank = fields.next()?.parse().ok()?;
    let step: u64 = fields.next()?.parse().ok()?;
    if fields.next().is_some() {
        return None;
    }
    Some(Fault { kind, rank, step: step.checked_sub(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_one_of_the_run_or_an_error() {
        let fault =
            |text: &str| Environment { fault: Some(text.to_string()), ..Environment::default() }.fault(2);
        assert_eq!(fault("panic:1:3"), Ok(Some(Fault { kind: FaultKind::Panic, rank: 1, step: 2 })));
        assert_eq!(fault("nan:0:1"), Ok(Some(Fault { kind: FaultKind::NonFinite, rank: 0, step: 0 })));
        for text in ["bogus", "panic:1", "panic:1:0", "panic:1:3:4", "panic:x:3", "panic:2:3", "stop:1:3"] {
            assert!(fault(text).is_err(), "{text}");
        }
        assert_eq!(Environment::default().fault(2), Ok(None));
    }
}
