//! How ranks are arranged: the mesh of parallel axes, and the TMP degree of every block.

use std::fmt;

use crate::ids::parse_number;

/// Between which ranks of the mesh a collective runs. `axis` is always the mesh; a tensor has dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Replicas of the model that read different samples.
    Data,
    /// Consecutive stages of the chain.
    Pipeline,
    /// Shards of each block (tensor model parallelism, TMP).
    Tensor,
    /// The first and the last stage, which may share a table.
    Ends,
    /// All ranks of all stages.
    World,
}

impl Axis {
    /// All of them.
    pub const ALL: [Axis; 5] = [Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Ends, Axis::World];

    /// The spelling in the text form, after `@`.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Data => "data",
            Axis::Pipeline => "pipeline",
            Axis::Tensor => "tensor",
            Axis::Ends => "ends",
            Axis::World => "world",
        }
    }
}

/// The extents of the three axes. This is the one place that multiplies degrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Data-parallel replicas.
    pub data: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Ranks of a TMP group.
    pub tensor: u32,
}

/// Where one world rank stands on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Index on the data axis.
    pub data_rank: u32,
    /// Index on the pipeline axis.
    pub pipeline_rank: u32,
    /// Index on the tensor axis.
    pub tp_rank: u32,
}

impl Mesh {
    /// A mesh with one TMP group only.
    pub fn tensor(degree: u32) -> Mesh {
        Mesh { data: 1, pipeline: 1, tensor: degree }
    }

    /// Number of ranks.
    pub fn world_size(self) -> u32 {
        self.data * self.pipeline * self.tensor
    }

    /// Ranks of one pipeline stage: the group of its [`Layout`].
    pub fn stage_ranks(self) -> u32 {
        self.data * self.tensor
    }

    /// Ranks of a TMP group are neighbours, and so are those of a stage, so that the axes with the most traffic stay inside a
    /// host.
    pub fn coordinates(self, world_rank: u32) -> Coordinates {
        assert!(world_rank < self.world_size(), "world rank {world_rank} outside of {self:?}");
        Coordinates {
            tp_rank: world_rank % self.tensor,
            data_rank: world_rank / self.tensor % self.data,
            pipeline_rank: world_rank / self.tensor / self.data,
        }
    }

    /// The inverse of [`Mesh::coordinates`].
    pub fn world_rank(self, at: Coordinates) -> u32 {
        (at.pipeline_rank * self.data + at.data_rank) * self.tensor + at.tp_rank
    }
}

/// Which ranks of an axis a collective joins. The axis falls into groups of equal size, whose collectives of one name run
/// side by side: with 8 ranks, `size` 2 and `stride` 4, ranks 0 and 4, 1 and 5, 2 and 6, 3 and 7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grouping {
    /// All ranks of the axis.
    #[default]
    Whole,
    /// Groups of some of them.
    Cut {
        /// Ranks of a group.
        size: u32,
        /// From one rank of a group to the next.
        stride: u32,
    },
}

impl Grouping {
    /// Groups of `size` ranks, `stride` apart, of an axis of `ranks`. One spelling: a group of all is [`Grouping::Whole`].
    pub fn new(size: u32, stride: u32, ranks: u32) -> Grouping {
        if size == ranks { Grouping::Whole } else { Grouping::Cut { size, stride } }
    }

    /// Reads what stands behind the name of the axis: nothing, `:2` for neighbours in twos, `:2/4` for twos that are 4 apart.
    pub(crate) fn parse(text: &str) -> Option<Grouping> {
        let Some(cut) = text.strip_prefix(':') else { return text.is_empty().then_some(Grouping::Whole) };
        let (size, stride) = match cut.split_once('/') {
            Some((size, stride)) => (size, parse_number(stride).filter(|&stride| stride > 1)?),
            None => (cut, 1),
        };
        Some(Grouping::Cut { size: parse_number(size)?, stride })
    }

    /// Whether it cuts an axis of `ranks` into whole groups.
    pub fn fits(self, ranks: u32) -> bool {
        let Grouping::Cut { size, stride } = self else { return true };
        let span = size.checked_mul(stride);
        size > 0 && size < ranks && span.is_some_and(|span| span > 0 && ranks.is_multiple_of(span))
    }

    /// Ranks of a group.
    pub fn size(self, ranks: u32) -> u32 {
        match self {
            Grouping::Whole => ranks,
            Grouping::Cut { size, .. } => size,
        }
    }

    /// From one rank of a group to the next.
    pub fn stride(self) -> u32 {
        match self {
            Grouping::Whole => 1,
            Grouping::Cut { stride, .. } => stride,
        }
    }

