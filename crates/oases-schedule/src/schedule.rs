//! A schedule as a value: one training step of one pipeline stage as a list of instructions.

use crate::ids::{BlockId, CollectiveId, PartId, Pass};
use crate::instruction::Instruction;
use crate::mesh::{Axis, Grouping, Layout};
use crate::stage::{Optimizer, Stage};

/// What a forward leaves behind for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// Nothing: an earlier block's kept input stands for it, or there is no backward.
    Nothing,
    /// The input of the block; a recomputation rebuilds the rest.
    Input,
    /// All but what the attention core puts out, which a recomputation rebuilds (Korthikanti et al., arXiv 2205.05198).
    Selective,
    /// The input and everything that backward reads.
    All,
}

impl Keep {
    /// All of them.
    pub const ALL: [Keep; 4] = [Keep::Nothing, Keep::Input, Keep::Selective, Keep::All];

    /// The spelling in the text form, after `keep=`.
    pub fn name(self) -> &'static str {
        match self {
            Keep::Nothing => "nothing",
            Keep::Input => "input",
            Keep::Selective => "selective",
            Keep::All => "all",
        }
    }
}

/// How far a forward or a recomputation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// Only the attention core, from kept queries, keys and values.
    Core,
    /// Up to what backward reads: the last matrix product of the block is left out.
    Saved,
    /// Up to the operands of the last matrix product, which follows in pieces.
    Body,
    /// Up to the partial output, for the block that follows.
    Output,
}

impl Extent {
    /// All of them.
    pub const ALL: [Extent; 4] = [Extent::Core, Extent::Saved, Extent::Body, Extent::Output];

    /// The word in the text form of a recomputation; empty for the usual one.
    pub fn word(self) -> &'static str {
        match self {
            Extent::Core => "core",
            Extent::Saved => "",
            Extent::Body => "body",
            Extent::Output => "output",
        }
    }
}

/// Which gradients a backward computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// `backward`: of the input and of the parameters.
    All,
    /// `backward_input`: of the input, and of the normalisation, through which that one goes.
    Input,
    /// `backward_weight`: of the rest of the parameters, after `backward_input`.
    Weight,
    /// `backward … body`: all but the matrix product that makes the gradient of the input, which follows in pieces, and
    /// the normalisation.
    Body,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 4] = [Scope::All, Scope::Input, Scope::Weight, Scope::Body];
}

/// What a collective does with its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// The sum over the ranks, on every rank.
    AllReduce,
    /// Every rank's slot, on every rank.
    AllGather,
    /// The sum over the ranks, each rank's slot of it on that rank.
    ReduceScatter,
    /// To the rank at the same place of another pipeline stage. It is done when that one has it.
    Send,
    /// From the rank at the same place of another pipeline stage.
    Recv,
}

impl CollectiveKind {
    /// All of them.
    pub const ALL: [CollectiveKind; 5] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::Send,
        CollectiveKind::Recv,
    ];

    /// The spelling in the text form.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::Send => "send",
            CollectiveKind::Recv => "recv",
        }
    }
}

/// A part of the batch and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub id: PartId,
    /// Sequences in it.
    pub sequences: u32,
}

/// One step of one pipeline stage, the same for all its TMP and data-parallel ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How it was built; a label without effect.
    pub name: String,
    /// Transformer layers of the chain.
    pub layers: u32,
    /// TMP degree of each block of the chain.
    pub layout: Layout,
    /// The pipeline stage that it is for.
    pub stage: Stage,
    /// Where the optimizer's moments are.
    pub optimizer: Optimizer,
    /// The parts of the batch, in sample order.
    pub parts: Vec<Part>,
    /// The step.
    pub instructions: Vec<Instruction>,
}

impl Schedule {
    /// Number of blocks: two per layer, embedding and head.
    pub fn blocks(layers: u32) -> usize {
        2 * layers as usize + 2
    }

