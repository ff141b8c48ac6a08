//! A file that a command leaves behind: whether it can be written is known before the work, and what stood under its name
//! stays until the new file is whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::config::describe_io;
use crate::error::{Failure, UserError};

/// A place for a file.
pub struct OutputFile {
    path: PathBuf,
    what: &'static str,
    /// A pipe or a device has nothing to keep, and must not be replaced by a file.
    special: bool,
}

impl OutputFile {
    /// Tries the place and leaves what is there as it is. `what` names the file in messages; none of the `inputs`, which are
    /// still to be read or were, may be written over.
    pub fn new(path: &Path, what: &'static str, inputs: &[&Path]) -> Result<OutputFile, UserError> {
        let refused = |problem: String, hint: &str| {
            UserError::new(format!("cannot write the {what} {}: {problem}", path.display()), hint)
        };
        let same = |input: &&Path| {
            fs::canonicalize(path).is_ok_and(|path| fs::canonicalize(input).is_ok_and(|i| i == path))
        };
        if inputs.iter().any(same) {
            return Err(refused("it is what the command reads".to_owned(), "give another path"));
        }
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(refused("it is a folder".to_owned(), "give the path of a file"));
        }
        let special = found.is_some_and(|found| !found.is_file());
        let output = OutputFile { path: path.to_owned(), what, special };
        output.try_out().map_err(|error| {
            refused(describe_io(&error), "give the path of a file in a folder that can be written to")
        })?;
        Ok(output)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn try_out(&self) -> io::Result<()> {
        if self.special {
            return Ok(());
        }
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        File::create(self.temporary())?;
        fs::remove_file(self.temporary())
    }

    /// Writes the file as a whole, or leaves what was there.
    pub fn write(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        self.filled(fill).map_err(|error| {
            let _ = fs::remove_file(self.temporary());
            Failure {
                message: format!(
                    "cannot write the {} {}: {}",
                    self.what,
                    self.path.display(),
                    describe_io(&error)
                ),
                hint: "what stood there is as it was; make room or give another path".to_owned(),
            }
        })
    }

    fn filled(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let place = if self.special { self.path.clone() } else { self.temporary() };
        let mut out = BufWriter::new(File::create(&place)?);
        fill(&mut out)?;
        out.flush()?;
        if self.special { Ok(()) } else { fs::rename(place, &self.path) }
    }

    fn temporary(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".tmp");
        PathBuf::from(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_there_stays_until_the_new_file_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/report.html");
        let output = OutputFile::new(&path, "report", &[]).unwrap();
        assert!(!path.exists(), "trying it out leaves nothing");
        output.write(|out| out.write_all(b"first")).unwrap();
        let error = output.write(|out| out.write_all(b"se").and(Err(io::ErrorKind::StorageFull.into())));
        assert!(error.unwrap_err().message.starts_with("cannot write the report"));
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing half-written is left");
        output.write(|out| out.write_all(b"second")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
    }

    #[test]
    fn inputs_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("c.toml");
        fs::write(&input, "x").unwrap();
        let through = folder.path().join("../").join(folder.path().file_name().unwrap()).join("c.toml");
        assert!(OutputFile::new(&through, "trace", &[&input]).is_err());
        assert!(OutputFile::new(folder.path(), "trace", &[]).is_err());
        assert_eq!(fs::read(&input).unwrap(), b"x");
    }
}
