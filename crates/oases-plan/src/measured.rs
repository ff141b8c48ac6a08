//! Costs from a profile.
//!
//! A size that was measured costs what was measured. A size between two measured ones is interpolated: linear in the number
//! of sequences, or of bytes. Nothing is extrapolated, and nothing that is missing counts as zero. Exact by construction,
//! and so never missing, are few things only: a collective of one rank, which does nothing; the link time of a collective over
//! a given link, which is a formula ([`Ring`]); and that a transfer has no arithmetic, and the sum of one number over the ranks
//! none worth measuring.
//!
//! Ranks were threads of one process when it was measured, so it does not matter how far apart those of a collective are.

use oases_schedule::{Bytes, CollectiveKind, Operation};

use crate::costs::{CollectiveTime, Costs, Reach};
use crate::error::Error;
use crate::link::Ring;
use crate::profile::{MeasuredCollective, MeasuredLink, Profile};
use crate::time::Nanoseconds;

/// What a profiled model costs on the machine of the profile.
#[derive(Clone, Copy, Debug)]
pub struct ProfileCosts<'a> {
    profile: &'a Profile,
    link: Option<Ring>,
}

impl<'a> ProfileCosts<'a> {
    /// Costs from a profile that has been checked; over `link`, if given, and else over that of the profile.
    pub fn new(profile: &'a Profile, link: Option<Ring>) -> ProfileCosts<'a> {
        ProfileCosts { profile, link }
    }

    /// Measured collectives of a kind over so many ranks: milliseconds by bytes.
    fn collectives(&self, kind: CollectiveKind, ranks: u32, ms: fn(&MeasuredCollective) -> f64) -> Points {
        let entries = self.profile.collective.iter();
        let entries = entries.filter(|entry| entry.operation == kind && entry.ranks == ranks);
        Points::new(entries.map(|entry| (entry.bytes, ms(entry))))
    }

    /// What there is instead of a collective that is missing.
    fn instead_of_collective(&self, kind: CollectiveKind, ranks: u32, points: &Points) -> String {
        if !points.is_empty() {
            return format!("the profile has {} B", points.sizes());
        }
        let of_kind = self.profile.collective.iter().filter(|entry| entry.operation == kind);
        let others = Points::new(of_kind.map(|entry| (u64::from(entry.ranks), 0.0)));
        match others.is_empty() {
            true => format!("the profile has no {}", kind.name()),
            false => {
                format!("the profile has no {} over {ranks} ranks, only over {}", kind.name(), others.sizes())
            }
        }
    }
}

impl Costs for ProfileCosts<'_> {
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error> {
        let of_operation = || self.profile.compute.iter().filter(|entry| entry.operation == operation);
        let of_degree = of_operation().filter(|entry| entry.tensor == tensor);
        let points = Points::new(of_degree.map(|entry| (u64::from(entry.sequences), entry.ms)));
        if let Some(ms) = points.at(u64::from(sequences)) {
            return nanoseconds(ms, || format!("`{operation}`"));
        }
        let degrees = Points::new(of_operation().map(|entry| (u64::from(entry.tensor), 0.0)));
        let measured = if !points.is_empty() {
            format!("the profile has {} sequences", points.sizes())
        } else if !degrees.is_empty() {
            format!("the profile has it at TMP degree {}", degrees.sizes())
        } else {
            "the profile has no such operation".to_owned()
        };
        let size = if operation.is_on_part() { format!(" of {sequences} sequences") } else { String::new() };
        Err(Error::NotMeasured { what: format!("`{operation}`{size} at TMP degree {tensor}"), measured })
    }

    fn collective(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        Reach { ranks, .. }: Reach,
    ) -> Result<CollectiveTime, Error> {
        if ranks <= 1 {
            return Ok(CollectiveTime::default());
        }
        let what = || format!("{} of {} B over {ranks} ranks", kind.name(), bytes.0);
        let measured = |ms| {
            let points = self.collectives(kind, ranks, ms);
            let Some(ms) = points.at(bytes.0) else {
                let measured = self.instead_of_collective(kind, ranks, &points);
                return Err(Error::NotMeasured { what: what(), measured });
            };
            nanoseconds(ms, what)
        };
        let moves = matches!(kind, CollectiveKind::Send | CollectiveKind::Recv);
        let link = match self.link.or_else(|| self.profile.link.filter(|_| moves).map(ring)) {
            Some(ring) => ring.duration(kind, bytes, ranks).ok_or_else(|| Error::TooLong { what: what() })?,
            None => measured(|entry| entry.ms)?,
        };
        // What is measured counts also where it is that little.
        let host = match measured(|entry| entry.host_ms) {
            Err(_) if moves || bytes.0 <= size_of::<f32>() as u64 => Nanoseconds::ZERO,
            host => host?,
        };
        Ok(CollectiveTime { link, host })
    }
}