    /// Number of groups.
    pub fn groups(self, ranks: u32) -> u32 {
        ranks / self.size(ranks)
    }

    /// Which group a rank belongs to, from 0.
    pub fn group_of(self, rank: u32) -> u32 {
        match self {
            Grouping::Whole => 0,
            Grouping::Cut { size, stride } => rank / (size * stride) * stride + rank % stride,
        }
    }

    /// The place of a rank in its group, from 0.
    pub fn position(self, rank: u32) -> u32 {
        match self {
            Grouping::Whole => rank,
            Grouping::Cut { size, stride } => rank / stride % size,
        }
    }

    /// The rank at a place of a group: the inverse of [`Grouping::group_of`] and [`Grouping::position`].
    pub fn member(self, group: u32, position: u32) -> u32 {
        match self {
            Grouping::Whole => position,
            Grouping::Cut { size, stride } => {
                group / stride * size * stride + position * stride + group % stride
            }
        }
    }
}

impl fmt::Display for Grouping {
    /// What stands behind the name of the axis.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grouping::Whole => Ok(()),
            Grouping::Cut { size, stride: 1 } => write!(f, ":{size}"),
            Grouping::Cut { size, stride } => write!(f, ":{size}/{stride}"),
        }
    }
}

/// The TMP degree of every block of the chain, inside a group of ranks.
///
/// A block of degree t is replicated g/t times in a group of g: neighbouring ranks share a replica, and replica r computes on
/// share r of every part of the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    group: u32,
    degrees: Vec<u32>,
}

impl Layout {
    /// The same degree for all `blocks` blocks, in a group of as many ranks.
    pub fn uniform(degree: u32, blocks: usize) -> Layout {
        Layout::new(degree, vec![degree; blocks])
    }

    /// One degree per block of the chain, in a group of `group` ranks.
    pub fn new(group: u32, degrees: Vec<u32>) -> Layout {
        assert!(group > 0 && !degrees.is_empty(), "a layout has blocks, in a group of at least one rank");
        assert!(!degrees.contains(&0), "a degree is at least 1");
        Layout { group, degrees }
    }

    /// Ranks of the group.
    pub fn group(&self) -> u32 {
        self.group
    }

    /// Degree of the block at `position` in the chain.
    pub fn degree(&self, position: usize) -> u32 {
        self.degrees[position]
    }

    /// The degrees of all blocks.
    pub fn degrees(&self) -> &[u32] {
        &self.degrees
    }

    /// The one degree of all blocks, or `None` for a mixed layout.
    pub fn uniform_degree(&self) -> Option<u32> {
        let first = self.degrees[0];
        self.degrees.iter().all(|&degree| degree == first).then_some(first)
    }

    /// What the sequences of every part must be a multiple of, so that all replicas of a block get as many. Degrees that do
    /// not divide the group, which [`Layout::check`] refuses, do not count.
    pub fn granularity(&self) -> u32 {
        let sound = self.degrees.iter().filter(|&&degree| self.group.is_multiple_of(degree));
        sound.map(|degree| self.group / degree).fold(1, least_common_multiple)
    }

    /// Ranks of a group, at most.
    pub const MAX_GROUP: u32 = 1 << 16;

    /// Why ranks cannot be arranged like this.
    pub fn check(&self) -> Result<(), String> {
        let group = self.group;
        if group > Layout::MAX_GROUP {
            return Err(format!("a group of {group} ranks is more than {}", Layout::MAX_GROUP));
        }
        if let Some(degree) = self.degrees.iter().find(|&&degree| !group.is_multiple_of(degree)) {
            return Err(format!("degree {degree} does not divide the group of {group} ranks"));
        }
        let nested = |pair: &[u32]| pair[0].max(pair[1]).is_multiple_of(pair[0].min(pair[1]));
        if let Some(pair) = self.degrees.windows(2).find(|pair| !nested(pair)) {
            return Err(format!(
                "neighbouring blocks have degrees {} and {}: one must divide the other",
                pair[0], pair[1]
            ));
        }
        if self.degrees.first() != self.degrees.last() {
            return Err("embedding and head must have one degree, since they may share a table".to_owned());
        }
        Ok(())
    }

