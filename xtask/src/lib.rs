//! House rules of the workspace, checked by `cargo test`. Each rule is a function from text to violations.
//!
//! `tests/house_rules.rs` applies them to the whole tree. They need no dependency and read nothing but sources, so
//! that they hold before anything else compiles.

pub mod manifests;
pub mod places;
pub mod source;
pub mod style;
pub mod tree;

use std::fmt;

/// A rule that does not hold somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// File, from the top of the repository.
    pub path: String,
    /// Line, counted from 1; 0 where the whole file is meant.
    pub line: usize,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Violation {
    /// A violation of a whole file.
    pub fn of_file(path: &str, message: impl Into<String>) -> Violation {
        Violation { path: path.to_string(), line: 0, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}
