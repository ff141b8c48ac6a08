//! Typed names of blocks, micro-batch parts and collectives; `Display` is their spelling in the text form.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A residual block of the chain `embed, attn.0, mlp.0, …, head`.
///
/// The derived order groups blocks by kind; the order of computation is [`crate::Schedule::chain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockId {
    /// Token and position embedding.
    Embed,
    /// Attention of a layer.
    Attn(u32),
    /// Multi-layer perceptron of a layer.
    Mlp(u32),
    /// Final normalisation, logits and cross-entropy.
    Head,
}

impl BlockId {
    /// Where it stands in a chain of so many layers, or `None` where the chain has no such block.
    pub fn position(self, layers: u32) -> Option<usize> {
        match self {
            BlockId::Embed => Some(0),
            BlockId::Attn(layer) if layer < layers => Some(1 + 2 * layer as usize),
            BlockId::Mlp(layer) if layer < layers => Some(2 + 2 * layer as usize),
            BlockId::Head => Some(1 + 2 * layers as usize),
            BlockId::Attn(_) | BlockId::Mlp(_) => None,
        }
    }

    /// The block at a position of a chain of so many layers: the inverse of [`BlockId::position`].
    pub fn at(position: usize, layers: u32) -> BlockId {
        let layer = (position.saturating_sub(1) / 2) as u32;
        match position {
            0 => BlockId::Embed,
            _ if layer >= layers => BlockId::Head,
            _ if position % 2 == 1 => BlockId::Attn(layer),
            _ => BlockId::Mlp(layer),
        }
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockId::Embed => write!(f, "embed"),
            BlockId::Attn(layer) => write!(f, "attn.{layer}"),
            BlockId::Mlp(layer) => write!(f, "mlp.{layer}"),
            BlockId::Head => write!(f, "head"),
        }
    }
}

impl FromStr for BlockId {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockId, String> {
        let layer = |digits: &str| parse_number(digits).ok_or_else(|| format!("`{text}` is not a block"));
        match text.split_once('.') {
            None if text == "embed" => Ok(BlockId::Embed),
            None if text == "head" => Ok(BlockId::Head),
            Some(("attn", digits)) => Ok(BlockId::Attn(layer(digits)?)),
            Some(("mlp", digits)) => Ok(BlockId::Mlp(layer(digits)?)),
            _ => Err(format!("`{text}` is not a block (embed, attn.N, mlp.N or head)")),
        }
    }
}

/// A micro-batch, or one sub-batch of it: `m0`, `m0.a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId {
    /// Index of the micro-batch in the step.
    pub micro: u32,
    /// Index of the sub-batch in the micro-batch; `None` where the micro-batch is not split.
    pub sub: Option<u8>,
}

impl PartId {
    /// Sub-batches are named by one letter each.
    pub const MAX_SUB_BATCHES: u32 = 26;

    /// The unsplit micro-batch.
    pub fn whole(micro: u32) -> PartId {
        PartId { micro, sub: None }
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.micro)?;
        match self.sub {
            Some(sub) => write!(f, ".{}", (b'a' + sub) as char),
            None => Ok(()),
        }
    }
}

impl FromStr for PartId {
    type Err = String;

    fn from_str(text: &str) -> Result<PartId, String> {
        let parse = || {
            let rest = text.strip_prefix('m')?;
            let (digits, sub) = match rest.split_once('.') {
                None => (rest, None),
                Some((digits, letter)) => match letter.as_bytes() {
                    [letter @ b'a'..=b'z'] => (digits, Some(letter - b'a')),
                    _ => return None,
                },
            };
            Some(PartId { micro: parse_number(digits)?, sub })
        };
        parse().ok_or_else(|| format!("`{text}` is not a micro-batch part (like m0 or m0.a)"))
    }
}

/// The pass over the chain in which a collective belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// `f`: reduces what a forward produced.
    Forward,
    /// `r`: reduces what a recomputation produced again.
    Recompute,
    /// `b`: reduces the gradient of a block's input.
    Backward,
}

impl Pass {
    /// All of them.
    pub const ALL: [Pass; 3] = [Pass::Forward, Pass::Recompute, Pass::Backward];

    /// The instruction of this pass.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Recompute => "recompute",
            Pass::Backward => "backward",
        }
    }

    fn letter(self) -> char {
        match self {
            Pass::Forward => 'f',
            Pass::Recompute => 'r',
            Pass::Backward => 'b',
        }
    }
}

/// Along which dimension a matrix product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cut {
    /// Rows of the result: tokens.
    Rows,
    /// Columns of the result: features. The pieces lie one behind the other, each with its rows together.
    Columns,
}

