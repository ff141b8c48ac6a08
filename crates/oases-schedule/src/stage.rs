//! How the chain of blocks is cut over pipeline stages.

mod balance;

use std::ops::Range;

use crate::ids::BlockId;

/// The chain in consecutive chunks: chunk c runs on stage c modulo the number of stages. One chunk per stage is a plain
/// pipeline, several are interleaved stages (Narayanan et al., arXiv 2104.04473, section 2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    count: u32,
    /// Position in the chain of the first block of each chunk.
    starts: Vec<usize>,
    tied: bool,
}

impl Stages {
    /// A single stage, which runs all blocks.
    pub fn single() -> Stages {
        Stages { count: 1, starts: vec![0], tied: true }
    }

    /// `count` stages, with chunks that begin at these positions of the chain. `tied`: the head uses the embedding's table, which the
    /// first and the last stage then both hold.
    pub fn new(count: u32, starts: Vec<usize>, tied: bool) -> Stages {
        Stages { count, starts, tied }
    }

    /// Number of stages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Position of the first block of each chunk.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Whether the head uses the embedding's table.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.starts.len()
    }

    /// Chunks of each stage.
    pub fn chunks_per_stage(&self) -> usize {
        self.starts.len() / self.count as usize
    }

    /// The chunk that a position of the chain belongs to.
    pub fn chunk_of(&self, position: usize) -> usize {
        self.starts.partition_point(|&start| start <= position) - 1
    }

    /// The stage that runs a position of the chain.
    pub fn stage_of(&self, position: usize) -> u32 {
        (self.chunk_of(position) % self.count as usize) as u32
    }

    /// The positions of a chunk, in a chain of `blocks` blocks.
    pub fn range(&self, chunk: usize, blocks: usize) -> Range<usize> {
        self.starts[chunk]..self.starts.get(chunk + 1).copied().unwrap_or(blocks)
    }

    /// Whether the chain crosses to another stage before this position.
    pub fn crosses(&self, position: usize) -> bool {
        self.count > 1 && position > 0 && self.starts.binary_search(&position).is_ok()
    }

    /// Why a chain of `blocks` blocks cannot be cut like this.
    pub fn check(&self, blocks: usize) -> Result<(), String> {
        let Stages { count, starts, .. } = self;
        if *count == 0 || starts.is_empty() || !starts.len().is_multiple_of(*count as usize) {
            return Err(format!("{} chunks cannot be dealt out to {count} stages", starts.len()));
        }
        if *count == 1 && starts.len() > 1 {
            return Err("a single stage is one chunk".to_owned());
        }
        if starts[0] != 0 || !starts.is_sorted_by(|left, right| left < right) {
            return Err("chunks begin with the embedding and follow each other along the chain".to_owned());
        }
        match starts.last() {
            Some(&last) if last >= blocks => Err("a chunk has at least one block".to_owned()),
            _ => Ok(()),
        }
    }
}

/// One stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// All stages.
    pub stages: Stages,
    /// Which one, from 0.
    pub index: u32,
}

impl Stage {
    /// The single stage of a run without pipeline.
    pub fn whole() -> Stage {
        Stage { stages: Stages::single(), index: 0 }
    }

    /// Whether this stage runs the block at a position of the chain.
    pub fn runs(&self, position: usize) -> bool {
        self.stages.stage_of(position) == self.index
    }

    /// The chunks of this stage, in the order of the chain.
    pub fn chunks(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (self.index as usize..self.stages.chunks()).step_by(self.stages.count as usize)
    }

    /// Whether embedding and head run on different stages, of which this is one, and share a table.
    pub fn shares_table(&self) -> bool {
        let last = self.stages.count - 1;
        self.stages.tied && last > 0 && (self.index == 0 || self.index == last)
    }

    /// The text form: `1 of 2 tied: embed attn.2`.
    pub(crate) fn text(&self, layers: u32) -> String {
        let starts: Vec<String> =
            self.stages.starts.iter().map(|&start| BlockId::at(start, layers).to_string()).collect();
        let tied = if self.stages.tied { " tied" } else { "" };
        format!("{} of {}{tied}: {}", self.index, self.stages.count, starts.join(" "))
    }

    /// Reads the text form.
    pub(crate) fn parse(text: &str, layers: u32) -> Option<Stage> {
        let (place, starts) = text.split_once(':')?;
        let (index, count, tied) = match place.split_whitespace().collect::<Vec<_>>().as_slice() {
            [index, "of", count] => {
                (crate::ids::parse_number(index)?, crate::ids::parse_number(count)?, false)
            }
            [index, "of", count, "tied"] => {
                (crate::ids::parse_number(index)?, crate::ids::parse_number(count)?, true)
            }
            _ => return None,
        };
        let starts = starts.split_whitespace().map(|block| block.parse::<BlockId>().ok()?.position(layers));
        Some(Stage { stages: Stages::new(count, starts.collect::<Option<_>>()?, tied), index })
    }
}

/// Where the optimizer's moments are, of blocks with replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optimizer {
    /// All on every replica.
    #[default]
    Whole,
    /// Cut over the replicas: ZeRO stage 1 (Rajbhandari et al., arXiv 1910.02054).
    Sharded,
}
