//! What an instruction costs, as a question that measured and described machines answer.

use oases_schedule::{Bytes, CollectiveId, CollectiveKind, Operation};

use crate::error::Error;
use crate::time::Nanoseconds;

/// How long a collective takes, by what it takes it from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectiveTime {
    /// On the communication stream, from the moment at which all ranks have started it.
    pub link: Nanoseconds,
    /// The arithmetic that a rank does on the compute stream: inside the wait for the link where it waits, besides it
    /// where the link is done already. Nothing where the communication stream does it all, as on a GPU.
    pub host: Nanoseconds,
}

/// Answers what instructions cost. What is not known is an error, never zero.
pub trait Costs {
    /// Duration of a compute instruction on `sequences` sequences (0 for those that work on no part of the batch), on one
    /// rank of a TMP group of `tensor`.
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error>;

    /// Duration of a collective over `ranks` ranks; `bytes` is the size of each rank's whole buffer.
    fn collective(&self, kind: CollectiveKind, bytes: Bytes, ranks: u32) -> Result<CollectiveTime, Error>;

    /// Duration of this very collective of a step: that of any other of its kind and size, unless it belongs to something
    /// that costs nothing or goes elsewhere.
    fn named_collective(
        &self,
        _: CollectiveId,
        kind: CollectiveKind,
        bytes: Bytes,
        ranks: u32,
    ) -> Result<CollectiveTime, Error> {
        self.collective(kind, bytes, ranks)
    }

    /// How many times longer a compute instruction takes while a collective runs, with which it shares memory bandwidth
    /// and, on a GPU, processors; at least 1. Durations that were measured beside running collectives hold it already, so
    /// it is 1 unless a machine description says otherwise.
    fn interference(&self) -> f64 {
        1.0
    }
}
