//! The text form of a schedule: the only serialized form. It prints and parses back to the same value.
//!
//! Four header lines, then one instruction a line; `;` starts a comment and blank lines are skipped:
//!
//! ```text
//! schedule  oases
//! layers    1
//! tensor    2
//! parts     m0.a=8 m0.b=8
//!
//! forward   attn.0 m0.a keep=input
//! start     f.attn.0.m0.a all_reduce @tensor
//! sync      f.attn.0.m0.a
//! ```
//!
//! `tensor` is the TMP degree of every block of the chain: one for all, or by runs, `4*1 1*2 4*1`. Where no block spans all ranks of
//! the group, their number follows: `2 of 8`. Between which of them a collective runs stands behind the axis: nothing for all,
//! `@tensor:2` for neighbours in twos, `@tensor:2/4` for twos that are 4 apart.
//!
//! Behind `tensor` there may be `pipeline  1 of 2: embed attn.2`, the stage that the schedule is for, counted from 0, with the first block
//! of each chunk of the chain, and `tied` behind the number of stages where the head uses the embedding's table; and `optimizer sharded`.

use std::fmt;

use crate::ids::{PartId, Pass, parse_number};
use crate::instruction::Instruction;
use crate::mesh::{Axis, Grouping, Layout};
use crate::schedule::{CollectiveKind, Extent, Keep, Part, Schedule, Scope};
use crate::stage::{Optimizer, Stage};

/// More layers than any machine holds; a bound so that a typo is not an allocation of terabytes.
const MAX_LAYERS: u32 = 100_000;

/// Why a text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule  {}", self.name)?;
        writeln!(f, "layers    {}", self.layers)?;
        writeln!(f, "tensor    {}", self.layout)?;
        if self.stage != Stage::whole() {
            writeln!(f, "pipeline  {}", self.stage.text(self.layers))?;
        }
        if self.optimizer == Optimizer::Sharded {
            writeln!(f, "optimizer sharded")?;
        }
        write!(f, "parts    ")?;
        for part in &self.parts {
            write!(f, " {}={}", part.id, part.sequences)?;
        }
        writeln!(f, "\n")?;
        self.instructions.iter().try_for_each(|instruction| writeln!(f, "{instruction}"))
    }
}

/// Line number (from 1) of an instruction in the printed form of a schedule.
pub(crate) fn printed_line(schedule: &Schedule, instruction: usize) -> usize {
    // Header lines and a blank one stand before the first instruction.
    let optional = [schedule.stage != Stage::whole(), schedule.optimizer == Optimizer::Sharded];
    instruction + 6 + optional.iter().filter(|&&present| present).count()
}

impl Schedule {
    /// Reads the text form. The result is well-formed but not verified; see [`crate::verify()`].
    pub fn parse(text: &str) -> Result<Schedule, ParseError> {
        let lines = text.lines().enumerate().filter_map(|(index, line)| {
            let content = line.split(';').next().unwrap_or("").trim();
            (!content.is_empty()).then_some((index + 1, content))
        });
        let end = text.lines().count().max(1);
        let mut lines = lines.peekable();
        let mut optional = |key: &str| {
            let has =
                |content: &str| content.split_once(char::is_whitespace).is_some_and(|(word, _)| word == key);
            let (line, content) = lines.next_if(|(_, content)| has(content))?;
            Some((line, content[key.len()..].trim()))
        };
        let name = optional("schedule");
        let layers = name.and_then(|_| optional("layers"));
        let tensor = layers.and_then(|_| optional("tensor"));
        let pipeline = tensor.and_then(|_| optional("pipeline"));
        let sharded = tensor.and_then(|_| optional("optimizer"));
        let parts = tensor.and_then(|_| optional("parts"));
        let mut found = |key: &str, header: Option<(usize, _)>| match (header, lines.peek()) {
            (Some(header), _) => Ok(header),
            (None, Some((line, content))) => {
                Err(error(*line, format!("expected `{key} …`, found `{content}`")))
            }
            (None, None) => Err(error(end, format!("`{key}` line missing"))),
        };
        let (_, name) = found("schedule", name)?;
        let (line, layers) = found("layers", layers)?;
        let layers = parse_number(layers)
            .filter(|&layers| layers <= MAX_LAYERS)
            .ok_or_else(|| error(line, format!("`{layers}` is not a number of layers")))?;
        let (line, tensor) = found("tensor", tensor)?;
        let layout =
            Layout::parse(tensor, Schedule::blocks(layers)).map_err(|message| error(line, message))?;
        let stage = match pipeline {
            None => Stage::whole(),
            Some((line, text)) => Stage::parse(text, layers)
                .ok_or_else(|| error(line, format!("`{text}` is not a stage (like 1 of 2: embed attn.2)")))?,
        };
        let optimizer = match sharded {
            None => Optimizer::Whole,
            Some((_, "sharded")) => Optimizer::Sharded,
            Some((line, text)) => return Err(error(line, format!("`{text}` is not `sharded`"))),
        };
        let (line, parts) = found("parts", parts)?;
        let parts: Vec<Part> = parts
            .split_whitespace()
            .map(parse_part)
            .collect::<Result<_, _>>()
            .map_err(|message| error(line, message))?;
        let instructions = lines
            .map(|(line, content)| parse_instruction(content).map_err(|message| error(line, message)))
            .collect::<Result<_, _>>()?;
        Ok(Schedule { name: name.to_owned(), layers, layout, stage, optimizer, parts, instructions })
    }
}