/// A piece of the matrix product that ends a pass through a block, and of the collective behind it: `2/4` is the second of
/// four by rows, `2/4c` by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// Which, from 0.
    pub index: u8,
    /// Of how many.
    pub of: u8,
    /// Along which dimension.
    pub cut: Cut,
}

impl Piece {
    /// All pieces of a product.
    pub fn all(of: u8, cut: Cut) -> impl Iterator<Item = Piece> {
        (0..of).map(move |index| Piece { index, of, cut })
    }

    /// The rows or columns of the piece, out of `extent`; near-equal.
    pub fn range(self, extent: usize) -> Range<usize> {
        let bound = |index: u8| extent * usize::from(index) / usize::from(self.of);
        bound(self.index)..bound(self.index + 1)
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", u32::from(self.index) + 1, self.of, if self.cut == Cut::Rows { "" } else { "c" })
    }
}

impl FromStr for Piece {
    type Err = String;

    fn from_str(text: &str) -> Result<Piece, String> {
        let parse = || {
            let (rest, cut) = match text.strip_suffix('c') {
                Some(rest) => (rest, Cut::Columns),
                None => (text, Cut::Rows),
            };
            let (index, of) = rest.split_once('/')?;
            let (index, of) = (parse_number(index)?.checked_sub(1)?, parse_number(of)?);
            (index < of).then_some(Piece {
                index: u8::try_from(index).ok()?,
                of: u8::try_from(of).ok()?,
                cut,
            })
        };
        parse().ok_or_else(|| format!("`{text}` is not a piece (like 2/4, or 2/4c for columns)"))
    }
}

/// Names one collective of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CollectiveId {
    /// `f.attn.0.m0.a`: the result of one block on one part, in one pass; `f.attn.0.m0.a:2/4` a piece of it.
    Block {
        /// Which pass produced it.
        pass: Pass,
        /// Which block produced it.
        block: BlockId,
        /// For which part of the batch.
        part: PartId,
        /// Which piece, where the product before it is cut.
        piece: Option<Piece>,
    },
    /// `f.attn.3.m0.a:in`: the input of a block (in backward its gradient), where the TMP degree changes before the block.
    Reshard {
        /// In which pass.
        pass: Pass,
        /// The block before which the degree changes.
        block: BlockId,
        /// For which part of the batch.
        part: PartId,
    },
    /// `f.attn.2.m0.a:p2p`: the completed input of a block (in backward its gradient), from one pipeline stage to another.
    Transfer {
        /// In which pass.
        pass: Pass,
        /// The block before which the chain crosses to another stage.
        block: BlockId,
        /// For which part of the batch.
        part: PartId,
    },
    /// `g.attn.3`: the gradients of a block's parameters, over the replicas of the block.
    Replicas(BlockId),
    /// `w.attn.3`: the parameters of a block, of which each replica has updated its share.
    Weights(BlockId),
    /// `g.0`: a bucket of parameter gradients.
    Gradients(u32),
    /// `g.table`: the gradient of a table that the first and the last pipeline stage share.
    Table,
    /// `norm`: the square of the gradient norm.
    Norm,
}

impl CollectiveId {
    /// The part of the batch that it belongs to, if to one.
    pub fn part(self) -> Option<PartId> {
        match self {
            CollectiveId::Block { part, .. }
            | CollectiveId::Reshard { part, .. }
            | CollectiveId::Transfer { part, .. } => Some(part),
            CollectiveId::Replicas(_)
            | CollectiveId::Weights(_)
            | CollectiveId::Gradients(_)
            | CollectiveId::Table
            | CollectiveId::Norm => None,
        }
    }

    /// The block that it belongs to, if to one.
    pub fn block(self) -> Option<BlockId> {
        match self {
            CollectiveId::Block { block, .. }
            | CollectiveId::Reshard { block, .. }
            | CollectiveId::Transfer { block, .. }
            | CollectiveId::Replicas(block)
            | CollectiveId::Weights(block) => Some(block),
            CollectiveId::Gradients(_) | CollectiveId::Table | CollectiveId::Norm => None,
        }
    }
}

impl fmt::Display for CollectiveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectiveId::Block { pass, block, part, piece } => {
                write!(f, "{}.{block}.{part}", pass.letter())?;
                piece.map_or(Ok(()), |piece| write!(f, ":{piece}"))
            }
            CollectiveId::Reshard { pass, block, part } => write!(f, "{}.{block}.{part}:in", pass.letter()),
            CollectiveId::Transfer { pass, block, part } => write!(f, "{}.{block}.{part}:p2p", pass.letter()),
            CollectiveId::Replicas(block) => write!(f, "g.{block}"),
            CollectiveId::Weights(block) => write!(f, "w.{block}"),
            CollectiveId::Table => write!(f, "g.table"),
            CollectiveId::Gradients(bucket) => write!(f, "g.{bucket}"),
            CollectiveId::Norm => write!(f, "norm"),
        }
    }
}

