//! What goes from one pipeline stage to another.

use std::collections::BTreeMap;

use super::algebra::Rows;

/// One queue for each direction between two stages, and one for what all stages of a kind join. What arrives is what was sent in
/// that place of the queue, whatever it is called at either end.
pub(super) struct Wire {
    stages: usize,
    sent: BTreeMap<(usize, usize), Vec<Rows>>,
    /// Receives that were started.
    wanted: BTreeMap<(usize, usize), usize>,
    /// What each of the stages that join has contributed.
    joined: BTreeMap<(Vec<usize>, usize), Vec<Rows>>,
}

impl Wire {
    pub(super) fn new(stages: usize) -> Wire {
        Wire { stages, sent: BTreeMap::new(), wanted: BTreeMap::new(), joined: BTreeMap::new() }
    }

    /// All stages, or the first and the last.
    pub(super) fn members(&self, all: bool) -> Vec<usize> {
        if all { (0..self.stages).collect() } else { vec![0, self.stages - 1] }
    }

    /// The place of what is sent in its queue.
    pub(super) fn send(&mut self, from: usize, to: usize, rows: Rows) -> usize {
        let queue = self.sent.entry((from, to)).or_default();
        queue.push(rows);
        queue.len() - 1
    }

    pub(super) fn receive(&mut self, from: usize, to: usize) -> usize {
        let wanted = self.wanted.entry((from, to)).or_default();
        *wanted += 1;
        *wanted - 1
    }

    /// What has arrived at a place of a queue, where both ends have started it.
    pub(super) fn arrived(&self, from: usize, to: usize, place: usize) -> Option<&Rows> {
        let wanted = self.wanted.get(&(from, to)).is_some_and(|&wanted| wanted > place);
        self.sent.get(&(from, to))?.get(place).filter(|_| wanted)
    }

    pub(super) fn join(&mut self, members: Vec<usize>, stage: usize, rows: Rows) -> usize {
        let queue = self.joined.entry((members, stage)).or_default();
        queue.push(rows);
        queue.len() - 1
    }

    /// What all members have contributed at a place of their queues.
    pub(super) fn joined(&self, members: &[usize], place: usize) -> Option<Vec<&Rows>> {
        members.iter().map(|&stage| self.joined.get(&(members.to_vec(), stage))?.get(place)).collect()
    }
}
