//! Runs one rank of a run whose ranks are processes, on one host or many, joined by MPI.
//!
//! Every process prepares the same job and finds out first whether the others have. Rank 0 opens the run folder and tells the others
//! where the run stands; they look whether they see the same folder, since all ranks write checkpoints.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use oases_exec::Timing;
use oases_exec::comm::mpi::{MpiCommunicator, MpiHostGroup, join};
use oases_exec::comm::{Communicator, HostGroup};
use oases_schedule::Bytes;

use super::{Course, Message, Opened, Outcome, follow, new_arena, run_rank};
use crate::agreement::{all_succeed, same_facts};
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::job::Job;
use crate::rank::RankReport;
use crate::run_dir::{RunDir, RunPaths};

/// How long a rank may keep the others waiting before the configuration says so.
const BEFORE_THE_CONFIGURATION: Duration = Duration::from_secs(60);

/// What the ranks are doing when they cannot agree on where the run stands.
const OPENING: &str = "opening the run folder";

/// This process's place among those that it was started with.
#[derive(Debug)]
pub struct World {
    communicator: MpiCommunicator,
    host: MpiHostGroup,
}

/// Who tells the user of errors before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// No rank has an error.
    AllWell,
    /// This rank tells its own.
    Tell,
    /// Another rank tells.
    BeQuiet,
}

