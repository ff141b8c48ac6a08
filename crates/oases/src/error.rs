//! What goes wrong, sorted by whose fault it is, and how it is told to the user.
//!
//! A [`UserError`] is something that the user can mend: one line that says what is wrong, a blank line, a hint that
//! says what to do, exit code 2. Everything else is a failure of the program or of the machine: exit code 1.

use std::fmt;
use std::process::ExitCode;

use crate::terminal::Terminal;

/// Something that the user can mend. Several can be told at once: a configuration is checked as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserError {
    /// What is wrong, each one line, in lower case, without a full stop.
    messages: Vec<String>,
    /// What to do about it; as many as the messages, or fewer where one hint serves several.
    hints: Vec<String>,
}

impl UserError {
    /// One thing that is wrong, and what to do about it.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> UserError {
        UserError { messages: vec![message.into()], hints: vec![hint.into()] }
    }

    /// All of these, in order, told together; a hint that has been given is not given again. `None` if there are none.
    pub fn all(errors: impl IntoIterator<Item = UserError>) -> Option<UserError> {
        let mut errors = errors.into_iter();
        let mut together = errors.next()?;
        for error in errors {
            together.messages.extend(error.messages);
            for hint in error.hints {
                if !together.hints.contains(&hint) {
                    together.hints.push(hint);
                }
            }
        }
        Some(together)
    }

    fn paragraphs(&self, error_label: &str, hint_label: &str) -> String {
        let lines = |label: &str, texts: &[String]| -> String {
            texts.iter().map(|text| format!("{label}: {}\n", single_line(text))).collect()
        };
        format!("{}\n{}", lines(error_label, &self.messages), lines(hint_label, &self.hints))
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("; "))
    }
}

impl std::error::Error for UserError {}

/// A run that failed through nobody's input, and what can be done about it. Exit code 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What happened, in lower case, without a full stop.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Standard output was closed by its reader, as `| head` does. Not a failure, but nothing more can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for OutputClosed {}

/// Ended from the keyboard, after what was finished has been shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// The exit code of a program that Ctrl-C has ended: 128 and the number of the signal.
pub const INTERRUPTED: i32 = 130;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Another rank tells what went wrong; this process only ends with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldElsewhere(pub u8);

impl fmt::Display for ToldElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another rank tells what went wrong")
    }
}

impl std::error::Error for ToldElsewhere {}

/// Tells the error on standard error and answers with the exit code of its kind.
pub fn report(error: &anyhow::Error, terminal: &Terminal) -> ExitCode {
    if error.is::<OutputClosed>() {
        return ExitCode::SUCCESS;
    }
    if let Some(ToldElsewhere(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if error.is::<Interrupted>() {
        return ExitCode::from(INTERRUPTED as u8);
    }
    let (error_label, hint_label) = (terminal.error_label(), terminal.hint_label());
    if let Some(user_error) = error.downcast_ref::<UserError>() {
        terminal.write(&user_error.paragraphs(error_label, hint_label));
        return ExitCode::from(2);
    }
    if let Some(Failure { message, hint }) = error.downcast_ref::<Failure>() {
        let text = UserError::new(message, hint).paragraphs(error_label, hint_label);
        terminal.write(&text);
        return ExitCode::FAILURE;
    }
    let chain: Vec<String> = error.chain().map(|cause| single_line(&cause.to_string())).collect();
    terminal.write(&format!("{error_label}: {}\n", chain.join(": ")));
    ExitCode::FAILURE
}

/// Quoted text may come from a file or an argument; control characters in it must not reach the terminal.
fn single_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_error_is_a_line_a_blank_line_and_a_hint() {
        let error = UserError::new("cannot read x.toml: no such file", "check the path");
        assert_eq!(
            error.paragraphs("error", "hint"),
            "error: cannot read x.toml: no such file\n\nhint: check the path\n"
        );
    }

    #[test]
    fn several_errors_stand_together_and_share_equal_hints() {
        let together = UserError::all([
            UserError::new("first", "same"),
            UserError::new("second", "same"),
            UserError::new("third", "other"),
        ]);
        assert_eq!(
            together.unwrap().paragraphs("error", "hint"),
            "error: first\nerror: second\nerror: third\n\nhint: same\nhint: other\n"
        );
        assert_eq!(UserError::all([]), None);
    }

    #[test]
    fn control_characters_are_escaped() {
        let error = UserError::new("unknown key `a\u{1b}[31m\nb`", "h");
        assert_eq!(error.paragraphs("error", "hint"), "error: unknown key `a\\u{1b}[31m\\nb`\n\nhint: h\n");
    }
}