    /// The blocks of this stage, in the order of computation.
    pub fn chain(&self) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        let (layers, blocks, stages) =
            (self.layers, Schedule::blocks(self.layers), self.stage.stages.clone());
        let positions = self.stage.chunks().flat_map(move |chunk| stages.range(chunk, blocks));
        positions.map(move |position| BlockId::at(position, layers))
    }

    /// Where a block stands in the whole chain, or `None` where the chain has no such block.
    pub fn position(&self, block: BlockId) -> Option<usize> {
        block.position(self.layers)
    }

    /// Whether this stage runs the block.
    pub fn runs(&self, block: BlockId) -> bool {
        self.position(block).is_some_and(|position| self.stage.runs(position))
    }

    /// Whether the chain crosses to another stage before the block.
    pub fn crosses(&self, block: BlockId) -> bool {
        self.position(block).is_some_and(|position| self.stage.stages.crosses(position))
    }

    /// The block whose output this block reads.
    pub fn before(&self, block: BlockId) -> Option<BlockId> {
        match block {
            BlockId::Embed => None,
            BlockId::Attn(0) => Some(BlockId::Embed),
            BlockId::Attn(layer) => Some(BlockId::Mlp(layer - 1)),
            BlockId::Mlp(layer) => Some(BlockId::Attn(layer)),
            BlockId::Head if self.layers == 0 => Some(BlockId::Embed),
            BlockId::Head => Some(BlockId::Mlp(self.layers - 1)),
        }
    }

    /// The block that reads this block's output.
    pub fn after(&self, block: BlockId) -> Option<BlockId> {
        match block {
            BlockId::Embed if self.layers > 0 => Some(BlockId::Attn(0)),
            BlockId::Attn(layer) => Some(BlockId::Mlp(layer)),
            BlockId::Mlp(layer) if layer + 1 < self.layers => Some(BlockId::Attn(layer + 1)),
            BlockId::Embed | BlockId::Mlp(_) => Some(BlockId::Head),
            BlockId::Head => None,
        }
    }

    /// TMP degree of a block of the chain.
    pub fn degree(&self, block: BlockId) -> u32 {
        self.layout.degree(self.position(block).expect("a block of the chain"))
    }

    /// The block before this one, where it has another TMP degree.
    pub fn border(&self, block: BlockId) -> Option<BlockId> {
        self.before(block).filter(|&before| self.degree(before) != self.degree(block))
    }

    /// The block from whose degree a `reshard` comes, and the one to whose degree it goes. Panics where there is no border.
    pub fn resharded(&self, pass: Pass, block: BlockId) -> [BlockId; 2] {
        let before = self.border(block).expect("a border before the block");
        if pass == Pass::Backward { [block, before] } else { [before, block] }
    }

    /// Sequences of a part on one rank of a block.
    pub fn share(&self, block: BlockId, part: PartId) -> Option<u32> {
        let replicas = self.layout.group() / self.degree(block);
        self.sequences(part).map(|sequences| sequences / replicas)
    }

    /// What a collective does and between which ranks, or `None` where it has nothing to do on this stage.
    pub fn collective(&self, collective: CollectiveId) -> Option<(CollectiveKind, Axis, Grouping)> {
        let group = self.layout.group();
        let (kind, axis, size, stride) = match collective {
            CollectiveId::Block { pass, block, .. } => {
                let gathers = pass == Pass::Forward && block == BlockId::Head;
                let kind = if gathers { CollectiveKind::AllGather } else { CollectiveKind::AllReduce };
                (kind, Axis::Tensor, self.degree(block), 1)
            }
            CollectiveId::Reshard { pass, block, .. } => {
                self.border(block)?;
                let [from, to] = self.resharded(pass, block).map(|block| self.degree(block));
                (CollectiveKind::AllGather, Axis::Tensor, to / from, from)
            }
            CollectiveId::Transfer { pass, block, .. } => {
                let kind = self.transfer(pass, block)?;
                return Some((kind, Axis::Pipeline, Grouping::Whole));
            }
            CollectiveId::Replicas(block) => {
                let (size, stride) = self.replicas(block)?;
                let kind = match self.optimizer {
                    Optimizer::Whole => CollectiveKind::AllReduce,
                    Optimizer::Sharded => CollectiveKind::ReduceScatter,
                };
                (kind, Axis::Data, size, stride)
            }
            CollectiveId::Weights(block) => {
                let (size, stride) = self.replicas(block).filter(|_| self.optimizer == Optimizer::Sharded)?;
                (CollectiveKind::AllGather, Axis::Data, size, stride)
            }
            CollectiveId::Table => {
                let table = (CollectiveKind::AllReduce, Axis::Ends, Grouping::Whole);
                return self.stage.shares_table().then_some(table);
            }
            CollectiveId::Norm if self.stage.stages.count() > 1 => {
                return Some((CollectiveKind::AllReduce, Axis::World, Grouping::Whole));
            }
            CollectiveId::Gradients(_) | CollectiveId::Norm => {
                (CollectiveKind::AllReduce, Axis::Tensor, group, 1)
            }
        };
        (size > 1).then(|| (kind, axis, Grouping::new(size, stride, group)))
    }

    /// How many replicas a block has, and how far they are apart; `None` where its gradients travel with another's.
    fn replicas(&self, block: BlockId) -> Option<(u32, u32)> {
        // The head's travel with the embedding's on one stage: they may be one tensor.
        let with_embedding = block == BlockId::Head && self.runs(BlockId::Embed);
        let degree = self.degree(block);
        (self.runs(block) && !with_embedding).then_some((self.layout.group() / degree, degree))
    }

    /// Which end of a transfer this stage is, if it is one.
    fn transfer(&self, pass: Pass, block: BlockId) -> Option<CollectiveKind> {
        let before = self.before(block).filter(|_| self.crosses(block))?;
        match (self.runs(before), self.runs(block), pass) {
            (true, _, Pass::Forward) | (_, true, Pass::Backward) => Some(CollectiveKind::Send),
            (_, true, Pass::Forward) | (true, _, Pass::Backward) => Some(CollectiveKind::Recv),
            _ => None,
        }
    }

    /// Sequences in a part.
    pub fn sequences(&self, part: PartId) -> Option<u32> {
        self.parts.iter().find(|candidate| candidate.id == part).map(|found| found.sequences)
    }

    /// Sequences of the whole step; the greatest number where they cannot be counted, which the verifier refuses.
    pub fn batch(&self) -> u32 {
        self.parts.iter().fold(0, |sum, part| u32::saturating_add(sum, part.sequences))
    }

    /// Whether it updates the parameters; otherwise it only evaluates.
    pub fn trains(&self) -> bool {
        self.instructions.iter().any(|instruction| matches!(instruction, Instruction::Step))
    }

    /// The same header with other instructions.
    pub(crate) fn with_instructions(&self, instructions: Vec<Instruction>) -> Schedule {
        Schedule { instructions, ..self.clone() }
    }
}
