//! `[parallel]`: over how many ranks a run is spread along each axis, and what each of them has of the chain of blocks.

use oases_schedule::{BlockId, Extent, Layout, Model, Operation, Optimizer, Order, Schedule, Stages};

use super::reader::Reader;
use super::rules::counted;

/// Over how many ranks the run is spread, by axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParallelConfig {
    /// Replicas of the model.
    pub data: usize,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Ranks of a tensor-parallel group.
    pub tensor: usize,
    /// The TMP degree of every block, as [`Layout::parse`] reads it; empty where it is `tensor` for all.
    pub degrees: String,
    /// Pieces of the chain on each stage.
    pub chunks: usize,
    /// One of [`super::keys::ORDERS`].
    pub order: String,
    /// The first block of each piece of the chain; empty where they are balanced.
    pub stages: String,
    /// Stage of ZeRO, 0 or 1.
    pub zero: usize,
}

impl ParallelConfig {
    pub(super) fn read(reader: &mut Reader<'_>) -> ParallelConfig {
        ParallelConfig {
            data: reader.size("parallel.data"),
            pipeline: reader.size("parallel.pipeline"),
            tensor: reader.size("parallel.tensor"),
            degrees: reader.degrees("parallel.degrees"),
            chunks: reader.size("parallel.chunks"),
            order: reader.word("parallel.order"),
            stages: reader.blocks("parallel.stages"),
            zero: reader.size("parallel.zero"),
        }
    }

    /// In which order a stage takes its micro-batches.
    pub fn order(&self) -> Order {
        if self.order == "zero-bubble" { Order::ZeroBubble } else { Order::OneForwardOneBackward }
    }

    /// Where the moments of blocks with replicas are.
    pub fn optimizer(&self) -> Optimizer {
        if self.zero == 1 { Optimizer::Sharded } else { Optimizer::Whole }
    }

    /// Ranks of a pipeline stage.
    pub fn group(&self) -> usize {
        self.data * self.tensor
    }

    /// Ranks of all stages.
    pub fn ranks(&self) -> usize {
        self.pipeline * self.group()
    }

    /// The TMP degree of every block of so many layers, in the group of a stage. Fails where `degrees` cannot be read; whether
    /// ranks can be arranged so is not asked.
    pub fn layout(&self, layers: usize) -> Result<Layout, String> {
        let (ranks, blocks) = (self.group() as u32, Schedule::blocks(layers as u32));
        if self.degrees.is_empty() {
            return Ok(Layout::new(ranks, vec![self.tensor as u32; blocks]));
        }
        if self.degrees.split(' ').any(|word| word == "of") {
            return Err("the number of ranks is that of `parallel.tensor`".to_owned());
        }
        let read = Layout::parse(&self.degrees, blocks)?;
        Ok(Layout::new(ranks, read.degrees().to_vec()))
    }

    /// The pieces of the chain of `model`. Fails where `stages` cannot be read or the chain cannot be cut so.
    pub fn stages(&self, model: &Model) -> Result<Stages, String> {
        let blocks = Schedule::blocks(model.layers);
        let pieces = self.pipeline * self.chunks;
        if pieces > blocks {
            return Err(format!("{blocks} blocks cannot be cut into {pieces} pieces"));
        }
        if self.stages.is_empty() {
            let (stages, chunks) = (self.pipeline as u32, self.chunks as u32);
            return Ok(Stages::balanced(&flops(model), stages, chunks, model.tied));
        }
        let position = |word: &str| {
            let block: BlockId = word.parse()?;
            block.position(model.layers).ok_or_else(|| format!("there is no block {block}"))
        };
        let starts: Vec<usize> = self.stages.split(' ').map(position).collect::<Result<_, String>>()?;
        if starts.len() != pieces {
            let (blocks, pieces) = (counted(starts.len(), "block"), counted(pieces, "piece"));
            return Err(format!("it names {blocks} for {pieces} of the chain"));
        }
        let stages = Stages::new(self.pipeline as u32, starts, model.tied);
        stages.check(blocks).map(|()| stages)
    }
}

/// Floating-point operations of each block's forward on a token.
fn flops(model: &Model) -> Vec<f64> {
    let of = |block: BlockId| model.flops(Operation::Forward(block.into(), Extent::Output), 1, 1).0 as f64;
    (0..Schedule::blocks(model.layers)).map(|position| of(BlockId::at(position, model.layers))).collect()
}