impl FromStr for CollectiveId {
    type Err = String;

    fn from_str(text: &str) -> Result<CollectiveId, String> {
        let bad = || format!("`{text}` is not a collective (like f.attn.0.m0.a, g.0 or norm)");
        match text {
            "norm" => return Ok(CollectiveId::Norm),
            "g.table" => return Ok(CollectiveId::Table),
            _ => {}
        }
        let (letter, rest) = text.split_once('.').ok_or_else(bad)?;
        let pass = match letter {
            "f" => Pass::Forward,
            "r" => Pass::Recompute,
            "b" => Pass::Backward,
            "w" => return rest.parse().map(CollectiveId::Weights).map_err(|_| bad()),
            "g" => {
                let bucket = parse_number(rest).map(CollectiveId::Gradients);
                return bucket.or_else(|| rest.parse().ok().map(CollectiveId::Replicas)).ok_or_else(bad);
            }
            _ => return Err(bad()),
        };
        let (rest, suffix) = rest.split_once(':').map_or((rest, None), |(rest, suffix)| (rest, Some(suffix)));
        // A block name has one segment (`embed`, `head`) or two (`attn.0`, `mlp.0`); the part follows.
        let named = rest.starts_with("attn.") || rest.starts_with("mlp.");
        let (at, _) = rest.match_indices('.').nth(usize::from(named)).ok_or_else(bad)?;
        let (block, part) = rest.split_at(at);
        let (block, part) = (block.parse()?, part[1..].parse()?);
        Ok(match suffix {
            Some("p2p") => CollectiveId::Transfer { pass, block, part },
            Some("in") => CollectiveId::Reshard { pass, block, part },
            Some(piece) => CollectiveId::Block { pass, block, part, piece: Some(piece.parse()?) },
            None => CollectiveId::Block { pass, block, part, piece: None },
        })
    }
}

/// A decimal number without sign or leading zeros, so that every id has exactly one spelling.
pub(crate) fn parse_number(digits: &str) -> Option<u32> {
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_spelling_and_parse_back() {
        for text in [
            "f.attn.0.m0.a",
            "f.attn.0.m0.a:2/4",
            "b.head.m3:1/1",
            "r.mlp.1.m0:255/255c",
            "b.mlp.12.m3",
            "r.head.m0.b",
            "f.embed.m10.z",
            "f.attn.12.m0.a:in",
            "b.head.m3:in",
            "f.attn.2.m0.a:p2p",
            "b.head.m12:p2p",
            "w.mlp.3",
            "g.table",
            "g.7",
            "g.attn.3",
            "g.embed",
            "norm",
        ] {
            assert_eq!(text.parse::<CollectiveId>().unwrap().to_string(), text);
        }
        for text in ["embed", "attn.0", "mlp.95", "head"] {
            assert_eq!(text.parse::<BlockId>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn positions_follow_the_chain() {
        let chain = ["embed", "attn.0", "mlp.0", "attn.1", "mlp.1", "head"];
        for (position, text) in chain.into_iter().enumerate() {
            assert_eq!(BlockId::at(position, 2).to_string(), text);
            assert_eq!(text.parse::<BlockId>().unwrap().position(2), Some(position));
        }
        assert_eq!([BlockId::Attn(2), BlockId::Mlp(2)].map(|block| block.position(2)), [None, None]);
    }

    #[test]
    fn pieces_cover_everything_once() {
        for (of, extent) in [(1, 5), (4, 8), (3, 10), (4, 2)] {
            let ranges: Vec<Range<usize>> =
                Piece::all(of, Cut::Rows).map(|piece| piece.range(extent)).collect();
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, extent));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn wrong_spellings_are_refused() {
        for text in
            ["", "f", "f.attn.0", "x.attn.0.m0", "f.attn.00.m0", "f.attn.0.m0.A", "g.", "f.mlp.m0", "é.m"]
        {
            assert!(text.parse::<CollectiveId>().is_err(), "{text}");
        }
        for text in [
            "f.mlp.0.m0:",
            "f.mlp.0.m0:0/2",
            "f.mlp.0.m0:3/2",
            "f.mlp.0.m0:1/256",
            "f.mlp.0.m0:1/2r",
            "g.0:1/2",
        ] {
            assert!(text.parse::<CollectiveId>().is_err(), "{text}");
        }
        for text in ["attn", "attn.", "attn.-1", "attn.+1", "mlp.01", "embed.0"] {
            assert!(text.parse::<BlockId>().is_err(), "{text}");
        }
        for text in ["m", "0", "m0.", "m0.ab", "m01", "m0.1"] {
            assert!(text.parse::<PartId>().is_err(), "{text}");
        }
    }
}