    /// Reads the text form for a chain of `blocks` blocks: `2`, `8*16 4*10`, or `2 of 8` for a group larger than any degree.
    pub fn parse(text: &str, blocks: usize) -> Result<Layout, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (runs, group) = match words.as_slice() {
            [runs @ .., "of", group] => (runs, Some(degree(group)?)),
            runs => (runs, None),
        };
        let degrees = match runs {
            [all] if !all.contains('*') => vec![degree(all)?; blocks],
            runs => degree_runs(runs, blocks)?,
        };
        let group = group.unwrap_or_else(|| degrees.iter().copied().max().unwrap_or(1));
        Ok(Layout::new(group, degrees))
    }

    /// The degrees by runs, whatever they are: `8*16 4*10`.
    pub fn runs(&self) -> String {
        let runs = self.degrees.chunk_by(|left, right| left == right);
        let runs: Vec<String> = runs.map(|run| format!("{}*{}", run[0], run.len())).collect();
        runs.join(" ")
    }
}

impl fmt::Display for Layout {
    /// The text form, run-length coded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uniform_degree() {
            Some(degree) => write!(f, "{degree}")?,
            None => f.write_str(&self.runs())?,
        }
        let highest = self.degrees.iter().max();
        if highest == Some(&self.group) { Ok(()) } else { write!(f, " of {}", self.group) }
    }
}

fn degree(text: &str) -> Result<u32, String> {
    parse_number(text).filter(|&degree| degree > 0).ok_or_else(|| bad_run(text))
}

/// Of two divisors of one number, so that it cannot be too great for one.
fn least_common_multiple(left: u32, right: u32) -> u32 {
    let (mut divisor, mut rest) = (left, right);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    left / divisor * right
}

fn degree_runs(runs: &[&str], blocks: usize) -> Result<Vec<u32>, String> {
    let mut degrees = Vec::new();
    for run in runs {
        let (value, count) = run.split_once('*').ok_or_else(|| bad_run(run))?;
        let value = degree(value)?;
        let count = parse_number(count).filter(|&count| count > 0).ok_or_else(|| bad_run(run))? as usize;
        if count > blocks - degrees.len() {
            return Err(format!("the degrees cover more than the {blocks} blocks of the chain"));
        }
        degrees.extend(std::iter::repeat_n(value, count));
    }
    match degrees.len() == blocks {
        true => Ok(degrees),
        false => Err(format!("the degrees cover {} of the {blocks} blocks of the chain", degrees.len())),
    }
}

fn bad_run(run: &str) -> String {
    format!("`{run}` is not a TMP degree (like 2, or 8*16 for 16 blocks of degree 8)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_partition_the_axis() {
        for ranks in [1, 2, 4, 8, 12] {
            let cuts = (1..=ranks).flat_map(|size| (1..=ranks).map(move |stride| (size, stride)));
            for grouping in cuts.map(|(size, stride)| Grouping::new(size, stride, ranks)) {
                if !grouping.fits(ranks) {
                    continue;
                }
                let mut seen = vec![0; ranks as usize];
                for group in 0..grouping.groups(ranks) {
                    for position in 0..grouping.size(ranks) {
                        let rank = grouping.member(group, position);
                        seen[rank as usize] += 1;
                        assert_eq!((grouping.group_of(rank), grouping.position(rank)), (group, position));
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{grouping:?} over {ranks}");
            }
        }
        let far = Grouping::Cut { size: 2, stride: 4 };
        assert_eq!([0, 1].map(|position| far.member(3, position)), [3, 7]);
        assert!(
            !Grouping::Cut { size: 3, stride: 1 }.fits(8) && !Grouping::Cut { size: 2, stride: 8 }.fits(8)
        );
    }

    #[test]
    fn parts_can_be_shared_by_the_replicas_of_every_block() {
        // 3, 1 and 2 replicas; 4, 1 and 2.
        for (text, granularity) in [("2*1 6*1 3*1 6*1 2*1", 6), ("2*1 8*1 4*3", 4), ("2 of 8", 4), ("8", 1)] {
            assert_eq!(Layout::parse(text, 5).unwrap().granularity(), granularity, "{text}");
        }
    }

    #[test]
    fn every_world_rank_has_its_own_coordinates() {
        let mesh = Mesh { data: 2, pipeline: 3, tensor: 4 };
        assert_eq!(mesh.world_size(), 24);
        for world_rank in 0..24 {
            assert_eq!(mesh.world_rank(mesh.coordinates(world_rank)), world_rank);
        }
        let neighbours: Vec<u32> = (4..8).map(|rank| mesh.coordinates(rank).tp_rank).collect();
        assert_eq!(neighbours, [0, 1, 2, 3]);
        assert_eq!(mesh.coordinates(4), Coordinates { data_rank: 1, pipeline_rank: 0, tp_rank: 0 });
        assert_eq!(mesh.coordinates(8).pipeline_rank, 1);
    }
}
