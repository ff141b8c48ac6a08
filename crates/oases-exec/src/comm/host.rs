//! The control plane of a group: small values of the host, sent between the same ranks as the collectives.

use std::fmt;

use super::CommunicatorError;

/// One rank's end of a group for values of the host. All ranks make the same calls in the same order, and
/// each call returns once every rank has made it.
pub trait HostGroup {
    /// This rank's number in the group, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks in the group.
    fn ranks(&self) -> usize;

    /// Sends `bytes` to rank 0, which gets those of all ranks in rank order; the others get `None`.
    fn gather(&self, bytes: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, CommunicatorError>;

    /// Returns rank 0's bytes on every rank. What the others pass is ignored.
    ///
    /// # Panics
    /// If rank 0 passes `None`.
    fn broadcast(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, CommunicatorError>;

    /// Returns once every rank has called it.
    fn barrier(&self) -> Result<(), CommunicatorError>;
}

/// Which call of a [`HostGroup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOperation {
    /// [`HostGroup::gather`]
    Gather,
    /// [`HostGroup::broadcast`]
    Broadcast,
    /// [`HostGroup::barrier`]
    Barrier,
}

impl fmt::Display for HostOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HostOperation::Gather => "host gather",
            HostOperation::Broadcast => "host broadcast",
            HostOperation::Barrier => "host barrier",
        })
    }
}
