//! Ctrl-C and the signals that ask a program to end, for commands that have something to leave behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::INTERRUPTED;
use crate::terminal::Terminal;

/// From here on the first Ctrl-C, SIGTERM or SIGHUP only sets what is returned, and a second one ends the program. Where no
/// handler can be installed, they end it at once, as they do by themselves. `terminal` is told, where there is one to tell.
pub fn requested(terminal: Option<Terminal>) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
        if let Some(terminal) = terminal {
            terminal.line("finishing the step at hand; a second signal ends at once");
        }
    });
    stop
}
