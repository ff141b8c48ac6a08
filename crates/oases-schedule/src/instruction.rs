//! The instruction set.

use std::fmt;

use crate::ids::{BlockId, CollectiveId, PartId, Pass, Piece};
use crate::mesh::{Axis, Grouping};
use crate::schedule::{CollectiveKind, Extent, Keep, Scope};

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
    /// Where the chain crosses to another pipeline stage before a block: completes the block's input on the stage that runs
    /// the block before, or in backward the input's gradient on the stage that runs the block. Then it can be sent.
    Complete {
        /// In which pass.
        pass: Pass,
        /// The block before which the chain crosses.
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
            | Instruction::Complete { part, .. }
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
            | Instruction::Complete { part, .. }
            | Instruction::Backward { part, .. }
            | Instruction::Start {
                collective:
                    CollectiveId::Block { part, .. }
                    | CollectiveId::Reshard { part, .. }
                    | CollectiveId::Transfer { part, .. },
                ..
            }
            | Instruction::Sync {
                collective:
                    CollectiveId::Block { part, .. }
                    | CollectiveId::Reshard { part, .. }
                    | CollectiveId::Transfer { part, .. },
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
            | Instruction::Complete { block, .. }
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
            Instruction::Tail { pass, .. }
            | Instruction::Reshard { pass, .. }
            | Instruction::Complete { pass, .. } => Some(pass),
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => match collective {
                CollectiveId::Block { pass, .. }
                | CollectiveId::Reshard { pass, .. }
                | CollectiveId::Transfer { pass, .. } => Some(pass),
                CollectiveId::Replicas(_)
                | CollectiveId::Weights(_)
                | CollectiveId::Gradients(_)
                | CollectiveId::Table
                | CollectiveId::Norm => None,
            },
            Instruction::Loss { .. } | Instruction::Norm | Instruction::Step => None,
        }
    }

    /// The collective that completes what this instruction leaves partial, or sends what it has completed.
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
            Instruction::Complete { pass, block, part } => Some(CollectiveId::Transfer { pass, block, part }),
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
            Instruction::Complete { pass, block, part } => {
                write!(f, "{:<9} {block} {part} complete", pass.name())
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
