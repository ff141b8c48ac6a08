//! Runs the program in an empty folder and keeps all that it said.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A folder that the program runs in.
pub struct Folder {
    folder: TempDir,
}

/// What a run of the program came to.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Folder {
    /// An empty folder.
    pub fn new() -> Folder {
        Folder { folder: tempfile::tempdir().unwrap() }
    }

    /// A folder with a configuration that works, `good.toml`, and its text, `text.txt`.
    pub fn with_good_configuration() -> Folder {
        let folder = Folder::new();
        folder.write("good.toml", GOOD);
        folder.write("text.txt", "Call me Ishmael. ".repeat(100));
        folder
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oases"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_remove("NO_COLOR").env_remove("TERM").env_remove("RUST_BACKTRACE");
        // Whoever runs the tests may have started them as one of several.
        for name in ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the program; the folder's own name is shown as `[DIR]`.
    pub fn oases(&self, arguments: &[&str]) -> Outcome {
        let output = self.command(arguments).output().unwrap();
        // The program sees the folder under its real name, which differs where /tmp is a link.
        let real: PathBuf = fs::canonicalize(self.folder.path()).unwrap();
        let text =
            |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(real.to_str().unwrap(), "[DIR]");
        Outcome {
            code: output.status.code().expect("the program was ended by a signal"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Runs the program, which refuses its input: exit code 2, nothing on standard output, and this on standard error.
    #[track_caller]
    pub fn refuses(&self, arguments: &[&str], stderr: &str) {
        let outcome = self.oases(arguments);
        let expected = Outcome { code: 2, stdout: String::new(), stderr: stderr.to_string() };
        assert_eq!(outcome, expected, "oases {}\n{}", arguments.join(" "), outcome.stderr);
    }
}

/// A small configuration without problems.
pub const GOOD: &str = "\
[model]
layers = 1
hidden = 24
heads = 6
sequence = 8

[data]
text = [\"text.txt\"]

[train]
steps = 10
batch = 4
learning_rate = 1e-3
";
