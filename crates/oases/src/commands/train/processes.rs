//! `oases train` as one of several processes that MPI joins, on one host or many.

use oases_train::processes::{self, Settled, World};

use super::super::plan_run;
use super::Prepared;
use crate::args::TrainArgs;
use crate::environment::Environment;
use crate::error::{ToldElsewhere, UserError};
use crate::interrupt;
use crate::launched::Launched;
use crate::terminal::Terminal;

/// Trains as one rank. Rank 0 shows what happens; what is wrong on all ranks is told once.
pub(super) fn run(
    args: &TrainArgs,
    environment: &Environment,
    terminal: &Terminal,
    launched: &Launched,
) -> anyhow::Result<()> {
    let world = World::join().map_err(plan_run::told)?;
    let prepared = same_place(&world, launched)
        .map_err(anyhow::Error::from)
        .and_then(|()| prepare(args, environment, launched));
    let own = prepared.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
    let mut prepared = match (world.settle(&own).map_err(plan_run::told)?, prepared) {
        (Settled::Tell, Err(error)) => return Err(error),
        (Settled::AllWell, Ok(prepared)) => prepared,
        _ => return Err(ToldElsewhere(2).into()),
    };
    if world.rank() == 0 {
        let (ranks, source) = (world.ranks(), &launched.source);
        terminal.line(&format!("{ranks} ranks, each a process, started by {source}"));
    }
    prepared.job.stop = interrupt::requested((world.rank() == 0).then_some(*terminal));
    let rank = world.rank();
    let mut told_elsewhere = None;
    let outcome = prepared.run(args, terminal, |job, listen| {
        let outcome = processes::train(job, world, &environment.program, listen);
        told_elsewhere = outcome.as_ref().err().filter(|error| tells_elsewhere(error, rank)).map(|error| {
            // All ranks end with the same code, since a launcher passes on that of any.
            ToldElsewhere(if error.is_to_mend() { 2 } else { 1 })
        });
        outcome
    });
    match told_elsewhere {
        Some(told_elsewhere) => Err(told_elsewhere.into()),
        None => outcome,
    }
}

/// Whether another rank tells of this error: the one that failed does, and rank 0 for one that cannot and of what all find.
fn tells_elsewhere(error: &oases_train::Error, rank: usize) -> bool {
    use oases_train::Error::{Communicator, Elsewhere, NonFinite};
    match error {
        Elsewhere { .. } => true,
        Communicator { consequence: true, .. } | NonFinite { .. } => rank != 0,
        _ => false,
    }
}

/// MPI must know of the same processes as the launcher.
fn same_place(world: &World, launched: &Launched) -> Result<(), UserError> {
    if (world.rank(), world.ranks()) == (launched.rank, launched.ranks) {
        return Ok(());
    }
    let Launched { rank, ranks, source } = launched;
    Err(UserError::new(
        format!(
            "this is rank {rank} of {ranks}, from {source}, but rank {} of {} for MPI",
            world.rank(),
            world.ranks()
        ),
        "start them by the mpirun of the MPI library that the program was built with, or by srun --mpi=pmix, and without \
         --rank and --ranks",
    ))
}

fn prepare(args: &TrainArgs, environment: &Environment, launched: &Launched) -> anyhow::Result<Prepared> {
    let prepared = Prepared::new(args, environment)?;
    let parallel = &prepared.config.parallel;
    launched.expect([parallel.data, parallel.pipeline, parallel.tensor])?;
    if prepared.config.link.is_some() {
        let message = "[link] emulates a network between ranks that are threads; processes have a real one";
        return Err(
            UserError::new(message, "remove [link], or start the program once, without a launcher").into()
        );
    }
    prepared.check_memory(prepared.job.arena_bytes(), 1)?;
    Ok(prepared)
}
