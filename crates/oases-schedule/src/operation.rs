//! What a compute instruction does, without on which layer and part: the key under which its duration is known.

use std::fmt;
use std::str::FromStr;

use crate::ids::BlockId;
use crate::schedule::{Extent, Instruction};

/// A kind of block: what blocks of different layers have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Token and position embedding.
    Embed,
    /// Attention.
    Attn,
    /// Multi-layer perceptron.
    Mlp,
    /// Final normalisation, logits and cross-entropy.
    Head,
}

impl Family {
    /// All of them, in the order of computation.
    pub const ALL: [Family; 4] = [Family::Embed, Family::Attn, Family::Mlp, Family::Head];

    /// The spelling in the name of an operation.
    pub fn name(self) -> &'static str {
        match self {
            Family::Embed => "embed",
            Family::Attn => "attn",
            Family::Mlp => "mlp",
            Family::Head => "head",
        }
    }
}

impl From<BlockId> for Family {
    fn from(block: BlockId) -> Family {
        match block {
            BlockId::Embed => Family::Embed,
            BlockId::Attn(_) => Family::Attn,
            BlockId::Mlp(_) => Family::Mlp,
            BlockId::Head => Family::Head,
        }
    }
}

/// What a compute instruction does. All instructions of one operation on equal numbers of sequences take equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `forward attn`
    Forward(Family),
    /// `recompute attn`, `recompute attn output`
    Recompute(Family, Extent),
    /// `loss`
    Loss,
    /// `backward attn`
    Backward(Family),
    /// `norm`
    Norm,
    /// `step`
    Step,
}

impl Operation {
    /// Whether its duration depends on the number of sequences; otherwise only on the parameters.
    pub fn is_on_part(self) -> bool {
        !matches!(self, Operation::Norm | Operation::Step)
    }
}

impl Instruction {
    /// What it computes; `None` for `start` and `sync`.
    pub fn operation(&self) -> Option<Operation> {
        Some(match *self {
            Instruction::Forward { block, .. } => Operation::Forward(block.into()),
            Instruction::Recompute { block, extent, .. } => Operation::Recompute(block.into(), extent),
            Instruction::Loss { .. } => Operation::Loss,
            Instruction::Backward { block, .. } => Operation::Backward(block.into()),
            Instruction::Norm => Operation::Norm,
            Instruction::Step => Operation::Step,
            Instruction::Start { .. } | Instruction::Sync { .. } => return None,
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Forward(family) => write!(f, "forward {}", family.name()),
            Operation::Recompute(family, Extent::Saved) => write!(f, "recompute {}", family.name()),
            Operation::Recompute(family, Extent::Output) => write!(f, "recompute {} output", family.name()),
            Operation::Loss => write!(f, "loss"),
            Operation::Backward(family) => write!(f, "backward {}", family.name()),
            Operation::Norm => write!(f, "norm"),
            Operation::Step => write!(f, "step"),
        }
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Operation, String> {
        let bad = || format!("`{text}` is not an operation (like `forward attn` or `recompute mlp output`)");
        let family = |name: &str| Family::ALL.into_iter().find(|f| f.name() == name).ok_or_else(bad);
        let words: Vec<&str> = text.split(' ').collect();
        Ok(match words.as_slice() {
            ["forward", name] => Operation::Forward(family(name)?),
            ["recompute", name] => Operation::Recompute(family(name)?, Extent::Saved),
            ["recompute", name, "output"] => Operation::Recompute(family(name)?, Extent::Output),
            ["loss"] => Operation::Loss,
            ["backward", name] => Operation::Backward(family(name)?),
            ["norm"] => Operation::Norm,
            ["step"] => Operation::Step,
            _ => return Err(bad()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for text in
            ["forward attn", "recompute mlp", "recompute attn output", "backward head", "loss", "norm"]
        {
            assert_eq!(text.parse::<Operation>().unwrap().to_string(), text);
        }
        for text in ["", "forward", "forward attn.0", "recompute mlp saved", "backward  head", "Loss"] {
            assert!(text.parse::<Operation>().is_err(), "{text}");
        }
    }
}
