//! Writes a file as a whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What a file that is still being written has behind its name.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

const BUFFER_BYTES: usize = 1 << 18;

/// Writes `path` so that at every instant, a crash included, it is the whole old file or the whole new one.
///
/// The bytes go to a temporary name in the same folder, are flushed to the device, and take the name over; then the
/// folder is flushed. When this returns without an error, the new file has survived any later crash. On an error the
/// temporary file is removed and the old file is untouched.
pub(crate) fn replace_file(
    path: &Path,
    action: &'static str,
    write: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    replace_file_through(path, action, |file| file, write)
}

/// [`replace_file`], with something between the buffer and the file: tests let it fail there.
pub(crate) fn replace_file_through<W: Write>(
    path: &Path,
    action: &'static str,
    through: impl FnOnce(File) -> W,
    write: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let failed = |source| Error::input_output(action, path, source);
    let temporary = Temporary::create(path).map_err(failed)?;
    let device = temporary.file().map_err(failed)?;
    let mut buffer = BufWriter::with_capacity(BUFFER_BYTES, through(temporary.file().map_err(failed)?));
    write(&mut buffer)?;
    buffer.flush().map_err(failed)?;
    device.sync_all().map_err(failed)?;
    temporary.publish(path).map_err(failed)
}

/// The name under which `path` is written before it is complete.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(TEMPORARY_SUFFIX);
    PathBuf::from(name)
}

/// Makes a new name in the folder of `path` survive a crash.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// A file under its temporary name. It is removed unless it takes its final one, also when the writing panics.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Temporary {
    /// Creates what is to be `path`.
    pub(crate) fn create(path: &Path) -> io::Result<Temporary> {
        let path = temporary_path(path);
        Ok(Temporary { file: File::create(&path)?, path, renamed: false })
    }

    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives what has been flushed its name, and flushes the folder.
    pub(crate) fn publish(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.renamed = true;
        sync_folder(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A device that is full after some bytes.
    pub(crate) struct FullAfter<W> {
        pub(crate) inner: W,
        pub(crate) room: usize,
    }

    impl<W: Write> Write for FullAfter<W> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 && !bytes.is_empty() {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.room -= taken;
            self.inner.write(&bytes[..taken])
        }

        fn flush(&mut self) -> io::Result<()> {
            self.inner.flush()
        }
    }

    pub(crate) fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn bytes(text: &'static str) -> impl FnOnce(&mut dyn Write) -> Result<()> {
        move |out| out.write_all(text.as_bytes()).map_err(|e| Error::input_output("write", Path::new("x"), e))
    }

    #[test]
    fn replaces_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        replace_file(&path, "write", bytes("old")).unwrap();
        replace_file(&path, "write", bytes("new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_full_disk_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        replace_file(&path, "write", bytes("old")).unwrap();
        for room in 0..8 {
            let through = |file| FullAfter { inner: file, room };
            let error = replace_file_through(&path, "write", through, bytes("new text")).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot write {}: no storage space", path.display()));
            assert!(error.hint().unwrap().contains("space"));
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            assert_eq!(names(dir.path()), ["file"]);
        }
    }

    #[test]
    fn a_panic_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let panicked = std::panic::catch_unwind(|| replace_file(&path, "write", |_| panic!("on purpose")));
        assert!(panicked.is_err());
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nowhere/file");
        let error = replace_file(&path, "write the file", bytes("x")).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot write the file {}", path.display())));
    }
}
