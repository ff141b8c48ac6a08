//! A schedule as a value: the instruction set, and one training step as a list of instructions.

use std::fmt;

use crate::ids::{BlockId, CollectiveId, PartId, Pass, Piece};
use crate::mesh::{Axis, Grouping, Layout};

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
}

impl CollectiveKind {
    /// The spelling in the text form.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
        }
    }
}

/// One instruction. The set is closed: the interpreter, the simulator and the verifier each match on it in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instruction {
    /// Partial output of a block from its input. First completes that input: residual plus the reduced output of the
    /// block before.
    Forward {
        /// The block.
        block: BlockId,
        /// The part of the batch.
        part: PartId,
        /// What stays for backward.
        keep: Keep,
        /// How far: [`Extent::Output`], or [`Extent::Body`] where pieces follow.
        extent: Extent,
    },
    /// Rebuilds from the input what backward reads. First completes the input, as forward does, where it was not kept.
    Recompute {
        /// The block.
        block: BlockId,
        /// The part of the batch.
        part: PartId,
        /// How far.
        extent: Extent,
    },
    /// Loss of a part from the gathered statistics of its logits.
    Loss {
        /// The part of the batch.
        part: PartId,
    },
    /// A piece of the matrix product that ends a pass through a block. In backward, the normalisation of these rows too.
    Tail {
        /// Which pass.
        pass: Pass,
        /// The block.
        block: BlockId,
        /// The part of the batch.
        part: PartId,
        /// The piece.
        piece: Piece,
    },
    /// Partial gradient of a block's input, and the gradients of its parameters.
    Backward {
        /// The block.
        block: BlockId,
        /// The part of the batch.
        part: PartId,
        /// Which of these gradients.
        scope: Scope,
    },
    /// Where the TMP degree changes before a block: completes the block's input, or in backward its gradient, and puts this
    /// rank's sequences of it where the other side wants them. Where that side has more of them on a rank, the rest comes by
    /// a collective.
    Reshard {
        /// In which pass.
        pass: Pass,
        /// The block before which the degree changes.
        block: BlockId,
        /// The part of the batch.
        part: PartId,
    },
    /// Starts a collective on the communication stream.
    Start {
        /// Which collective.
        collective: CollectiveId,
        /// What it does.
        kind: CollectiveKind,
        /// Over which axis of the mesh.
        axis: Axis,
        /// Between which ranks of the axis.
        grouping: Grouping,
    },
    /// What follows may use the collective's result.
    Sync {
        /// Which collective.
        collective: CollectiveId,
    },
    /// This rank's share of the squared gradient norm.
    Norm,
    /// Clips by the norm and updates the parameters.
    Step,
}

impl Instruction {
    /// The part of the batch it works on, if on one.
    pub fn part(&self) -> Option<PartId> {
        match *self {
            Instruction::Forward { part, .. }
            | Instruction::Recompute { part, .. }
            | Instruction::Loss { part }
            | Instruction::Tail { part, .. }
            | Instruction::Reshard { part, .. }
            | Instruction::Backward { part, .. } => Some(part),
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => collective.part(),
            Instruction::Norm | Instruction::Step => None,
        }
    }

    /// The same instruction on another part. Panics for one that works on none.
    pub fn with_part(mut self, new: PartId) -> Instruction {
        match &mut self {
            Instruction::Forward { part, .. }
            | Instruction::Recompute { part, .. }
            | Instruction::Loss { part }
            | Instruction::Tail { part, .. }
            | Instruction::Reshard { part, .. }
            | Instruction::Backward { part, .. }
            | Instruction::Start {
                collective: CollectiveId::Block { part, .. } | CollectiveId::Reshard { part, .. },
                ..
            }
            | Instruction::Sync {
                collective: CollectiveId::Block { part, .. } | CollectiveId::Reshard { part, .. },
            } => *part = new,
            _ => panic!("`{self}` works on no part of the batch"),
        }
        self
    }

    /// The block that it computes on, if on one.
    pub fn block(&self) -> Option<BlockId> {
        match *self {
            Instruction::Forward { block, .. }
            | Instruction::Recompute { block, .. }
            | Instruction::Tail { block, .. }
            | Instruction::Reshard { block, .. }
            | Instruction::Backward { block, .. } => Some(block),
            _ => None,
        }
    }

    /// The pass over the chain to which it belongs; `None` for the loss, the norm, the step and their collectives.
    pub fn pass(&self) -> Option<Pass> {
        match *self {
            Instruction::Forward { .. } => Some(Pass::Forward),
            Instruction::Recompute { .. } => Some(Pass::Recompute),
            Instruction::Backward { .. } => Some(Pass::Backward),
            Instruction::Tail { pass, .. } | Instruction::Reshard { pass, .. } => Some(pass),
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => match collective {
                CollectiveId::Block { pass, .. } | CollectiveId::Reshard { pass, .. } => Some(pass),
                CollectiveId::Replicas(_) | CollectiveId::Gradients(_) | CollectiveId::Norm => None,
            },
            Instruction::Loss { .. } | Instruction::Norm | Instruction::Step => None,
        }
    }