fn ring(link: MeasuredLink) -> Ring {
    Ring { bandwidth_bytes_per_s: link.bandwidth_gbit_s * 1e9 / 8.0, latency_s: link.latency_us * 1e-6 }
}

fn nanoseconds(ms: f64, what: impl Fn() -> String) -> Result<Nanoseconds, Error> {
    Nanoseconds::from_seconds(ms / 1e3).ok_or_else(|| Error::TooLong { what: what() })
}

/// Measured values by size, ascending.
pub(crate) struct Points(Vec<(u64, f64)>);

impl Points {
    pub(crate) fn new(points: impl Iterator<Item = (u64, f64)>) -> Points {
        let mut points: Vec<(u64, f64)> = points.collect();
        points.sort_by_key(|(size, _)| *size);
        points.dedup_by_key(|(size, _)| *size);
        Points(points)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value at a measured size, or on the line between its two neighbours.
    pub(crate) fn at(&self, size: u64) -> Option<f64> {
        let above = self.0.partition_point(|(measured, _)| *measured < size);
        let (high, right) = *self.0.get(above)?;
        if high == size {
            return Some(right);
        }
        let (low, left) = *self.0.get(above.checked_sub(1)?)?;
        Some(left + (right - left) * (size - low) as f64 / (high - low) as f64)
    }

    /// `4, 8 and 16`
    pub(crate) fn sizes(&self) -> String {
        let sizes: Vec<String> = self.0.iter().map(|(size, _)| size.to_string()).collect();
        match sizes.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => sizes.concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{FORMAT, MeasuredCompute, Origin, Shape};
    use oases_schedule::{Extent, Family, Model};

    fn sample() -> Profile {
        let profile = Origin {
            format: FORMAT,
            backend: "cpu".to_owned(),
            machine: "test".to_owned(),
            tensor: 2,
            created: "2026-11-29".to_owned(),
        };
        let forward = Operation::Forward(Family::Attn, Extent::Output);
        let compute =
            [(forward, 2, 8, 9.0), (forward, 2, 4, 5.0), (forward, 1, 4, 11.0), (Operation::Step, 2, 0, 2.0)];
        let collective = [(4000, 1.0, 0.25), (8000, 2.0, 0.75)];
        Profile {
            profile,
            model: Shape::of("gpt", &Model::gpt(4, 192, 6, 128, 256)),
            link: None,
            compute: compute
                .map(|(operation, tensor, sequences, ms)| MeasuredCompute {
                    operation,
                    tensor,
                    sequences,
                    ms,
                    min_ms: ms,
                    samples: 1,
                })
                .to_vec(),
            collective: collective
                .map(|(bytes, ms, host_ms)| MeasuredCollective {
                    operation: CollectiveKind::AllReduce,
                    ranks: 2,
                    bytes,
                    ms,
                    host_ms,
                    samples: 1,
                })
                .to_vec(),
        }
    }

    #[test]
    fn between_two_sizes_it_is_linear_and_beyond_them_an_error() {
        let profile = sample();
        let costs = ProfileCosts::new(&profile, None);
        let forward = |sequences, tensor| {
            costs
                .compute(Operation::Forward(Family::Attn, Extent::Output), sequences, tensor)
                .map_err(|error| error.to_string())
        };
        assert_eq!(forward(4, 2), Ok(Nanoseconds(5_000_000)));
        assert_eq!(forward(5, 2), Ok(Nanoseconds(6_000_000)));
        assert_eq!(forward(8, 2), Ok(Nanoseconds(9_000_000)));
        for (sequences, tensor, message) in [
            (
                3,
                2,
                "`forward attn` of 3 sequences at TMP degree 2 was not measured; the profile has 4 and 8 sequences",
            ),
            (
                9,
                2,
                "`forward attn` of 9 sequences at TMP degree 2 was not measured; the profile has 4 and 8 sequences",
            ),
            (
                4,
                4,
                "`forward attn` of 4 sequences at TMP degree 4 was not measured; the profile has it at TMP degree 1 and 2",
            ),
        ] {
            assert_eq!(forward(sequences, tensor), Err(message.to_owned()));
        }
        let error = costs.compute(Operation::Norm, 0, 2).unwrap_err().to_string();
        assert_eq!(error, "`norm` at TMP degree 2 was not measured; the profile has no such operation");
        let reshard = "reshard backward".parse().unwrap();
        let error = costs.compute(reshard, 4, 2).unwrap_err().to_string();
        assert_eq!(
            error,
            "`reshard backward` of 4 sequences at TMP degree 2 was not measured; the profile has no such operation"
        );
        assert_eq!(costs.compute(Operation::Step, 0, 2), Ok(Nanoseconds(2_000_000)));
    }

    #[test]
    fn a_given_link_takes_the_place_of_the_measured_one_but_not_of_the_arithmetic() {
        let profile = sample();
        let reduce = |link, bytes, ranks| {
            ProfileCosts::new(&profile, link)
                .collective(CollectiveKind::AllReduce, Bytes(bytes), Reach::apart(ranks, 4))
                .map(|time| (time.link.0, time.host.0))
                .map_err(|error| error.to_string())
        };
        let link = Some(Ring { bandwidth_bytes_per_s: 1e6, latency_s: 1e-3 });
        assert_eq!(reduce(None, 6000, 2), Ok((1_500_000, 500_000)));
        // 2 · 1/2 · 6000 B at 1 MB/s and two hops of 1 ms.
        assert_eq!(reduce(link, 6000, 2), Ok((8_000_000, 500_000)));
        assert_eq!(reduce(None, 1, 1), Ok((0, 0)));
        let message = "all_reduce of 9000 B over 2 ranks was not measured; the profile has 4000 and 8000 B";
        assert_eq!(reduce(link, 9000, 2), Err(message.to_owned()));
        let message = "all_reduce of 6000 B over 4 ranks was not measured; the profile has no all_reduce over 4 ranks, \
                       only over 2";
        assert_eq!(reduce(None, 6000, 4), Err(message.to_owned()));
        let costs = ProfileCosts::new(&profile, None);
        let gather = costs.collective(CollectiveKind::AllGather, Bytes(1), Reach::neighbours(2));
        assert_eq!(
            gather.unwrap_err().to_string(),
            "all_gather of 1 B over 2 ranks was not measured; the profile has no all_gather"
        );
    }

    #[test]
    fn a_transfer_needs_a_link_and_no_measurement() {
        let mut profile = sample();
        let send = |profile: &Profile, link| {
            let reach = Reach::between([0, 1], 2, 4);
            let time = ProfileCosts::new(profile, link).collective(CollectiveKind::Send, Bytes(6000), reach);
            time.map(|time| (time.link.0, time.host.0)).map_err(|error| error.to_string())
        };
        // 6 ms at 1 MB/s and one hop.
        let link = Some(Ring { bandwidth_bytes_per_s: 1e6, latency_s: 1e-3 });
        assert_eq!(send(&profile, link), Ok((7_000_000, 0)));
        let message = "send of 6000 B over 2 ranks was not measured; the profile has no send";
        assert_eq!(send(&profile, None), Err(message.to_owned()));
        // 8 Mbit/s are 1 MB/s.
        profile.link = Some(MeasuredLink { bandwidth_gbit_s: 0.008, latency_us: 1000.0 });
        assert_eq!(send(&profile, None), Ok((7_000_000, 0)));
        // A norm over all stages, of more ranks than were measured: two ways of 3/4 of 4 B, and six hops.
        let costs = ProfileCosts::new(&profile, link);
        let norm = costs.collective(CollectiveKind::AllReduce, Bytes(4), Reach::neighbours(4));
        assert_eq!(norm.map(|time| (time.link.0, time.host.0)), Ok((6_006_000, 0)));
    }
}
