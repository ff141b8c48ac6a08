//! What a program that was built without MPI does when it is started as one of several processes: it refuses. As many
//! independent runs would write the same folder.

use crate::args::TrainArgs;
use crate::environment::Environment;
use crate::error::{ToldElsewhere, UserError};
use crate::launched::Launched;
use crate::terminal::Terminal;

/// Refuses, once for all processes.
pub(super) fn run(_: &TrainArgs, _: &Environment, _: &Terminal, launched: &Launched) -> anyhow::Result<()> {
    if launched.rank > 0 {
        return Err(ToldElsewhere(2).into());
    }
    Err(UserError::new(
        format!(
            "{} processes were started by {}, but this program runs all ranks as threads of one process",
            launched.ranks, launched.source
        ),
        "start it once, by itself, or build it for ranks on several hosts: cargo build --release --features mpi",
    )
    .into())
}