impl World {
    /// Joins the processes that this one was started with. Once per process.
    pub fn join() -> Result<World> {
        let communicator = join(BEFORE_THE_CONFIGURATION).map_err(|error| {
            Error::configuration(error.to_string())
                .with_hint("start the program by mpirun, or by srun --mpi=pmix")
        })?;
        let host = communicator.host_group();
        Ok(World { communicator, host })
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// The number of processes.
    pub fn ranks(&self) -> usize {
        self.communicator.ranks()
    }

    /// Sees to it that an error that all ranks have is told once. `own` is this rank's, or empty; all ranks call this.
    pub fn settle(&self, own: &str) -> Result<Settled> {
        let lost = |error| Error::communicator(&error, " (start)");
        let all = self.host.gather(own.as_bytes().to_vec()).map_err(lost)?;
        let verdict = all.map(|all| {
            let well = all.iter().all(Vec::is_empty);
            [&[u8::from(well)], all[0].as_slice()].concat()
        });
        let verdict = self.host.broadcast(verdict).map_err(lost)?;
        let (well, of_rank_0) = (verdict[0] == 1, &verdict[1..]);
        Ok(match own.is_empty() {
            _ if well => Settled::AllWell,
            false if self.rank() == 0 || of_rank_0 != own.as_bytes() => Settled::Tell,
            _ => Settled::BeQuiet,
        })
    }
}

/// Trains as one rank of `world`. `program` is the file that runs here, which must be the same everywhere; `listen` is told what happens, on rank 0.
pub fn train(job: Job, world: World, program: &Path, listen: &mut dyn FnMut(&Event)) -> Result<Outcome> {
    let World { communicator, host } = world;
    let rank = communicator.rank();
    assert_eq!(communicator.ranks(), job.options.ranks() as usize, "the caller has compared them");
    host.set_timeout(job.options.timeout);
    let program = all_succeed(&host, file_digest(program), "comparing the ranks")?;
    same_facts(&host, &job.facts(program)?)?;
    share_folder(&host, &job)?;
    let opened = if rank == 0 { Opened::new(&job).map(Some) } else { Ok(None) };
    let opened = all_succeed(&host, opened, OPENING)?;
    let checkpoint = same_checkpoint(&host, &job, opened.as_ref())?;
    let arena = all_succeed(&host, new_arena(job.place_of(rank as u32).0.arena_bytes()), "taking memory")?;

    let job = Arc::new(job);
    let (messages, inbox) = channel();
    let (mut course, mut chronicle) = (Course::default(), None);
    let mut checkpoints = Checkpoints::view(RunPaths::new(&job.options.dir).checkpoints());
    if let Some(opened) = &opened {
        opened.tell(listen);
        course = opened.course()?;
        chronicle = Some(opened.chronicle(&messages)?);
        checkpoints = opened.folder.checkpoints()?;
    }
    let rank_host = communicator.host_group();
    host.barrier().map_err(|error| Error::communicator(&error, " (start)"))?;
    let began = Instant::now();
    let body = {
        let job = Arc::clone(&job);
        move || {
            let ends = (communicator, rank_host);
            let ended = run_rank(&job, arena, ends, began, (checkpoints, chronicle), checkpoint.as_deref());
            let reports = ended.and_then(|report| gather_reports(&host, report));
            if let Err(error) = &reports
                && !error.is_consequence()
            {
                host.abort(&error.to_string());
            }
            // All others have been told before anyone here is: what follows may end the process.
            drop(host);
            match reports {
                Ok(reports) => reports.into_iter().for_each(|report| {
                    let _ = messages.send(Message::Ended(Ok(report)));
                }),
                Err(error) => drop(messages.send(Message::Ended(Err(error)))),
            }
        }
    };
    thread::Builder::new()
        .name(format!("rank {rank}"))
        .spawn(body)
        .map_err(|error| Error::rank(rank, format!("cannot start its thread: {error}")))?;
    let awaited = if rank == 0 { job.options.ranks() as usize } else { 1 };
    let reports = follow(&inbox, awaited, &mut course, listen)?;
    match opened {
        Some(opened) => opened.finish(&job, &course, reports, began.elapsed(), listen),
        None => Ok(Outcome::ToldByRankZero),
    }
}

fn file_digest(path: &Path) -> Result<u64> {
    let failed = |source| Error::input_output("read", path, source);
    let mut file = File::open(path).map_err(failed)?;
    let (mut digest, mut room) = (Digest::default(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut room).map_err(failed)?;
        if read == 0 {
            return Ok(digest.finish());
        }
        digest = digest.bytes(&room[..read]);
    }
}

/// Finds out whether all ranks write to one run folder: each must see what rank 0 writes there for a moment, and can write
/// itself. Leaves the folder as it was, but for a new one where all is well.
fn share_folder(host: &MpiHostGroup, job: &Job) -> Result<()> {
    let root = job.options.dir.as_path();
    let mark = root.join(".seen-by-all-ranks");
    let lost = |error| Error::communicator(&error, &format!(" ({OPENING})"));
    let is_new = !root.exists();
    let written = match host.rank() {
        0 => write_mark(job, &mark).map(Some),
        _ => Ok(None),
    };
    let written = all_succeed(host, written, OPENING);
    let seen = written.and_then(|token| {
        let token = host.broadcast(token).map_err(lost)?;
        let own = root.join(format!(".seen-by-rank-{}", host.rank()));
        let seen = match fs::read(&mark) {
            Ok(seen) if seen == token => fs::write(&own, &token).and_then(|()| fs::remove_file(&own)),
            _ => return all_succeed(host, Err(not_shared(host.rank(), root)), OPENING),
        };
        let seen = seen.map_err(|source| Error::input_output("write to the run folder", root, source));
        all_succeed(host, seen, OPENING)
    });
    if host.rank() == 0 {
        // What stays behind does no harm.
        let _ = fs::remove_file(&mark);
        if is_new && seen.is_err() {
            let _ = fs::remove_dir(root);
        }
    }
    seen
}

/// Writes what nobody else can have written.
fn write_mark(job: &Job, mark: &Path) -> Result<Vec<u8>> {
    let root = job.options.dir.as_path();
    if job.options.resume {
        RunDir::resume(root)?;
    } else {
        fs::create_dir_all(root)
            .map_err(|source| Error::input_output("create the run folder", root, source))?;
    }
    let token = token();
    let written = fs::write(mark, &token);
    written.map(|()| token).map_err(|source| Error::input_output("write to the run folder", root, source))
}

/// Tells all ranks which checkpoint rank 0 goes on from.
fn same_checkpoint(
    host: &MpiHostGroup,
    job: &Job,
    opened: Option<&Opened>,
) -> Result<Option<Arc<Checkpoint>>> {
    let lost = |error| Error::communicator(&error, &format!(" ({OPENING})"));
    let step = opened.map(|opened| opened.checkpoint.as_ref().map_or(u64::MAX, |_| opened.step));
    let step = host.broadcast(step.map(|step| step.to_le_bytes().to_vec())).map_err(lost)?;
    let step = u64::from_le_bytes(step.try_into().expect("the eight bytes of a number"));
    let checkpoint = match opened {
        Some(opened) => Ok(opened.checkpoint.clone()),
        None if step == u64::MAX => Ok(None),
        None => {
            let path = Checkpoints::view(RunPaths::new(&job.options.dir).checkpoints()).path(step);
            Checkpoint::open(&path).map(|checkpoint| Some(Arc::new(checkpoint)))
        }
    };
    all_succeed(host, checkpoint, OPENING)
}

fn not_shared(rank: usize, folder: &Path) -> Error {
    let message =
        format!("rank {rank} does not see the run folder {} that rank 0 writes to", folder.display());
    Error::configuration(message)
        .with_hint("all ranks write checkpoints: put run.dir on a file system that all hosts share")
}

/// Bytes that no other run has written.
fn token() -> Vec<u8> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{} {}", process::id(), now.as_nanos()).into_bytes()
}

/// On rank 0 the reports of all ranks, on the others its own.
fn gather_reports(host: &MpiHostGroup, own: RankReport) -> Result<Vec<RankReport>> {
    let numbers = [own.arena_used.0, own.done].into_iter();
    let timings = own.timings.iter().flat_map(|timing| [timing.start_ns, timing.end_ns]);
    let bytes = numbers.chain(timings).flat_map(u64::to_le_bytes).collect();
    let all = host.gather(bytes).map_err(|error| Error::communicator(&error, " (end)"))?;
    let Some(all) = all else { return Ok(vec![own]) };
    let report = |(rank, bytes): (u32, Vec<u8>)| {
        let numbers: Vec<u64> = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let timing = |pair: &[u64; 2]| Timing { start_ns: pair[0], end_ns: pair[1] };
        RankReport {
            rank,
            arena_used: Bytes(numbers[0]),
            done: numbers[1],
            timings: numbers[2..].as_chunks().0.iter().map(timing).collect(),
        }
    };
    Ok((0..).zip(all).map(report).collect())
}
