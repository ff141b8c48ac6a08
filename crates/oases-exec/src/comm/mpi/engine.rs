//! The communication thread: it alone calls MPI, moves what is under way, and sleeps in between.
//!
//! MPI moves nothing by itself, and a call that blocks spins. So this thread looks, moves what can be moved, and sleeps; the kernel
//! carries on meanwhile with what it has in its buffers. While the rank computes it sleeps [`UNDER_COMPUTATION`] at a
//! time, which costs the rank next to nothing and leaves the link no gap below 10 Gbit/s; while the rank waits, much less.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::flow::Flow;
use super::letter::Word;
use super::meeting::Meetings;
use super::peers::Peers;
use super::raw::{Letter, Library, MpiError};
use super::shared::{Failure, Request, Shared, Waiting};
use super::tags;
use crate::comm::{Call, CommunicatorError};

/// Sleep while the rank computes and something is under way.
const UNDER_COMPUTATION: Duration = Duration::from_micros(300);
/// Sleep while the rank computes and nothing is under way.
const IDLE: Duration = Duration::from_millis(2);
/// Sleep while the rank waits: from a short one to a longer one, a small share of how long it has waited already.
const SHORTEST: Duration = Duration::from_micros(30);
const LONGEST: Duration = Duration::from_micros(300);
const SHARE_OF_WAIT: u32 = 20;
/// How long ranks have to end by themselves after a failure, before the whole job is ended.
const GRACE: Duration = Duration::from_secs(3);
/// How long a failing rank goes on telling the others.
const FAREWELL: Duration = Duration::from_millis(300);

/// A stream of calls that run first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stream {
    /// Collectives of groups.
    Groups,
    /// Transfers to a rank.
    To(usize),
    /// Transfers from a rank.
    From(usize),
}

impl Stream {
    /// The stream of a call, as rank `rank` sees it.
    pub(super) fn of(call: Call, rank: usize) -> Stream {
        match call {
            Call::Transfer { from, to, .. } if from == rank => Stream::To(to),
            Call::Transfer { from, .. } => Stream::From(from),
            Call::Collective { .. } | Call::Host(_) => Stream::Groups,
        }
    }
}

/// The state of the communication thread.
pub(super) struct Engine {
    library: Library,
    shared: Arc<Shared>,
    timeout: Duration,
    streams: BTreeMap<Stream, VecDeque<Flow>>,
    peers: Peers,
    meetings: Meetings,
    outbox: VecDeque<Letter>,
    inbox: VecDeque<Letter>,
    /// Room for sums, to be used again.
    scratch: Vec<Vec<f32>>,
    told_alive: Instant,
    failed_at: Option<Instant>,
}

/// A turn found out why the communicator cannot go on.
struct Stop(Failure);

impl From<MpiError> for Stop {
    fn from(error: MpiError) -> Stop {
        let failed = error.peer.unwrap_or(0);
        Stop(Failure::Peer { failed, reason: error.to_string() })
    }
}

impl Engine {
    pub(super) fn new(library: Library, shared: Arc<Shared>) -> Engine {
        let (rank, ranks) = (library.rank, library.ranks);
        let timeout = shared.lock().timeout;
        Engine {
            timeout,
            shared,
            streams: BTreeMap::new(),
            peers: Peers::new(rank, ranks),
            meetings: Meetings::new(ranks),
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            scratch: Vec::new(),
            told_alive: Instant::now(),
            failed_at: None,
            library,
        }
    }

    /// Runs until all ranks have ended, or this one has after a failure.
    pub(super) fn run(mut self) {
        loop {
            if let Err(Stop(failure)) = self.turn() {
                self.fail(failure);
            }
            if self.meetings.is_over() {
                // All ranks have come to the end; nothing is in flight but letters that nobody reads.
                return self.end_well();
            }
            if self.is_given_up() {
                // What is in flight stays so; its memory is leaked with it.
                return;
            }
            let pause = self.sleep();
            self.shared.pause(pause);
        }
    }

    fn turn(&mut self) -> Result<(), Stop> {
        let (requests, waiting) = {
            let mut state = self.shared.lock();
            self.timeout = state.timeout;
            (std::mem::take(&mut state.requests), state.waiting)
        };
        for request in requests {
            self.take(request)?;
        }
        self.read_letters()?;
        if self.failed_at.is_none() {
            self.advance()?;
            self.watch(waiting)?;
        }
        Ok(())
    }

