//! Where a rank stands in its world: the ranks that its collectives join, and what both ends know them by.

use oases_schedule::{Axis, CollectiveId, Grouping, Pass, Schedule};

use crate::comm::{Group, Tag};

/// A rank's place in a world of pipeline stages, each of as many neighbouring ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The schedule of its stage.
    pub schedule: &'a Schedule,
    /// Rank in the group of its stage, from 0.
    pub tp_rank: u32,
}

impl Place<'_> {
    /// The ranks of a collective.
    pub(crate) fn group(self, collective: CollectiveId, axis: Axis, grouping: Grouping) -> Group {
        let (stage, ranks) = (&self.schedule.stage, self.schedule.layout.group());
        let stages = stage.stages.count();
        let own = |stage: u32| stage * ranks + self.tp_rank;
        match axis {
            Axis::Data | Axis::Tensor => Group::of_stage(stage.index * ranks, ranks, grouping, self.tp_rank),
            Axis::Pipeline => Group::pair(own(stage.index), own(self.other_stage(collective))),
            Axis::Ends => Group::pair(own(0), own(stages - 1)),
            Axis::World => Group { first: 0, size: stages * ranks, stride: 1 },
        }
    }

    /// The stage at the other end of a transfer.
    fn other_stage(self, transfer: CollectiveId) -> u32 {
        let CollectiveId::Transfer { block, .. } = transfer else {
            unreachable!("the verifier refuses `{transfer}` between two stages")
        };
        let position = self.schedule.position(block).expect("a block of the chain");
        let stages = &self.schedule.stage.stages;
        let [before, after] = [position - 1, position].map(|position| stages.stage_of(position));
        if before == self.schedule.stage.index { after } else { before }
    }

    /// The tag of a collective: the index of its instruction, or what is the same on different stages where these meet.
    pub(crate) fn tag(self, collective: CollectiveId, axis: Axis, index: usize) -> Tag {
        let code = match (axis, collective) {
            (Axis::Data | Axis::Tensor, _) => index,
            (_, CollectiveId::Transfer { pass, block, part }) => {
                let blocks = Schedule::blocks(self.schedule.layers);
                let position = self.schedule.position(block).expect("a block of the chain");
                let part = self.schedule.parts.iter().position(|known| known.id == part);
                2 * (part.expect("a part of the batch") * blocks + position)
                    + usize::from(pass == Pass::Backward)
            }
            // The only ones of their groups.
            _ => 0,
        };
        Tag(code as u32)
    }
}

#[cfg(test)]
mod tests {
    use oases_schedule::{BlockId, Part};

    use super::*;

    /// The header of a stage, of three with 4 ranks and two chunks each.
    fn schedule(index: u32) -> Schedule {
        let chunks = "embed mlp.0 attn.1 mlp.1 attn.2 mlp.2";
        let pipeline = format!("pipeline {index} of 3 tied: {chunks}");
        Schedule::parse(&format!("schedule x\nlayers 3\ntensor 4\n{pipeline}\nparts m0.a=4 m0.b=4\n"))
            .unwrap()
    }

    #[test]
    fn a_rank_finds_the_ranks_of_its_collectives() {
        let schedules = [0, 1, 2].map(schedule);
        let group = |stage: usize, collective: CollectiveId, axis, grouping| {
            let group = Place { schedule: &schedules[stage], tp_rank: 2 }.group(collective, axis, grouping);
            group.ranks().collect::<Vec<_>>()
        };
        // Rank 6 of the world, the third of the second stage.
        let twos = |stride| Grouping::Cut { size: 2, stride };
        let replicas = CollectiveId::Replicas(BlockId::Mlp(0));
        assert_eq!(group(1, replicas, Axis::Data, Grouping::Whole), [4, 5, 6, 7]);
        assert_eq!(group(1, replicas, Axis::Data, twos(1)), [6, 7]);
        assert_eq!(group(1, replicas, Axis::Tensor, twos(2)), [4, 6]);
        assert_eq!(group(0, CollectiveId::Table, Axis::Ends, Grouping::Whole), [2, 10]);
        assert_eq!(group(2, CollectiveId::Table, Axis::Ends, Grouping::Whole), [2, 10]);
        assert_eq!(group(1, CollectiveId::Norm, Axis::World, Grouping::Whole), (0..12).collect::<Vec<_>>());
        let part = schedules[0].parts[0].id;
        let transfer = |block| CollectiveId::Transfer { pass: Pass::Forward, block, part };
        let between = |stage, block| group(stage, transfer(block), Axis::Pipeline, Grouping::Whole);
        assert_eq!([0, 1].map(|stage| between(stage, BlockId::Mlp(0))), [[2, 6], [2, 6]]);
        assert_eq!(between(1, BlockId::Attn(1)), [6, 10]);
        // From the last stage round to the first.
        assert_eq!([2, 0].map(|stage| between(stage, BlockId::Mlp(1))), [[2, 10], [2, 10]]);
    }

    #[test]
    fn both_ends_know_a_transfer_by_one_tag() {
        let schedules = [0, 1, 2].map(schedule);
        let parts: Vec<_> = schedules[0].parts.iter().map(|Part { id, .. }| *id).collect();
        let mut seen = Vec::new();
        for pass in [Pass::Forward, Pass::Backward] {
            for part in &parts {
                for block in [BlockId::Mlp(0), BlockId::Attn(1), BlockId::Mlp(1)] {
                    let transfer = CollectiveId::Transfer { pass, block, part: *part };
                    let tags = [0, 1, 2].map(|stage: usize| {
                        Place { schedule: &schedules[stage], tp_rank: 0 }.tag(transfer, Axis::Pipeline, stage)
                    });
                    assert!(tags[0] == tags[1] && tags[1] == tags[2] && !seen.contains(&tags[0]));
                    seen.push(tags[0]);
                }
            }
        }
    }
}
