//! What a prediction is: when each instruction runs on the compute stream, each collective on the communication stream.

use oases_schedule::{Bytes, CollectiveId, CollectiveKind};

use crate::time::{Interval, Nanoseconds};

/// A collective of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveRun {
    /// Its name.
    pub collective: CollectiveId,
    /// What it does.
    pub kind: CollectiveKind,
    /// Bytes of each rank's whole buffer.
    pub bytes: Bytes,
    /// Index of the `start` in the schedule.
    pub start_instruction: usize,
    /// Index of the `sync` in the schedule.
    pub sync_instruction: usize,
    /// When it occupies the communication stream.
    pub on_link: Interval,
}

/// A step of one rank on its two streams, which stands for all ranks of a TMP group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Name of the schedule.
    pub schedule: String,
    /// When each instruction occupies the compute stream: what it computes, or for a `sync` how long it waits. A `start`
    /// takes no time.
    pub instructions: Vec<Interval>,
    /// The collectives, in the order in which they start.
    pub collectives: Vec<CollectiveRun>,
    /// The whole step.
    pub step: Nanoseconds,
    /// Sum of what all compute instructions take, with what collectives that run beside them slow them down.
    pub compute: Nanoseconds,
    /// Sum of all collectives on the communication stream.
    pub communication: Nanoseconds,
    /// Sum of what the `sync`s take: waits for the link, and arithmetic of collectives on the compute stream. It is the
    /// step without its computation.
    pub exposed: Nanoseconds,
    /// Sequences of the step.
    pub sequences: u32,
    /// The exact peak of one rank's arena.
    pub arena_bytes: Bytes,
}

impl Timeline {
    /// Share of the step in which the compute stream computes: the "device utilisation" of Li et al., arXiv 2305.16121.
    pub fn compute_utilisation(&self) -> f64 {
        self.compute.share_of(self.step)
    }

    /// Share of the step in which the communication stream is busy.
    pub fn communication_utilisation(&self) -> f64 {
        self.communication.share_of(self.step)
    }

    /// Share of the step in which the compute stream waits for communication, or does its arithmetic.
    pub fn exposed_share(&self) -> f64 {
        self.exposed.share_of(self.step)
    }

    /// Tokens of a second of training, with `sequence` tokens in a sequence.
    pub fn tokens_per_s(&self, sequence: usize) -> f64 {
        let tokens = f64::from(self.sequences) * sequence as f64;
        if self.step == Nanoseconds::ZERO { 0.0 } else { tokens / self.step.seconds() }
    }
}

/// The least time in which a schedule's own instructions could be done, if neither stream ever waited for the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Sum of all compute instructions.
    pub compute: Nanoseconds,
    /// Sum of the link times of all collectives.
    pub communication: Nanoseconds,
}

impl Bound {
    /// The longer of the two streams: no order of these instructions can be faster.
    pub fn step(self) -> Nanoseconds {
        self.compute.max(self.communication)
    }
}
