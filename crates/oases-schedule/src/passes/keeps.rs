//! What forwards keep for backward, block by block.

use std::fmt;

use crate::ids::{BlockId, parse_number};
use crate::schedule::Keep;

/// What the blocks of the layers keep. Embedding and head have no choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// What the schedule's own method says.
    #[default]
    AsScheduled,
    /// The same for every block.
    Same(Keep),
    /// For `attn.0`, `mlp.0`, `attn.1` …. A schedule that recomputes whole layers follows the attention's.
    Blocks(Vec<Keep>),
}

impl Keeps {
    /// What a block of a layer is asked to keep; `None` leaves it to the schedule.
    pub fn of(&self, block: BlockId) -> Option<Keep> {
        let index = match block {
            BlockId::Attn(layer) => 2 * layer as usize,
            BlockId::Mlp(layer) => 2 * layer as usize + 1,
            BlockId::Embed | BlockId::Head => return None,
        };
        match self {
            Keeps::AsScheduled => None,
            Keeps::Same(keep) => Some(*keep),
            Keeps::Blocks(blocks) => Some(blocks[index]),
        }
    }

    /// All that is asked for somewhere.
    pub fn kinds(&self) -> Vec<Keep> {
        let mut kinds = match self {
            Keeps::AsScheduled => Vec::new(),
            Keeps::Same(keep) => vec![*keep],
            Keeps::Blocks(blocks) => blocks.clone(),
        };
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Reads `schedule`, `input`, or `input*6 all*2` for the blocks of so many layers.
    pub fn parse(text: &str, layers: u32) -> Result<Keeps, String> {
        let named =
            |word: &str| Keep::ALL.into_iter().find(|keep| keep.name() == word && *keep != Keep::Nothing);
        let bad = |word: &str| {
            format!("`{word}` is not schedule, input, selective or all, nor a run of blocks (like input*6)")
        };
        if text == "schedule" {
            return Ok(Keeps::AsScheduled);
        }
        if let Some(keep) = named(text) {
            return Ok(Keeps::Same(keep));
        }
        let count = 2 * layers as usize;
        let mut blocks = Vec::new();
        for run in text.split_whitespace() {
            let (word, length) = run.split_once('*').ok_or_else(|| bad(run))?;
            let keep = named(word).ok_or_else(|| bad(run))?;
            let length = parse_number(length).filter(|&length| length > 0).ok_or_else(|| bad(run))? as usize;
            if length > count - blocks.len() {
                return Err(format!("the runs cover more than the {count} blocks of the layers"));
            }
            blocks.extend(std::iter::repeat_n(keep, length));
        }
        match blocks.len() == count {
            true => Ok(Keeps::Blocks(blocks)),
            false => Err(format!("the runs cover {} of the {count} blocks of the layers", blocks.len())),
        }
    }
}

/// The same for all; `None` leaves it to the schedule.
impl From<Option<Keep>> for Keeps {
    fn from(keep: Option<Keep>) -> Keeps {
        keep.map_or(Keeps::AsScheduled, Keeps::Same)
    }
}

impl fmt::Display for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keeps::AsScheduled => f.write_str("schedule"),
            Keeps::Same(keep) => f.write_str(keep.name()),
            Keeps::Blocks(blocks) => {
                let runs = blocks.chunk_by(|left, right| left == right);
                let runs: Vec<String> = runs.map(|run| format!("{}*{}", run[0].name(), run.len())).collect();
                f.write_str(&runs.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_prints_what_it_parsed() {
        for text in ["schedule", "input", "selective", "all", "input*3 all*1", "all*1 selective*1 input*2"] {
            assert_eq!(Keeps::parse(text, 2).unwrap().to_string(), text);
        }
        for text in ["", "all*0 input*4", "nothing", "input*3", "input*5", "all*2 some*2", "all 4", "all*-1"]
        {
            assert!(Keeps::parse(text, 2).is_err(), "{text}");
        }
        let keeps = Keeps::parse("input*3 all*1", 2).unwrap();
        assert_eq!(keeps.of(BlockId::Attn(1)), Some(Keep::Input));
        assert_eq!(keeps.of(BlockId::Mlp(1)), Some(Keep::All));
        assert_eq!(keeps.of(BlockId::Head), None);
    }
}
