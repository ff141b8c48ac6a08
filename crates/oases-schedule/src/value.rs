//! The values that flow between instructions, and how an instruction touches them.

use std::fmt;

use crate::activations::{Inside, Slot};
use crate::ids::{BlockId, CollectiveId, PartId, Pass};

/// A value that flows between instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    /// `x[k]`.
    Input(BlockId, PartId),
    /// What a block put out: partial until reduced.
    Output(BlockId, PartId),
    /// What lives inside a block from one of its instructions to another.
    Inside(Inside, BlockId, PartId),
    /// Gradient of a block's input: partial until reduced.
    Gradient(BlockId, PartId),
    /// The same, complete and as the block before wants it, where the degree changes before the block or the block runs on
    /// another stage.
    Resharded(BlockId, PartId),
    /// A block's input while a `reshard` has it in hand, as the block before has it.
    Leaving(BlockId, PartId),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, block, part) = match self {
            Value::Input(block, part) => ("input", block, part),
            Value::Output(block, part) => ("output", block, part),
            Value::Inside(Inside::Saved, block, part) => ("saved state", block, part),
            Value::Inside(Inside::Core, block, part) => ("core output", block, part),
            Value::Inside(Inside::Operand, block, part) => ("last operand", block, part),
            Value::Inside(Inside::Delta, block, part) => ("inner gradient", block, part),
            Value::Gradient(block, part) => ("input gradient", block, part),
            Value::Resharded(block, part) => ("resharded gradient", block, part),
            Value::Leaving(block, part) => ("former input", block, part),
        };
        write!(f, "{name} of {block} {part}")
    }
}

/// One operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Reads or updates a value in place. What lives inside a block has slots of its own, whatever is given here.
    Use(Value, Slot),
    /// Writes a new value.
    Create(Value, Slot),
    /// Completes the first value in place; from here on it is the second. It may lie in so many pieces by columns.
    Become(Value, Value, u8),
}

/// The value that a collective reduces or gathers, for those that belong to a part of the batch and stay on a stage.
pub(crate) fn collective_value(collective: CollectiveId) -> Option<Value> {
    match collective {
        CollectiveId::Block { pass: Pass::Forward | Pass::Recompute, block, part, .. } => {
            Some(Value::Output(block, part))
        }
        CollectiveId::Block { pass: Pass::Backward, block, part, .. } => Some(Value::Gradient(block, part)),
        CollectiveId::Reshard { pass: Pass::Backward, block, part } => Some(Value::Resharded(block, part)),
        CollectiveId::Reshard { block, part, .. } => Some(Value::Input(block, part)),
        CollectiveId::Transfer { .. }
        | CollectiveId::Replicas(_)
        | CollectiveId::Weights(_)
        | CollectiveId::Gradients(_)
        | CollectiveId::Table
        | CollectiveId::Norm => None,
    }
}