fn error(line: usize, message: String) -> ParseError {
    ParseError { line, message }
}

fn parse_part(text: &str) -> Result<Part, String> {
    let (id, sequences) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not a part (like m0.a=8)"))?;
    let sequences =
        parse_number(sequences).ok_or_else(|| format!("`{sequences}` is not a number of sequences"))?;
    Ok(Part { id: id.parse()?, sequences })
}

fn parse_instruction(content: &str) -> Result<Instruction, String> {
    let words: Vec<&str> = content.split_whitespace().collect();
    let part = |text: &str| text.parse::<PartId>();
    if let [pass, block, id, "tail", piece] = words.as_slice() {
        let pass = Pass::ALL.into_iter().find(|known| known.name() == *pass);
        let pass = pass.ok_or_else(|| format!("`{content}` is not an instruction"))?;
        return Ok(Instruction::Tail { pass, block: block.parse()?, part: part(id)?, piece: piece.parse()? });
    }
    if let [pass, block, id, what @ ("reshard" | "complete")] = words.as_slice()
        && let Some(pass) = Pass::ALL.into_iter().find(|known| known.name() == *pass)
    {
        let (block, part) = (block.parse()?, part(id)?);
        return Ok(match *what {
            "reshard" => Instruction::Reshard { pass, block, part },
            _ => Instruction::Complete { pass, block, part },
        });
    }
    let forward = |block: &str, id: &str, keep: &str, extent| {
        Ok(Instruction::Forward { block: block.parse()?, part: part(id)?, keep: parse_keep(keep)?, extent })
    };
    let recompute = |block: &str, id: &str, extent| {
        Ok(Instruction::Recompute { block: block.parse()?, part: part(id)?, extent })
    };
    let backward = |block: &str, id: &str, scope| {
        Ok(Instruction::Backward { block: block.parse()?, part: part(id)?, scope })
    };
    Ok(match words.as_slice() {
        ["forward", block, id, keep] => return forward(block, id, keep, Extent::Output),
        ["forward", block, id, keep, "body"] => return forward(block, id, keep, Extent::Body),
        ["recompute", block, id] => return recompute(block, id, Extent::Saved),
        ["recompute", block, id, word] => {
            let extent = Extent::ALL.into_iter().find(|extent| extent.word() == *word);
            return recompute(
                block,
                id,
                extent.ok_or_else(|| format!("`{word}` is not core, body or output"))?,
            );
        }
        ["loss", id] => Instruction::Loss { part: part(id)? },
        ["backward", block, id] => return backward(block, id, Scope::All),
        ["backward", block, id, "body"] => return backward(block, id, Scope::Body),
        ["backward_input", block, id] => return backward(block, id, Scope::Input),
        ["backward_weight", block, id] => return backward(block, id, Scope::Weight),
        ["start", collective, kind, ranks] => {
            let (axis, grouping) = parse_ranks(ranks)?;
            Instruction::Start { collective: collective.parse()?, kind: parse_kind(kind)?, axis, grouping }
        }
        ["sync", collective] => Instruction::Sync { collective: collective.parse()? },
        ["norm"] => Instruction::Norm,
        ["step"] => Instruction::Step,
        _ => return Err(format!("`{content}` is not an instruction")),
    })
}

