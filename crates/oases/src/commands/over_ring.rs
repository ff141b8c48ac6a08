//! Costs over another link.

use oases_plan::{CollectiveTime, Costs, Error, Nanoseconds, Reach, Ring};
use oases_schedule::{Bytes, CollectiveKind, Operation};

/// The same computation over one ring: every collective takes what the ring says, whatever it belongs to, and no arithmetic.
pub struct OverRing<'a> {
    /// What computation costs.
    pub costs: Box<dyn Costs + 'a>,
    /// The link.
    pub ring: Ring,
    /// How many times longer computation takes beside a collective; 1 where instructions only last.
    pub interference: f64,
}

impl Costs for OverRing<'_> {
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error> {
        self.costs.compute(operation, sequences, tensor)
    }

    fn collective(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        Reach { ranks, .. }: Reach,
    ) -> Result<CollectiveTime, Error> {
        let what = || format!("{} of {} B over {ranks} ranks", kind.name(), bytes.0);
        let link = self.ring.duration(kind, bytes, ranks).ok_or_else(|| Error::TooLong { what: what() })?;
        Ok(CollectiveTime { link, host: Nanoseconds::ZERO })
    }

    fn interference(&self) -> f64 {
        self.interference
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::{BlockId, CollectiveId, Extent, Family};

    /// Computes for 1 ms a sequence; its own link takes 7 ms and 3 of arithmetic, and nothing for what has a name.
    struct Plain;

    impl Costs for Plain {
        fn compute(&self, _: Operation, sequences: u32, _: u32) -> Result<Nanoseconds, Error> {
            Ok(Nanoseconds(1_000_000 * u64::from(sequences)))
        }

        fn collective(&self, _: CollectiveKind, _: Bytes, _: Reach) -> Result<CollectiveTime, Error> {
            Ok(CollectiveTime { link: Nanoseconds(7_000_000), host: Nanoseconds(3_000_000) })
        }

        fn named_collective(
            &self,
            _: CollectiveId,
            _: CollectiveKind,
            _: Bytes,
            _: Reach,
        ) -> Result<CollectiveTime, Error> {
            Ok(CollectiveTime::default())
        }

        fn interference(&self) -> f64 {
            1.5
        }
    }

    #[test]
    fn a_ring_takes_the_place_of_every_link() {
        let ring = Ring { bandwidth_bytes_per_s: 1e6, latency_s: 0.0 };
        let costs = OverRing { costs: Box::new(Plain), ring, interference: 1.25 };
        let forward = Operation::Forward(Family::Attn, Extent::Output);
        assert_eq!(costs.compute(forward, 4, 2), Ok(Nanoseconds(4_000_000)));
        assert_eq!(costs.interference(), 1.25);
        // An all-reduce of 2000 B over two ranks carries 2000 B each way at 1 MB/s, the embedding's too.
        for block in [BlockId::Embed, BlockId::Attn(0)] {
            let named = CollectiveId::Replicas(block);
            let reach = Reach::neighbours(2);
            let time = costs.named_collective(named, CollectiveKind::AllReduce, Bytes(2000), reach).unwrap();
            assert_eq!(time, CollectiveTime { link: Nanoseconds(2_000_000), host: Nanoseconds::ZERO });
        }
    }
}
