//! Ctrl-C, for commands that have something to leave behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::INTERRUPTED;
use crate::terminal::Terminal;

/// From here on the first Ctrl-C only sets what is returned, and a second one ends the program. Where no handler can be
/// installed, Ctrl-C ends it at once, as it does by itself.
pub fn requested(terminal: Terminal) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
        terminal.line("finishing the step at hand; Ctrl-C again ends at once");
    });
    stop
}
