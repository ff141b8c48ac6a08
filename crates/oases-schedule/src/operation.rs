//! What a compute instruction does, without on which layer and part: the key under which its duration is known.

use std::fmt;
use std::str::FromStr;

use crate::ids::{BlockId, Cut, Pass, parse_number};
use crate::instruction::Instruction;
use crate::schedule::{Extent, Scope};

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
    /// `forward attn`, `forward attn body`
    Forward(Family, Extent),
    /// `recompute attn`, `recompute attn core`, `… body`, `… output`
    Recompute(Family, Extent),
    /// `forward mlp tail 4`: one of four pieces, by columns `4c`. A recomputation's tail is the same as a forward's.
    Tail(Direction, Family, u8, Cut),
    /// `reshard forward`, `reshard backward`: between two TMP degrees. On the sequences of the side that it comes from.
    Reshard(Direction),
    /// `complete forward`, `complete backward`: before a transfer to another pipeline stage.
    Complete(Direction),
    /// `loss`
    Loss,
    /// `backward attn`, `backward attn body`, `backward_input attn`, `backward_weight attn`
    Backward(Family, Scope),
    /// `norm`
    Norm,
    /// `step`
    Step,
}

/// Along or against the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From inputs to outputs, recomputations included.
    Forward,
    /// From gradients of outputs to those of inputs.
    Backward,
}

impl From<Pass> for Direction {
    fn from(pass: Pass) -> Direction {
        if pass == Pass::Backward { Direction::Backward } else { Direction::Forward }
    }
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }
}

impl Operation {
    /// Whether its duration depends on the number of sequences; otherwise only on the parameters.
    pub fn is_on_part(self) -> bool {
        !matches!(self, Operation::Norm | Operation::Step)
    }

    /// The kind of block that it computes on, if on one.
    pub fn family(self) -> Option<Family> {
        match self {
            Operation::Forward(family, _)
            | Operation::Recompute(family, _)
            | Operation::Tail(_, family, _, _)
            | Operation::Backward(family, _) => Some(family),
            Operation::Loss => Some(Family::Head),
            Operation::Reshard(_) | Operation::Complete(_) | Operation::Norm | Operation::Step => None,
        }
    }
}

impl Instruction {
    /// What it computes; `None` for `start` and `sync`.
    pub fn operation(&self) -> Option<Operation> {
        Some(match *self {
            Instruction::Forward { block, extent, .. } => Operation::Forward(block.into(), extent),
            Instruction::Recompute { block, extent, .. } => Operation::Recompute(block.into(), extent),
            Instruction::Tail { pass, block, piece, .. } => {
                Operation::Tail(pass.into(), block.into(), piece.of, piece.cut)
            }
            Instruction::Reshard { pass, .. } => Operation::Reshard(pass.into()),
            Instruction::Complete { pass, .. } => Operation::Complete(pass.into()),
            Instruction::Loss { .. } => Operation::Loss,
            Instruction::Backward { block, scope, .. } => Operation::Backward(block.into(), scope),
            Instruction::Norm => Operation::Norm,
            Instruction::Step => Operation::Step,
            Instruction::Start { .. } | Instruction::Sync { .. } => return None,
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extent = |f: &mut fmt::Formatter<'_>, extent: Extent, usual: Extent| match extent {
            extent if extent == usual => Ok(()),
            Extent::Saved => write!(f, " saved"),
            extent => write!(f, " {}", extent.word()),
        };
        match *self {
            Operation::Forward(family, far) => {
                write!(f, "forward {}", family.name())?;
                extent(f, far, Extent::Output)
            }
            Operation::Recompute(family, far) => {
                write!(f, "recompute {}", family.name())?;
                extent(f, far, Extent::Saved)
            }
            Operation::Tail(direction, family, of, cut) => {
                let pass = direction.name();
                let unit = if cut == Cut::Rows { "" } else { "c" };
                write!(f, "{pass} {} tail {of}{unit}", family.name())
            }
            Operation::Reshard(direction) => write!(f, "reshard {}", direction.name()),
            Operation::Complete(direction) => write!(f, "complete {}", direction.name()),
            Operation::Loss => write!(f, "loss"),
            Operation::Backward(family, scope) => match scope {
                Scope::All => write!(f, "backward {}", family.name()),
                Scope::Body => write!(f, "backward {} body", family.name()),
                Scope::Input => write!(f, "backward_input {}", family.name()),
                Scope::Weight => write!(f, "backward_weight {}", family.name()),
            },
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
        if let [pass, name, "tail", pieces] = words.as_slice() {
            let direction = match *pass {
                "forward" => Direction::Forward,
                "backward" => Direction::Backward,
                _ => return Err(bad()),
            };
            let (of, cut) = match pieces.strip_suffix('c') {
                Some(of) => (of, Cut::Columns),
                None => (*pieces, Cut::Rows),
            };
            let of =
                parse_number(of).and_then(|of| u8::try_from(of).ok()).filter(|of| *of > 0).ok_or_else(bad)?;
            return Ok(Operation::Tail(direction, family(name)?, of, cut));
        }
        Ok(match words.as_slice() {
            ["forward", name] => Operation::Forward(family(name)?, Extent::Output),
            ["forward", name, "body"] => Operation::Forward(family(name)?, Extent::Body),
            ["recompute", name] => Operation::Recompute(family(name)?, Extent::Saved),
            ["recompute", name, "core"] => Operation::Recompute(family(name)?, Extent::Core),
            ["recompute", name, "body"] => Operation::Recompute(family(name)?, Extent::Body),
            ["recompute", name, "output"] => Operation::Recompute(family(name)?, Extent::Output),
            ["reshard", "forward"] => Operation::Reshard(Direction::Forward),
            ["reshard", "backward"] => Operation::Reshard(Direction::Backward),
            ["complete", "forward"] => Operation::Complete(Direction::Forward),
            ["complete", "backward"] => Operation::Complete(Direction::Backward),
            ["loss"] => Operation::Loss,
            ["backward", name] => Operation::Backward(family(name)?, Scope::All),
            ["backward", name, "body"] => Operation::Backward(family(name)?, Scope::Body),
            ["backward_input", name] => Operation::Backward(family(name)?, Scope::Input),
            ["backward_weight", name] => Operation::Backward(family(name)?, Scope::Weight),
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
        for text in [
            "forward attn",
            "recompute mlp",
            "recompute attn output",
            "forward mlp body",
            "recompute attn core",
            "forward mlp tail 4c",
            "backward attn tail 2",
            "backward_input mlp",
            "backward_weight head",
            "backward mlp body",
            "backward head",
            "reshard forward",
            "reshard backward",
            "complete forward",
            "complete backward",
            "loss",
            "norm",
        ] {
            assert_eq!(text.parse::<Operation>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "forward",
            "forward attn.0",
            "recompute mlp saved",
            "recompute attn tail 2",
            "forward mlp tail 0",
            "backward  head",
            "Loss",
        ] {
            assert!(text.parse::<Operation>().is_err(), "{text}");
        }
    }
}