fn parse_keep(text: &str) -> Result<Keep, String> {
    Keep::ALL
        .into_iter()
        .find(|keep| text.strip_prefix("keep=") == Some(keep.name()))
        .ok_or_else(|| format!("`{text}` is not keep=nothing, keep=input, keep=selective or keep=all"))
}

fn parse_kind(text: &str) -> Result<CollectiveKind, String> {
    let names = CollectiveKind::ALL.map(CollectiveKind::name).join(", ");
    CollectiveKind::ALL
        .into_iter()
        .find(|kind| text == kind.name())
        .ok_or_else(|| format!("`{text}` is not a collective operation ({names})"))
}

fn parse_ranks(text: &str) -> Result<(Axis, Grouping), String> {
    let parse = || {
        let text = text.strip_prefix('@')?;
        let (axis, grouping) = text.split_at(text.find(':').unwrap_or(text.len()));
        let axis = Axis::ALL.into_iter().find(|known| known.name() == axis)?;
        Some((axis, Grouping::parse(grouping)?))
    };
    parse().ok_or_else(|| {
        format!(
            "`{text}` is not @data, @pipeline, @tensor, @ends or @world, or groups of one (like @tensor:2 or @tensor:2/4)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
schedule  by hand
layers    1
tensor    2*2 1*2
parts     m0.a=2 m0.b=1

forward   embed m0.a keep=nothing
start     f.embed.m0.a all_reduce @tensor
sync      f.embed.m0.a
start     g.embed all_reduce @data:2/4
forward   head m0.a reshard
start     f.head.m0.a:in all_gather @tensor:2
recompute mlp.0 m0.b output
recompute mlp.0 m0.b
loss      m0.a
backward  attn.0 m0.a
norm
step
";

    #[test]
    fn prints_what_it_parsed() {
        let schedule = Schedule::parse(TEXT).unwrap();
        assert_eq!(schedule.to_string(), TEXT);
        assert_eq!(schedule.batch(), 3);
        assert_eq!(
            TEXT.lines().nth(printed_line(&schedule, 0) - 1),
            Some("forward   embed m0.a keep=nothing")
        );
    }

    #[test]
    fn comments_and_spacing_do_not_matter() {
        let commented = TEXT.replace('\n', "  ; why\n\n").replace("  ", " ");
        assert_eq!(Schedule::parse(&commented).unwrap(), Schedule::parse(TEXT).unwrap());
    }

    #[test]
    fn errors_name_their_line() {
        let table = [
            ("", 1, "`schedule` line missing"),
            ("schedule x\nlayers two", 2, "`two` is not a number of layers"),
            ("schedule x\nlayers 4000000000", 2, "`4000000000` is not a number of layers"),
            (
                "schedule x\nlayers 1\ntensor 0",
                3,
                "`0` is not a TMP degree (like 2, or 8*16 for 16 blocks of degree 8)",
            ),
            ("schedule x\nlayers 1\ntensor 2*9", 3, "the degrees cover more than the 4 blocks of the chain"),
            ("schedule x\nlayers 1\ntensor 2*3", 3, "the degrees cover 3 of the 4 blocks of the chain"),
            ("schedule x\nlayers 1\ntensor 2\nparts m0", 4, "`m0` is not a part (like m0.a=8)"),
        ];
        for (text, line, message) in table {
            assert_eq!(Schedule::parse(text), Err(error(line, message.into())), "{text}");
        }
        for (wrong, message) in [
            ("jump attn.0 m0", "`jump attn.0 m0` is not an instruction"),
            (
                "forward attn.0 m0 keep=some",
                "`keep=some` is not keep=nothing, keep=input, keep=selective or keep=all",
            ),
            (
                "start f.attn.0.m0 sum @tensor",
                "`sum` is not a collective operation (all_reduce, all_gather, reduce_scatter, send, recv)",
            ),
            (
                "start g.0 all_reduce tensor",
                "`tensor` is not @data, @pipeline, @tensor, @ends or @world, or groups of one (like @tensor:2 or @tensor:2/4)",
            ),
        ] {
            let text = format!("schedule x\nlayers 1\ntensor 1\nparts m0=1\n; why\n{wrong}");
            assert_eq!(Schedule::parse(&text), Err(error(6, message.into())));
        }
    }
}
