//! The one error type of this crate; its kinds say whose fault it is.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use oases_exec::comm::CommunicatorError;

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, by whose fault it is. The message is one line; [`Error::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings that do not fit together, or a run folder that does not fit the command.
    #[error("{message}")]
    Configuration {
        /// What does not fit, with both sides of the mismatch.
        message: String,
        /// What would do.
        hint: Option<String>,
    },
    /// The training text is missing, unreadable, too short or of the wrong kind.
    #[error("{message}")]
    Data {
        /// Which file, and what is wrong with it.
        message: String,
        /// What would do.
        hint: Option<String>,
    },
    /// A checkpoint is damaged, or belongs to another model or version.
    #[error("{message}")]
    Checkpoint {
        /// Which file, and what is wrong with it.
        message: String,
        /// What would do.
        hint: Option<String>,
    },
    /// The operating system refused to read or write.
    #[error("cannot {action} {}: {source}", path.display())]
    InputOutput {
        /// What was tried, to follow "cannot".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A rank failed; the run ends on every rank.
    #[error("rank {world_rank}: {message}")]
    Rank {
        /// The rank in the whole world, not within one axis.
        world_rank: usize,
        /// What it was doing, and what happened.
        message: String,
    },
    /// The ranks could not communicate; the message names those concerned.
    #[error("{message}")]
    Communicator {
        /// Which collective, where in the run, and why.
        message: String,
        /// Whether the cause is another rank's failure.
        consequence: bool,
    },
    /// Another rank cannot go on, and tells why itself.
    #[error("{message}")]
    Elsewhere {
        /// What it tells.
        message: String,
        /// Whether that is something to mend, as [`Error::is_to_mend`].
        to_mend: bool,
    },
    /// The loss or the gradient is not a number any more.
    #[error("step {step}: loss {loss}, gradient norm {grad_norm}: training has diverged")]
    NonFinite {
        /// The step, from 1.
        step: u64,
        /// Its loss.
        loss: f64,
        /// Its gradient norm.
        grad_norm: f64,
    },
    /// The update made weights that are not numbers, or too large to be squared.
    #[error("step {step}: the update left weights that are no numbers: training has diverged")]
    NonFiniteWeights {
        /// The step, from 1.
        step: u64,
    },
    /// The program contradicts itself.
    #[error("internal error: {message}")]
    Internal {
        /// What was found, and what was expected.
        message: String,
    },
}

impl Error {
    /// A [`Error::Configuration`] without a hint.
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::Configuration { message: message.into(), hint: None }
    }

    /// A [`Error::Data`] without a hint.
    pub fn data(message: impl Into<String>) -> Self {
        Self::Data { message: message.into(), hint: None }
    }

    /// A [`Error::Checkpoint`] about one file, without a hint.
    pub fn checkpoint(path: &Path, reason: impl Display) -> Self {
        Self::Checkpoint { message: format!("checkpoint {}: {reason}", path.display()), hint: None }
    }

    /// A [`Error::InputOutput`]; `action` follows "cannot" and precedes the path.
    pub fn input_output(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::InputOutput { action, path: path.to_owned(), source }
    }

    /// A [`Error::Rank`].
    pub fn rank(world_rank: usize, message: impl Into<String>) -> Self {
        Self::Rank { world_rank, message: message.into() }
    }

    /// A collective that failed; `at` says where in the run.
    pub(crate) fn communicator(error: &CommunicatorError, at: &str) -> Self {
        let consequence = matches!(error, CommunicatorError::PeerFailed { .. });
        Self::Communicator { message: format!("{error}{at}"), consequence }
    }

    /// A [`Error::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal { message: message.into() }
    }

    /// The same error with this hint. The kinds whose hint follows from their cause keep their own.
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::Configuration { hint, .. } | Self::Data { hint, .. } | Self::Checkpoint { hint, .. } => {
                *hint = Some(text.into())
            }
            Self::InputOutput { .. }
            | Self::Rank { .. }
            | Self::Communicator { .. }
            | Self::Elsewhere { .. }
            | Self::NonFinite { .. }
            | Self::NonFiniteWeights { .. }
            | Self::Internal { .. } => {}
        }
        self
    }

    /// Whether it only tells of another rank's failure.
    pub fn is_consequence(&self) -> bool {
        matches!(self, Self::Communicator { consequence: true, .. } | Self::Elsewhere { .. })
    }

    /// Whether the user can mend it: settings, files and folders, not faults.
    pub fn is_to_mend(&self) -> bool {
        match self {
            Self::Configuration { .. }
            | Self::Data { .. }
            | Self::Checkpoint { .. }
            | Self::InputOutput { .. } => true,
            Self::Elsewhere { to_mend, .. } => *to_mend,
            Self::Rank { .. }
            | Self::Communicator { .. }
            | Self::NonFinite { .. }
            | Self::NonFiniteWeights { .. }
            | Self::Internal { .. } => false,
        }
    }

    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Configuration { hint, .. } | Self::Data { hint, .. } | Self::Checkpoint { hint, .. } => {
                hint.as_deref()
            }
            Self::Rank { .. } | Self::Communicator { .. } => {
                Some("go on from the newest checkpoint, if there is one, with --resume")
            }
            Self::Elsewhere { .. } => None,
            Self::InputOutput { source, .. } => hint_for(source.kind()),
            Self::NonFinite { .. } | Self::NonFiniteWeights { .. } => Some(
                "go on from the newest checkpoint, if there is one, with a lower learning rate or a lower clip",
            ),
            Self::Internal { .. } => {
                Some("this is a bug in oases; please report it with the command that led here")
            }
        }
    }
}

fn hint_for(kind: io::ErrorKind) -> Option<&'static str> {
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Some("check who owns it and who may write there, or choose another place")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Some("free some space or choose another place; what was written before is intact")
        }
        io::ErrorKind::NotFound => Some("check the path; it is relative to the current folder"),
        io::ErrorKind::NotADirectory => Some("a part of the path is a file; choose another place"),
        _ => Some("check the path, and the device that it is on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line_and_hint_is_apart() {
        let error = Error::configuration("heads 6 do not divide by 4").with_hint("use 1, 2, 3 or 6");
        assert_eq!(error.to_string(), "heads 6 do not divide by 4");
        assert_eq!(error.hint(), Some("use 1, 2, 3 or 6"));
    }

    #[test]
    fn input_output_explains_itself() {
        let error =
            Error::input_output("write", Path::new("a/b"), io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(error.to_string(), "cannot write a/b: permission denied");
        assert!(error.hint().is_some());
    }
}