    fn take(&mut self, request: Request) -> Result<(), Stop> {
        if self.failed_at.is_some() {
            return Ok(());
        }
        let rank = self.library.rank;
        match request {
            Request::Start { number, call, region } => {
                let members = call.group().expect("a collective has a group").ranks();
                let members: Vec<usize> = members.filter(|peer| *peer != rank).collect();
                let stream = Stream::of(call, rank);
                let mut peers = Vec::with_capacity(members.len());
                for peer in members {
                    peers.push((peer, self.peers.start(stream, peer, call).map_err(Stop)?));
                    self.send(peer, &Word::Started(call))?;
                }
                let room = self.scratch.pop().unwrap_or_default();
                let flow = Flow::new(number, call, rank, region, peers, room);
                self.streams.entry(stream).or_default().push_back(flow);
            }
            Request::Meet { meeting, value } if rank == 0 => {
                self.meetings.come(0, meeting, value).map_err(Stop)?;
            }
            Request::Meet { meeting, value } => {
                self.meetings.wait_for(meeting);
                self.send(0, &Word::Come(meeting, value))?;
            }
            Request::Fail { reason } => return Err(Stop(Failure::Peer { failed: rank, reason })),
        }
        Ok(())
    }

    fn send(&mut self, peer: usize, word: &Word) -> Result<(), MpiError> {
        let letter = Letter::send(&self.library, word.encode(), peer, tags::LETTER)?;
        self.outbox.push_back(letter);
        Ok(())
    }

    /// Letters of one peer are read in the order in which they were sent.
    fn read_letters(&mut self) -> Result<(), Stop> {
        self.library.look()?;
        while let Some((peer, bytes)) = self.library.probe(tags::LETTER)? {
            self.inbox.push_back(Letter::receive(&self.library, bytes, peer, tags::LETTER)?);
        }
        while let Some(letter) = self.outbox.front_mut() {
            if !letter.landed(&self.library) {
                break;
            }
            self.outbox.pop_front();
        }
        while let Some(letter) = self.inbox.front_mut() {
            if !letter.landed(&self.library) {
                break;
            }
            let peer = letter.peer;
            let bytes = self.inbox.pop_front().expect("it is the front").into_bytes();
            let word =
                Word::decode(&bytes).unwrap_or_else(|| Word::Failed(peer, "sent what is no word".to_owned()));
            self.hear(peer, word)?;
        }
        if let Some(answers) = self.meetings.answers().map_err(Stop)? {
            let mut answers = answers.into_iter();
            let own = answers.next().expect("rank 0 is a rank");
            for (peer, answer) in (1..).zip(answers) {
                self.send(peer, &Word::Met(answer))?;
            }
            self.met(own);
        }
        Ok(())
    }

    fn hear(&mut self, peer: usize, word: Word) -> Result<(), Stop> {
        self.peers.hear(peer);
        match word {
            Word::Started(call) => {
                let stream = Stream::of(call, self.library.rank);
                self.peers.started(stream, peer, call).map_err(Stop)?;
            }
            Word::Come(meeting, value) => self.meetings.come(peer, meeting, value).map_err(Stop)?,
            Word::Met(value) => self.met(value),
            Word::Alive(waiting_for) => self.peers.waits_for(peer, waiting_for),
            Word::Failed(failed, reason) if self.failed_at.is_none() => {
                self.failed_at = Some(Instant::now());
                self.publish(Failure::Peer { failed, reason });
            }
            Word::Failed(..) => {}
        }
        Ok(())
    }

    fn met(&mut self, value: Vec<u8>) {
        self.meetings.met();
        self.shared.lock().met = Some(value);
        self.shared.wake_rank();
    }

    /// Moves the flows of every stream; the next begins once all of the one before is in MPI's hands.
    fn advance(&mut self) -> Result<(), Stop> {
        let mut done = Vec::new();
        for (stream, flows) in &mut self.streams {
            for flow in flows.iter_mut() {
                // A send waits for its receive; collectives of groups begin at once, and what comes early waits at the receiver.
                let rendezvous = matches!(stream, Stream::To(_));
                if rendezvous && !self.peers.have_started(*stream, &flow.peers) {
                    break;
                }
                flow.advance(&self.library)?;
                if !flow.is_posted() {
                    break;
                }
            }
            while flows.front().is_some_and(|flow| flow.is_done()) {
                done.extend(flows.pop_front());
            }
        }
        if done.is_empty() {
            return Ok(());
        }
        let mut state = self.shared.lock();
        for flow in done {
            let number = flow.number;
            let (region, room) = flow.into_region();
            self.scratch.push(room);
            state.done.insert(number, region);
        }
        drop(state);
        self.shared.wake_rank();
        Ok(())
    }