    /// The collective that completes what this instruction leaves partial.
    pub fn produces(&self) -> Option<CollectiveId> {
        let whole = |pass, block, part| Some(CollectiveId::Block { pass, block, part, piece: None });
        match *self {
            Instruction::Forward { block, part, extent: Extent::Output, .. } => {
                whole(Pass::Forward, block, part)
            }
            Instruction::Recompute { block, part, extent: Extent::Output } => {
                whole(Pass::Recompute, block, part)
            }
            Instruction::Backward { block, part, scope: Scope::All | Scope::Input }
                if block != BlockId::Embed =>
            {
                whole(Pass::Backward, block, part)
            }
            Instruction::Tail { pass, block, part, piece } => {
                Some(CollectiveId::Block { pass, block, part, piece: Some(piece) })
            }
            Instruction::Reshard { pass, block, part } => Some(CollectiveId::Reshard { pass, block, part }),
            Instruction::Norm => Some(CollectiveId::Norm),
            _ => None,
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instruction::Forward { block, part, keep, extent } => {
                write!(f, "forward   {block} {part} keep={}", keep.name())?;
                f.write_str(if *extent == Extent::Body { " body" } else { "" })
            }
            Instruction::Recompute { block, part, extent } => {
                let space = if *extent == Extent::Saved { "" } else { " " };
                write!(f, "recompute {block} {part}{space}{}", extent.word())
            }
            Instruction::Tail { pass, block, part, piece } => {
                write!(f, "{:<9} {block} {part} tail {piece}", pass.name())
            }
            Instruction::Loss { part } => write!(f, "loss      {part}"),
            Instruction::Backward { block, part, scope } => match scope {
                Scope::All => write!(f, "backward  {block} {part}"),
                Scope::Body => write!(f, "backward  {block} {part} body"),
                Scope::Input => write!(f, "backward_input  {block} {part}"),
                Scope::Weight => write!(f, "backward_weight {block} {part}"),
            },
            Instruction::Reshard { pass, block, part } => {
                write!(f, "{:<9} {block} {part} reshard", pass.name())
            }
            Instruction::Start { collective, kind, axis, grouping } => {
                write!(f, "start     {collective} {} @{}{grouping}", kind.name(), axis.name())
            }
            Instruction::Sync { collective } => write!(f, "sync      {collective}"),
            Instruction::Norm => write!(f, "norm"),
            Instruction::Step => write!(f, "step"),
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

    /// The blocks in the order of computation.
    pub fn chain(&self) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        let layers = (0..self.layers).flat_map(|layer| [BlockId::Attn(layer), BlockId::Mlp(layer)]);
        std::iter::once(BlockId::Embed).chain(layers).chain(std::iter::once(BlockId::Head))
    }

    /// Where a block stands in the chain, or `None` where the chain has no such block.
    pub fn position(&self, block: BlockId) -> Option<usize> {
        match block {
            BlockId::Embed => Some(0),
            BlockId::Attn(layer) if layer < self.layers => Some(1 + 2 * layer as usize),
            BlockId::Mlp(layer) if layer < self.layers => Some(2 + 2 * layer as usize),
            BlockId::Head => Some(1 + 2 * self.layers as usize),
            BlockId::Attn(_) | BlockId::Mlp(_) => None,
        }
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

    /// What a collective does and between which ranks, or `None` where it has nothing to do.
    pub fn collective(&self, collective: CollectiveId) -> Option<(CollectiveKind, Grouping)> {
        let group = self.layout.group();
        let (kind, size, stride) = match collective {
            CollectiveId::Block { pass, block, .. } => {
                let gathers = pass == Pass::Forward && block == BlockId::Head;
                let kind = if gathers { CollectiveKind::AllGather } else { CollectiveKind::AllReduce };
                (kind, self.degree(block), 1)
            }
            CollectiveId::Reshard { pass, block, .. } => {
                self.border(block)?;
                let [from, to] = self.resharded(pass, block).map(|block| self.degree(block));
                (CollectiveKind::AllGather, to / from, from)
            }
            // The head's gradients travel with the embedding's: they may be one tensor.
            CollectiveId::Replicas(BlockId::Head) => return None,
            CollectiveId::Replicas(block) => {
                let degree = self.degree(block);
                (CollectiveKind::AllReduce, group / degree, degree)
            }
            CollectiveId::Gradients(_) | CollectiveId::Norm => (CollectiveKind::AllReduce, group, 1),
        };
        (size > 1).then(|| (kind, Grouping::new(size, stride, group)))
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
