//! Ctrl-C and the signals that ask a program to end, for commands that have something to leave behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::error::INTERRUPTED;
use crate::terminal::Terminal;

/// What asks a program to end. SIGUSR1 is one that Open MPI's mpirun passes on to all ranks and leaves them their time; Slurm can send
/// it before a job's time is up.
const SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1];

/// From here on the first of these signals only sets what is returned, and a second one ends the program. Where no handler can be
/// installed, they end it at once, as they do by themselves. `terminal` is told, where there is one to tell.
pub fn requested(terminal: Option<Terminal>) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let Ok(mut signals) = Signals::new(SIGNALS) else { return stop };
    let flag = Arc::clone(&stop);
    let wait = move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED);
            }
            if let Some(terminal) = terminal {
                terminal.line("finishing the step at hand; a second signal ends at once");
            }
        }
    };
    // A thread that cannot be had leaves the signals unheard; the run itself then fails for want of threads.
    let _ = thread::Builder::new().name("signals".to_owned()).spawn(wait);
    stop
}