    /// Tells the others that this rank lives, and looks whether they do and whether the rank has waited too long.
    fn watch(&mut self, waiting: Option<Waiting>) -> Result<(), Stop> {
        let now = Instant::now();
        if now - self.told_alive >= self.between_letters() {
            self.told_alive = now;
            let waiting_for = waiting.and_then(|waiting| self.waited_for(&waiting).first().copied());
            for peer in self.peers.others() {
                self.send(peer, &Word::Alive(waiting_for))?;
            }
        }
        self.peers
            .silent(now, self.timeout + self.between_letters())
            .map_or(Ok(()), |silent| Err(Stop(silent)))?;
        let Some(waiting) = waiting.filter(|waiting| now - waiting.since >= self.timeout) else {
            return Ok(());
        };
        let (rank, after) = (self.library.rank, self.timeout);
        let waiting_for = self.peers.to_blame(self.waited_for(&waiting));
        let error = CommunicatorError::TimedOut { rank, during: waiting.call, after, waiting_for };
        Err(Stop(Failure::Error(error)))
    }

    fn between_letters(&self) -> Duration {
        (self.timeout / 4).min(Duration::from_secs(1))
    }

    /// The ranks that keep this one waiting.
    fn waited_for(&self, waiting: &Waiting) -> Vec<usize> {
        let Some(number) = waiting.number else {
            return self.meetings.missing();
        };
        let of_number = |flows: &&VecDeque<Flow>| flows.iter().any(|flow| flow.number == number);
        let Some(stream) = self.streams.iter().find(|(_, flows)| of_number(flows)) else {
            return Vec::new();
        };
        let Some(first) = stream.1.front() else { return Vec::new() };
        match self.peers.not_started(*stream.0, &first.peers) {
            late if late.is_empty() => first.missing(),
            late => late,
        }
    }

    /// Fails the communicator on all ranks.
    fn fail(&mut self, failure: Failure) {
        if self.failed_at.is_some() {
            return;
        }
        self.failed_at = Some(Instant::now());
        let (failed, reason) = match &failure {
            Failure::Peer { failed, reason } => (*failed, reason.clone()),
            Failure::Error(error) => {
                let blamed = match error {
                    CommunicatorError::TimedOut { waiting_for, .. } => waiting_for.first().copied(),
                    _ => None,
                };
                (blamed.unwrap_or(self.library.rank), error.to_string())
            }
        };
        for peer in self.peers.others() {
            // A peer that cannot be told is gone.
            let _ = self.send(peer, &Word::Failed(failed, reason.clone()));
        }
        self.publish(failure);
    }

    fn publish(&self, failure: Failure) {
        self.shared.lock().failure.get_or_insert(failure);
        self.shared.wake_rank();
    }

    /// Whether the rank may leave after a failure. One that does not come back is ended, and all others with it.
    fn is_given_up(&mut self) -> bool {
        let Some(failed_at) = self.failed_at else { return false };
        let since = failed_at.elapsed();
        if since >= GRACE {
            self.library.abort();
        }
        let told = self.outbox.is_empty() || since >= FAREWELL;
        told && Arc::strong_count(&self.shared) == 1
    }

    fn end_well(mut self) {
        // The letter that lets the others go must have left.
        let begin = Instant::now();
        while !self.outbox.is_empty() && begin.elapsed() < GRACE {
            if self.read_letters().is_err() {
                return;
            }
        }
        // Every rank is done; what the library says now changes nothing.
        let _ = self.library.finalize();
    }

    fn sleep(&self) -> Duration {
        let waiting = self.shared.lock().waiting;
        if let Some(waiting) = waiting {
            return (waiting.since.elapsed() / SHARE_OF_WAIT).clamp(SHORTEST, LONGEST);
        }
        let under_way = self.streams.values().any(|flows| !flows.is_empty());
        let early = self.peers.are_ahead();
        if under_way || early || !self.inbox.is_empty() || !self.outbox.is_empty() {
            UNDER_COMPUTATION
        } else {
            IDLE
        }
    }
}
