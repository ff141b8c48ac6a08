//! When the emulated links carried what ranks had started, from the moments at which they started it: the rules of
//! [`oases_exec::comm::Link`], over times that are over.

use std::collections::{BTreeMap, VecDeque};

/// When a collective or a transfer occupied the link of a rank, in nanoseconds on the clock of the timings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnLink {
    /// Index of its `start` in the rank's schedule.
    pub start: usize,
    pub begin_ns: u64,
    pub end_ns: u64,
}

/// What the links of some ranks carried.
#[derive(Clone, Debug)]
pub struct Carried {
    /// The ranks, each with the index of its `start`.
    pub members: Vec<(usize, usize)>,
    /// Whether the first member of a transfer sends; none for a collective.
    pub sends_first: Option<bool>,
    /// When the last member had started it.
    pub since_ns: u64,
    /// When the first member had what comes of it.
    pub had_ns: u64,
    /// For how long it occupies the links; without links it is under way until the first member has it.
    pub duration_ns: Option<u64>,
}

impl Carried {
    /// The directions of links that it occupies: the outgoing one of a rank, and the incoming one.
    fn directions(&self) -> Vec<[usize; 2]> {
        let both = |&(rank, _): &(usize, usize)| [[rank, 0], [rank, 1]];
        match self.sends_first {
            None => self.members.iter().flat_map(both).collect(),
            Some(first) => {
                let members = self.members.iter().zip([first, !first]);
                members.map(|(&(rank, _), sends)| [rank, usize::from(!sends)]).collect()
            }
        }
    }

    /// The streams in whose order it comes: one of each member, or that from sender to receiver.
    fn streams(&self) -> Vec<Vec<usize>> {
        match self.sends_first {
            None => self.members.iter().map(|&(rank, _)| vec![rank]).collect(),
            Some(first) => {
                let mut ends: Vec<usize> = self.members.iter().map(|&(rank, _)| rank).collect();
                if !first {
                    ends.reverse();
                }
                vec![ends]
            }
        }
    }
}

/// When everything was on the links of each rank. It begins once it is the next of its streams, all members have started it and
/// the directions it needs are free; of what could begin at once, what has waited longest does.
pub fn replay(carried: Vec<Carried>, ranks: usize) -> Vec<Vec<OnLink>> {
    let mut streams: BTreeMap<Vec<usize>, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, one) in carried.iter().enumerate() {
        for (stream, &(_, start)) in one.streams().into_iter().zip(&one.members) {
            streams.entry(stream).or_default().push((start, index));
        }
    }
    let mut streams: BTreeMap<Vec<usize>, VecDeque<usize>> = streams
        .into_iter()
        .map(|(stream, mut starts)| {
            starts.sort_unstable();
            (stream, starts.into_iter().map(|(_, index)| index).collect())
        })
        .collect();
    let mut free_ns = vec![[0; 2]; ranks];
    let mut runs = vec![Vec::new(); ranks];
    loop {
        let fronts = streams.values().filter_map(|stream| stream.front().copied());
        let can_begin = fronts.filter_map(|index| {
            let one = &carried[index];
            let next = one.streams().iter().all(|stream| streams[stream].front() == Some(&index));
            let free = one.directions().iter().map(|&[rank, direction]| free_ns[rank][direction]).max();
            let free = free.filter(|_| one.duration_ns.is_some()).unwrap_or(0);
            next.then_some((one.since_ns.max(free), one.since_ns, index))
        });
        let Some((begin_ns, _, index)) = can_begin.min() else { break };
        let one = &carried[index];
        let end_ns = one.duration_ns.map_or(one.had_ns.max(begin_ns), |duration| begin_ns + duration);
        for [rank, direction] in one.directions() {
            free_ns[rank][direction] = end_ns;
        }
        for stream in one.streams() {
            streams.get_mut(&stream).expect("it comes in this stream").pop_front();
        }
        for &(rank, start) in &one.members {
            runs[rank].push(OnLink { start, begin_ns, end_ns });
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collective(members: &[(usize, usize)], since_ns: u64, duration_ns: u64) -> Carried {
        let had_ns = since_ns + duration_ns;
        Carried {
            members: members.to_vec(),
            sends_first: None,
            since_ns,
            had_ns,
            duration_ns: Some(duration_ns),
        }
    }

    fn transfer(ends: [(usize, usize); 2], since_ns: u64, duration_ns: u64) -> Carried {
        Carried { sends_first: Some(true), ..collective(&ends, since_ns, duration_ns) }
    }

    fn times(runs: &[OnLink]) -> Vec<(usize, u64, u64)> {
        runs.iter().map(|run| (run.start, run.begin_ns, run.end_ns)).collect()
    }

    #[test]
    fn transfers_in_both_directions_pass_each_other_and_collectives_pass_neither() {
        let runs = replay(
            vec![
                transfer([(0, 1), (1, 1)], 0, 10),
                transfer([(1, 2), (0, 2)], 4, 10),
                // Both directions of rank 0 are free at 14.
                collective(&[(0, 3), (2, 3)], 5, 10),
                // Sent after the collective, and waits for it: the outgoing direction is free from 10 to 14, but what has
                // begun first in time is carried first.
                transfer([(0, 4), (1, 4)], 12, 10),
            ],
            3,
        );
        // At 12 the transfer can begin, before the collective can.
        assert_eq!(times(&runs[0]), [(1, 0, 10), (2, 4, 14), (4, 12, 22), (3, 22, 32)]);
        assert_eq!(times(&runs[1]), [(1, 0, 10), (2, 4, 14), (4, 12, 22)]);
        assert_eq!(times(&runs[2]), [(3, 22, 32)]);
    }

    #[test]
    fn a_stream_keeps_its_order() {
        // Rank 0 starts the pair with rank 1 first, which is late.
        let runs =
            replay(vec![collective(&[(0, 5), (2, 0)], 1, 10), collective(&[(0, 4), (1, 0)], 30, 10)], 3);
        assert_eq!(times(&runs[0]), [(4, 30, 40), (5, 40, 50)]);
        assert_eq!(times(&runs[2]), [(0, 40, 50)]);
    }

    #[test]
    fn without_links_it_is_under_way_until_somebody_has_it() {
        let without = |since_ns, had_ns, start| Carried {
            duration_ns: None,
            had_ns,
            ..collective(&[(0, start), (1, start)], since_ns, 0)
        };
        let runs = replay(vec![without(10, 30, 0), without(20, 25, 1)], 2);
        assert_eq!(times(&runs[1]), [(0, 10, 30), (1, 20, 25)]);
    }
}
